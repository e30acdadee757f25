//! The port in the addresses of clients, against the ports on which the master, metadata service or
//! real client listens.
//!
//! `service-port` has the addresses that go through a Kubernetes Service.

use crate::lint::findings::Findings;
use crate::lint::model::{LocatedValue, Process, ProcessRole, RuntimeKind};
use crate::lint::rules::kubernetes::same_host;
use crate::lint::settings::{ProcessView, SettingReader, SettingValue, host_of};
use crate::lint::view::DeploymentView;
use mcctl_base::HostPort;
use mcctl_base::addr::host_is_loopback;
use mcctl_base::check::listed;
use mcctl_base::upstream::ports;

/// A service that clients connect to.
struct Destination {
    key: &'static str,
    noun: &'static str,
    /// The ports on which a process offers it: `Some` with no port if it does not offer it, `None`
    /// if they are unknown.
    ports: fn(&ProcessView<'_>) -> Option<Vec<u16>>,
}

const DESTINATIONS: &[Destination] = &[
    Destination { key: "master_server_address", noun: "master", ports: rpc_ports },
    Destination { key: "metadata_server", noun: "metadata service", ports: metadata_ports },
    Destination { key: "client_server_address", noun: "real client", ports: real_client_ports },
];

fn rpc_ports(member: &ProcessView<'_>) -> Option<Vec<u16>> {
    match member.process.role {
        ProcessRole::Master => Some(vec![member.rpc_port()?]),
        ProcessRole::Up => None,
        _ => Some(Vec::new()),
    }
}

fn metadata_ports(member: &ProcessView<'_>) -> Option<Vec<u16>> {
    match member.process.role {
        ProcessRole::Metadata => Some(vec![u16::try_from(member.number(&["port"], ports::METADATA.into())?).ok()?]),
        ProcessRole::Master if member.master_switch("enable_http_metadata_server")? => {
            Some(vec![member.master_port("http_metadata_server_port")?])
        }
        ProcessRole::Up => None,
        _ => Some(Vec::new()),
    }
}

fn real_client_ports(member: &ProcessView<'_>) -> Option<Vec<u16>> {
    match member.process.role {
        ProcessRole::RealClient => Some(vec![u16::try_from(member.number(&["port"], ports::CLIENT_RPC.into())?).ok()?]),
        ProcessRole::Up => None,
        _ => Some(Vec::new()),
    }
}

/// A client whose address has another port than its service.
pub(super) fn client_port(view: &DeploymentView<'_>, out: &mut Findings) {
    for (member, reader) in view.readers().filter(|(member, _)| member.process.runtime != RuntimeKind::Running) {
        let is_used = reader == SettingReader::Variables || member.uses_mooncake() == Some(true);
        for destination in DESTINATIONS.iter().filter(|_| is_used) {
            if let SettingValue::Is(located) = member.client(destination.key) {
                check(view, member, destination, &located, out);
            }
        }
    }
}

fn check(
    view: &DeploymentView<'_>,
    member: &ProcessView<'_>,
    destination: &Destination,
    located: &LocatedValue,
    out: &mut Findings,
) {
    let text = located.text.trim();
    let authority = match text.split_once("://") {
        Some(("http", rest)) if destination.key == "metadata_server" => rest.split('/').next().unwrap_or(rest),
        Some(_) => return,
        None if destination.key == "metadata_server" => return,
        None => text,
    };
    let Ok((host, Some(port))) = HostPort::split(authority) else { return };
    // All processes that offer the service, with their ports. If one is unknown, it may be the one
    // that the address means.
    let all = view.member.iter().filter(|other| other.process.runtime != RuntimeKind::Running);
    let Some(all) = all.map(|other| Some((other, (destination.ports)(other)?))).collect::<Option<Vec<_>>>() else {
        return;
    };
    let excludes = |other: &Process| match (&other.span, &member.process.span) {
        (Some(theirs), Some(ours)) => ours.excludes(theirs),
        _ => false,
    };
    let all: Vec<_> = all.into_iter().filter(|(other, ports)| !ports.is_empty() && !excludes(other.process)).collect();
    // A process that may run at the same time may be the one that the address means.
    if !all.iter().all(|(other, _)| member.process.surely_meets(other.process)) {
        return;
    }
    let Some(reach) = reach(view, member.process, &host, &all) else { return };
    // What one script starts, and in which order, is the subject of a rule for scripts.
    let is_script = |process: &Process| process.runtime == RuntimeKind::Shell;
    let in_script = is_script(member.process) && member.process.role.is_client();
    if destination.key == "master_server_address"
        && in_script
        && reach
            .processes
            .iter()
            .all(|(other, _)| is_script(other.process) && other.process.network == member.process.network)
    {
        return;
    }
    let mut listening: Vec<u16> = reach.processes.iter().flat_map(|(_, ports)| ports.iter().copied()).collect();
    listening.sort_unstable();
    listening.dedup();
    if listening.contains(&port) || listening.is_empty() {
        return;
    }
    let Some((other, _)) = reach.processes.first() else { return };
    let ports: Vec<String> = listening.iter().map(u16::to_string).collect();
    let what = format!("{} uses port {port} for the {}", member.process.describe(), destination.noun);
    let evidence =
        format!("{text}; {} at {} listens on {}", other.process.describe(), other.process.place, listed(&ports));
    let remedy = format!("use port {}", ports.first().map_or("", String::as_str));
    match reach.is_sure {
        true => out.error(&located.place, format!("{what}, on which nothing listens"), evidence, remedy),
        false => out.warning(
            &located.place,
            format!("{what}, but the only one in these files has another"),
            evidence,
            remedy,
        ),
    }
}

/// The processes that an address may mean.
struct Reach<'v, 's> {
    processes: Vec<&'v (&'v ProcessView<'s>, Vec<u16>)>,
    /// Whether no process outside of the files can listen there.
    is_sure: bool,
}

fn reach<'v, 's>(
    view: &DeploymentView<'_>,
    client: &Process,
    host: &str,
    all: &'v [(&'v ProcessView<'s>, Vec<u16>)],
) -> Option<Reach<'v, 's>> {
    let of = |is_there: &dyn Fn(&Process) -> bool| {
        all.iter().filter(|(other, _)| is_there(other.process)).collect::<Vec<_>>()
    };
    if host_is_loopback(host) {
        let processes = of(&|other| other.network == client.network);
        if !processes.is_empty() {
            let is_closed = client.runtime.is_container() && !client.limits.host_network;
            let is_known = view.same_network(client).all(|other| other.process.role != ProcessRole::Other);
            return Some(Reach { processes, is_sure: is_closed && is_known });
        }
    }
    // In Kubernetes a name is that of a Service, whose ports are another matter.
    if client.runtime == RuntimeKind::Kubernetes {
        return None;
    }
    let named = of(&|other| other.runtime == RuntimeKind::Compose && same_host(view, other, host_of(host)));
    if !named.is_empty() {
        let is_alone = named.iter().all(|(other, _)| view.same_network(other.process).next().is_none());
        return Some(Reach { processes: named, is_sure: is_alone });
    }
    // The only one in the files is probably meant, unless it is in a container that the address
    // cannot mean.
    let is_elsewhere = |other: &Process| {
        matches!(other.runtime, RuntimeKind::Kubernetes | RuntimeKind::Compose) && !other.limits.host_network
    };
    let is_same_kind = |other: &Process| !is_elsewhere(other) || client.runtime == RuntimeKind::File;
    match all {
        [only] if is_same_kind(only.0.process) && !is_other_address(only.0, host) => {
            Some(Reach { processes: vec![only], is_sure: false })
        }
        _ => None,
    }
}

/// Whether the master announces an address, and it is not this one.
fn is_other_address(member: &ProcessView<'_>, host: &str) -> bool {
    match member.master("rpc_address") {
        SettingValue::Is(located) => {
            let own = located.text.trim();
            !own.is_empty() && own != "0.0.0.0" && own != "::" && !host_is_loopback(own) && own != host
        }
        _ => false,
    }
}
