//! A service and its ports.

use super::{Complaint, Spot, port_number, text};

/// The service as a whole.
pub fn spec(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    spot.one_of("type", &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"], out);
    spot.one_of("sessionAffinity", &["None", "ClientIP"], out);
    super::meta::pairs(spot, "selector", out);
    let external = spot.text("type") == Some("ExternalName");
    let headless = spot.text("clusterIP") == Some("None");
    if external && spot.text("externalName").is_none_or(str::is_empty) {
        spot.complain(out, "an ExternalName service needs externalName");
    }
    if headless && spot.text("type").is_some_and(|t| t != "ClusterIP") {
        spot.complain(out, "a headless service (clusterIP: None) is of type ClusterIP");
    }
    let ports = spot.list("ports");
    if ports.is_empty() && !external && !headless {
        spot.complain(out, "ports is missing");
    }
    spot.unique("ports", "name", out);
    let mut seen = Vec::new();
    for port in &ports {
        if ports.len() > 1 && port.text("name").is_none_or(str::is_empty) {
            port.complain(out, "of several ports each needs a name");
        }
        let key = (port.number("port"), port.text("protocol").unwrap_or("TCP"));
        if key.0.is_some() && seen.contains(&key) {
            port.complain(out, "this port is there twice");
        }
        seen.push(key);
        if port.number("nodePort").is_some_and(|n| n != 0) && matches!(spot.text("type"), None | Some("ClusterIP")) {
            port.complain(out, "nodePort needs the type NodePort or LoadBalancer");
        }
    }
}

/// One port.
pub fn port(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    port_number(spot, "port", out);
    port_number(spot, "targetPort", out);
    spot.held("targetPort", text::port_name, out);
    spot.held("name", |name| (!name.is_empty()).then(|| text::dns_label(name)).flatten(), out);
    spot.one_of("protocol", &["TCP", "UDP", "SCTP"], out);
}
