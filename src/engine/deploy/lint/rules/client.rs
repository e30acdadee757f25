//! Names and devices of the store's clients.

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, ProcessRole, RuntimeKind, SglangMode};
use crate::lint::rules::kubernetes::is_yes;
use crate::lint::settings::{SettingValue, is_host_local};
use crate::lint::view::DeploymentView;
use mcctl_base::upstream::sglang::DECODE_OFFLOAD;

/// A client must announce a name that peers can reach, unless the whole deployment is on one host.
pub(super) fn local_hostname(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.store_users().filter(|member| !member.may_use_real_client()) {
        let process = member.process;
        let Some(p2p) = member.is_p2p() else { continue };
        let master = member.client("master_server_address");
        let elsewhere = match &master {
            SettingValue::Is(located) => !is_host_local(&located.text),
            // A pod's master runs in another pod, unless it is a container of the same pod.
            _ => {
                process.runtime == RuntimeKind::Kubernetes
                    && !view.same_network(process).any(|s| s.process.role == ProcessRole::Master)
            }
        };
        // If the input is partial, a file that was not provided may set the name.
        if !elsewhere
            || process.runtime == RuntimeKind::File && !matches!(member.client("local_hostname"), SettingValue::Is(_))
        {
            continue;
        }
        let to = match &master {
            SettingValue::Is(located) => format!("the master is at {}", located.text),
            _ => "the master is in another pod".to_owned(),
        };
        let remedy = match process.runtime {
            RuntimeKind::Kubernetes => {
                "set MOONCAKE_LOCAL_HOSTNAME to the pod's address: {name: MOONCAKE_LOCAL_HOSTNAME, valueFrom: {fieldRef: \
                 {fieldPath: status.podIP}}}"
            }
            _ if process.role == ProcessRole::Lmcache => {
                "set mooncake_local_hostname to a name or address of this host that other hosts can reach"
            }
            _ => "set MOONCAKE_LOCAL_HOSTNAME to a name or address of this host that other hosts can reach",
        };
        let (place, evidence) = match member.client("local_hostname") {
            SettingValue::Is(located) if is_host_local(&located.text) => {
                (located.place.clone(), format!("local_hostname is {}, {to}", located.text))
            }
            SettingValue::Unset
                if process.implementation == Implementation::Upstream
                    && process.role.is_client()
                    && process.role != ProcessRole::RealClient =>
            {
                (process.place.clone(), format!("MOONCAKE_LOCAL_HOSTNAME is not set (default localhost); {to}"))
            }
            _ => continue,
        };
        let who = process.describe();
        // Peers never connect to a pure client, but its transfer engine still announces the name.
        if p2p {
            out.error(
                &place,
                format!(
                    "{who} announces itself as localhost with P2PHANDSHAKE, so other hosts cannot reach its segment"
                ),
                evidence,
                remedy,
            );
        } else {
            let has_ssd =
                matches!(member.client("enable_ssd_offload"), SettingValue::Is(located) if is_yes(&located.text));
            let effect = match has_ssd {
                true => "other hosts cannot read from its SSD tier, and its name may clash with another node's",
                false => "its name may clash with another node's",
            };
            out.warning(&place, format!("{who} announces itself as localhost, so {effect}"), evidence, remedy);
        }
    }
}

/// A client for RDMA without a configured device cannot start if discovery is off. If it is on, the
/// client may silently fall back to TCP.
pub(super) fn auto_discovery(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.clients() {
        // mcctl's node uses every device it finds, and exits if it finds none.
        if member.process.implementation == Implementation::Mcctl {
            continue;
        }
        let Some(protocol) = member.protocol().filter(|p| p.text == "rdma") else { continue };
        let no_device = match member.client("device_name") {
            SettingValue::Is(located) => matches!(located.text.trim(), "" | "[]" | "{}"),
            SettingValue::Unset => true,
            SettingValue::Unknown => false,
        };
        if !no_device {
            continue;
        }
        let who = member.process.describe();
        let off = member.process.var("MC_MS_AUTO_DISC").filter(|located| located.text.trim() == "0");
        if let Some(off) = off {
            out.error(
                &off.place,
                format!("{who} cannot start: no RDMA device is set, and discovery is off"),
                "MC_MS_AUTO_DISC=0, protocol rdma, no device",
                "set MOONCAKE_DEVICE (e.g. mlx5_0), or remove MC_MS_AUTO_DISC; mcctl devices lists the devices",
            );
        } else if member.process.runtime != RuntimeKind::File {
            out.info(
                &protocol.place,
                format!("{who} uses any RDMA devices it finds, and silently falls back to TCP if it finds none"),
                "protocol rdma, no device",
                "set MOONCAKE_DEVICE (e.g. mlx5_0), so that a missing device is an error; mcctl devices lists the devices",
            );
        }
    }
}

/// Decode servers that do not use the store.
pub(super) fn decode(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.role == ProcessRole::Sglang(SglangMode::Decode)) {
        let uses_hicache = member.switch(&["enable_hierarchical_cache", "enable_hicache"]);
        if !member.process.args_whole || uses_hicache || member.switch(&[DECODE_OFFLOAD]) {
            continue;
        }
        let place = &member.process.place;
        let why = match member.process.env.get("MOONCAKE_MASTER") {
            Some(_) => "MOONCAKE_MASTER is set, but --enable-hierarchical-cache is not",
            None => "--enable-hierarchical-cache is not set",
        };
        out.info(
            place,
            format!(
                "{} neither reads from nor writes to the store: its cache is lost when it stops",
                member.process.describe()
            ),
            why,
            "no action is needed if this is intended; prefill servers with HiCache write to and read from the store",
        );
    }
}
