//! Quantities, and requests beside limits.

use super::{Complaint, Spot, text};
use crate::engine::base::text::Quoted;

/// One quantity.
pub fn quantity(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    if let Some(what) = spot.value.as_str().and_then(text::quantity_text) {
        spot.complain(out, what);
    }
}

/// The number of a quantity.
pub fn amount(spot: &Spot<'_>) -> Option<f64> {
    match spot.value.as_str() {
        Some(text) => text::quantity(text),
        None => spot.value.as_f64(),
    }
}

/// Limits are at least the requests; what cannot be lent twice (huge pages, devices) is requested as it is limited, and huge pages
/// come with memory or CPU.
pub fn requirements(spot: &Spot<'_>, out: &mut Vec<Complaint>) {
    let limits = spot.entries("limits");
    let requests = spot.entries("requests");
    let of =
        |list: &[(&str, Spot<'_>)], name: &str| list.iter().find(|(key, _)| *key == name).and_then(|(_, s)| amount(s));
    for (name, at) in limits.iter().chain(&requests) {
        let known = matches!(*name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if !known && !name.contains('/') {
            at.complain(
                out,
                format!(
                    "{} is no resource: cpu, memory, ephemeral-storage, hugepages-..., or vendor/name",
                    Quoted(name)
                ),
            );
        }
        if amount(at).is_some_and(|n| n < 0.0) {
            at.complain(out, "a resource is never negative");
        }
        if let Some(page) = name.strip_prefix("hugepages-") {
            match (text::quantity(page), amount(at)) {
                (None, _) => at.complain(out, "hugepages- is followed by the page size, as in hugepages-2Mi"),
                (Some(page), Some(n)) if page > 0.0 && n % page != 0.0 => {
                    at.complain(out, "not a multiple of the page size")
                }
                _ => {}
            }
        }
    }
    for (name, request) in &requests {
        let once = name.starts_with("hugepages-") || (name.contains('/') && !name.starts_with("kubernetes.io/"));
        match (amount(request), of(&limits, name)) {
            (Some(request_of), Some(limit)) if request_of > limit => request.complain(out, "more than its limit"),
            (Some(request_of), Some(limit)) if once && request_of != limit => {
                request.complain(out, "huge pages and devices are requested exactly as they are limited");
            }
            (Some(_), None) if once => request.complain(out, "huge pages and devices need a limit of the same amount"),
            _ => {}
        }
    }
    let huge = limits.iter().chain(&requests).find(|(name, _)| name.starts_with("hugepages-"));
    let plain = ["cpu", "memory"].iter().any(|name| of(&limits, name).or(of(&requests, name)).is_some());
    if let (Some((_, at)), false) = (huge, plain) {
        at.complain(out, "huge pages need a request or limit of memory or cpu beside them");
    }
}
