//! The port at which clients look for the master, and the port on which the master of the same
//! script listens.

use crate::lint::findings::Findings;
use crate::lint::model::{LocatedValue, ProcessRole};
use crate::lint::settings::{ProcessView, SettingValue, host_of};
use crate::lint::view::DeploymentView;
use mcctl_base::addr::host_is_loopback;

/// A client on the master's host must use the master's RPC port. A warning: another master may run
/// on that host.
pub(super) fn master_port(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| is_user(member)) {
        let SettingValue::Is(located) = member.client("master_server_address") else { continue };
        let Some((host, port)) = host_and_port(&located) else { continue };
        // A master that may run at the same time and whose port is not known may be the one.
        let near = view.masters().filter(|master| {
            let apart = matches!((&master.process.span, &member.process.span), (Some(a), Some(b)) if a.excludes(b));
            master.process.network == member.process.network && !apart
        });
        let masters: Vec<&ProcessView<'_>> = near.collect();
        let Some(ports) = masters.iter().map(|master| master.rpc_port()).collect::<Option<Vec<u16>>>() else {
            continue;
        };
        let on_host = masters.iter().all(|master| listens_on(master, host));
        let Some(first) = masters.first().filter(|_| on_host && !ports.contains(&port)) else { continue };
        if !masters.iter().any(|master| master.process.surely_meets(member.process)) {
            continue;
        }
        let listening: Vec<String> = ports.iter().map(u16::to_string).collect();
        out.warning(
            &located.place,
            format!("{} uses port {port}, on which no master of this script listens", member.process.describe()),
            format!(
                "{}; the master at {} listens on {}",
                located.text.trim(),
                first.process.place,
                listening.join(", ")
            ),
            format!(
                "use {host}:{}, or start the master with --rpc_port={port}",
                ports.first().copied().unwrap_or(port)
            ),
        );
    }
}

/// Whether the process connects to a master.
fn is_user(member: &ProcessView<'_>) -> bool {
    let process = member.process;
    process.span.is_some()
        && match process.role {
            ProcessRole::Sglang(_) => member.uses_mooncake() == Some(true),
            ProcessRole::Store | ProcessRole::RealClient => true,
            _ => false,
        }
}

fn host_and_port(located: &LocatedValue) -> Option<(&str, u16)> {
    let text = located.text.trim();
    if text.contains("://") || text.contains([',', ';']) {
        return None;
    }
    let port = text.rsplit_once(':')?.1.parse().ok()?;
    Some((host_of(text), port))
}

/// Whether a client that connects to `host` reaches this master's host: by loopback, or by the
/// address that the master is bound to.
fn listens_on(master: &ProcessView<'_>, host: &str) -> bool {
    match master.master("rpc_address") {
        SettingValue::Is(bound) if bound.text.trim() == host => true,
        SettingValue::Is(bound) => {
            let is_any = matches!(bound.text.trim(), "0.0.0.0" | "::" | "");
            host_is_loopback(host) && (is_any || host_is_loopback(bound.text.trim()))
        }
        SettingValue::Unset => host_is_loopback(host),
        SettingValue::Unknown => false,
    }
}
