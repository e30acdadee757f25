//! The data directory of mcctl's master.

use std::path::Path;
use std::time::Duration;

use crate::host::data_facts::{DataFacts, DataIdentity};
use crate::host::{HostFacts, PlannedData};
use crate::{find, status};
use mcctl_base::ByteSize;
use mcctl_base::check::{Check, CheckStatus, Finding, Severity};
use mcctl_deploy::plan::master_disk::{START_BYTES, disk_bytes, volatile_folder};

/// The format of the identity file that this release reads.
const FORMAT: u32 = 1;
/// Number of keys that the free space is compared with if no number is planned.
const KEYS: u64 = 1_000_000;
/// File systems in memory.
const IN_MEMORY: &[&str] = &["tmpfs", "ramfs", "hugetlbfs"];
/// File systems of other hosts. Their locks and syncs depend on a server.
const NETWORK: &[&str] =
    &["nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs", "9p", "fuse"];
/// Median time of a sync above which the log cannot be synced at the default interval.
const SYNC_MAX: Duration = Duration::from_millis(50);
/// Median time of a sync above which `--fsync always` costs more than a request on a network.
const SYNC_SLOW: Duration = Duration::from_millis(5);

pub(super) fn check(facts: &HostFacts, check: &Check) -> CheckStatus {
    match (&facts.intent.data, &facts.data) {
        (Some(planned), Some(data)) => judge(planned, data, check),
        _ => CheckStatus::Skipped("no data directory is planned: pass --data-dir DIR".to_owned()),
    }
}

fn judge(planned: &PlannedData, data: &DataFacts, check: &Check) -> CheckStatus {
    let report = |severity, finding: &str, evidence: String, remedy: &str| {
        find(check, severity, finding, format!("{}; {evidence}", planned.origin), remedy)
    };
    if data.exists && !data.is_directory {
        let found = report(
            Severity::Error,
            "the master's data directory is not a directory: the master exits",
            format!("{} is a file", planned.path),
            "use another path",
        );
        return CheckStatus::Found(vec![found]);
    }
    if let Some(why) = &data.unwritable {
        let (finding, remedy) = match data.exists {
            true => ("this user cannot write to the master's data directory: the master exits", "change its owner"),
            false => ("this user cannot create the master's data directory: the master exits", "create it"),
        };
        let found = report(
            Severity::Error,
            finding,
            format!("{}: {why}", data.existing),
            &format!("{remedy}, or run doctor as the user that runs the master"),
        );
        return CheckStatus::Found(vec![found]);
    }
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(
        contents(planned, data)
            .map(|(severity, finding, evidence, remedy)| report(severity, &finding, evidence, remedy)),
    );
    findings.extend(medium(planned, data).map(|(finding, evidence)| {
        report(Severity::Warning, finding, evidence, "use a directory on a local disk, such as /var/lib/mcctl")
    }));
    let need = disk_bytes(planned.keys.unwrap_or(KEYS));
    if let Some((free, _)) = data.space.filter(|(free, _)| free.saturating_add(data.used) < need) {
        let (severity, finding) = match free.saturating_add(data.used) < START_BYTES {
            true => (
                Severity::Error,
                "the disk of the master's data directory is too full for its log files: the master exits",
            ),
            false => (Severity::Warning, "the disk of the master's data directory is too small for the planned keys"),
        };
        let keys = planned.keys.unwrap_or(KEYS);
        let evidence = format!("{} free in {}; {keys} keys need {}", ByteSize(free), data.existing, ByteSize(need));
        findings.push(report(severity, finding, evidence, "free some space, or use a directory on another disk"));
    }
    match &data.syncs {
        Some(Err(error)) => findings.push(report(
            Severity::Error,
            "the disk of the master's data directory fails: a file cannot be written and synced",
            error.to_string(),
            "check the kernel's log (dmesg), or use another disk",
        )),
        Some(Ok(times)) if median(times) > SYNC_SLOW => {
            let is_over = median(times) > SYNC_MAX;
            let finding = match is_over {
                true => {
                    "the disk of the master's data directory is slow: the log is synced less often than every 50 ms"
                }
                false => {
                    "the disk of the master's data directory is slow for --fsync always: each change waits for a sync"
                }
            };
            let severity = if is_over { Severity::Warning } else { Severity::Info };
            findings.push(report(severity, finding, synced(times), "use a local SSD with power-loss protection"));
        }
        _ => {}
    }
    if data.is_locked {
        findings.push(report(
            Severity::Info,
            "the master's data directory is in use: a second master with this directory exits",
            format!("a process has locked {}/lock", data.existing),
            "no action is needed if this is the running master",
        ));
    }
    status(findings, || observed(planned, data))
}

/// What is wrong with the data in the directory. The texts are finding, evidence and remedy.
fn contents(planned: &PlannedData, data: &DataFacts) -> Option<(Severity, String, String, &'static str)> {
    const DISCARD: &str = "use another directory, or pass --discard-data once, which removes the data";
    let unusable = |why: &str| format!("the master exits, because its data directory is unusable: {why}");
    let identity = match &data.identity {
        _ if data.is_invalid => {
            let evidence = "the last master continued without the directory after a disk error".to_owned();
            return Some((Severity::Error, unusable("it is marked as incomplete"), evidence, DISCARD));
        }
        None if data.has_data => {
            let evidence = "identity.json is missing".to_owned();
            return Some((Severity::Error, unusable("its identity is missing"), evidence, DISCARD));
        }
        None => return None,
        Some(Err(error)) => {
            let evidence = format!("identity.json: {error}");
            return Some((Severity::Error, unusable("its identity cannot be read"), evidence, DISCARD));
        }
        Some(Ok(identity)) => identity,
    };
    if identity.format != FORMAT {
        let evidence =
            format!("format {}, written by {}; this release reads {FORMAT}", identity.format, identity.writer);
        return Some((Severity::Error, unusable("its format is unknown"), evidence, "use the release that wrote it"));
    }
    let expected = planned.cluster_id.as_ref().filter(|expected| **expected != identity.cluster_id)?;
    let evidence = format!("the data belongs to cluster '{}', not to '{expected}'", identity.cluster_id);
    let remedy = "use another directory, or start the master with the data's --cluster_id";
    Some((Severity::Error, unusable("it belongs to another cluster"), evidence, remedy))
}

/// Why the directory does not keep data, or is slow to. The texts are finding and evidence.
fn medium(planned: &PlannedData, data: &DataFacts) -> Option<(&'static str, String)> {
    let kind = data.file_system.as_deref().unwrap_or_default();
    let seen = format!("{} is on {kind}", data.existing);
    if IN_MEMORY.contains(&kind) {
        return Some(("a reboot removes the master's data directory: it is in memory", seen));
    }
    if NETWORK.contains(&kind) || kind.starts_with("fuse.") {
        return Some((
            "the master's data directory is on a network file system: its locks and syncs depend on a server",
            seen,
        ));
    }
    if kind == "overlay" {
        return Some(("the master's data directory is removed with its container", seen));
    }
    let folder = volatile_folder(Path::new(&planned.path))?;
    Some(("a reboot may remove the master's data directory", format!("{} is below {folder}", planned.path)))
}

/// The middle of sorted times, or zero if there are none.
fn median(times: &[Duration]) -> Duration {
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn synced(times: &[Duration]) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let worst = times.last().copied().unwrap_or_default();
    format!(
        "a sync of 4 KiB takes {:.1} ms (median of {}, longest {:.1} ms)",
        ms(median(times)),
        times.len(),
        ms(worst)
    )
}

fn observed(planned: &PlannedData, data: &DataFacts) -> String {
    let mut seen = vec![match (data.exists, &data.identity) {
        (false, _) => format!("{} can be created", planned.path),
        (true, Some(Ok(DataIdentity { cluster_id, .. }))) => format!("{} of cluster '{cluster_id}'", planned.path),
        (true, _) => format!("{} has no data yet", planned.path),
    }];
    seen.extend(data.file_system.clone());
    match data.space {
        Some((free, _)) => seen.push(format!("{} free", ByteSize(free))),
        None => seen.push("free space, lock and sync times can only be read on this host".to_owned()),
    }
    if let Some(Ok(times)) = &data.syncs {
        seen.push(synced(times));
    }
    seen.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::data_facts::IdentityReadError;
    use mcctl_base::check::CheckGroup;

    const CHECK: Check = Check { id: "data-directory", group: CheckGroup::Host, about: "a", problems: &[] };

    fn planned() -> PlannedData {
        PlannedData {
            path: "/var/lib/kv".to_owned(),
            origin: "--data-dir /var/lib/kv".to_owned(),
            cluster_id: Some("a".to_owned()),
            keys: None,
            may_write: true,
        }
    }

    /// A directory with data on which the check passes.
    fn healthy() -> DataFacts {
        let identity = DataIdentity { format: FORMAT, writer: "mcctl 0.1.0".to_owned(), cluster_id: "a".to_owned() };
        DataFacts {
            existing: "/var/lib/kv".to_owned(),
            exists: true,
            is_directory: true,
            space: Some((100 << 30, 200 << 30)),
            file_system: Some("ext4".to_owned()),
            has_data: true,
            identity: Some(Ok(identity)),
            syncs: Some(Ok(vec![Duration::from_micros(300); 32])),
            ..DataFacts::default()
        }
    }

    #[track_caller]
    fn found(data: DataFacts, severity: Severity, part: &str) {
        let CheckStatus::Found(findings) = judge(&planned(), &data, &CHECK) else { panic!("{data:?}") };
        let [finding] = &findings[..] else { panic!("{findings:#?}") };
        assert!(finding.severity == severity && finding.finding.contains(part), "{finding:?}");
    }

    #[test]
    fn a_writable_directory_on_a_local_disk_passes() {
        let CheckStatus::Passed(seen) = judge(&planned(), &healthy(), &CHECK) else { panic!() };
        assert!(seen.contains("cluster 'a'") && seen.contains("ext4") && seen.contains("0.3 ms"), "{seen}");
        let missing = DataFacts { exists: false, is_directory: false, identity: None, has_data: false, ..healthy() };
        assert!(matches!(judge(&planned(), &missing, &CHECK), CheckStatus::Passed(_)));
    }

    #[test]
    fn paths_that_cannot_be_used_are_errors() {
        found(DataFacts { is_directory: false, ..healthy() }, Severity::Error, "not a directory");
        let denied = || Some("Permission denied".to_owned());
        found(DataFacts { unwritable: denied(), ..healthy() }, Severity::Error, "cannot write");
        found(DataFacts { exists: false, unwritable: denied(), ..healthy() }, Severity::Error, "cannot create");
        let failed = Some(Err(std::io::Error::from_raw_os_error(5)));
        found(DataFacts { syncs: failed, ..healthy() }, Severity::Error, "fails");
    }

    #[test]
    fn data_that_the_master_refuses_is_an_error() {
        let of = |format, cluster: &str| {
            Some(Ok(DataIdentity { format, writer: "mcctl 9".to_owned(), cluster_id: cluster.to_owned() }))
        };
        found(DataFacts { identity: of(9, ""), ..healthy() }, Severity::Error, "format is unknown");
        found(DataFacts { identity: of(1, "b"), ..healthy() }, Severity::Error, "another cluster");
        let invalid = serde_json::from_str::<DataIdentity>("{").map_err(IdentityReadError::from);
        found(DataFacts { identity: Some(invalid), ..healthy() }, Severity::Error, "cannot be read");
        found(DataFacts { identity: None, ..healthy() }, Severity::Error, "identity is missing");
        found(DataFacts { is_invalid: true, ..healthy() }, Severity::Error, "incomplete");
    }

    #[test]
    fn media_that_lose_data_or_are_remote_are_warnings() {
        let on = |kind: &str| DataFacts { file_system: Some(kind.to_owned()), ..healthy() };
        found(on("tmpfs"), Severity::Warning, "in memory");
        found(on("nfs4"), Severity::Warning, "network file system");
        found(on("fuse.juicefs"), Severity::Warning, "network file system");
        found(on("overlay"), Severity::Warning, "container");
        let volatile = PlannedData { path: "/run/kv".to_owned(), ..planned() };
        assert!(matches!(judge(&volatile, &healthy(), &CHECK), CheckStatus::Found(_)));
    }

    #[test]
    fn space_is_compared_with_the_planned_keys() {
        let free = |bytes| DataFacts { space: Some((bytes, 200 << 30)), ..healthy() };
        found(free(1 << 20), Severity::Error, "too full");
        found(free(400 << 20), Severity::Warning, "too small");
        let used = DataFacts { used: 400 << 20, ..free(400 << 20) };
        assert!(matches!(judge(&planned(), &used, &CHECK), CheckStatus::Passed(_)), "its own files count as free");
        let many = PlannedData { keys: Some(1_000_000_000), ..planned() };
        assert!(matches!(judge(&many, &healthy(), &CHECK), CheckStatus::Found(_)));
    }

    #[test]
    fn slow_syncs_and_a_lock_are_reported() {
        let taking = |ms| DataFacts { syncs: Some(Ok(vec![Duration::from_millis(ms)])), ..healthy() };
        found(taking(20), Severity::Info, "--fsync always");
        found(taking(80), Severity::Warning, "less often");
        found(DataFacts { is_locked: true, ..healthy() }, Severity::Info, "in use");
    }
}
