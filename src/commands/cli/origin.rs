//! A value together with what chose it: a flag, a variable, a file, or a default.

use std::fmt;
use std::path::PathBuf;

/// A value and what chose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin<T> {
    pub value: T,
    pub origin: ValueOrigin,
}

/// What chose a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Neither the user nor a file: a default, or a discovered value.
    Default,
    /// The command line, with the flag as the user spelled it.
    Flag(String),
    /// A line in a `--flagfile`.
    FlagFile {
        path: PathBuf,
        /// Line number, starting at 1.
        line: usize,
    },
    Env(String),
    /// A key in a configuration file.
    File {
        path: PathBuf,
        key: String,
    },
    /// A description that includes the value: `--master m:1`, `MOONCAKE_MASTER=m:1`,
    /// `--port 8080 (default)`.
    Described(String),
}

/// What chose a client's settings.
#[derive(Clone, Debug)]
pub struct ClientOrigins {
    pub master: ValueOrigin,
    pub transport: ValueOrigin,
}

/// What chose a node's settings.
#[derive(Clone, Debug)]
pub struct NodeOrigins {
    pub client: ClientOrigins,
    pub segment: ValueOrigin,
    pub local_buffer: ValueOrigin,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueOrigin::Default => f.write_str("default"),
            ValueOrigin::Flag(spelled) => f.write_str(spelled),
            ValueOrigin::FlagFile { path, line } => write!(f, "{}:{line}", path.display()),
            ValueOrigin::Env(name) => write!(f, "environment variable {name}"),
            ValueOrigin::File { path, key } => write!(f, "key {key} in {}", path.display()),
            ValueOrigin::Described(text) => f.write_str(text),
        }
    }
}

impl<T> Origin<T> {
    /// `value`, which no flag, variable or file chose.
    pub fn default(value: T) -> Origin<T> {
        Origin { value, origin: ValueOrigin::Default }
    }

    /// `value`, with a description of what chose it.
    pub fn described(value: T, origin: impl Into<String>) -> Origin<T> {
        Origin { value, origin: ValueOrigin::Described(origin.into()) }
    }

    /// Whether a flag, a variable or a file chose the value.
    pub fn is_given(&self) -> bool {
        self.origin != ValueOrigin::Default
    }
}

/// The text of the flag `spelled` or, if it is not set, of `variable`, which `env` reads.
pub fn flag_or_variable(
    flag: Option<&str>,
    spelled: &str,
    variable: &str,
    env: impl FnOnce(&str) -> Option<String>,
) -> Option<Origin<String>> {
    if let Some(text) = flag {
        return Some(Origin::described(text.to_owned(), format!("{spelled} {text}")));
    }
    let text = env(variable)?;
    let origin = format!("{variable}={text}");
    Some(Origin::described(text, origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_overrides_the_variable_and_both_show_their_text() {
        let env = |name: &str| (name == "MOONCAKE_MASTER").then(|| "n:2".to_owned());
        let found = |flag: Option<&str>, name| flag_or_variable(flag, "--master", name, env);
        let shown = |flag| found(flag, "MOONCAKE_MASTER").map(|found| (found.value, found.origin.to_string()));
        assert_eq!(shown(Some("m:1")), Some(("m:1".to_owned(), "--master m:1".to_owned())));
        assert_eq!(shown(None), Some(("n:2".to_owned(), "MOONCAKE_MASTER=n:2".to_owned())));
        assert_eq!(found(None, "OTHER"), None);
    }
}
