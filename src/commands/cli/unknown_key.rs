//! Unknown keys in a configuration file or in `-D`: a warning, or an error with `--strict-config`.

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::{FileKey, FlagSpec, FlagTable};

/// `--strict-config` turns unknown keys into errors.
pub const STRICT: FlagSpec = crate::commands::cli::flags::flag(
    "strict_config",
    crate::commands::cli::flags::ValueKind::Bool,
    "false",
    "Reject unknown configuration keys instead of ignoring them with a warning",
)
.not_in_file("use --strict-config");

/// A key that does not match any of a command's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// The file, or `-D`.
    source: String,
    key: String,
    /// The closest known key, or the command that lists the keys.
    hint: String,
}

impl UnknownKey {
    /// Creates the error for `key`, read from `source`, which does not match any flag in `table`.
    pub fn new(table: &'static FlagTable, source: impl Into<String>, key: &str) -> UnknownKey {
        let hint = match table.flags().find(|flag| flag.name == key) {
            Some(flag) => match flag.key {
                FileKey::Named(name) => Some(format!("in a file, use the key {name} for {}", flag.spelled())),
                FileKey::None(instead) => Some(format!("{} cannot be set in a file: {instead}", flag.spelled())),
                FileKey::Same => None,
            },
            None => {
                let leaf = key.rsplit('.').next().unwrap_or(key);
                table.nearest_key(leaf).map(|near| format!("did you mean {near}?"))
            }
        };
        let all = || format!("keys are flag names; see mcctl {} --help", table.command);
        UnknownKey { source: source.into(), key: key.to_owned(), hint: hint.unwrap_or_else(all) }
    }

    /// The warning for a key that is ignored.
    pub fn warning(&self) -> String {
        format!("{}: unknown key '{}' is ignored; {}", self.source, self.key, self.hint)
    }

    fn refusal(&self) -> Failure {
        Failure::usage(format!("{}: unknown key '{}'", self.source, self.key))
            .next(format!("{}; or remove --strict-config", self.hint))
    }
}

/// A warning for each of `unknown`.
///
/// # Errors
/// With `strict`, the first unknown key.
pub fn settle(unknown: &[UnknownKey], strict: bool) -> Result<Vec<String>, Failure> {
    match unknown.first() {
        Some(first) if strict => Err(first.refusal()),
        _ => Ok(unknown.iter().map(UnknownKey::warning).collect()),
    }
}
