//! Keys of a configuration file or of `-D` that no flag has: a warning, or with `--strict-config` an error.

use crate::commands::error::Failure;
use crate::commands::flags::{Flag, Key, Table};

/// The flag that turns unknown keys into errors.
pub const STRICT: Flag = crate::commands::flags::flag(
    "strict_config",
    crate::commands::flags::Kind::Bool,
    "false",
    "Refuse unknown configuration keys; without it they are ignored with a warning",
)
.not_in_file("use --strict-config");

/// A key that no flag of a command has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// Where it stands: the file, or `-D`.
    place: String,
    key: String,
    /// The suggestion: the nearest known key, or where keys are listed.
    hint: String,
}

impl UnknownKey {
    /// `key`, found at `place`, which `table` does not have.
    pub fn new(table: &'static Table, place: impl Into<String>, key: &str) -> UnknownKey {
        let hint = match table.flags().find(|flag| flag.name == key) {
            Some(flag) => match flag.key {
                Key::Named(name) => Some(format!("in a file {} is written {name}", flag.spelled())),
                Key::None(instead) => Some(format!("{} cannot be set in a file: {instead}", flag.spelled())),
                Key::Same => None,
            },
            None => {
                let leaf = key.rsplit('.').next().unwrap_or(key);
                table.nearest_key(leaf).map(|near| format!("did you mean {near}?"))
            }
        };
        let all = || format!("mcctl {} --help lists the flags, whose names are the keys", table.command);
        UnknownKey { place: place.into(), key: key.to_owned(), hint: hint.unwrap_or_else(all) }
    }

    /// The warning for a key that is ignored.
    pub fn warning(&self) -> String {
        format!("{}: unknown key '{}' is ignored; {}", self.place, self.key, self.hint)
    }

    fn refusal(&self) -> Failure {
        Failure::usage(format!("{}: unknown key '{}'", self.place, self.key))
            .next(format!("{}; or leave out --strict-config", self.hint))
    }
}

/// The warnings for `unknown` keys.
///
/// # Errors
/// There is one, and `strict` refuses it.
pub fn settle(unknown: &[UnknownKey], strict: bool) -> Result<Vec<String>, Failure> {
    match unknown.first() {
        Some(first) if strict => Err(first.refusal()),
        _ => Ok(unknown.iter().map(UnknownKey::warning).collect()),
    }
}
