//! Why a deployment file gives no processes.

use crate::engine::base::text::Quoted;
use crate::engine::plan::PlanError;

/// A condition of a deployment file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeployError {
    /// The text is not TOML or YAML, or a value has another type.
    #[error("{}{what}", place(*line))]
    Syntax {
        /// The line, from 1, where it is known.
        line: Option<usize>,
        /// What the parser says.
        what: String,
    },
    /// A key that no section has.
    #[error("{}unknown key {}{}", place(*line), Quoted(key), nearest(near.as_deref()))]
    UnknownKey {
        /// The line, from 1, where it is known.
        line: Option<usize>,
        /// The key.
        key: String,
        /// The known key that is nearest.
        near: Option<String>,
    },
    /// A `--set` that is not `KEY=VALUE`, or whose key leads nowhere.
    #[error("{} sets nothing: {what}", Quoted(text))]
    Set {
        /// The text.
        text: String,
        /// What is wrong.
        what: String,
    },
    /// A value that cannot be.
    #[error("{key}: {what}")]
    Value {
        /// The key, with its section.
        key: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The sizes do not go together.
    #[error("{key}: {error}")]
    Plan {
        /// The key, with its section.
        key: &'static str,
        /// Why.
        error: PlanError,
    },
    /// Two processes want one port.
    #[error("port {port} of {host} is wanted twice{}", by_whom(first, second))]
    PortTaken {
        /// The host, or the workload in Kubernetes.
        host: String,
        /// The port.
        port: u16,
        /// Who has it.
        first: String,
        /// Who wants it, too.
        second: String,
    },
}

fn place(line: Option<usize>) -> String {
    line.map(|line| format!("line {line}: ")).unwrap_or_default()
}

fn nearest(near: Option<&str>) -> String {
    near.map(|near| format!("; nearest is '{near}'")).unwrap_or_default()
}

/// What is wrong with the value of `key`.
pub(crate) fn wrong(key: &'static str, what: impl Into<String>) -> DeployError {
    DeployError::Value { key, what: what.into() }
}

/// Who wants it, once where it is one.
fn by_whom(first: &str, second: &str) -> String {
    if first == second { format!(" by {first}") } else { format!(": by {first} and by {second}") }
}
