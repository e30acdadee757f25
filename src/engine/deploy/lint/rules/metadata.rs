//! The metadata service inside masters that elect a leader.

use crate::lint::findings::Findings;
use crate::lint::model::{Implementation, LocatedValue, Process};
use crate::lint::rules::addresses::is_url_list;
use crate::lint::rules::kubernetes::{same_host, selects};
use crate::lint::settings::{ProcessView, SettingReader, SettingValue, is_host_local};
use crate::lint::view::DeploymentView;
use mcctl_base::HostPort;
use mcctl_base::addr::host_is_loopback;
use mcctl_base::upstream::{MASTER_FLAGS, find};

/// The flag that starts the service.
const EMBEDDED: &str = "enable_http_metadata_server";
/// The port of a URL without one.
const HTTP_PORT: u16 = 80;

/// A setting with the URL of a metadata service.
struct MetadataClient<'s> {
    process: &'s Process,
    url: LocatedValue,
}

/// How a client's URL leads to the service of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetadataRoute {
    /// To this master only.
    OneMaster,
    /// To any master that is ready: a Service.
    AnyMaster,
}

/// Nodes and engines that use the service of one of several masters. Each of upstream's masters has
/// records of its own, which are lost with it. All of mcctl's masters have all records, but the
/// host in the URL may be down.
pub(super) fn embedded_in_elected_masters(view: &DeploymentView<'_>, out: &mut Findings) {
    let elected: Vec<_> = view.masters().filter(|member| member.master_switch("enable_ha") == Some(true)).collect();
    let clients = clients(view);
    for master in elected.iter().filter(|member| member.master_switch(EMBEDDED) == Some(true)) {
        let is_replicated = master.process.implementation == Implementation::Mcctl;
        let size = cluster_size(&elected, master);
        let Some(port) = master.master_port("http_metadata_server_port").filter(|_| size > 1) else { continue };
        for client in &clients {
            let who = client.process.describe();
            match (route(view, client, master, port), is_replicated) {
                (None, _) | (Some(MetadataRoute::AnyMaster), true) => {}
                (Some(MetadataRoute::OneMaster), true) => out.warning(
                    &client.url.place,
                    format!("{who} cannot reach the nodes while the host of one master is down"),
                    format!("{}: the URL of one of {size} masters, each of which serves all records", client.url.text),
                    "use the URL of a Service in front of the masters, or of a proxy on this host (mcctl serve metadata --forward-to \
                     HOST:PORT,HOST:PORT)",
                ),
                (Some(_), false) => out.error(
                    &client.url.place,
                    format!("{who} cannot reach the nodes after a failover: its metadata service is inside a master"),
                    format!("{}: {size} masters elect a leader, and each has records of its own", client.url.text),
                    "use P2PHANDSHAKE, or etcd://HOST:2379 with the masters' etcd, as the metadata server",
                ),
            }
        }
    }
}

/// The number of masters in the files that are in the cluster of `master`.
fn cluster_size(elected: &[&ProcessView<'_>], master: &ProcessView<'_>) -> u64 {
    let id = |member: &ProcessView<'_>| match member.master("cluster_id") {
        SettingValue::Is(located) => Some(located.text),
        SettingValue::Unset => Some(find(MASTER_FLAGS, "cluster_id").default.to_owned()),
        SettingValue::Unknown => None,
    };
    let is_member = |other: &&&ProcessView<'_>| {
        std::ptr::eq(**other, master) || id(master).is_some_and(|own| id(other).is_some_and(|theirs| own == theirs))
    };
    let replicas =
        |member: &&ProcessView<'_>| member.process.replicas.as_ref().and_then(|count| count.text.parse().ok());
    elected.iter().filter(is_member).fold(0, |sum: u64, member| sum.saturating_add(replicas(member).unwrap_or(1)))
}

/// Everything that sets a metadata server.
fn clients<'s>(view: &DeploymentView<'s>) -> Vec<MetadataClient<'s>> {
    let is_used =
        |member: &ProcessView<'_>, reader| reader == SettingReader::Variables || member.uses_mooncake() == Some(true);
    let one = |(member, reader): (&ProcessView<'s>, SettingReader)| match member.client("metadata_server") {
        SettingValue::Is(url) if is_used(member, reader) => Some(MetadataClient { process: member.process, url }),
        _ => None,
    };
    view.readers().filter_map(one).collect()
}

/// How the client's URL leads to the service of `master`, which listens on `port`. `None` if it is
/// not known to lead there.
fn route(
    view: &DeploymentView<'_>,
    client: &MetadataClient<'_>,
    master: &ProcessView<'_>,
    port: u16,
) -> Option<MetadataRoute> {
    // A client that accepts a list uses the next URL if one fails.
    let text = client.url.text.trim();
    if is_url_list(text) {
        return None;
    }
    let rest = text.strip_prefix("http://")?;
    let (host, used) = HostPort::split(rest.split('/').next().unwrap_or(rest)).ok()?;
    let used = used.unwrap_or(HTTP_PORT);
    let process = master.process;
    // With an election, this is the address under which other hosts reach the master.
    let is_published = matches!(master.master("rpc_address"), SettingValue::Is(located) if located.text.trim() == host);
    let is_beside = client.process.network == process.network && host_is_loopback(&host);
    if is_published && !is_host_local(&host) || is_beside {
        return (used == port).then_some(MetadataRoute::OneMaster);
    }
    let (target, route) = target_port(view, process, &host, used)?;
    (target == port).then_some(route)
}

/// The port of `process` to which connections to `host` and `port` go. `None` if `host` is not
/// known to be its host.
fn target_port(view: &DeploymentView<'_>, process: &Process, host: &str, port: u16) -> Option<(u16, MetadataRoute)> {
    let pods = process.pod.and_then(|at| view.deployment.pods.get(at));
    let service = |name: Option<&str>| {
        let mut services = view.deployment.services.iter().filter(|service| Some(service.name.as_str()) == name);
        services.find(|service| pods.is_some_and(|pods| selects(service, &pods.labels)))
    };
    let mut names = host.split('.');
    let first = service(names.next());
    let second = service(names.next());
    if let Some(service) = first.filter(|service| !service.headless) {
        let open = service.ports.iter().find(|open| open.port == Some(port))?;
        return Some((open.target.unwrap_or(port), MetadataRoute::AnyMaster));
    }
    // A name such as kv-0.kv is that of a single pod.
    let is_pod = second.is_some_and(|service| service.headless);
    (is_pod || same_host(view, process, host)).then_some((port, MetadataRoute::OneMaster))
}
