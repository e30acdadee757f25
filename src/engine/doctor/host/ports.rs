//! Ports of services: whether they are free and will remain free.

use std::io;

use crate::host::HostFacts;
use crate::{find, status};
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_base::upstream::ports;
use mcctl_sys::ports::{can_listen, holder, parse_outgoing_range};

/// The ports of a default deployment.
const USUAL: &[(u16, &str)] = &[
    (ports::MASTER_RPC, "master RPC"),
    (ports::MASTER_ADMIN, "master admin HTTP"),
    (ports::METADATA, "the metadata service, and by default also a store service's REST API"),
    (8081, "a store service's REST API"),
    (ports::CLIENT_HTTP, "a client's HTTP API"),
];
/// Programs that are expected to use these ports.
const OURS: &[&str] = &["mcctl", "mooncake", "mc_store_rest_server", "sglang"];

fn purpose(port: u16) -> &'static str {
    USUAL.iter().find(|(usual, _)| *usual == port).map_or("a service", |(_, what)| what)
}

fn wanted(facts: &HostFacts) -> Vec<u16> {
    facts.intent.ports.clone().unwrap_or_else(|| USUAL.iter().map(|(port, _)| *port).collect())
}

pub(super) fn free(facts: &HostFacts, check: &Check) -> CheckStatus {
    if !facts.tree.is_this_host() {
        return CheckStatus::Skipped("ports can only be probed on this host".to_owned());
    }
    let asked = facts.intent.ports.is_some();
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for port in wanted(facts) {
        let Err(error) = can_listen(port) else {
            seen.push(format!("{port} is free"));
            continue;
        };
        let by = holder(port).map(|holder| holder.to_string());
        let is_ours = by.as_ref().is_some_and(|by| OURS.iter().any(|name| by.contains(name)));
        if is_ours && !asked {
            seen.push(format!("{port} is in use by {}", by.unwrap_or_default()));
            continue;
        }
        let severity = if asked { Severity::Error } else { Severity::Info };
        let (finding, remedy) = match error.kind() {
            io::ErrorKind::PermissionDenied => (
                format!("port {port} ({}) requires a privilege that this process does not have", purpose(port)),
                "use a port above 1023".to_owned(),
            ),
            _ => (
                format!(
                    "port {port} ({}) is in use: upstream's master exits without an error message in that case",
                    purpose(port)
                ),
                "stop the process that uses it, or choose another port".to_owned(),
            ),
        };
        let evidence = match by {
            Some(by) => format!("in use by {by}"),
            None => format!("{error}; the process that uses it is not visible"),
        };
        findings.push(find(check, severity, finding, evidence, remedy));
    }
    status(findings, || seen.join(", "))
}

pub(super) fn range(facts: &HostFacts, check: &Check) -> CheckStatus {
    let text = facts.text("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let Some((first, last)) = parse_outgoing_range(&text) else {
        return CheckStatus::Skipped("/proc/sys/net/ipv4/ip_local_port_range cannot be read".to_owned());
    };
    let reserved = facts.text("/proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default();
    let inside = |port: &u16| (first..=last).contains(port) && !is_listed(&reserved, *port);
    let ports: Vec<u16> = wanted(facts).into_iter().filter(inside).collect();
    let seen = format!(
        "the ephemeral range is {first} to {last}; reserved ports: {}",
        if reserved.is_empty() { "none" } else { &reserved }
    );
    if ports.is_empty() {
        return CheckStatus::Passed(seen);
    }
    let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let severity = if facts.intent.ports.is_some() { Severity::Warning } else { Severity::Info };
    let finding = format!(
        "port {list} is inside the ephemeral range: if another program's outgoing connection uses it when the service starts, the service exits"
    );
    let more = if reserved.is_empty() { list } else { format!("{reserved},{list}") };
    let remedy = format!("sysctl -w net.ipv4.ip_local_reserved_ports={more} (and in /etc/sysctl.d)");
    CheckStatus::Found(vec![find(check, severity, finding, seen, remedy)])
}

/// Whether `port` is in a list such as `3000,4000-4010`.
fn is_listed(list: &str, port: u16) -> bool {
    list.split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.trim().parse::<u16>(), last.trim().parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&port))
    })
}
