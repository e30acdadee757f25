//! Quantities, and requests versus limits.

use super::{Field, Violation, ViolationKind, grammar};
use mcctl_base::text::Quoted;

/// Rules for a quantity.
pub(super) fn quantity(target: &Field<'_>, out: &mut Vec<Violation>) {
    if let Some(error) = target.value.as_str().and_then(grammar::quantity_text) {
        target.report(out, ViolationKind::Syntax, error.to_string());
    }
}

/// The value of a quantity.
pub(super) fn amount(target: &Field<'_>) -> Option<f64> {
    match target.value.as_str() {
        Some(text) => grammar::quantity(text),
        None => target.value.as_f64(),
    }
}

/// Rules for resources: limits must be at least the requests. For resources without overcommit
/// (huge pages, devices), they must be equal. Huge pages require memory or CPU.
pub(super) fn requirements(target: &Field<'_>, out: &mut Vec<Violation>) {
    let limits = target.entries("limits");
    let requests = target.entries("requests");
    let of =
        |list: &[(&str, Field<'_>)], name: &str| list.iter().find(|(key, _)| *key == name).and_then(|(_, s)| amount(s));
    for (name, at) in limits.iter().chain(&requests) {
        let known = matches!(*name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if !known && !name.contains('/') {
            at.report(
                out,
                ViolationKind::Value,
                format!(
                    "{} is not a valid resource name; use cpu, memory, ephemeral-storage, hugepages-... or vendor/name",
                    Quoted(name)
                ),
            );
        }
        if amount(at).is_some_and(|n| n < 0.0) {
            at.report(out, ViolationKind::Range, "a resource must not be negative");
        }
        if let Some(page) = name.strip_prefix("hugepages-") {
            match (grammar::quantity(page), amount(at)) {
                (None, _) => at.report(
                    out,
                    ViolationKind::Syntax,
                    "hugepages- must be followed by a page size, e.g. hugepages-2Mi",
                ),
                (Some(page), Some(n)) if page > 0.0 && n % page != 0.0 => {
                    at.report(out, ViolationKind::Range, "not a multiple of the page size")
                }
                _ => {}
            }
        }
    }
    for (name, request) in &requests {
        let once = name.starts_with("hugepages-") || (name.contains('/') && !name.starts_with("kubernetes.io/"));
        match (amount(request), of(&limits, name)) {
            (Some(request_of), Some(limit)) if request_of > limit => {
                request.report(out, ViolationKind::Conflict, "the request exceeds the limit");
            }
            (Some(request_of), Some(limit)) if once && request_of != limit => {
                request.report(
                    out,
                    ViolationKind::Conflict,
                    "for huge pages and devices, the request must equal the limit",
                );
            }
            (Some(_), None) if once => {
                request.report(
                    out,
                    ViolationKind::Missing,
                    "huge pages and devices require a limit equal to the request",
                );
            }
            _ => {}
        }
    }
    let huge = limits.iter().chain(&requests).find(|(name, _)| name.starts_with("hugepages-"));
    let plain = ["cpu", "memory"].iter().any(|name| of(&limits, name).or(of(&requests, name)).is_some());
    if let (Some((_, at)), false) = (huge, plain) {
        at.report(out, ViolationKind::Missing, "huge pages require a request or limit for memory or cpu");
    }
}
