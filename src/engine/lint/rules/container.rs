//! What containers and units may do and are given: images, RDMA devices, locked memory, shared memory.

use std::collections::BTreeMap;

use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, Make, MountSource, Process, Role, Said, release_of_image};
use crate::engine::lint::settings::Seen;

/// Master and clients must be of one release: another one stores nothing, and the handshake does not notice.
pub fn releases(view: &View<'_>, out: &mut Findings) {
    let release = |process: &Process| release_of_image(&process.image.as_ref()?.text);
    let Some(master) = view.masters().find(|seen| release(seen.process).is_some()) else {
        return same_repository(view, out);
    };
    let Some(theirs) = release(master.process) else { return };
    for seen in view.clients() {
        let Some(ours) = release(seen.process).filter(|ours| *ours != theirs) else { continue };
        if let (Some(image), Some(other)) = (&seen.process.image, &master.process.image) {
            differ(out, seen.process, image, other, &ours, &theirs);
        }
    }
}

/// Images of one repository with different tags.
fn same_repository(view: &View<'_>, out: &mut Findings) {
    for master in view.masters() {
        let Some(theirs) = master.process.image.as_ref().filter(|image| image.is_known()) else { continue };
        for seen in view.clients() {
            let Some(ours) = seen.process.image.as_ref().filter(|image| image.is_known()) else { continue };
            let (our_name, our_tag) = split(&ours.text);
            let (their_name, their_tag) = split(&theirs.text);
            // A digest and a tag may be one image.
            let are_alike = our_tag.contains(':') == their_tag.contains(':');
            if our_name == their_name && our_tag != their_tag && are_alike {
                out.warning(
                    &ours.place,
                    format!(
                        "{} may be of another release than its master, and then store nothing",
                        seen.process.called()
                    ),
                    format!("{our_tag} here, {their_tag} for the master at {}", theirs.place),
                    "run one image everywhere",
                );
            }
        }
    }
}

fn differ(out: &mut Findings, process: &Process, ours: &Said, theirs: &Said, our_tag: &str, their_tag: &str) {
    out.error(
        &ours.place,
        format!(
            "{} may store nothing: its release is not the master's, and the handshake does not notice",
            process.called()
        ),
        format!("{our_tag} here, {their_tag} for the master at {}", theirs.place),
        "run one release of Mooncake everywhere",
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

/// An image that may be another one tomorrow.
pub fn image_tag(view: &View<'_>, out: &mut Findings) {
    for seen in view.seen.iter().filter(|seen| seen.process.role != Role::Other) {
        let Some(image) = seen.process.image.as_ref().filter(|image| image.is_known()) else { continue };
        let (name, tag) = split(&image.text);
        if matches!(tag, "" | "latest") {
            out.info(
                &image.place,
                "the release may change at any restart, of one process and not of the others",
                format!("image {}", image.text),
                format!("name a release: {name}:TAG"),
            );
        }
    }
}

/// Is an RDMA device in the container?
fn has_rdma_device(process: &Process) -> bool {
    let limits = &process.limits;
    let by_resource = limits.resources.keys().any(|name| {
        let name = name.to_ascii_lowercase();
        let plain = ["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "amd.com/gpu"].contains(&name.as_str());
        !plain && !name.starts_with("hugepages-") && name.contains('/')
    });
    by_resource
        || limits.privileged.is_some()
        || limits.devices.iter().any(|said| said.text.contains("/dev/infiniband"))
        || limits
            .mounts
            .iter()
            .any(|mount| matches!(&mount.source, MountSource::Host(path) if path.starts_with("/dev")))
}

fn uses_rdma(seen: &Seen<'_>) -> bool {
    seen.protocol().is_some_and(|said| said.text == "rdma")
}

/// A container with RDMA and without a device of it.
pub fn rdma_device(view: &View<'_>, out: &mut Findings) {
    for seen in view.clients().filter(|seen| uses_rdma(seen) && seen.uses_mooncake() == Some(true)) {
        let process = seen.process;
        if !process.habitat.is_container() || has_rdma_device(process) {
            continue;
        }
        let Some(protocol) = seen.protocol() else { continue };
        let (evidence, remedy) = match process.habitat {
            Habitat::Kubernetes => (
                "protocol rdma; no resource of an RDMA plugin, no /dev/infiniband, not privileged",
                "add the resource of your device plugin, e.g. rdma/hca: \"1\", to requests and limits",
            ),
            Habitat::Compose => {
                ("protocol rdma; no /dev/infiniband under devices, not privileged", "add devices: [/dev/infiniband]")
            }
            _ => (
                "protocol rdma; no --device /dev/infiniband, not privileged",
                "add --device=/dev/infiniband --ulimit memlock=-1",
            ),
        };
        out.error(
            &protocol.place,
            match process.make {
                Make::Upstream => {
                    format!(
                        "{} finds no RDMA device in its container, and fails or falls back to TCP",
                        process.called()
                    )
                }
                Make::Mcctl => format!("{} cannot start: its container has no RDMA device", process.called()),
            },
            evidence,
            remedy,
        );
    }
}

/// RDMA pins what it registers, which the limit of locked memory must allow.
pub fn memlock(view: &View<'_>, out: &mut Findings) {
    for seen in view.clients().filter(|seen| uses_rdma(seen) && seen.uses_mooncake() == Some(true)) {
        let process = seen.process;
        let limits = &process.limits;
        let capable = limits.privileged.is_some()
            || limits
                .capabilities
                .iter()
                .any(|said| matches!(said.text.to_ascii_uppercase().trim_start_matches("CAP_"), "IPC_LOCK" | "ALL"));
        let unlimited = limits.memlock.as_ref().is_some_and(|said| {
            let text = said.text.trim().to_ascii_lowercase();
            text.contains("infinity")
                || text.contains("unlimited")
                || text.split(':').all(|part| part == "-1")
                || !said.is_known()
        });
        let root = limits
            .user
            .as_ref()
            .is_none_or(|said| said.text.split(':').next().is_some_and(|u| u == "0" || u == "root"));
        let fix = match process.habitat {
            Habitat::Kubernetes => "add capability IPC_LOCK and run as root, or raise containerd's LimitMEMLOCK",
            Habitat::Compose => "add ulimits: {memlock: -1}",
            Habitat::Docker => "add --ulimit memlock=-1",
            Habitat::Unit => "add LimitMEMLOCK=infinity",
            // A shell's limit is its host's.
            _ => continue,
        };
        if unlimited {
            continue;
        }
        if process.habitat == Habitat::Unit && (capable || root) {
            // A capability of a unit is effective for its user, and root has it.
            continue;
        }
        if capable {
            let barred = limits.non_root.as_ref().filter(|_| limits.user.is_none());
            if (!root || barred.is_some()) && limits.privileged.is_none() {
                let place = limits.user.as_ref().map(|said| &said.place).or(barred).unwrap_or(&process.place);
                out.warning(
                    place,
                    format!(
                        "{} cannot register its memory: IPC_LOCK has no effect for a user that is not root",
                        process.called()
                    ),
                    match &limits.user {
                        Some(user) => format!("user {}, capability IPC_LOCK", user.text),
                        None => "runAsNonRoot, capability IPC_LOCK".to_owned(),
                    },
                    "run as root with IPC_LOCK, or raise the runtime's memlock limit",
                );
            }
            continue;
        }
        let (place, seen_text) = match &limits.memlock {
            Some(said) => (&said.place, format!("the limit is {}", said.text)),
            None => (&process.place, "no limit is given; that of the runtime is often 8 MiB".to_owned()),
        };
        out.warning(
            place,
            format!("{} may fail to register its memory: RDMA needs it locked", process.called()),
            seen_text,
            fix,
        );
    }
}

/// Ranks of a server talk through shared memory, of which a container has 64 MiB.
pub fn shared_memory(view: &View<'_>, out: &mut Findings) {
    for seen in view.sglang() {
        let process = seen.process;
        let limits = &process.limits;
        let several = seen.number(&["tp_size", "tp", "tensor_parallel_size"], 1).is_some_and(|tp| tp > 1);
        let mounted = limits.mounts.iter().any(|mount| mount.path.trim_end_matches('/') == "/dev/shm");
        if !several || mounted || limits.shm_size.is_some() || limits.host_ipc || !process.habitat.is_container() {
            continue;
        }
        let remedy = match process.habitat {
            Habitat::Kubernetes => "mount an emptyDir with medium Memory at /dev/shm",
            Habitat::Compose => "add ipc: host, or shm_size: 32g",
            _ => "add --ipc=host, or --shm-size=32g",
        };
        out.warning(
            &process.place,
            format!("{} may die of a bus error: its ranks share 64 MiB of /dev/shm", process.called()),
            "more than one rank, and no /dev/shm of a size of its own",
            remedy,
        );
    }
}

/// Is `path` the folder, or in it?
fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The SSD tier needs a folder of its own, on both sides a switch, and a policy.
pub fn ssd(view: &View<'_>, out: &mut Findings) {
    use crate::engine::lint::rules::kubernetes::is_yes;
    use crate::engine::lint::settings::Setting;
    let is_off =
        |seen: &&Seen<'_>| seen.process.make == Make::Mcctl || seen.master_switch("enable_offload") == Some(false);
    let offload_off: Vec<_> = view.masters().filter(is_off).collect();
    let all_off = !offload_off.is_empty() && offload_off.len() == view.masters().count();
    let mut folders: BTreeMap<(String, String), &Process> = BTreeMap::new();
    // mcctl's nodes refuse the switch.
    for seen in view.clients().filter(|seen| seen.process.make == Make::Upstream) {
        let process = seen.process;
        let Setting::Is(switch) = seen.client("enable_ssd_offload") else { continue };
        if !is_yes(&switch.text) {
            continue;
        }
        let who = process.called();
        if all_off {
            out.error(
                &switch.place,
                format!("{who} keeps nothing on SSD: the master's side of it is off"),
                format!("enable_ssd_offload here, no --enable_offload at {}", offload_off[0].process.place),
                match offload_off[0].process.make {
                    Make::Upstream => "give the master --enable_offload=true",
                    Make::Mcctl => "run mooncake_master --enable_offload=true: mcctl serve master has no SSD tier",
                },
            );
        }
        if let Some(said) = process.var("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR")
            && said.text == "offset_allocator_storage_backend"
        {
            out.warning(
                &said.place,
                format!("{who} forgets its SSD at every start: this backend truncates its file"),
                format!("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR={}", said.text),
                "write bucket_storage_backend",
            );
        }
        let path = match seen.client("ssd_offload_path") {
            Setting::Is(said) => said,
            Setting::Unset if process.role == Role::Store => Said::new("/data/file_storage", process.place.clone()),
            _ => continue,
        };
        let text = path.text.trim();
        if !text.starts_with('/') || text.split('/').any(|part| part == "..") {
            out.error(
                &path.place,
                format!("{who} cannot start: the folder on SSD must be absolute, without '..'"),
                format!("'{text}'"),
                "write an absolute path of a folder that is there",
            );
            continue;
        }
        let mount = process
            .limits
            .mounts
            .iter()
            .filter(|m| is_below(text, m.path.trim_end_matches('/')))
            .max_by_key(|m| m.path.len());
        if process.habitat.is_container() && mount.is_none() {
            out.warning(
                &path.place,
                format!("{who} writes its SSD tier into its container: it is lost with it, and fills the host's disk"),
                format!("no volume is mounted at {text}"),
                "mount a disk there",
            );
        }
        // Ranks of SGLang have folders of their own below it.
        let host = match (process.habitat, mount.map(|m| &m.source)) {
            (Habitat::Kubernetes | Habitat::Compose | Habitat::Docker, Some(MountSource::Host(host))) => Some((
                format!("host of {}", process.place.file),
                format!("{host}{}", &text[mount.map_or(0, |m| m.path.trim_end_matches('/').len())..]),
            )),
            (Habitat::Kubernetes | Habitat::Compose | Habitat::Docker, _) => None,
            _ => Some((process.network.clone(), text.to_owned())),
        };
        let Some(host) = host.filter(|_| process.role == Role::Store) else { continue };
        if let Some(other) = folders.get(&host)
            && other.name != process.name
        {
            out.error(
                &path.place,
                format!("{who} and {} share a folder on SSD: they overwrite each other's buckets", other.called()),
                format!("{} in both", host.1),
                "give each process a folder of its own",
            );
        } else {
            folders.insert(host, process);
        }
    }
}
