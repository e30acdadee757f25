//! The error document of `--json` (`mcctl.error/1`, `docs/json.md`): a failure that a script can
//! evaluate.

use serde::Serialize;

use crate::commands::cli::error::{Failure, FailureKind};
use crate::commands::cli::output;

/// A failure as JSON. Members without a value are `null`, so all members are always present.
#[derive(Debug, Serialize)]
struct ErrorDocument {
    schema: &'static str,
    kind: FailureKind,
    exit_code: u8,
    cause: String,
    tried: Option<String>,
    found: Option<String>,
    next: Option<String>,
}

impl From<&Failure> for ErrorDocument {
    /// The texts are those on stderr: without passwords and control characters.
    fn from(failure: &Failure) -> ErrorDocument {
        let shown = |part: &Option<String>| part.as_deref().map(Failure::shown);
        ErrorDocument {
            schema: "mcctl.error/1",
            kind: failure.kind.unwrap_or_else(|| failure.exit.into()),
            exit_code: failure.exit.code(),
            cause: Failure::shown(&failure.what),
            tried: shown(&failure.tried),
            found: shown(&failure.found),
            next: shown(&failure.next),
        }
    }
}

/// Prints `failure` to stdout as one JSON document.
///
/// # Errors
/// stdout cannot be written.
pub fn print(failure: &Failure) -> Result<(), Failure> {
    output::json(&ErrorDocument::from(failure))
}

/// Prints the error document as one of several lines.
///
/// # Errors
/// stdout cannot be written.
pub fn print_line(failure: &Failure) -> Result<(), Failure> {
    output::json_line(&ErrorDocument::from(failure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    fn document(failure: &Failure) -> serde_json::Value {
        serde_json::to_value(ErrorDocument::from(failure)).expect("JSON")
    }

    #[test]
    fn kind_and_code_follow_the_exit_unless_the_failure_has_a_kind() {
        for (failure, kind, code) in [
            (Failure::usage("x"), "usage", 2),
            (Failure::unreachable("x"), "unreachable", 3),
            (Failure::host("x"), "host", 4),
            (Failure::no("x"), "negative", 1),
            (Failure::not_found("x"), "not-found", 1),
            (Failure::interrupted("x"), "interrupted", 1),
            (Failure::new(Exit::Signal(15), "x"), "interrupted", 143),
            (Failure::new(Exit::Bug, "x"), "bug", 70),
        ] {
            let document = document(&failure);
            assert_eq!((&document["kind"], &document["exit_code"]), (&kind.into(), &code.into()));
        }
    }

    #[test]
    fn secrets_and_control_characters_are_masked_in_every_member() {
        let text = "http://me:secret@h:1/ \u{1b}[31m";
        let document = document(&Failure::host(text).tried(text).found(text).next(text));
        for member in ["cause", "tried", "found", "next"] {
            let shown = document[member].as_str().expect("text");
            assert!(shown.contains("me:***@h") && shown.contains("\\u{1b}"), "{shown}");
        }
    }

    #[test]
    fn members_without_a_value_are_null() {
        let document = document(&Failure::usage("x"));
        for member in ["tried", "found", "next"] {
            assert!(document.get(member).is_some_and(serde_json::Value::is_null), "{member}");
        }
    }
}
