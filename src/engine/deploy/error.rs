//! Errors in a deployment file.

use crate::plan::SizingError;
use mcctl_base::text::Quoted;

/// An error in a deployment file, or in a value set for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeployError {
    #[error("{}", too_large(*bytes, *most))]
    TooLarge {
        /// Size of the file, if known.
        bytes: Option<u64>,
        /// The limit in bytes.
        most: usize,
    },
    /// A value that its key does not accept, or a key that is set twice.
    #[error("{}{key}: {what}", place(*line))]
    WrongValue {
        /// Line number, counted from 1, if known.
        line: Option<usize>,
        /// The key with its section, and the position in a list.
        key: String,
        what: String,
    },
    /// Invalid TOML or YAML.
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
    #[error("--set {}: {what}", mcctl_base::text::escaped(text))]
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
        first: Box<PortUser>,
        second: Box<PortUser>,
    },
}

/// A process that listens on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortUser {
    pub process: String,
    /// The host as the file names it. Empty in Kubernetes.
    pub host: String,
    /// The key that sets the port.
    pub key: &'static str,
}

fn too_large(bytes: Option<u64>, most: usize) -> String {
    match bytes {
        Some(bytes) => format!("too large: {bytes} bytes; the limit is {most}"),
        None => format!("too large: more than {most} bytes"),
    }
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

/// The keys that set the port, and the processes that use it.
fn users(first: &PortUser, second: &PortUser) -> String {
    let user = |user: &PortUser| match first.host == second.host {
        true => format!("{} ({})", user.key, user.process),
        // Two names of one host.
        false => format!("{} ({} on {})", user.key, user.process, user.host),
    };
    format!(": by {} and by {}", user(first), user(second))
}
