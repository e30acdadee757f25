//! Kubernetes Services, the ports of those who call them, and the ports on which the masters behind them listen.

use crate::engine::base::addr::host_is_loopback;
use crate::engine::check::listed;
use crate::engine::lint::rules::kubernetes::selects;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, Process, Role, Said, Service};
use crate::engine::lint::settings::{Seen, Setting, host_of};

/// Who calls a Service calls one of its ports, and a port of a Service leads to one on which somebody listens.
pub fn service_port(view: &View<'_>, out: &mut Findings) {
    for service in &view.scene.services {
        targets(view, service, out);
        on_loopback(view, service, out);
    }
    for seen in view.clients().filter(|seen| seen.process.habitat == Habitat::Kubernetes) {
        for key in ["master_server_address", "metadata_server"] {
            if let Setting::Is(said) = seen.client(key) {
                asked(view, seen.process, &said, key == "master_server_address", out);
            }
        }
    }
}

/// Where a master listens.
struct Ports {
    rpc: u16,
    admin: u16,
    metadata: Option<u16>,
}

impl Ports {
    /// The ports of a master, when all are known and nobody beside it listens on more.
    fn of(view: &View<'_>, seen: &Seen<'_>) -> Option<Ports> {
        if seen.process.role != Role::Master || view.beside(seen.process).next().is_some() {
            return None;
        }
        let metadata = match seen.master_switch("enable_http_metadata_server")? {
            true => Some(seen.master_port("http_metadata_server_port", 8080)?),
            false => None,
        };
        Some(Ports { rpc: seen.rpc_port()?, admin: seen.master_port("metrics_port", 9003)?, metadata })
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
fn selected<'v, 's>(view: &'v View<'s>, service: &'v Service) -> impl Iterator<Item = &'v Seen<'s>> {
    view.seen.iter().filter(move |seen| {
        let pods = seen.process.pod.and_then(|at| view.scene.pods.get(at));
        pods.is_some_and(|pods| {
            let apart = matches!((&pods.namespace, &service.namespace), (Some(a), Some(b)) if a != b);
            !apart && selects(service, &pods.labels)
        })
    })
}

/// The ports behind a Service, when only masters are and all of theirs are known.
fn behind(view: &View<'_>, service: &Service) -> Option<Vec<Ports>> {
    let all = selected(view, service).map(|seen| Ports::of(view, seen)).collect::<Option<Vec<_>>>()?;
    (!all.is_empty()).then_some(all)
}

fn targets(view: &View<'_>, service: &Service, out: &mut Findings) {
    // The address of a headless one is that of the pods: its ports lead nowhere.
    let Some(masters) = behind(view, service).filter(|_| !service.headless) else { return };
    for port in &service.ports {
        let Some(target) = port.target else { continue };
        if masters.iter().any(|ports| ports.has(target)) {
            continue;
        }
        let Some(first) = masters.first() else { continue };
        out.error(
            &port.place,
            format!("Service {} leads to port {target}, on which nobody listens", service.name),
            first.shown(),
            format!("write targetPort: {}", first.rpc),
        );
    }
}

fn on_loopback(view: &View<'_>, service: &Service, out: &mut Findings) {
    for seen in selected(view, service).filter(|seen| seen.process.role == Role::Master) {
        let Setting::Is(said) = seen.master("rpc_address") else { continue };
        if host_is_loopback(said.text.trim()) && view.beside(seen.process).next().is_none() {
            out.error(
                &said.place,
                format!(
                    "{} is not reached by Service {}: it listens in its own pod alone",
                    seen.process.called(),
                    service.name
                ),
                format!("rpc_address is {}", said.text),
                "take --rpc_address away, or give it 0.0.0.0",
            );
        }
    }
}

/// The Service that `host` names for `process`, if it is among those that were given.
fn named<'v>(view: &'v View<'_>, process: &Process, host: &str) -> Option<&'v Service> {
    let mut parts = host.split('.');
    let first = parts.next()?;
    let wanted = parts.next().map(str::to_owned);
    let wanted = wanted.or_else(|| view.scene.pods.get(process.pod?)?.namespace.clone());
    let mut all = view.scene.services.iter().filter(|service| service.name == first);
    let service = all.next().filter(|service| !service.selector.is_empty())?;
    let apart = matches!((&wanted, &service.namespace), (Some(a), Some(b)) if a != b);
    (all.next().is_none() && !apart).then_some(service)
}

fn asked(view: &View<'_>, process: &Process, said: &Said, is_master: bool, out: &mut Findings) {
    let text = said.text.trim();
    let rest = match text.split_once("://") {
        Some(("http", rest)) if !is_master => rest,
        Some(_) => return,
        None => text,
    };
    let authority = rest.split('/').next().unwrap_or(rest);
    let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let (Some(port), Some(service)) = (port, named(view, process, host_of(text))) else { return };
    let who = process.called();
    let masters = behind(view, service);
    if service.headless {
        let reached = |ports: &Ports| if is_master { ports.rpc == port } else { ports.has_http(port) };
        let Some(masters) = masters.filter(|all| !all.iter().any(reached)) else { return };
        let Some(first) = masters.first() else { return };
        out.error(
            &said.place,
            format!("{who} asks port {port}, on which nobody listens behind Service {}", service.name),
            format!("{text}; {}", first.shown()),
            format!("write port {}", if is_master { first.rpc } else { first.metadata.unwrap_or(first.admin) }),
        );
        return;
    }
    let Some(ports) = service.ports.iter().map(|p| p.port).collect::<Option<Vec<_>>>() else { return };
    if !ports.contains(&port) {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        out.error(
            &said.place,
            format!("{who} asks port {port} of Service {}, which has none of that number", service.name),
            format!("{text}; the Service at {} has {}", service.place, listed(&ports)),
            "write a port of the Service, or add this one to it",
        );
        return;
    }
    let target = service.ports.iter().find(|p| p.port == Some(port)).and_then(|p| p.target);
    let (Some(target), Some(masters), true) = (target, masters, is_master) else { return };
    let http = !masters.is_empty() && masters.iter().all(|ports| ports.has_http(target) && ports.rpc != target);
    if let Some(first) = masters.first().filter(|_| http) {
        out.error(
            &said.place,
            format!("{who} asks an HTTP port as the master's RPC port"),
            format!("{text} leads to port {target}; {}", first.shown()),
            format!("write the port of Service {} that leads to {}", service.name, first.rpc),
        );
    }
}

/// A port that the container of a master declares, and on which the master does not listen: a Service that names it leads nowhere.
pub fn container_port(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters().filter(|seen| seen.process.habitat.is_container()) {
        let Some(ports) = Ports::of(view, seen) else { continue };
        for declared in seen.process.ports.iter().filter(|declared| !ports.has(declared.number)) {
            let name = declared.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let named_rpc = declared.name.as_deref().is_some_and(|name| name.contains("rpc"));
            let remedy = match seen.process.ports.iter().any(|other| other.number == ports.rpc) {
                _ if declared.number == 8080 && ports.metadata.is_none() => {
                    "add --enable_http_metadata_server=true, or remove it".to_owned()
                }
                false if named_rpc || seen.process.ports.len() == 1 => format!("write {}", ports.rpc),
                _ => "write a port of the master, or remove it".to_owned(),
            };
            out.warning(
                &declared.place,
                format!(
                    "{} does not listen on port {}, which its container declares",
                    seen.process.called(),
                    declared.number
                ),
                format!("port {}{name}; {}", declared.number, ports.shown()),
                remedy,
            );
        }
    }
}
