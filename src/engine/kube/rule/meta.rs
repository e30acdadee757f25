//! Names, labels, selectors, the data of a ConfigMap.

use super::{Complaint, Spot, text};

/// Kinds whose name becomes a DNS label of its own.
const LABEL_NAMED: &[&str] = &["Namespace", "RoleBasedGroup"];

/// The document has a name, and one that its kind may have.
pub fn name(top: &Spot<'_>, out: &mut Vec<Complaint>) {
    let Some(meta) = top.get("metadata") else { return };
    let kind = top.text("kind").unwrap_or_default();
    if meta.text("name").is_none_or(str::is_empty) {
        if meta.text("generateName").is_none_or(str::is_empty) && meta.value.is_object() {
            meta.complain(out, "name is missing");
        }
    } else if kind == "Service" {
        meta.held("name", text::service_label, out);
    } else if LABEL_NAMED.contains(&kind) {
        meta.held("name", text::dns_label, out);
    } else if !kind.contains("Role") {
        // Roles and their bindings may be named almost anything.
        meta.held("name", text::dns_subdomain, out);
    }
    meta.held("namespace", text::dns_label, out);
}

/// Labels and the keys of annotations.
pub fn labels(meta: &Spot<'_>, out: &mut Vec<Complaint>) {
    pairs(meta, "labels", out);
    for (key, spot) in meta.entries("annotations") {
        if let Some(what) = text::qualified_key(key) {
            spot.complain(out, what);
        }
    }
}

/// The labels at `key`: their keys and values.
pub fn pairs(spot: &Spot<'_>, key: &str, out: &mut Vec<Complaint>) {
    for (key, spot) in spot.entries(key) {
        for what in text::qualified_key(key).into_iter().chain(spot.value.as_str().and_then(text::label_value)) {
            spot.complain(out, what);
        }
    }
}

/// A selector's labels.
pub fn selector(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    pairs(spot, "matchLabels", out);
}

/// One expression of a selector.
pub fn requirement(spot: &Spot<'_>, operators: &[&str], out: &mut Vec<Complaint>) {
    spot.one_of("operator", operators, out);
    let values = spot.list("values").len();
    match spot.text("operator") {
        Some("In" | "NotIn") if values == 0 => spot.complain(out, "In and NotIn need values"),
        Some("Exists" | "DoesNotExist") if values > 0 => spot.complain(out, "Exists and DoesNotExist take no values"),
        Some("Gt" | "Lt") if values != 1 => spot.complain(out, "Gt and Lt take one value"),
        _ => {}
    }
}

/// The keys of a ConfigMap or Secret.
pub fn data(top: &Spot<'_>, out: &mut Vec<Complaint>) {
    for map in ["data", "binaryData", "stringData"] {
        for (key, spot) in top.entries(map) {
            if let Some(what) = text::data_key(key) {
                spot.complain(out, what);
            }
            if map == "binaryData" && top.get("data").is_some_and(|data| data.get(key).is_some()) {
                spot.complain(out, "the key stands in data, too");
            }
        }
    }
}
