//! Kubernetes Services, the ports of their clients, and the ports on which the masters behind them
//! listen.

use crate::lint::findings::Findings;
use crate::lint::model::{KubeService, LocatedValue, Process, ProcessRole, RuntimeKind};
use crate::lint::rules::kubernetes::selects;
use crate::lint::rules::listeners::may_listen;
use crate::lint::settings::{ProcessView, SettingValue, host_of};
use crate::lint::view::DeploymentView;
use mcctl_base::addr::host_is_loopback;
use mcctl_base::check::listed;

/// A client must use a port that its Service exposes, and a Service port must route to a port on
/// which a process listens.
pub(super) fn service_port(view: &DeploymentView<'_>, out: &mut Findings) {
    for service in &view.deployment.services {
        targets(view, service, out);
        other_targets(view, service, out);
        on_loopback(view, service, out);
    }
    for member in view.clients().filter(|member| member.process.runtime == RuntimeKind::Kubernetes) {
        for key in ["master_server_address", "metadata_server"] {
            if let SettingValue::Is(located) = member.client(key) {
                check_client_port(view, member.process, &located, key == "master_server_address", out);
            }
        }
    }
}

/// The ports of a master.
struct MasterPorts {
    rpc: u16,
    admin: u16,
    metadata: Option<u16>,
}

impl MasterPorts {
    /// The ports of a master, if all are known and no other process in its network namespace
    /// listens.
    fn of(view: &DeploymentView<'_>, member: &ProcessView<'_>) -> Option<MasterPorts> {
        if member.process.role != ProcessRole::Master || view.same_network(member.process).next().is_some() {
            return None;
        }
        let metadata = match member.master_switch("enable_http_metadata_server")? {
            true => Some(member.master_port("http_metadata_server_port")?),
            false => None,
        };
        Some(MasterPorts { rpc: member.rpc_port()?, admin: member.master_port("metrics_port")?, metadata })
    }

    fn has(&self, port: u16) -> bool {
        port == self.rpc || self.has_http(port)
    }

    fn has_http(&self, port: u16) -> bool {
        port == self.admin || Some(port) == self.metadata
    }

    fn shown(&self) -> String {
        let metadata = self.metadata.map(|port| format!(", {port} (metadata)")).unwrap_or_default();
        format!("the master listens on {} (RPC), {} (metrics){metadata}", self.rpc, self.admin)
    }
}

/// The processes that a Service selects.
fn selected<'v, 's>(
    view: &'v DeploymentView<'s>,
    service: &'v KubeService,
) -> impl Iterator<Item = &'v ProcessView<'s>> {
    view.member.iter().filter(move |member| {
        let pods = member.process.pod.and_then(|at| view.deployment.pods.get(at));
        pods.is_some_and(|pods| {
            let apart = matches!((&pods.namespace, &service.namespace), (Some(a), Some(b)) if a != b);
            !apart && selects(service, &pods.labels)
        })
    })
}

/// The ports behind a Service that selects only masters, if all of them are known.
fn backend_ports(view: &DeploymentView<'_>, service: &KubeService) -> Option<Vec<MasterPorts>> {
    let all = selected(view, service).map(|member| MasterPorts::of(view, member)).collect::<Option<Vec<_>>>()?;
    (!all.is_empty()).then_some(all)
}

fn targets(view: &DeploymentView<'_>, service: &KubeService, out: &mut Findings) {
    // A headless Service resolves to pod addresses. Its ports are not used.
    let Some(masters) = backend_ports(view, service).filter(|_| !service.headless) else { return };
    for port in &service.ports {
        let Some(target) = port.target else { continue };
        if masters.iter().any(|ports| ports.has(target)) {
            continue;
        }
        let Some(first) = masters.first() else { continue };
        out.error(
            &port.place,
            format!("Service {} routes to port {target}, on which no process listens", service.name),
            first.shown(),
            format!("set targetPort to {}", first.rpc),
        );
    }
}

/// A port of a Service in front of servers, on which none of them listens.
fn other_targets(view: &DeploymentView<'_>, service: &KubeService, out: &mut Findings) {
    let selected: Vec<&ProcessView<'_>> = selected(view, service).collect();
    let has_master = selected.iter().any(|member| member.process.role == ProcessRole::Master);
    if service.headless || selected.is_empty() || has_master && backend_ports(view, service).is_some() {
        return;
    }
    for port in &service.ports {
        let Some(target) = port.target else { continue };
        // A process that is not known may listen on any port.
        let answers: Option<Vec<bool>> = selected.iter().map(|member| may_listen(member, target)).collect();
        if answers.is_none_or(|answers| answers.contains(&true)) {
            continue;
        }
        let Some(first) = selected.first() else { continue };
        let http = first.number(&["port"], 0).filter(|port| *port > 0);
        out.warning(
            &port.place,
            format!("Service {} routes to port {target}, on which no process listens", service.name),
            match http {
                Some(http) => format!("{} listens on {http}", first.process.describe()),
                None => format!("no argument of {} names the port", first.process.describe()),
            },
            match http {
                Some(http) => format!("set targetPort to {http}, or remove the port"),
                None => "remove the port, or set targetPort to a port of the process".to_owned(),
            },
        );
    }
}

fn on_loopback(view: &DeploymentView<'_>, service: &KubeService, out: &mut Findings) {
    for member in selected(view, service).filter(|member| member.process.role == ProcessRole::Master) {
        let SettingValue::Is(located) = member.master("rpc_address") else { continue };
        if host_is_loopback(located.text.trim()) && view.same_network(member.process).next().is_none() {
            out.error(
                &located.place,
                format!(
                    "clients of Service {1} cannot reach {0}: the master listens only on loopback",
                    member.process.describe(),
                    service.name
                ),
                format!("rpc_address is {}", located.text),
                "remove --rpc_address, or set it to 0.0.0.0",
            );
        }
    }
}

/// The Service that `host` refers to in `process`, if it is in the provided files.
fn resolve_service<'v>(view: &'v DeploymentView<'_>, process: &Process, host: &str) -> Option<&'v KubeService> {
    let mut parts = host.split('.');
    let first = parts.next()?;
    let wanted = parts.next().map(str::to_owned);
    let wanted = wanted.or_else(|| view.deployment.pods.get(process.pod?)?.namespace.clone());
    let mut all = view.deployment.services.iter().filter(|service| service.name == first);
    let service = all.next().filter(|service| !service.selector.is_empty())?;
    let apart = matches!((&wanted, &service.namespace), (Some(a), Some(b)) if a != b);
    (all.next().is_none() && !apart).then_some(service)
}

fn check_client_port(
    view: &DeploymentView<'_>,
    process: &Process,
    located: &LocatedValue,
    is_master: bool,
    out: &mut Findings,
) {
    let text = located.text.trim();
    let rest = match text.split_once("://") {
        Some(("http", rest)) if !is_master => rest,
        Some(_) => return,
        None => text,
    };
    let authority = rest.split('/').next().unwrap_or(rest);
    let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let (Some(port), Some(service)) = (port, resolve_service(view, process, host_of(text))) else { return };
    let who = process.describe();
    let masters = backend_ports(view, service);
    if service.headless {
        let reached = |ports: &MasterPorts| if is_master { ports.rpc == port } else { ports.has_http(port) };
        let Some(masters) = masters.filter(|all| !all.iter().any(reached)) else { return };
        let Some(first) = masters.first() else { return };
        out.error(
            &located.place,
            format!("{who} uses port {port}, but no process behind Service {} listens on it", service.name),
            format!("{text}; {}", first.shown()),
            format!("use port {}", if is_master { first.rpc } else { first.metadata.unwrap_or(first.admin) }),
        );
        return;
    }
    let Some(ports) = service.ports.iter().map(|p| p.port).collect::<Option<Vec<_>>>() else { return };
    if !ports.contains(&port) {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        out.error(
            &located.place,
            format!("{who} uses port {port} of Service {}, which does not expose that port", service.name),
            format!("{text}; the Service at {} has {}", service.place, listed(&ports)),
            "use one of the Service's ports, or add this port to the Service",
        );
        return;
    }
    let target = service.ports.iter().find(|p| p.port == Some(port)).and_then(|p| p.target);
    let (Some(target), Some(masters), true) = (target, masters, is_master) else { return };
    let http = !masters.is_empty() && masters.iter().all(|ports| ports.has_http(target) && ports.rpc != target);
    if let Some(first) = masters.first().filter(|_| http) {
        out.error(
            &located.place,
            format!("{who} uses an HTTP port as the master's RPC port"),
            format!("{text} routes to port {target}; {}", first.shown()),
            format!("use the port of Service {} that routes to {}", service.name, first.rpc),
        );
    }
}

/// A port that a master's container declares and on which the master does not listen. A Service for
/// that port has no backend.
pub(super) fn container_port(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.masters().filter(|member| member.process.runtime.is_container()) {
        let Some(ports) = MasterPorts::of(view, member) else { continue };
        for declared in member.process.ports.iter().filter(|declared| !ports.has(declared.number)) {
            let name = declared.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let named_rpc = declared.name.as_deref().is_some_and(|name| name.contains("rpc"));
            let remedy = match member.process.ports.iter().any(|other| other.number == ports.rpc) {
                _ if declared.number == 8080 && ports.metadata.is_none() => {
                    "add --enable_http_metadata_server=true, or remove the port".to_owned()
                }
                false if named_rpc || member.process.ports.len() == 1 => format!("use {}", ports.rpc),
                _ => "use one of the master's ports, or remove the port".to_owned(),
            };
            out.warning(
                &declared.place,
                format!(
                    "{} does not listen on port {}, which its container declares",
                    member.process.describe(),
                    declared.number
                ),
                format!("port {}{name}; {}", declared.number, ports.shown()),
                remedy,
            );
        }
    }
}
