//! Errors in a deployment file.

use crate::engine::base::text::Quoted;
use crate::engine::plan::SizingError;

/// An error in a deployment file, or in a value set for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeployError {
    /// Invalid TOML or YAML, or a value of the wrong type.
    #[error("{}{what}", place(*line))]
    Syntax {
        /// Line number, counted from 1, if known.
        line: Option<usize>,
        what: String,
    },
    /// A key that does not exist.
    #[error("{}unknown key {}{}", place(*line), Quoted(key), did_you_mean(near.as_deref()))]
    UnknownKey {
        /// Line number, counted from 1, if known.
        line: Option<usize>,
        key: String,
        /// The most similar known key.
        near: Option<String>,
    },
    /// A `--set` argument without `=`, or with an empty key.
    #[error("{} in --set is not in the form KEY=VALUE, e.g. model.tp=8", Quoted(text))]
    SetSyntax { text: String },
    /// A key in `--set` that does not exist.
    #[error("unknown key {} in --set{}", Quoted(key), did_you_mean(near.as_deref()))]
    SetUnknownKey {
        key: String,
        /// The most similar known key, with its section.
        near: Option<String>,
    },
    /// A value in `--set` that the key does not accept.
    #[error("--set {}: {what}", crate::engine::base::text::escaped(text))]
    SetValue { text: String, what: String },
    #[error("{key}: {what}")]
    Value {
        /// Key, including its section.
        key: &'static str,
        what: String,
    },
    #[error("{key}: {error}")]
    Plan {
        /// Key, including its section.
        key: &'static str,
        error: SizingError,
    },
    /// A port that two processes use.
    #[error("port {port} on {host} is used twice{}", users(first, second))]
    PortTaken {
        /// The host name. In Kubernetes, the workload name.
        host: String,
        port: u16,
        first: String,
        second: String,
    },
}

fn place(line: Option<usize>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|near| format!("; did you mean '{near}'?")).unwrap_or_default()
}

/// An invalid value of `key`.
pub(crate) fn invalid_value(key: &'static str, what: impl Into<String>) -> DeployError {
    DeployError::Value { key, what: what.into() }
}

/// The processes that use the port, named once if both names are the same.
fn users(first: &str, second: &str) -> String {
    if first == second { format!(" by {first}") } else { format!(": by {first} and by {second}") }
}
