//! Names of this host, and the interface that it announces.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

use crate::engine::base::addr::host_is_loopback;
use crate::engine::base::text::Quoted;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::find;
use crate::engine::doctor::host::Look;

/// The longest wait for a resolver.
const RESOLVE_MAX: Duration = Duration::from_secs(1);
const NAME: &str = "MOONCAKE_LOCAL_HOSTNAME";

/// What /etc/hosts has for `name`.
fn in_hosts(look: &Look, name: &str) -> Vec<IpAddr> {
    let text = look.text("/etc/hosts").unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let matching = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    });
    matching.collect()
}

/// The addresses of `name`; `None` where nobody tells in time.
fn resolve(look: &Look, name: &str) -> Option<Vec<IpAddr>> {
    if let Ok(address) = name.trim_matches(['[', ']']).parse() {
        return Some(vec![address]);
    }
    let known = in_hosts(look, name);
    if !known.is_empty() || !look.tree.is_this_host() {
        return Some(known).filter(|known| !known.is_empty());
    }
    let (tell, told) = mpsc::channel();
    let name = name.to_owned();
    // The system's resolver knows no deadline of ours: it is left behind when it takes too long.
    std::thread::spawn(move || {
        tell.send((name.as_str(), 0).to_socket_addrs().map(|all| all.map(|a| a.ip()).collect::<Vec<_>>()))
    });
    told.recv_timeout(RESOLVE_MAX).ok()?.ok()
}

pub(super) fn hostname(look: &Look, check: &Check) -> Status {
    let Some(name) = look.text("/proc/sys/kernel/hostname").filter(|name| !name.is_empty()) else {
        return Status::Skipped("/proc/sys/kernel/hostname cannot be read".to_owned());
    };
    let known = in_hosts(look, &name);
    match known.iter().find(|address| address.is_loopback()) {
        Some(address) => Status::Found(vec![find(
            check,
            Severity::Info,
            "the host's own name means the loopback: a node that announces it is reached by nobody else",
            format!("/etc/hosts has {name} as {address}"),
            format!("announce an address instead ({NAME}, --local-hostname); mcctl finds one by itself"),
        )]),
        None => Status::Passed(format!("/etc/hosts does not give {name} a loopback address")),
    }
}

pub(super) fn local(look: &Look, check: &Check) -> Status {
    let master = look.intent.master.as_ref().filter(|master| !host_is_loopback(&master.host));
    // With a metadata service the address is in its record, and the name matters for what is read from SSD.
    let has_service = look.intent.variable("MOONCAKE_TE_META_DATA_SERVER").is_some_and(|text| text.contains("://"));
    let wrong = if has_service { Severity::Warning } else { Severity::Error };
    let Some(name) = look.intent.variable(NAME) else {
        let Some((master, text)) = master.zip(look.intent.variable("MOONCAKE_MASTER")) else {
            return Status::Passed(format!("{NAME} is not set, and no master on another host is"));
        };
        let severity = if look.own(&master.host) { Severity::Info } else { wrong };
        return Status::Found(vec![find(
            check,
            severity,
            "a Mooncake client that is started with this environment announces 'localhost': with P2PHANDSHAKE every other host fails to open its segment (-800)",
            format!("MOONCAKE_MASTER={text}, and {NAME} is not set"),
            format!(
                "{NAME}=ADDRESS, an address of this host that the others reach{}; Kubernetes: the field status.podIP",
                look.suggestion()
            ),
        )]);
    };
    let evidence = format!("{NAME}={name}");
    let host = name
        .rsplit_once(':')
        .filter(|(host, port)| !host.contains(':') && port.parse::<u16>().is_ok())
        .map_or(name, |(host, _)| host);
    let Some(addresses) = resolve(look, host) else {
        let finding = format!(
            "the name that a node here announces, {}, has no address: nobody can open its segment",
            Quoted(host)
        );
        return Status::Found(vec![find(
            check,
            Severity::Error,
            finding,
            evidence,
            format!("{NAME}=ADDRESS of this host{}", look.suggestion()),
        )]);
    };
    if addresses.iter().any(|address| address.is_loopback() || address.is_unspecified()) {
        let severity = match master {
            Some(master) if !look.own(&master.host) => wrong,
            _ => Severity::Info,
        };
        let finding =
            "a node here announces the loopback: only programs of this host can open its segment, all others get -800";
        return Status::Found(vec![find(
            check,
            severity,
            finding,
            evidence,
            format!("{NAME}=ADDRESS of this host{}; right as it is for a single host", look.suggestion()),
        )]);
    }
    let own: Vec<IpAddr> = look.host.interfaces.iter().flat_map(|i| i.addresses.iter().copied()).collect();
    if own.is_empty() || addresses.iter().any(|address| own.contains(address)) {
        return Status::Passed(evidence);
    }
    let finding = "the name that a node here announces is an address of no interface of this host: right behind address translation only";
    let evidence = format!("{evidence} is {}", addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "));
    Status::Found(vec![find(
        check,
        Severity::Warning,
        finding,
        evidence,
        format!("{NAME}=ADDRESS of this host{}", look.suggestion()),
    )])
}

pub(super) fn interface(look: &Look, check: &Check) -> Status {
    let outside: Vec<_> =
        look.host.interfaces.iter().filter(|i| i.name != "lo" && i.running && !i.addresses.is_empty()).collect();
    let metadata = look.intent.variable("MOONCAKE_TE_META_DATA_SERVER").unwrap_or("P2PHANDSHAKE");
    if outside.is_empty() {
        if look.host.interfaces.is_empty() {
            return Status::Skipped("the interfaces of this host cannot be seen".to_owned());
        }
        let severity = if metadata.contains("://") { Severity::Error } else { Severity::Info };
        let finding = "only the loopback has an address: with a metadata service Mooncake fails (not valid LAN address found), and no other host can reach this one";
        let evidence = look.host.interfaces.iter().map(|i| i.name.clone()).collect::<Vec<_>>().join(", ");
        return Status::Found(vec![find(
            check,
            severity,
            finding,
            format!("interfaces: {evidence}"),
            "give an interface an address, and switch it on (ip link set NAME up)",
        )]);
    }
    let Some(announced) = outside.iter().find(|i| i.announced) else {
        return Status::Passed("no interface has an IPv4 address; IPv6 is used".to_owned());
    };
    let seen = format!(
        "{} with {}",
        announced.name,
        announced.addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
    );
    let routes = look.text("/proc/net/route").unwrap_or_default();
    let default: Vec<&str> = routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let (name, network) = (fields.next()?, fields.next()?);
            (network == "00000000" && fields.nth(5)? == "00000000").then_some(name)
        })
        .collect();
    if default.is_empty() || default.contains(&announced.name.as_str()) {
        return Status::Passed(seen);
    }
    let severity = match metadata.contains("://") && look.intent.variable(NAME).is_none() {
        true => Severity::Warning,
        false => Severity::Info,
    };
    let finding = format!(
        "Mooncake announces the first interface that is up, {}, and the way to other hosts is {}",
        announced.name,
        default.join(", ")
    );
    Status::Found(vec![find(
        check,
        severity,
        finding,
        seen,
        format!("{NAME}=ADDRESS of {}, or MC_TCP_BIND_ADDRESS", default.join(" or ")),
    )])
}

impl Look {
    /// Is `host` an address of this host?
    fn own(&self, host: &str) -> bool {
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        address.is_ok_and(|address| self.host.interfaces.iter().any(|i| i.addresses.contains(&address)))
            || self.text("/proc/sys/kernel/hostname").is_some_and(|name| name == host)
    }

    /// An address of this host to paste.
    fn suggestion(&self) -> String {
        let announced = self.host.interfaces.iter().find(|i| i.announced);
        let address = announced.and_then(|i| i.addresses.iter().find(|a| a.is_ipv4()));
        address.map_or(String::new(), |address| format!(", e.g. {address}"))
    }
}
