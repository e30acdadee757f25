//! The data directory of mcctl's master: what it outlives, which flags select it, and who else uses
//! it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::lint::findings::Findings;
use crate::lint::model::{
    ContainerMount, Implementation, LocatedValue, MountSource, Process, ProcessRole, RuntimeKind,
};
use crate::lint::settings::{ProcessView, SettingValue};
use crate::lint::view::DeploymentView;
use crate::plan::master_disk::volatile_folder;
use mcctl_base::upstream::FlagKind;

/// The variable with the directory for snapshots.
const SNAPSHOT_PATH: &str = "MOONCAKE_SNAPSHOT_LOCAL_PATH";

/// Where a master of mcctl keeps its state.
pub(super) enum MasterData {
    /// In memory only.
    Memory,
    /// In the directory of `--data-dir`, or below that of [`SNAPSHOT_PATH`] with
    /// `--enable_snapshot`.
    Directory(LocatedValue),
    /// In a directory that the provided files do not specify, or possibly in memory.
    Unknown,
}

/// Where the master of mcctl, or `mcctl up`, keeps its state.
pub(super) fn data_of(member: &ProcessView<'_>) -> MasterData {
    match member.master("data_dir") {
        SettingValue::Is(located) if !located.text.is_empty() => return MasterData::Directory(located),
        SettingValue::Unknown => return MasterData::Unknown,
        _ => {}
    }
    match (member.master_switch("enable_snapshot"), member.process.var(SNAPSHOT_PATH)) {
        (Some(false), _) => MasterData::Memory,
        (Some(true), Some(located)) => MasterData::Directory(located.clone()),
        _ => MasterData::Unknown,
    }
}

/// The type of a flag that only mcctl's master has, if its values are restricted.
pub(super) fn mcctl_flag(name: &str) -> Option<FlagKind> {
    match name {
        "on_disk_error" => Some(FlagKind::Word { words: &["stop", "continue-memory-only"], fallback: None }),
        "discard_data" => Some(FlagKind::Switch),
        "data_format" => Some(FlagKind::Uint32),
        "fsync" => Some(FlagKind::Text),
        "disk_stall_timeout" => Some(FlagKind::Duration),
        _ => None,
    }
}

/// Whether `text` is a value of `--fsync`.
pub(super) fn is_sync_mode(text: &str) -> bool {
    let is_time = |text: &str| {
        let number = text.strip_suffix("ms").or_else(|| text.strip_suffix('s'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    matches!(text, "always" | "never" | "interval") || text.strip_prefix("interval=").is_some_and(is_time)
}

/// The masters of mcctl, including those of `mcctl up`.
fn mcctl_masters<'v, 's>(view: &'v DeploymentView<'s>) -> impl Iterator<Item = &'v ProcessView<'s>> {
    let is_master = |member: &&ProcessView<'_>| matches!(member.process.role, ProcessRole::Master | ProcessRole::Up);
    view.member.iter().filter(|member| member.process.implementation == Implementation::Mcctl).filter(is_master)
}

/// The mount that contains `path`.
fn mount_of<'p>(process: &'p Process, path: &str) -> Option<&'p ContainerMount> {
    let contains = |mount: &&ContainerMount| Path::new(path).starts_with(&mount.path);
    process.limits.mounts.iter().filter(contains).max_by_key(|mount| mount.path.len())
}

/// A data directory that ends with its pod, its container or its host's uptime does not keep the
/// keys.
pub(super) fn outlives(view: &DeploymentView<'_>, out: &mut Findings) {
    const KEPT: &str = "the keys do not survive";
    for member in mcctl_masters(view) {
        let MasterData::Directory(directory) = data_of(member) else { continue };
        let path = directory.text.trim();
        let process = member.process;
        let mount = mount_of(process, path);
        let on_host = match (process.runtime.is_container(), mount.map(|mount| &mount.source)) {
            (false, _) => path,
            (true, Some(MountSource::Host(from))) => from,
            (true, Some(MountSource::Volume(_))) => continue,
            (true, None) if process.limits.is_partial => continue,
            (true, source) => {
                let (what, evidence) = match source {
                    Some(MountSource::EmptyDir) => ("a new pod", "an emptyDir is removed with its pod"),
                    Some(MountSource::Memory(_)) => ("a new container", "the volume is in memory"),
                    _ => ("a new container", "no volume is mounted there"),
                };
                let remedy = match process.runtime {
                    RuntimeKind::Kubernetes => "run a StatefulSet with a volumeClaimTemplate for the data directory",
                    RuntimeKind::Compose => "mount a named volume there",
                    _ => "mount a named volume there: --volume NAME:DIR",
                };
                out.warning(
                    mount.map_or(&directory.place, |mount| &mount.place),
                    format!("{KEPT} {what}: the master's data directory is removed"),
                    format!("{path}: {evidence}"),
                    remedy,
                );
                continue;
            }
        };
        if let Some(folder) = volatile_folder(Path::new(on_host)) {
            out.warning(
                &directory.place,
                format!("{KEPT} a reboot: the master's data directory is below {folder}"),
                format!("{on_host} is in memory, or emptied when the host starts"),
                "use a directory on a local disk, such as /var/lib/mcctl",
            );
        }
    }
}

/// Flags that select two directories, none, or remove what is in one.
pub(super) fn flags(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in mcctl_masters(view) {
        let place = |name: &str| match member.master(name) {
            SettingValue::Is(located) => located.place,
            _ => member.process.place.clone(),
        };
        let has_directory = matches!(member.master("data_dir"), SettingValue::Is(located) if !located.text.is_empty());
        let snapshots = member.master_switch("enable_snapshot");
        let is_elected = member.master_switch("enable_ha");
        if snapshots == Some(true) && is_elected == Some(true) {
            out.error(
                &place("enable_snapshot"),
                "the master exits at startup: a master of a cluster keeps its copy in --data-dir, not in snapshots",
                format!("enable_snapshot with enable_ha at {}", place("enable_ha")),
                "remove --enable_snapshot and --enable_snapshot_restore, and set --data-dir=DIR",
            );
        } else if snapshots == Some(true) && has_directory {
            out.error(
                &place("enable_snapshot"),
                "the master exits at startup: --data-dir and --enable_snapshot both select a data directory",
                format!("--data-dir at {}", place("data_dir")),
                "remove --enable_snapshot and --enable_snapshot_restore",
            );
        } else if snapshots == Some(true) {
            if member.process.lacks_var(SNAPSHOT_PATH) {
                out.error(
                    &place("enable_snapshot"),
                    "the master exits at startup: it has no directory for its snapshots",
                    format!("enable_snapshot is on, but {SNAPSHOT_PATH} is not set"),
                    format!("replace --enable_snapshot by --data-dir=DIR, or set {SNAPSHOT_PATH}"),
                );
            }
            if member.master_switch("enable_snapshot_restore") == Some(false) {
                out.warning(
                    &place("enable_snapshot"),
                    "each start of the master begins with an empty store: it sets the existing data aside",
                    "enable_snapshot without enable_snapshot_restore",
                    "replace --enable_snapshot by --data-dir=DIR, or set --enable_snapshot_restore, too",
                );
            }
        }
        if let (Some(false), Some(true)) = (snapshots, member.master_switch("enable_snapshot_restore")) {
            out.error(
                &place("enable_snapshot_restore"),
                "the master exits at startup: enable_snapshot_restore requires enable_snapshot",
                "enable_snapshot is off",
                "replace --enable_snapshot_restore by --data-dir=DIR, or set --enable_snapshot, too",
            );
            continue;
        }
        let in_memory = matches!(data_of(member), MasterData::Memory);
        for name in ["fsync", "on_disk_error", "disk_stall_timeout", "discard_data", "data_format"] {
            // A leader sends records to its standbys, with and without a directory.
            if name == "data_format" && is_elected != Some(false) {
                continue;
            }
            if let (SettingValue::Is(located), true) = (member.master(name), in_memory) {
                out.error(
                    &located.place,
                    format!("the master exits at startup: {name} requires a data directory"),
                    "data_dir is not set",
                    "set --data-dir=DIR, or remove the flag",
                );
            }
        }
        if member.master_switch("discard_data") == Some(true) && !in_memory {
            out.warning(
                &place("discard_data"),
                "each start of the master removes its data",
                "discard_data is on",
                "remove --discard-data, and pass it only when the data is to be removed",
            );
        }
        match member.master("fsync") {
            SettingValue::Is(located) if located.text == "never" && !in_memory => out.info(
                &located.place,
                "a power loss may take the newest keys of about 30 s: the kernel decides when the log reaches the disk",
                "fsync is never; a crash of the process loses none",
                "use the default, --fsync=interval=50ms",
            ),
            _ => {}
        }
    }
}

/// A second master that uses a data directory exits, because the first one has locked it.
pub(super) fn sharing(view: &DeploymentView<'_>, out: &mut Findings) {
    let mut used: BTreeMap<(String, String), &Process> = BTreeMap::new();
    // Running processes have already locked their directories, and may have the same path in
    // different containers.
    let starts =
        |member: &&ProcessView<'_>| !matches!(member.process.runtime, RuntimeKind::File | RuntimeKind::Running);
    for member in mcctl_masters(view).filter(starts) {
        let MasterData::Directory(directory) = data_of(member) else { continue };
        let path = directory.text.trim_end_matches('/');
        let process = member.process;
        let mount = mount_of(process, path);
        let pods = process.pod.and_then(|pods| view.deployment.pods.get(pods)).filter(|pods| pods.is_deployment);
        // On another host, a host path is another directory.
        if let (Some(pods), Some(MountSource::Volume(_))) = (pods, mount.map(|mount| &mount.source)) {
            let count = process.replicas.as_ref().filter(|count| count.text.parse().is_ok_and(|count: u64| count > 1));
            if let Some(count) = count {
                out.error(
                    &count.place,
                    format!(
                        "only one of {} replicas starts: they share a data directory, which one of them locks",
                        count.text
                    ),
                    format!("the pods of {} share the volume at {path}", pods.name),
                    "set replicas to 1 and use a StatefulSet with a volumeClaimTemplate",
                );
            } else if let Some(surge) = &pods.surge {
                out.error(
                    surge,
                    "an update never completes: the new pod needs the data directory that the old pod has locked",
                    format!("{} starts the new pod first (RollingUpdate); both use the volume at {path}", pods.name),
                    "use a StatefulSet with a volumeClaimTemplate, or set strategy: {type: Recreate}",
                );
            }
        }
        let Some(scope) = scope(process, mount, path) else { continue };
        match used.get(&scope) {
            Some(other) if other.surely_overlaps(process) => out.error(
                &directory.place,
                format!("{} does not start: another master has locked its data directory", process.describe()),
                format!("{} of {} at {}", scope.1, other.describe(), other.place),
                "use a separate directory for each master",
            ),
            Some(_) => {}
            None => _ = used.insert(scope, process),
        }
    }
}

/// Where the directory is: the host or the file whose processes share it, and its path there.
/// `None` if other processes have their own.
fn scope(process: &Process, mount: Option<&ContainerMount>, path: &str) -> Option<(String, String)> {
    if !process.runtime.is_container() {
        return Some((process.network.clone(), path.to_owned()));
    }
    let mount = mount.filter(|_| process.runtime != RuntimeKind::Kubernetes)?;
    let below = path.strip_prefix(mount.path.trim_end_matches('/')).unwrap_or_default();
    match &mount.source {
        MountSource::Host(from) => Some((process.place.file.to_string(), format!("{from}{below}"))),
        MountSource::Volume(from) if !from.is_empty() => {
            Some((process.place.file.to_string(), format!("{from}{below}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_modes_are_recognized() {
        for text in ["always", "never", "interval", "interval=50ms", "interval=2s"] {
            assert!(is_sync_mode(text), "{text}");
        }
        for text in ["", "Always", "50ms", "interval=", "interval=ms", "interval=50", "interval=-1ms"] {
            assert!(!is_sync_mode(text), "{text}");
        }
    }
}
