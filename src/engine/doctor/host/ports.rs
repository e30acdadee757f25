//! Ports of services: are they free, and can they stay so.

use std::io;

use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::host::Look;
use crate::engine::doctor::{find, status};
use crate::engine::sys::ports::{can_listen, holder};

/// What a default deployment listens on.
const USUAL: &[(u16, &str)] = &[
    (50051, "the master's RPC"),
    (9003, "the master's admin HTTP"),
    (8080, "the metadata service, and by default also a store service's REST"),
    (8081, "a store service's REST"),
    (9300, "a client's HTTP"),
];
/// Programs that are meant to be there.
const OURS: &[&str] = &["mcctl", "mooncake", "mc_store_rest_server", "sglang"];

fn purpose(port: u16) -> &'static str {
    USUAL.iter().find(|(usual, _)| *usual == port).map_or("a service", |(_, what)| what)
}

fn wanted(look: &Look) -> Vec<u16> {
    look.intent.ports.clone().unwrap_or_else(|| USUAL.iter().map(|(port, _)| *port).collect())
}

pub(super) fn free(look: &Look, check: &Check) -> Status {
    if !look.tree.is_this_host() {
        return Status::Skipped("a port can be tried on this host only".to_owned());
    }
    let asked = look.intent.ports.is_some();
    let (mut findings, mut seen) = (Vec::new(), Vec::new());
    for port in wanted(look) {
        let Err(error) = can_listen(port) else {
            seen.push(format!("{port} is free"));
            continue;
        };
        let by = holder(port).map(|holder| holder.to_string());
        let is_ours = by.as_ref().is_some_and(|by| OURS.iter().any(|name| by.contains(name)));
        if is_ours && !asked {
            seen.push(format!("{port} is held by {}", by.unwrap_or_default()));
            continue;
        }
        let severity = if asked { Severity::Error } else { Severity::Info };
        let (finding, remedy) = match error.kind() {
            io::ErrorKind::PermissionDenied => (
                format!("port {port} ({}) needs a privilege that this process has not", purpose(port)),
                "take a port above 1023".to_owned(),
            ),
            _ => (
                format!("port {port} ({}) is taken; the original master ends there without a word", purpose(port)),
                "stop what holds it, or choose another port".to_owned(),
            ),
        };
        let evidence = match by {
            Some(by) => format!("held by {by}"),
            None => format!("{error}; who holds it cannot be seen"),
        };
        findings.push(find(check, severity, finding, evidence, remedy));
    }
    status(findings, || seen.join(", "))
}

pub(super) fn range(look: &Look, check: &Check) -> Status {
    let text = look.text("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().map_while(|number| number.parse::<u16>().ok());
    let (Some(first), Some(last)) = (numbers.next(), numbers.next()) else {
        return Status::Skipped("/proc/sys/net/ipv4/ip_local_port_range cannot be read".to_owned());
    };
    let reserved = look.text("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let inside = |port: &u16| (first..=last).contains(port) && !is_listed(&reserved, *port);
    let ports: Vec<u16> = wanted(look).into_iter().filter(inside).collect();
    let seen = format!(
        "outgoing connections take ports {first} to {last}, but those reserved: {}",
        if reserved.is_empty() { "none" } else { &reserved }
    );
    if ports.is_empty() {
        return Status::Passed(seen);
    }
    let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let severity = if look.intent.ports.is_some() { Severity::Warning } else { Severity::Info };
    let finding = format!(
        "an outgoing connection of any program may have port {list} when the service starts, which then ends at once"
    );
    let more = if reserved.is_empty() { list } else { format!("{reserved},{list}") };
    let remedy = format!("sysctl -w net.ipv4.ip_local_reserved_ports={more} (and the same in /etc/sysctl.d)");
    Status::Found(vec![find(check, severity, finding, seen, remedy)])
}

/// Is `port` in a list as `3000,4000-4010`?
fn is_listed(list: &str, port: u16) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.trim().parse::<u16>(), last.trim().parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&port))
    })
}
