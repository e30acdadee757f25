//! The report in SARIF 2.1.0, the exchange format for results of static analysis (OASIS,
//! `sarif-schema-2.1.0.json`).
//!
//! Findings are results. Parts of scripts that were not read, and unreadable inputs, are
//! notifications of the run.

use serde_json::{Value, json};

use crate::commands::cli::error::Failure;
use crate::commands::lint::report::LintVerdict;
use crate::engine::base::text::printable;
use crate::engine::check::{Finding, Severity};
use crate::engine::lint::{CHECKS, ParsedDeployment};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// The document for `findings`, the places of `deployment` that were not read, and the inputs that
/// cannot be read.
pub(super) fn document(
    unread: &[(String, Failure)],
    deployment: &ParsedDeployment,
    findings: &[Finding],
    verdict: LintVerdict,
) -> Value {
    let rules: Vec<Value> = CHECKS
        .iter()
        .map(|check| json!({"id": check.id, "shortDescription": {"text": sentence(check.about)}}))
        .collect();
    let notes = deployment.unread.iter().map(|place| {
        json!({
            "level": "note",
            "message": {"text": sentence(&format!("not read: {}", place.reason))},
            "locations": [location(&place.place.file, place.place.line, place.lines)],
        })
    });
    let failures = unread.iter().map(|(name, failure)| {
        json!({
            "level": "error",
            "message": {"text": sentence(&format!("cannot read {name}: {}", failure.found.as_deref().unwrap_or(&failure.what)))},
        })
    });
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "mcctl lint", "version": env!("CARGO_PKG_VERSION"), "rules": rules}},
            "invocations": [{
                "executionSuccessful": unread.is_empty(),
                "toolExecutionNotifications": notes.chain(failures).collect::<Vec<Value>>(),
            }],
            "results": findings.iter().map(result).collect::<Vec<Value>>(),
            "properties": {"result": verdict.name()},
        }],
    })
}

fn result(finding: &Finding) -> Value {
    let level = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    };
    let text = format!("{}. Found: {}. Next: {}.", finding.finding, finding.evidence, finding.remedy);
    let mut out = json!({"ruleId": finding.id, "level": level, "message": {"text": sentence(&text)}});
    if let Some(index) = CHECKS.iter().position(|check| check.id == finding.id) {
        out["ruleIndex"] = index.into();
    }
    if let Some(place) = &finding.place {
        out["locations"] = json!([location(&place.file, place.line, 1)]);
    }
    out
}

/// A place in a file. Line 0 stands for the whole file.
fn location(file: &str, line: u32, lines: u32) -> Value {
    let mut place = json!({"artifactLocation": {"uri": uri(file)}});
    if line > 0 {
        place["region"] = json!({"startLine": line, "endLine": line.saturating_add(lines.max(1) - 1)});
    }
    json!({"physicalLocation": place})
}

/// A message without control characters, beginning with a capital letter.
fn sentence(text: &str) -> String {
    let text = printable(text).replace('\n', "\\n");
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// `path` as a relative reference, or as a `file:` URL if it is absolute.
fn uri(path: &str) -> String {
    let encoded: String = path
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    match encoded.strip_prefix("./") {
        Some(rest) => rest.to_owned(),
        None if encoded.starts_with('/') => format!("file://{encoded}"),
        None => encoded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_uri_references() {
        assert_eq!(uri("./a b/c.sh"), "a%20b/c.sh");
        assert_eq!(uri("/x/y.yaml"), "file:///x/y.yaml");
    }
}
