//! Container and unit settings: images, RDMA devices, locked memory, shared memory.

use std::collections::BTreeMap;

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, LocatedValue, MountSource, Process, ProcessRole, RuntimeKind};
use crate::lint::release::release_of_image;
use crate::lint::settings::{ProcessView, SettingValue};
use crate::lint::view::DeploymentView;
use mcctl_base::upstream::Release;

/// The master must serve the release of its clients. An upstream master serves its own one: a
/// client of another release stores nothing, and the handshake does not detect the difference.
/// mcctl serves all releases of its table.
pub(super) fn releases(view: &DeploymentView<'_>, out: &mut Findings) {
    let release = |process: &Process| release_of_image(&process.image.as_ref()?.text);
    let Some(master) = view.masters().find(|member| release(member.process).is_some()) else {
        return same_repository(view, out);
    };
    let Some(theirs) = release(master.process) else { return };
    for member in view.clients() {
        let Some(ours) = release(member.process).filter(|ours| *ours != theirs) else { continue };
        if !member.process.surely_meets(master.process) || serves(master.process, &theirs, &ours) {
            continue;
        }
        if let (Some(image), Some(other)) = (&member.process.image, &master.process.image) {
            report_release_mismatch(out, member.process, image, other, &ours, &theirs);
        }
    }
}

/// Whether a master of the release `theirs` serves clients of `ours`.
fn serves(master: &Process, theirs: &str, ours: &str) -> bool {
    let [theirs, ours] = [theirs, ours].map(Release::of_version);
    match master.implementation {
        Implementation::Mcctl => ours.is_some(),
        _ => theirs.zip(ours).is_some_and(|(theirs, ours)| theirs.works_with(ours)),
    }
}

/// Images from one repository with different tags.
fn same_repository(view: &DeploymentView<'_>, out: &mut Findings) {
    for master in view.masters().filter(|master| master.process.implementation != Implementation::Mcctl) {
        let Some(theirs) = master.process.image.as_ref().filter(|image| image.is_known()) else { continue };
        for member in view.clients() {
            let Some(ours) = member.process.image.as_ref().filter(|image| image.is_known()) else { continue };
            let (our_name, our_tag) = split(&ours.text);
            let (their_name, their_tag) = split(&theirs.text);
            // A digest and a tag may refer to the same image.
            let are_alike = our_tag.contains(':') == their_tag.contains(':');
            let meets = member.process.surely_meets(master.process);
            if meets && our_name == their_name && our_tag != their_tag && are_alike {
                out.warning(
                    &ours.place,
                    format!(
                        "{} may run a different release than its master; if so, it stores nothing",
                        member.process.describe()
                    ),
                    format!("{our_tag} here, {their_tag} for the master at {}", theirs.place),
                    "use the same image everywhere",
                );
            }
        }
    }
}

fn report_release_mismatch(
    out: &mut Findings,
    process: &Process,
    ours: &LocatedValue,
    theirs: &LocatedValue,
    our_tag: &str,
    their_tag: &str,
) {
    out.error(
        &ours.place,
        format!(
            "{} may store nothing: its release differs from the master's, and the handshake does not detect it",
            process.describe()
        ),
        format!("{our_tag} here, {their_tag} for the master at {}", theirs.place),
        "use the same Mooncake release everywhere, or mcctl serve master, which serves clients of all releases since 0.3.6.post1",
    );
}

/// Name and tag of an image.
fn split(image: &str) -> (&str, &str) {
    if let Some((name, digest)) = image.split_once('@') {
        return (split(name).0, digest);
    }
    match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, ""),
    }
}

/// An image without a fixed release may change on the next pull.
pub(super) fn image_tag(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.role != ProcessRole::Other) {
        let Some(image) = member.process.image.as_ref().filter(|image| image.is_known()) else { continue };
        let (name, tag) = split(&image.text);
        if matches!(tag, "" | "latest") {
            out.info(
                &image.place,
                "the release may change when a process restarts, while the other processes keep the old release",
                format!("image {}", image.text),
                format!("pin a release: {name}:TAG"),
            );
        }
    }
}

/// Whether the container has an RDMA device.
fn has_rdma_device(process: &Process) -> bool {
    let limits = &process.limits;
    let by_resource = limits.resources.keys().any(|name| {
        let name = name.to_ascii_lowercase();
        let plain = ["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "amd.com/gpu"].contains(&name.as_str());
        !plain && !name.starts_with("hugepages-") && name.contains('/')
    });
    by_resource
        || limits.privileged.is_some()
        || limits.devices.iter().any(|located| located.text.contains("/dev/infiniband"))
        || limits
            .mounts
            .iter()
            .any(|mount| matches!(&mount.source, MountSource::Host(path) if path.starts_with("/dev")))
}

/// Whether the container has a device whose name is not known, or one of the Container Device
/// Interface (`VENDOR/CLASS=NAME`).
fn may_have_rdma_device(process: &Process) -> bool {
    let limits = &process.limits;
    limits.is_partial || limits.devices.iter().any(|located| !located.is_known() || !located.text.starts_with('/'))
}

fn uses_rdma(member: &ProcessView<'_>) -> bool {
    member.protocol().is_some_and(|located| located.text == "rdma")
}

/// A container that uses RDMA but has no RDMA device.
pub(super) fn rdma_device(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.clients().filter(|member| uses_rdma(member) && member.uses_mooncake() == Some(true)) {
        let process = member.process;
        // A command whose options depend on branches has several variants. A loop over the devices
        // of a host is one of them.
        let has_device = |other: &Process| has_rdma_device(other) || may_have_rdma_device(other);
        let variant_has_device =
            || view.member.iter().any(|other| other.process.place == process.place && has_device(other.process));
        if !process.runtime.is_container() || has_device(process) || variant_has_device() {
            continue;
        }
        let Some(protocol) = member.protocol() else { continue };
        let (evidence, remedy) = match process.runtime {
            RuntimeKind::Kubernetes => (
                "protocol rdma; no RDMA device plugin resource, no /dev/infiniband, not privileged",
                "add the device plugin's resource, e.g. rdma/hca: \"1\", to requests and limits",
            ),
            RuntimeKind::Compose => {
                ("protocol rdma; no /dev/infiniband under devices, not privileged", "add devices: [/dev/infiniband]")
            }
            _ => (
                "protocol rdma; no --device /dev/infiniband, not privileged",
                "add --device=/dev/infiniband --ulimit memlock=-1",
            ),
        };
        let who = process.describe();
        let (starts, finding) = match without_device(member) {
            NoDevice::Exits => (false, format!("{who} cannot start: its container has no RDMA device")),
            NoDevice::UsesTcp => (true, format!("{who} uses TCP instead of RDMA: its container has no RDMA device")),
            NoDevice::Unknown => {
                (true, format!("{who} cannot start, or uses TCP instead of RDMA: its container has no RDMA device"))
            }
        };
        // A cluster may add devices to pods, and a hook of the runtime to containers with these
        // variables.
        let adds_device =
            ["NVIDIA_MOFED", "MELLANOX_VISIBLE_DEVICES"].iter().any(|name| process.env.contains_key(*name));
        if starts
            || adds_device
            || process.runtime == RuntimeKind::Kubernetes
            || !process.args_whole
            || !process.env_whole
        {
            let condition = match process.runtime {
                RuntimeKind::Kubernetes => ", unless the cluster adds one",
                _ => "",
            };
            out.warning(&protocol.place, format!("{finding}{condition}"), evidence, remedy);
        } else {
            out.error(&protocol.place, finding, evidence, remedy);
        }
    }
}

/// What a client for RDMA does if it finds no device.
enum NoDevice {
    Exits,
    UsesTcp,
    Unknown,
}

/// Upstream's client exits if a device is named, and otherwise uses TCP. mcctl's node exits, unless
/// it may use TCP.
///
/// Source: `Client::InitTransferEngine` in `mooncake-store/src/client_service.cpp`.
fn without_device(member: &ProcessView<'_>) -> NoDevice {
    if member.process.implementation == Implementation::Mcctl {
        return if member.switch(&["allow_tcp_fallback"]) { NoDevice::UsesTcp } else { NoDevice::Exits };
    }
    let discovery = member.process.raw_var("MC_MS_AUTO_DISC").map(|located| located.text.trim());
    let is_named = match member.client("device_name") {
        SettingValue::Is(located) => !matches!(located.text.trim(), "" | "[]" | "{}"),
        SettingValue::Unset => false,
        SettingValue::Unknown => return NoDevice::Unknown,
    };
    match (is_named, discovery) {
        _ if member.process.env.contains_key("MC_USE_TENT") => NoDevice::Unknown,
        (true, None) | (_, Some("0")) => NoDevice::Exits,
        (false, None) | (_, Some("1")) => NoDevice::UsesTcp,
        _ => NoDevice::Unknown,
    }
}

/// RDMA pins registered memory, so the locked-memory limit must allow it.
pub(super) fn memlock(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.clients().filter(|member| uses_rdma(member) && member.uses_mooncake() == Some(true)) {
        let process = member.process;
        let limits = &process.limits;
        let capable = limits.privileged.is_some()
            || limits.capabilities.iter().any(|located| {
                matches!(located.text.to_ascii_uppercase().trim_start_matches("CAP_"), "IPC_LOCK" | "ALL")
            });
        let unlimited = limits.memlock.as_ref().is_some_and(|located| {
            let text = located.text.trim().to_ascii_lowercase();
            text.contains("infinity")
                || text.contains("unlimited")
                || text.split(':').all(|part| part == "-1")
                || !located.is_known()
        });
        let root = limits
            .user
            .as_ref()
            .is_none_or(|located| located.text.split(':').next().is_some_and(|u| u == "0" || u == "root"));
        let fix = match process.runtime {
            RuntimeKind::Kubernetes => "add capability IPC_LOCK and run as root, or raise containerd's LimitMEMLOCK",
            RuntimeKind::Compose => "add ulimits: {memlock: -1}",
            RuntimeKind::Docker => "add --ulimit memlock=-1",
            RuntimeKind::Unit => "add LimitMEMLOCK=infinity",
            // A shell inherits the limit of its host.
            _ => continue,
        };
        if unlimited || limits.is_partial {
            continue;
        }
        if process.runtime == RuntimeKind::Unit && (capable || root) {
            // An ambient capability applies to the unit's user, and root has all capabilities.
            continue;
        }
        if capable {
            let barred = limits.non_root.as_ref().filter(|_| limits.user.is_none());
            if (!root || barred.is_some()) && limits.privileged.is_none() {
                let place = limits.user.as_ref().map(|located| &located.place).or(barred).unwrap_or(&process.place);
                out.warning(
                    place,
                    format!("{} cannot register memory: IPC_LOCK takes effect only for root", process.describe()),
                    match &limits.user {
                        Some(user) => format!("user {}, capability IPC_LOCK", user.text),
                        None => "runAsNonRoot, capability IPC_LOCK".to_owned(),
                    },
                    "run as root with IPC_LOCK, or raise the runtime's memlock limit",
                );
            }
            continue;
        }
        let (place, evidence) = match &limits.memlock {
            Some(located) => (&located.place, format!("the limit is {}", located.text)),
            None => (&process.place, "no memlock limit is set; the runtime's default is often 8 MiB".to_owned()),
        };
        out.warning(
            place,
            format!("{} may fail to register memory: RDMA requires locked memory", process.describe()),
            evidence,
            fix,
        );
    }
}

/// The ranks of a server communicate through shared memory. A container has 64 MiB by default.
pub(super) fn shared_memory(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.sglang() {
        let process = member.process;
        let limits = &process.limits;
        let several = member.number(&["tp_size", "tp", "tensor_parallel_size"], 1).is_some_and(|tp| tp > 1);
        let mounted = limits.mounts.iter().any(|mount| mount.path.trim_end_matches('/') == "/dev/shm");
        if !several
            || mounted
            || limits.is_partial
            || limits.shm_size.is_some()
            || limits.host_ipc
            || !process.runtime.is_container()
        {
            continue;
        }
        let remedy = match process.runtime {
            RuntimeKind::Kubernetes => "mount an emptyDir with medium Memory at /dev/shm",
            RuntimeKind::Compose => "add ipc: host, or shm_size: 32g",
            _ => "add --ipc=host, or --shm-size=32g",
        };
        out.warning(
            &process.place,
            format!("{} may crash with SIGBUS: its ranks share 64 MiB of /dev/shm", process.describe()),
            "more than one rank with the default /dev/shm",
            remedy,
        );
    }
}

/// Whether `path` is `folder` or a path under it.
fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The SSD tier requires a separate directory per process, must be enabled on the master and its
/// clients, and needs an eviction policy.
pub(super) fn ssd(view: &DeploymentView<'_>, out: &mut Findings) {
    use crate::lint::rules::kubernetes::is_yes;
    let is_off = |member: &&ProcessView<'_>| {
        member.process.implementation == Implementation::Mcctl || member.master_switch("enable_offload") == Some(false)
    };
    let offload_off: Vec<_> = view.masters().filter(is_off).collect();
    let all_off = |process: &Process| {
        let meets = offload_off.iter().any(|master| master.process.surely_meets(process));
        meets && offload_off.len() == view.masters().count()
    };
    let mut folders: BTreeMap<(String, String), &Process> = BTreeMap::new();
    // `unsupported` reports the switch for mcctl's nodes.
    for member in view.clients().filter(|member| member.process.implementation == Implementation::Upstream) {
        let process = member.process;
        let SettingValue::Is(switch) = member.client("enable_ssd_offload") else { continue };
        if !is_yes(&switch.text) {
            continue;
        }
        let who = process.describe();
        if all_off(process) {
            out.error(
                &switch.place,
                format!("{who} writes nothing to SSD: the master's SSD tier is off"),
                format!(
                    "enable_ssd_offload is set here, but --enable_offload is not set at {}",
                    offload_off[0].process.place
                ),
                match offload_off[0].process.implementation {
                    Implementation::Upstream => "pass --enable_offload=true to the master",
                    Implementation::Mcctl => {
                        "run mooncake_master --enable_offload=true; mcctl serve master does not support the SSD tier"
                    }
                },
            );
        }
        if let Some(located) = process.var("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR")
            && located.text == "offset_allocator_storage_backend"
        {
            out.warning(
                &located.place,
                format!("{who} loses its SSD contents on every start: this backend truncates its file"),
                format!("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR={}", located.text),
                "use bucket_storage_backend",
            );
        }
        let path = match member.client("ssd_offload_path") {
            SettingValue::Is(located) => located,
            SettingValue::Unset if process.role == ProcessRole::Store => {
                LocatedValue::new("/data/file_storage", process.place.clone())
            }
            _ => continue,
        };
        let text = path.text.trim();
        if !text.starts_with('/') || text.split('/').any(|part| part == "..") {
            out.error(
                &path.place,
                format!("{who} cannot start: the SSD directory must be an absolute path without '..'"),
                format!("'{text}'"),
                "use the absolute path of an existing directory",
            );
            continue;
        }
        let mount = process
            .limits
            .mounts
            .iter()
            .filter(|m| is_below(text, m.path.trim_end_matches('/')))
            .max_by_key(|m| m.path.len());
        if process.runtime.is_container() && mount.is_none() && !process.limits.is_partial {
            out.warning(
                &path.place,
                format!("{who} writes its SSD tier to the container file system: the data is lost with the container and fills the host's disk"),
                format!("no volume is mounted at {text}"),
                "mount a disk at that path",
            );
        }
        // Each SGLang rank creates its own directory under this one.
        let host = match (process.runtime, mount.map(|m| &m.source)) {
            (RuntimeKind::Kubernetes | RuntimeKind::Compose | RuntimeKind::Docker, Some(MountSource::Host(host))) => {
                Some((
                    format!("host of {}", process.place.file),
                    format!("{host}{}", &text[mount.map_or(0, |m| m.path.trim_end_matches('/').len())..]),
                ))
            }
            (RuntimeKind::Kubernetes | RuntimeKind::Compose | RuntimeKind::Docker, _) => None,
            _ => Some((process.network.clone(), text.to_owned())),
        };
        let Some(host) = host.filter(|_| process.role == ProcessRole::Store) else { continue };
        if let Some(other) = folders.get(&host)
            && other.name != process.name
        {
            out.error(
                &path.place,
                format!("{who} and {} share an SSD directory and overwrite each other's buckets", other.describe()),
                format!("{} in both", host.1),
                "use a separate directory for each process",
            );
        } else {
            folders.insert(host, process);
        }
    }
}
