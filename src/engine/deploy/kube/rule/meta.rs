//! Metadata: names, labels, selectors, ConfigMap keys.

use super::{Field, Violation, ViolationKind, grammar};

/// Kinds whose name must be a DNS label.
const LABEL_NAMED: &[&str] = &["Namespace", "RoleBasedGroup"];

/// Rules for the name and namespace of a document.
pub(super) fn name(top: &Field<'_>, out: &mut Vec<Violation>) {
    let Some(meta) = top.get("metadata") else { return };
    let kind = top.text("kind").unwrap_or_default();
    if meta.text("name").is_none_or(str::is_empty) {
        if meta.text("generateName").is_none_or(str::is_empty) && meta.value.is_object() {
            meta.missing("name", out);
        }
    } else if kind == "Service" {
        meta.check_text("name", grammar::service_label, out);
    } else if LABEL_NAMED.contains(&kind) {
        meta.check_text("name", grammar::dns_label, out);
    } else if !kind.contains("Role") {
        // Roles and their bindings allow almost any name.
        meta.check_text("name", grammar::dns_subdomain, out);
    }
    meta.check_text("namespace", grammar::dns_label, out);
}

/// Rules for labels and annotation keys.
pub(super) fn labels(meta: &Field<'_>, out: &mut Vec<Violation>) {
    pairs(meta, "labels", out);
    for (key, target) in meta.entries("annotations") {
        if let Some(error) = grammar::qualified_key(key) {
            target.report(out, ViolationKind::Syntax, error.to_string());
        }
    }
}

/// Rules for the labels at `key`.
pub(super) fn pairs(target: &Field<'_>, key: &str, out: &mut Vec<Violation>) {
    for (key, target) in target.entries(key) {
        for error in grammar::qualified_key(key).into_iter().chain(target.value.as_str().and_then(grammar::label_value))
        {
            target.report(out, ViolationKind::Syntax, error.to_string());
        }
    }
}

/// Rules for the labels of a selector.
pub(super) fn selector(target: &Field<'_>, out: &mut Vec<Violation>) {
    pairs(target, "matchLabels", out);
}

/// Rules for a selector expression.
pub(super) fn requirement(target: &Field<'_>, operators: &[&str], out: &mut Vec<Violation>) {
    target.check_one_of("operator", operators, out);
    let values = target.list("values").len();
    match target.text("operator") {
        Some("In" | "NotIn") if values == 0 => {
            target.report(out, ViolationKind::Missing, "In and NotIn require values")
        }
        Some("Exists" | "DoesNotExist") if values > 0 => {
            target.report(out, ViolationKind::Conflict, "Exists and DoesNotExist do not accept values");
        }
        Some("Gt" | "Lt") if values != 1 => {
            target.report(out, ViolationKind::Conflict, "Gt and Lt require exactly one value")
        }
        _ => {}
    }
}

/// Rules for the keys of a ConfigMap or Secret.
pub(super) fn data(top: &Field<'_>, out: &mut Vec<Violation>) {
    for map in ["data", "binaryData", "stringData"] {
        for (key, target) in top.entries(map) {
            if let Some(error) = grammar::data_key(key) {
                target.report(out, ViolationKind::Syntax, error.to_string());
            }
            if map == "binaryData" && top.get("data").is_some_and(|data| data.get(key).is_some()) {
                target.report(out, ViolationKind::Duplicate, "the key is also in data");
            }
        }
    }
}
