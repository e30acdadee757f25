//! Services and their ports.

use super::{Field, Violation, ViolationKind, grammar, port_number};

/// Rules for a Service as a whole.
pub(super) fn spec(target: &Field<'_>, out: &mut Vec<Violation>) {
    target.check_one_of("type", &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"], out);
    target.check_one_of("sessionAffinity", &["None", "ClientIP"], out);
    super::meta::pairs(target, "selector", out);
    let external = target.text("type") == Some("ExternalName");
    let headless = target.text("clusterIP") == Some("None");
    if external && target.text("externalName").is_none_or(str::is_empty) {
        target.report(out, ViolationKind::Missing, "an ExternalName Service requires externalName");
    }
    if headless && target.text("type").is_some_and(|t| t != "ClusterIP") {
        target.report(out, ViolationKind::Conflict, "a headless Service (clusterIP: None) must have type ClusterIP");
    }
    let ports = target.list("ports");
    if ports.is_empty() && !external && !headless {
        target.missing("ports", out);
    }
    target.check_unique("ports", "name", out);
    let mut seen = Vec::new();
    for port in &ports {
        if ports.len() > 1 && port.text("name").is_none_or(str::is_empty) {
            port.report(out, ViolationKind::Missing, "a Service with several ports requires a name for each port");
        }
        let key = (port.number("port"), port.text("protocol").unwrap_or("TCP"));
        if key.0.is_some() && seen.contains(&key) {
            port.report(out, ViolationKind::Duplicate, "duplicate port");
        }
        seen.push(key);
        if port.number("nodePort").is_some_and(|n| n != 0) && matches!(target.text("type"), None | Some("ClusterIP")) {
            port.report(out, ViolationKind::Conflict, "nodePort requires type NodePort or LoadBalancer");
        }
    }
}

/// Rules for a Service port.
pub(super) fn port(target: &Field<'_>, out: &mut Vec<Violation>) {
    port_number(target, "port", out);
    port_number(target, "targetPort", out);
    target.check_text("targetPort", grammar::port_name, out);
    target.check_text("name", |name| (!name.is_empty()).then(|| grammar::dns_label(name)).flatten(), out);
    target.check_one_of("protocol", &["TCP", "UDP", "SCTP"], out);
}
