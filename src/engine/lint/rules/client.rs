//! What clients of the store are called, and which devices they use.

use crate::engine::lint::names::DECODE_OFFLOAD;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, Make, Mode, Role};
use crate::engine::lint::settings::{Setting, is_here_only};

/// A client must have a name that others can call, unless all is on one host.
pub fn local_hostname(view: &View<'_>, out: &mut Findings) {
    for seen in view.clients() {
        let process = seen.process;
        let Some(p2p) = seen.is_p2p() else { continue };
        let master = seen.client("master_server_address");
        let elsewhere = match &master {
            Setting::Is(said) => !is_here_only(&said.text),
            // A pod's master is in another pod, but where it stands beside it.
            _ => {
                process.habitat == Habitat::Kubernetes && !view.beside(process).any(|s| s.process.role == Role::Master)
            }
        };
        // Partial inputs may get their name elsewhere.
        if !elsewhere || process.habitat == Habitat::File && !matches!(seen.client("local_hostname"), Setting::Is(_)) {
            continue;
        }
        let to = match &master {
            Setting::Is(said) => format!("the master is at {}", said.text),
            _ => "the master is in another pod".to_owned(),
        };
        let remedy = match process.habitat {
            Habitat::Kubernetes => {
                "set MOONCAKE_LOCAL_HOSTNAME to the pod's address: {name: MOONCAKE_LOCAL_HOSTNAME, valueFrom: {fieldRef: \
                 {fieldPath: status.podIP}}}"
            }
            _ => "set MOONCAKE_LOCAL_HOSTNAME to a name or address of this host that the others can call",
        };
        let (place, seen_text) = match seen.client("local_hostname") {
            Setting::Is(said) if is_here_only(&said.text) => {
                (said.place.clone(), format!("local_hostname is {}, {to}", said.text))
            }
            Setting::Unset if process.make == Make::Upstream && process.role != Role::RealClient => {
                (process.place.clone(), format!("MOONCAKE_LOCAL_HOSTNAME is not set, so it is localhost; {to}"))
            }
            _ => continue,
        };
        let who = process.called();
        // A pure client lends nothing, so nobody calls it; but its own engine still has that name.
        if p2p {
            out.error(
                &place,
                format!(
                    "{who} announces itself as localhost with P2PHANDSHAKE, so other hosts cannot reach what it lends"
                ),
                seen_text,
                remedy,
            );
        } else {
            out.warning(
                &place,
                format!(
                    "{who} announces itself as localhost, so reads from its SSD and repeated names fail on other hosts"
                ),
                seen_text,
                remedy,
            );
        }
    }
}

/// RDMA with discovery switched off and no device cannot start; with discovery and no device it may silently be TCP.
pub fn auto_discovery(view: &View<'_>, out: &mut Findings) {
    for seen in view.clients() {
        // mcctl's node uses every device it finds, and ends where it finds none.
        if seen.process.make == Make::Mcctl {
            continue;
        }
        let Some(protocol) = seen.protocol().filter(|p| p.text == "rdma") else { continue };
        let no_device = match seen.client("device_name") {
            Setting::Is(said) => matches!(said.text.trim(), "" | "[]" | "{}"),
            Setting::Unset => true,
            Setting::Unknown => false,
        };
        if !no_device {
            continue;
        }
        let who = seen.process.called();
        let off = seen.process.var("MC_MS_AUTO_DISC").filter(|said| said.text.trim() == "0");
        if let Some(off) = off {
            out.error(
                &off.place,
                format!("{who} cannot start: RDMA without a device while discovery is off"),
                "MC_MS_AUTO_DISC=0, protocol rdma, and no device",
                "name the devices (MOONCAKE_DEVICE=mlx5_0), or take MC_MS_AUTO_DISC away; mcctl devices shows which",
            );
        } else if seen.process.habitat != Habitat::File {
            out.info(
                &protocol.place,
                format!("{who} uses whatever RDMA devices it finds, and without a word TCP when it finds none"),
                "protocol rdma, and no device",
                "name the devices (MOONCAKE_DEVICE=mlx5_0), so that a missing one is an error; mcctl devices shows which",
            );
        }
    }
}

/// Decode servers that take nothing from the store.
pub fn decode(view: &View<'_>, out: &mut Findings) {
    for seen in view.seen.iter().filter(|seen| seen.process.role == Role::Sglang(Mode::Decode)) {
        let uses_hicache = seen.switch(&["enable_hierarchical_cache", "enable_hicache"]);
        if !seen.process.args_whole || uses_hicache || seen.switch(&[DECODE_OFFLOAD]) {
            continue;
        }
        let place = &seen.process.place;
        let why = match seen.process.env.get("MOONCAKE_MASTER") {
            Some(_) => "MOONCAKE_MASTER is set, --enable-hierarchical-cache is not given",
            None => "--enable-hierarchical-cache is not given",
        };
        out.info(
            place,
            format!("{} neither reads nor writes the store: its cache goes with it", seen.process.called()),
            why,
            "nothing, when that is meant; prefill servers with HiCache fill and read the store",
        );
    }
}
