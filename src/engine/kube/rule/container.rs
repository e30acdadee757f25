//! A container: image, environment, ports, mounts, probes.

use serde_json::Value;

use super::{Complaint, Spot, port_number, text};
use crate::engine::base::text::Quoted;

/// Prefixes of variables that something else puts into the pod: RBG, a LeaderWorkerSet, and Kubernetes for services.
const INJECTED: &[&str] = &["RBG_", "LWS_", "KUBERNETES_"];

/// What belongs to the container as a whole.
pub fn container(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    spot.held("name", |name| (!name.is_empty()).then(|| text::dns_label(name)).flatten(), out);
    // Containers of an engine runtime are laid over those of a profile, which has the image.
    let patch = spot.at.passes("engineRuntimes");
    match spot.text("image") {
        None | Some("") if !patch => spot.complain(out, "image is missing"),
        Some(image) if image.trim() != image || image.contains(char::is_whitespace) => {
            spot.complain(out, format!("the image {} has blanks", Quoted(image)));
        }
        _ => {}
    }
    spot.one_of("imagePullPolicy", &["Always", "IfNotPresent", "Never"], out);
    spot.unique("ports", "name", out);
    let mut ports = Vec::new();
    for port in spot.list("ports") {
        let key = (port.number("containerPort"), port.text("protocol").unwrap_or("TCP"));
        if key.0.is_some() && ports.contains(&key) {
            port.complain(out, "this port is there twice");
        }
        ports.push(key);
    }
    spot.unique("env", "name", out);
    spot.unique("volumeMounts", "mountPath", out);
    references(spot, out);
    for (kind, only_one) in [("livenessProbe", true), ("startupProbe", true), ("readinessProbe", false)] {
        let Some(probe) = spot.get(kind) else { continue };
        if only_one && probe.number("successThreshold").is_some_and(|n| n > 1) {
            probe.complain(out, format!("successThreshold of a {kind} is 1"));
        }
        if !only_one && probe.get("terminationGracePeriodSeconds").is_some() {
            probe.complain(out, "a readinessProbe ends no container: no terminationGracePeriodSeconds");
        }
    }
    let security = spot.get("securityContext");
    let flag = |name: &str| security.as_ref().and_then(|s| s.value.get(name)).and_then(Value::as_bool);
    if let (Some(security), Some(true), Some(false)) = (&security, flag("privileged"), flag("allowPrivilegeEscalation"))
    {
        security.complain(out, "privileged and allowPrivilegeEscalation: false exclude each other");
    }
}

/// `$(NAME)` names a variable of this container; Kubernetes leaves the text as it stands when it does not.
fn references(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    if !spot.list("envFrom").is_empty() || spot.at.passes("engineRuntimes") || spot.at.passes("roleTemplates") {
        return;
    }
    let mut before: Vec<&str> = Vec::new();
    let all: Vec<&str> = spot.list("env").iter().filter_map(|var| var.text("name")).collect();
    for var in spot.list("env") {
        for name in var.text("value").map(referred).unwrap_or_default() {
            if missing(name, &before) {
                let late = if all.contains(&name) { "only after this one" } else { "nowhere in this container" };
                var.complain(out, format!("$({name}) stays as it is: the variable is set {late}"));
            }
        }
        before.extend(var.text("name"));
    }
    for list in ["command", "args"] {
        for word in spot.list(list) {
            for name in word.value.as_str().map(referred).unwrap_or_default() {
                if missing(name, &all) {
                    word.complain(
                        out,
                        format!("$({name}) stays as it is: the variable is set nowhere in this container"),
                    );
                }
            }
        }
    }
}

fn missing(name: &str, set: &[&str]) -> bool {
    let service = name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT") || name.contains("_PORT_");
    !set.contains(&name) && !service && !INJECTED.iter().any(|prefix| name.starts_with(prefix))
}

/// The names in `$(NAME)`, without `$$(NAME)`, which means itself; a shell's `$(command)` is none, for variables are upper case.
fn referred(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = &rest[at + 1..];
        if let Some(inner) = after.strip_prefix('(')
            && let Some((name, _)) = inner.split_once(')')
            && name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        {
            names.push(name);
        }
        rest = after.strip_prefix('$').unwrap_or(after);
    }
    names
}

/// One variable: a value or where it is from.
pub fn env_var(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    spot.held("name", |name| (!name.is_empty()).then(|| text::env_name(name)).flatten(), out);
    if spot.text("value").is_some_and(|value| !value.is_empty()) && spot.get("valueFrom").is_some() {
        spot.complain(out, "value and valueFrom exclude each other");
    }
}

/// The fields of a pod that a variable or a file can show.
pub fn field_path(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    const FIELDS: &[&str] = &[
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.labels",
        "metadata.annotations",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ];
    let one = |path: &str| {
        let keyed = ["metadata.labels['", "metadata.annotations['"];
        FIELDS.contains(&path) || keyed.iter().any(|k| path.starts_with(k)) && path.ends_with("']")
    };
    let wrong =
        |path: &str| (!path.is_empty() && !one(path)).then(|| format!("no field that can be shown: {}", Quoted(path)));
    spot.held("fieldPath", wrong, out);
}

/// One port.
pub fn port(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    port_number(spot, "containerPort", out);
    port_number(spot, "hostPort", out);
    spot.held("name", text::port_name, out);
    spot.one_of("protocol", &["TCP", "UDP", "SCTP"], out);
}

/// One mount.
pub fn mount(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    let wrong = |path: &str| path.contains(':').then(|| "a mount's path has no ':'".to_owned());
    spot.held("mountPath", wrong, out);
    if spot.get("subPath").is_some() && spot.get("subPathExpr").is_some() {
        spot.complain(out, "subPath and subPathExpr exclude each other");
    }
}

/// One probe: one way to ask, and times that are times.
pub fn probe(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    spot.exactly_one(&["exec", "grpc", "httpGet", "tcpSocket"], out);
    for (key, least) in [
        ("periodSeconds", 1),
        ("timeoutSeconds", 1),
        ("failureThreshold", 1),
        ("successThreshold", 1),
        ("initialDelaySeconds", 0),
        ("terminationGracePeriodSeconds", 1),
    ] {
        spot.at_least(key, least, out);
    }
}

/// The port of a probe or a hook: a number, or the name of a port of the same container.
pub fn dialled_port(spot: &Spot<'_>, whole: &Value, out: &mut Vec<Complaint>) {
    port_number(spot, "port", out);
    spot.one_of("scheme", &["HTTP", "HTTPS"], out);
    let Some(name) = spot.text("port").filter(|name| !name.is_empty()) else { return };
    if let Some(what) = text::port_name(name) {
        return out.push(Complaint::new(&spot.at.key("port"), what));
    }
    // The container is the nearest ancestor that stands in a list: containers[0].livenessProbe.httpGet.
    let container = (1..=3).map(|up| spot.at.up(up)).find_map(|at| {
        let value = at.find(whole)?;
        value.get("ports").is_some().then_some(Spot { at, value })
    });
    let named = container.is_some_and(|c| c.list("ports").iter().any(|port| port.text("name") == Some(name)));
    if !named {
        out.push(Complaint::new(&spot.at.key("port"), format!("the container has no port named {}", Quoted(name))));
    }
}

#[cfg(test)]
mod tests {
    use super::referred;

    #[test]
    fn references_are_told_from_what_a_shell_reads() {
        assert_eq!(referred("--rpc_address=$(POD_IP):$(PORT)"), ["POD_IP", "PORT"]);
        assert_eq!(referred("$$(POD_IP) $(hostname -i) $(date) $((1+1)) ${POD_IP} $(A"), Vec::<&str>::new());
        assert_eq!(referred("$"), Vec::<&str>::new());
    }
}
