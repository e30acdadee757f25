//! Names of this host and the interface that it announces.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use crate::find;
use crate::host::HostFacts;
use mcctl_base::addr::host_is_loopback;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_base::text::Quoted;
use mcctl_sys::procfs;

/// Maximum wait for the system resolver.
const RESOLVE_MAX: Duration = Duration::from_secs(1);
const NAME: &str = "MOONCAKE_LOCAL_HOSTNAME";

/// The addresses of `name` in /etc/hosts.
fn in_hosts(facts: &HostFacts, name: &str) -> Vec<IpAddr> {
    let text = facts.text("/etc/hosts").unwrap_or_default();
    let lines = text.lines().map(|entry| entry.split('#').next().unwrap_or_default());
    let matching = lines.filter_map(|entry| {
        let mut words = entry.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    });
    matching.collect()
}

/// The addresses of `name`; `None` if it does not resolve in time.
fn resolve(facts: &HostFacts, name: &str) -> Option<Vec<IpAddr>> {
    if let Ok(address) = name.trim_matches(['[', ']']).parse() {
        return Some(vec![address]);
    }
    let known = in_hosts(facts, name);
    if !known.is_empty() || !facts.tree.is_this_host() {
        return Some(known).filter(|known| !known.is_empty());
    }
    let (sender, receiver) = mpsc::channel();
    let name = name.to_owned();
    // The system resolver has no timeout, so a thread that takes too long is abandoned.
    std::thread::spawn(move || {
        sender.send((name.as_str(), 0).to_socket_addrs().map(|all| all.map(|a| a.ip()).collect::<Vec<_>>()))
    });
    receiver.recv_timeout(RESOLVE_MAX).ok()?.ok()
}

pub(super) fn hostname(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(name) = facts.text("/proc/sys/kernel/hostname").filter(|name| !name.is_empty()) else {
        return CheckStatus::Skipped("/proc/sys/kernel/hostname cannot be read".to_owned());
    };
    let known = in_hosts(facts, &name);
    match known.iter().find(|address| address.is_loopback()) {
        Some(address) => CheckStatus::Found(vec![find(
            check,
            Severity::Info,
            "the host name resolves to a loopback address: other hosts cannot reach a node that announces it",
            format!("/etc/hosts maps {name} to {address}"),
            format!("announce an address instead ({NAME}, --local-hostname); mcctl selects one by default"),
        )]),
        None => CheckStatus::Passed(format!("/etc/hosts does not map {name} to a loopback address")),
    }
}

pub(super) fn local(facts: &HostFacts, check: &Check) -> CheckStatus {
    let master = facts.intent.master.as_ref().filter(|master| !host_is_loopback(&master.host));
    // With a metadata service, the address is in the node's record, and the name matters only for
    // reads from SSD.
    let has_service = facts.intent.variable("MOONCAKE_TE_META_DATA_SERVER").is_some_and(|text| text.contains("://"));
    let wrong = if has_service { Severity::Warning } else { Severity::Error };
    let Some(name) = facts.intent.variable(NAME) else {
        let Some((master, text)) = master.zip(facts.intent.variable("MOONCAKE_MASTER")) else {
            return CheckStatus::Passed(format!("{NAME} is not set, and no master on another host is configured"));
        };
        let severity = if facts.own(&master.host) { Severity::Info } else { wrong };
        return CheckStatus::Found(vec![find(
            check,
            severity,
            "a Mooncake client started with this environment announces 'localhost': with P2PHANDSHAKE, other hosts cannot open its segment (-800)",
            format!("MOONCAKE_MASTER={text}, and {NAME} is not set"),
            format!(
                "set {NAME} to an address of this host that other hosts can reach{}; in Kubernetes, to the field status.podIP",
                facts.suggestion()
            ),
        )]);
    };
    let evidence = format!("{NAME}={name}");
    let host = name
        .rsplit_once(':')
        .filter(|(host, port)| !host.contains(':') && port.parse::<u16>().is_ok())
        .map_or(name, |(host, _)| host);
    let Some(addresses) = resolve(facts, host) else {
        let finding = format!(
            "nodes on this host announce the name {}, which does not resolve: other hosts cannot open their segments",
            Quoted(host)
        );
        return CheckStatus::Found(vec![find(
            check,
            Severity::Error,
            finding,
            evidence,
            format!("set {NAME} to an address of this host{}", facts.suggestion()),
        )]);
    };
    if addresses.iter().any(|address| address.is_loopback() || address.is_unspecified()) {
        let severity = match master {
            Some(master) if !facts.own(&master.host) => wrong,
            _ => Severity::Info,
        };
        let finding = "nodes on this host announce a loopback address: other hosts cannot open their segments (-800)";
        return CheckStatus::Found(vec![find(
            check,
            severity,
            finding,
            evidence,
            format!(
                "set {NAME} to an address of this host{}; loopback is correct for a single host",
                facts.suggestion()
            ),
        )]);
    }
    let own: Vec<IpAddr> = facts.host.interfaces.iter().flat_map(|i| i.addresses.iter().copied()).collect();
    if own.is_empty() || addresses.iter().any(|address| own.contains(address)) {
        return CheckStatus::Passed(evidence);
    }
    let finding = "nodes on this host announce an address that none of its interfaces has: correct only behind NAT";
    let evidence =
        format!("{evidence} resolves to {}", addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "));
    CheckStatus::Found(vec![find(
        check,
        Severity::Warning,
        finding,
        evidence,
        format!("set {NAME} to an address of this host{}", facts.suggestion()),
    )])
}

pub(super) fn interface(facts: &HostFacts, check: &Check) -> CheckStatus {
    let outside: Vec<_> =
        facts.host.interfaces.iter().filter(|i| i.name != "lo" && i.running && !i.addresses.is_empty()).collect();
    let metadata = facts.intent.variable("MOONCAKE_TE_META_DATA_SERVER").unwrap_or("P2PHANDSHAKE");
    if outside.is_empty() {
        if facts.host.interfaces.is_empty() {
            return CheckStatus::Skipped("the interfaces of this host cannot be read".to_owned());
        }
        let severity = if metadata.contains("://") { Severity::Error } else { Severity::Info };
        let finding = "only the loopback interface has an address: with a metadata service, Mooncake fails \
             (not valid LAN address found), and other hosts cannot reach this host";
        let evidence = facts.host.interfaces.iter().map(|i| i.name.clone()).collect::<Vec<_>>().join(", ");
        return CheckStatus::Found(vec![find(
            check,
            severity,
            finding,
            format!("interfaces: {evidence}"),
            "assign an address to an interface and enable it (ip link set NAME up)",
        )]);
    }
    let Some(announced) = outside.iter().find(|i| i.announced) else {
        return CheckStatus::Passed("no interface has an IPv4 address, so IPv6 is used".to_owned());
    };
    let seen = format!(
        "{} with {}",
        announced.name,
        announced.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
    );
    let routes = facts.text("/proc/net/route").unwrap_or_default();
    let mut routes = procfs::routes(&routes);
    routes.retain(|route| route.destination.is_unspecified() && route.mask.is_unspecified());
    let default: Vec<String> = routes.into_iter().map(|route| route.iface).collect();
    if default.is_empty() || default.contains(&announced.name) {
        return CheckStatus::Passed(seen);
    }
    let severity = match metadata.contains("://") && facts.intent.variable(NAME).is_none() {
        true => Severity::Warning,
        false => Severity::Info,
    };
    let finding = format!(
        "Mooncake announces the first interface that is up, {}, but the default route uses {}",
        announced.name,
        default.join(", ")
    );
    CheckStatus::Found(vec![find(
        check,
        severity,
        finding,
        seen,
        format!("set {NAME} or MC_TCP_BIND_ADDRESS to an address of {}", default.join(" or ")),
    )])
}

impl HostFacts {
    /// Whether `host` is an address or the name of this host.
    fn own(&self, host: &str) -> bool {
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        address.is_ok_and(|address| self.host.interfaces.iter().any(|i| i.addresses.contains(&address)))
            || self.text("/proc/sys/kernel/hostname").is_some_and(|name| name == host)
    }

    /// An address of this host to show in the remedy.
    fn suggestion(&self) -> String {
        let announced = self.host.interfaces.iter().find(|i| i.announced);
        let address = announced.and_then(|i| i.addresses.iter().find(|a| a.is_ipv4()));
        address.map_or(String::new(), |address| format!(", e.g. {address}"))
    }
}
