//! Quantities in the syntax of Kubernetes, Docker and systemd.

use crate::lint::model::{LocatedValue, Process, RuntimeKind};

/// A Kubernetes quantity in thousandths: `500m`, `2`, `1.5Gi`, `1e3`.
fn thousandths(text: &str) -> Option<u128> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.len() > 9 || whole.len() > 18 {
        return None;
    }
    let factor: u128 = match unit {
        "" => 1000,
        "m" => 1,
        "k" => 1000 * 1000,
        "M" => 1000 * 1_000_000,
        "G" => 1000 * 1_000_000_000,
        "T" => 1000 * 1_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        exponent => {
            let power: u32 = exponent.strip_prefix(['e', 'E'])?.trim_start_matches('+').parse().ok()?;
            1000u128.checked_mul(10u128.checked_pow(power)?)?
        }
    };
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    Some(digits.checked_mul(factor)? / scale)
}

/// A Kubernetes quantity in bytes.
pub(super) fn kubernetes(text: &str) -> Option<u64> {
    u64::try_from(thousandths(text)? / 1000).ok()
}

/// Bytes in the syntax of Docker and systemd, where units are powers of 1024.
fn binary(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    let shift = match unit.trim().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let bytes = number * (1u64 << shift) as f64;
    (bytes < u64::MAX as f64).then(|| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "only digits, and a value below the bound"
        )]
        let bytes = bytes as u64;
        bytes
    })
}

/// The value in bytes, in the syntax of the runtime that starts `process`.
pub(super) fn bytes(process: &Process, located: &LocatedValue) -> Option<u64> {
    match process.runtime {
        RuntimeKind::Kubernetes => kubernetes(&located.text),
        _ => binary(&located.text),
    }
}

/// The memory limit of a process in bytes, and its location.
pub(super) fn memory_limit(process: &Process) -> Option<(u64, &LocatedValue)> {
    let is_known = |located: &&LocatedValue| located.is_known() && !process.limits.is_partial;
    let located = process.limits.resources.get("memory")?.limit.as_ref().filter(is_known)?;
    Some((bytes(process, located)?, located))
}

/// The CPU limit in thousandths of a CPU, and its location.
pub(super) fn cpu_limit(process: &Process) -> Option<(u64, &LocatedValue)> {
    let located = process.limits.resources.get("cpu")?.limit.as_ref().filter(|located| located.is_known())?;
    Some((u64::try_from(thousandths(&located.text)?).ok()?, located))
}

/// Seconds in the syntax of Kubernetes (a number), Compose or systemd (`1min 30s`, `90`, `2m`).
/// `None` for `infinity` and for an invalid duration.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let mut total = 0u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        total = total.checked_add(match &rest[..end] {
            "ms" | "msec" => number / 1000,
            "s" | "sec" | "second" | "seconds" => number,
            "m" | "min" | "minute" | "minutes" => number.checked_mul(60)?,
            "h" | "hr" | "hour" | "hours" => number.checked_mul(3600)?,
            _ => return None,
        })?;
        rest = rest[end..].trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_units_are_parsed() {
        for (text, want) in [
            ("50Gi", Some(50 << 30)),
            ("50G", Some(50_000_000_000)),
            ("1.5Gi", Some(3 << 29)),
            ("1e3", Some(1000)),
            ("128974848", Some(128_974_848)),
            ("1gb", None),
            ("", None),
            ("Gi", None),
            ("1e999", None),
        ] {
            assert_eq!(kubernetes(text), want, "{text}");
        }
        assert_eq!(thousandths("500m"), Some(500));
    }

    #[test]
    fn docker_and_systemd_units_are_parsed() {
        assert_eq!(
            (binary("50g"), binary("1.5GiB"), binary("64M"), binary("infinity")),
            (Some(50 << 30), Some(3 << 29), Some(64 << 20), None)
        );
        assert_eq!(
            (seconds("90"), seconds("1min 30s"), seconds("2m"), seconds("infinity")),
            (Some(90), Some(90), Some(120), None)
        );
    }
}
