//! Containers: image, environment, ports, mounts, probes.

use serde_json::Value;

use super::{Field, Violation, ViolationKind, grammar, port_number};
use mcctl_base::text::Quoted;

/// Prefixes of variables that RBG, LeaderWorkerSets and Kubernetes (for Services) add to pods.
const INJECTED: &[&str] = &["RBG_", "LWS_", "KUBERNETES_"];

/// Rules for a container as a whole.
pub(super) fn container(target: &Field<'_>, out: &mut Vec<Violation>) {
    target.check_text("name", |name| (!name.is_empty()).then(|| grammar::dns_label(name)).flatten(), out);
    // Containers of an engine runtime are patches for a profile, which sets the image.
    let patch = target.at.passes("engineRuntimes");
    match target.text("image") {
        None | Some("") if !patch => target.missing("image", out),
        Some(image) if image.trim() != image || image.contains(char::is_whitespace) => {
            target.report(out, ViolationKind::Syntax, format!("the image {} contains whitespace", Quoted(image)));
        }
        _ => {}
    }
    target.check_one_of("imagePullPolicy", &["Always", "IfNotPresent", "Never"], out);
    target.check_unique("ports", "name", out);
    let mut ports = Vec::new();
    for port in target.list("ports") {
        let key = (port.number("containerPort"), port.text("protocol").unwrap_or("TCP"));
        if key.0.is_some() && ports.contains(&key) {
            port.report(out, ViolationKind::Duplicate, "duplicate port");
        }
        ports.push(key);
    }
    target.check_unique("env", "name", out);
    target.check_unique("volumeMounts", "mountPath", out);
    references(target, out);
    for (kind, only_one) in [("livenessProbe", true), ("startupProbe", true), ("readinessProbe", false)] {
        let Some(probe) = target.get(kind) else { continue };
        if only_one && probe.number("successThreshold").is_some_and(|n| n > 1) {
            probe.report(out, ViolationKind::Range, format!("successThreshold must be 1 for a {kind}"));
        }
        if !only_one && probe.get("terminationGracePeriodSeconds").is_some() {
            probe.report(out, ViolationKind::Conflict, "a readinessProbe must not set terminationGracePeriodSeconds");
        }
    }
    let security = target.get("securityContext");
    let flag = |name: &str| security.as_ref().and_then(|s| s.value.get(name)).and_then(Value::as_bool);
    if let (Some(security), Some(true), Some(false)) = (&security, flag("privileged"), flag("allowPrivilegeEscalation"))
    {
        security.report(out, ViolationKind::Conflict, "privileged conflicts with allowPrivilegeEscalation: false");
    }
}

/// `$(NAME)` refers to a variable of this container. Kubernetes leaves an unresolved reference
/// unchanged.
fn references(target: &Field<'_>, out: &mut Vec<Violation>) {
    if !target.list("envFrom").is_empty() || target.at.passes("engineRuntimes") || target.at.passes("roleTemplates") {
        return;
    }
    let mut before: Vec<&str> = Vec::new();
    let all: Vec<&str> = target.list("env").iter().filter_map(|var| var.text("name")).collect();
    for var in target.list("env") {
        for name in var.text("value").map(referenced_names).unwrap_or_default() {
            if missing(name, &before) {
                let where_set =
                    if all.contains(&name) { "set only after this one" } else { "not set in this container" };
                var.report(
                    out,
                    ViolationKind::Reference,
                    format!("$({name}) is not substituted: the variable is {where_set}"),
                );
            }
        }
        before.extend(var.text("name"));
    }
    for list in ["command", "args"] {
        for word in target.list(list) {
            for name in word.value.as_str().map(referenced_names).unwrap_or_default() {
                if missing(name, &all) {
                    word.report(
                        out,
                        ViolationKind::Reference,
                        format!("$({name}) is not substituted: the variable is not set in this container"),
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

/// The names in `$(NAME)`, except the escaped form `$$(NAME)`. A shell's `$(command)` does not
/// match, because variables are upper case.
fn referenced_names(text: &str) -> Vec<&str> {
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

/// Rules for a variable: a value or its source.
pub(super) fn env_var(target: &Field<'_>, out: &mut Vec<Violation>) {
    target.check_text("name", |name| (!name.is_empty()).then(|| grammar::env_name(name)).flatten(), out);
    if target.text("value").is_some_and(|value| !value.is_empty()) && target.get("valueFrom").is_some() {
        target.report(out, ViolationKind::Conflict, "value and valueFrom are mutually exclusive");
    }
}

/// Pod fields that the downward API exposes.
pub(super) fn field_path(target: &Field<'_>, out: &mut Vec<Violation>) {
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
        |path: &str| (!path.is_empty() && !one(path)).then(|| grammar::GrammarError::FieldPath(path.to_owned()));
    target.check_text("fieldPath", wrong, out);
}

/// Rules for a port.
pub(super) fn port(target: &Field<'_>, out: &mut Vec<Violation>) {
    port_number(target, "containerPort", out);
    port_number(target, "hostPort", out);
    target.check_text("name", grammar::port_name, out);
    target.check_one_of("protocol", &["TCP", "UDP", "SCTP"], out);
}

/// Rules for a volume mount.
pub(super) fn mount(target: &Field<'_>, out: &mut Vec<Violation>) {
    let wrong = |path: &str| path.contains(':').then_some(grammar::GrammarError::MountPath);
    target.check_text("mountPath", wrong, out);
    if target.get("subPath").is_some() && target.get("subPathExpr").is_some() {
        target.report(out, ViolationKind::Conflict, "subPath and subPathExpr are mutually exclusive");
    }
}

/// Rules for a probe: exactly one handler, and valid intervals.
pub(super) fn probe(target: &Field<'_>, out: &mut Vec<Violation>) {
    target.check_exactly_one(&["exec", "grpc", "httpGet", "tcpSocket"], out);
    for (key, least) in [
        ("periodSeconds", 1),
        ("timeoutSeconds", 1),
        ("failureThreshold", 1),
        ("successThreshold", 1),
        ("initialDelaySeconds", 0),
        ("terminationGracePeriodSeconds", 1),
    ] {
        target.check_min(key, least, out);
    }
}

/// Rules for the port of a probe or hook: a number, or the name of a port of the same container.
pub(super) fn target_port(target: &Field<'_>, whole: &Value, out: &mut Vec<Violation>) {
    port_number(target, "port", out);
    target.check_one_of("scheme", &["HTTP", "HTTPS"], out);
    let Some(name) = target.text("port").filter(|name| !name.is_empty()) else { return };
    if let Some(error) = grammar::port_name(name) {
        return out.push(Violation::new(&target.at.key("port"), ViolationKind::Syntax, error.to_string()));
    }
    // The container is the nearest enclosing list item: containers[0].livenessProbe.httpGet.
    let container = (1..=3).map(|up| target.at.up(up)).find_map(|at| {
        let value = at.find(whole)?;
        value.get("ports").is_some().then_some(Field { at, value })
    });
    let named = container.is_some_and(|c| c.list("ports").iter().any(|port| port.text("name") == Some(name)));
    if !named {
        let message = format!("the container has no port named {}", Quoted(name));
        out.push(Violation::new(&target.at.key("port"), ViolationKind::Reference, message));
    }
}

#[cfg(test)]
mod tests {
    use super::referenced_names;

    #[test]
    fn kubernetes_references_are_distinguished_from_shell_syntax() {
        assert_eq!(referenced_names("--rpc_address=$(POD_IP):$(PORT)"), ["POD_IP", "PORT"]);
        for text in ["$$(POD_IP)", "$(hostname -i)", "$(date +%s)", "$((1+1))", "${POD_IP}", "$(A", "$"] {
            assert_eq!(referenced_names(text), Vec::<&str>::new(), "{text}");
        }
    }
}
