//! Flag tables, from which parsing, configuration files, `--help` and error messages are derived.
//!
//! The tables of the services are in `service_flags/`.

use std::fmt;
use std::time::Duration;

use crate::commands::cli::args;
use crate::commands::cli::times;
use crate::engine::base::ByteSize;
use crate::engine::upstream::{FlagKind, UpstreamFlag, is_same};

/// A flag, with the data for help, parsing and configuration files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlagSpec {
    /// The name with underscores: the same as upstream's name if upstream has the flag.
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub kind: ValueKind,
    /// The default as written on a command line.
    pub default: &'static str,
    /// One sentence without a final period. It names the unit unless `kind` implies it.
    pub help: &'static str,
    pub class: FlagSupport,
    /// Name in a configuration file.
    pub key: FileKey,
    /// Environment variable that sets the flag.
    pub env: Option<&'static str>,
    /// Placeholder for the value in `--help`, if there is a better one than that of the kind.
    pub value: Option<&'static str>,
}

/// Type and range of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueKind {
    /// true or false. A flag without a value means true.
    Bool,
    /// A whole number from the first to the second bound.
    Whole(i64, u64),
    /// A number from the first to the second bound.
    Number(f64, f64),
    Text,
    /// One of the listed values.
    Word(&'static [&'static str]),
    Port,
    /// A duration of an upstream flag, in milliseconds if it has no unit.
    Duration,
    /// A time of one of mcctl's own flags. A number without a unit is deprecated: see [`times`].
    Time,
    /// A number of bytes.
    Size,
    /// `KEY=VALUE`: sets the flag with that configuration key. Only the flag parser handles this
    /// kind.
    Define,
}

/// Whether mcctl implements a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagSupport {
    Works,
    /// Accepted and ignored; the string is the reason.
    NoEffect(&'static str),
    /// Belongs to a feature that mcctl does not have; the string names the feature. Only the
    /// default is accepted, because ignoring another value would change what is stored or served.
    Absent(&'static str),
}

/// A flag's name in a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKey {
    Same,
    Named(&'static str),
    /// Not allowed in a file. The string names the alternative.
    None(&'static str),
}

/// A parsed flag value.
#[derive(Clone, Debug, PartialEq)]
pub enum FlagValue {
    Bool(bool),
    /// Also used for [`ValueKind::Port`].
    Whole(i128),
    Number(f64),
    /// Also used for [`ValueKind::Word`].
    Text(String),
    Duration(Duration),
    Size(ByteSize),
}

/// The flags of one command.
#[derive(Debug)]
pub struct FlagTable {
    /// The command as typed after `mcctl`.
    pub command: &'static str,
    /// One or two sentences for `--help`; `-h` shows the first one.
    pub about: &'static str,
    /// Flag groups, each with its heading, in `--help` order.
    pub groups: &'static [(&'static str, &'static [FlagSpec])],
}

/// A supported flag: its key in configuration files is the flag's name, and it has no environment
/// variable. The builder methods change this.
pub const fn flag(name: &'static str, kind: ValueKind, default: &'static str, help: &'static str) -> FlagSpec {
    let class = FlagSupport::Works;
    FlagSpec { name, aliases: &[], kind, default, help, class, key: FileKey::Same, env: None, value: None }
}

/// A flag or setting of an upstream program, with its type, default and settings key. A flag
/// without a key is only allowed on the command line.
pub const fn upstream_flag(row: &'static UpstreamFlag, help: &'static str) -> FlagSpec {
    let key = match row.key {
        Some(key) if is_same(key, row.name) => FileKey::Same,
        Some(key) => FileKey::Named(key),
        None => FileKey::None("set it on the command line"),
    };
    FlagSpec { key, ..flag(row.name, ValueKind::of_upstream(row.kind), row.default, help) }
}

impl FlagSpec {
    /// Replaces the type or the range of the value.
    pub const fn kind(mut self, kind: ValueKind) -> FlagSpec {
        self.kind = kind;
        self
    }

    /// Replaces the flag's default value.
    pub const fn default(mut self, text: &'static str) -> FlagSpec {
        self.default = text;
        self
    }

    /// Narrows the range of a whole number.
    pub const fn within(mut self, min: i64, max: u64) -> FlagSpec {
        self.kind = ValueKind::Whole(min, max);
        self
    }

    /// Marks the flag as accepted but ignored, for the reason `why`.
    pub const fn no_effect(mut self, why: &'static str) -> FlagSpec {
        self.class = FlagSupport::NoEffect(why);
        self
    }

    /// Allows only the default value: the flag belongs to `feature`, which mcctl does not have.
    pub const fn absent(mut self, feature: &'static str) -> FlagSpec {
        self.class = FlagSupport::Absent(feature);
        self
    }

    /// Sets the flag's key in configuration files.
    pub const fn key(mut self, key: &'static str) -> FlagSpec {
        self.key = FileKey::Named(key);
        self
    }

    /// Rejects the flag in configuration files. `instead` names the alternative.
    pub const fn not_in_file(mut self, instead: &'static str) -> FlagSpec {
        self.key = FileKey::None(instead);
        self
    }

    /// Sets the environment variable that provides the flag's value.
    pub const fn env(mut self, name: &'static str) -> FlagSpec {
        self.env = Some(name);
        self
    }

    /// Sets the placeholder for the value in `--help`.
    pub const fn value(mut self, name: &'static str) -> FlagSpec {
        self.value = Some(name);
        self
    }

    /// Sets aliases for the flag.
    pub const fn aliases(mut self, names: &'static [&'static str]) -> FlagSpec {
        self.aliases = names;
        self
    }

    /// Placeholder for the value in `--help`: the unit of a number whose name ends with it.
    pub fn value_name(&self) -> &'static str {
        let is_number = matches!(self.kind, ValueKind::Whole(..) | ValueKind::Number(..));
        let ends = |suffix: &str| is_number && self.name.ends_with(suffix);
        match self.value {
            Some(name) => name,
            None if ends("_sec") || ends("_secs") || ends("_seconds") => "SECONDS",
            None if ends("_ms") => "MS",
            None => self.kind.value_name(),
        }
    }

    /// Whether mcctl implements the flag.
    pub fn works(&self) -> bool {
        self.class == FlagSupport::Works
    }

    /// The flag in mcctl's spelling: `--rpc-port`.
    pub fn spelled(&self) -> String {
        spelled(self.name)
    }

    /// The flag's key in a configuration file, if it is allowed there.
    pub fn file_key(&self) -> Option<&'static str> {
        match self.key {
            FileKey::Same => Some(self.name),
            FileKey::Named(key) => Some(key),
            FileKey::None(_) => None,
        }
    }

    /// Returns the value of the flag's default.
    pub fn default_value(&self) -> FlagValue {
        self.kind.parse(self.default).expect("a test checks that every default parses")
    }
}

/// The flag `name` in mcctl's command-line spelling.
pub fn spelled(name: &str) -> String {
    match name.len() {
        1 => format!("-{name}"),
        _ => format!("--{}", name.replace('_', "-")),
    }
}

impl FlagTable {
    /// All flags in all groups.
    pub fn flags(&self) -> impl Iterator<Item = &'static FlagSpec> {
        self.groups.iter().flat_map(|(_, flags)| flags.iter())
    }

    /// The flag with name or alias `name`; `-` and `_` are equivalent.
    pub fn find(&self, name: &str) -> Option<&'static FlagSpec> {
        let name = name.replace('-', "_");
        self.flags().find(|flag| flag.name == name || flag.aliases.contains(&name.as_str()))
    }

    /// The flag with the configuration key `key`.
    pub fn find_key(&self, key: &str) -> Option<&'static FlagSpec> {
        self.flags().find(|flag| flag.file_key() == Some(key))
    }

    /// The known flag name closest to `name`.
    pub fn nearest(&self, name: &str) -> Option<String> {
        let name = name.replace('-', "_");
        nearest(&name, self.flags().flat_map(|flag| std::iter::once(&flag.name).chain(flag.aliases)).copied())
            .map(spelled)
    }

    /// The known configuration key closest to `key`.
    pub fn nearest_key(&self, key: &str) -> Option<&'static str> {
        nearest(key, self.flags().filter_map(FlagSpec::file_key))
    }
}

/// The name in `known` that is closest to `name`, with at most a third of the letters wrong; `None`
/// if every name differs more.
pub fn nearest<S: AsRef<str>>(name: &str, known: impl Iterator<Item = S>) -> Option<S> {
    let name = name.to_ascii_lowercase();
    let mistakes_max = (name.chars().count() / 3).max(1);
    // Swapping two adjacent letters counts as one mistake.
    let mistakes = |s: &S| strsim::osa_distance(&name, &s.as_ref().to_ascii_lowercase());
    known.map(|s| (mistakes(&s), s)).filter(|(n, _)| *n <= mistakes_max).min_by_key(|(n, _)| *n).map(|(_, s)| s)
}

impl ValueKind {
    /// The values that upstream's type can represent. Negative numbers are accepted only where a
    /// table allows them.
    pub const fn of_upstream(kind: FlagKind) -> ValueKind {
        match kind {
            FlagKind::Text => ValueKind::Text,
            FlagKind::Word { words, .. } => ValueKind::Word(words),
            FlagKind::Switch => ValueKind::Bool,
            FlagKind::Int32 => ValueKind::Whole(0, i32::MAX as u64),
            FlagKind::Int64 => ValueKind::Whole(0, i64::MAX as u64),
            FlagKind::Uint32 => ValueKind::Whole(0, u32::MAX as u64),
            FlagKind::Uint64 => ValueKind::Whole(0, u64::MAX),
            FlagKind::Port => ValueKind::Port,
            FlagKind::Number => ValueKind::Number(0.0, f64::MAX),
            FlagKind::Ratio => ValueKind::Number(0.0, 1.0),
            FlagKind::Duration => ValueKind::Duration,
            FlagKind::Size => ValueKind::Size,
        }
    }

    /// Parses `text`; `None` if it is not of this kind.
    pub fn parse(&self, text: &str) -> Option<FlagValue> {
        match *self {
            ValueKind::Bool => parse_bool(text).map(FlagValue::Bool),
            ValueKind::Whole(min, max) => {
                parse_whole(text).filter(|n| (i128::from(min)..=i128::from(max)).contains(n)).map(FlagValue::Whole)
            }
            ValueKind::Port => parse_whole(text).filter(|n| (0..=65535).contains(n)).map(FlagValue::Whole),
            ValueKind::Number(min, max) => {
                text.trim().parse().ok().filter(|n: &f64| (min..=max).contains(n)).map(FlagValue::Number)
            }
            ValueKind::Word(words) => words.contains(&text).then(|| FlagValue::Text(text.to_owned())),
            ValueKind::Text | ValueKind::Define => Some(FlagValue::Text(text.to_owned())),
            ValueKind::Duration => args::duration(text).ok().map(FlagValue::Duration),
            ValueKind::Time => times::parse(text).ok().map(FlagValue::Duration),
            ValueKind::Size => text.parse().ok().map(FlagValue::Size),
        }
    }

    /// Placeholder for the value in `--help`.
    pub fn value_name(&self) -> &'static str {
        match self {
            ValueKind::Bool => "",
            ValueKind::Whole(..) | ValueKind::Number(..) => "N",
            ValueKind::Text => "TEXT",
            ValueKind::Word(_) => "VALUE",
            ValueKind::Port => "PORT",
            ValueKind::Duration | ValueKind::Time => "TIME",
            ValueKind::Size => "SIZE",
            ValueKind::Define => "KEY=VALUE",
        }
    }
}

impl fmt::Display for ValueKind {
    /// Describes the expected value: `a port from 0 to 65535`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueKind::Bool => f.write_str("true or false"),
            ValueKind::Whole(min, u64::MAX) => write!(f, "a whole number, {min} or more"),
            ValueKind::Whole(min, max) => write!(f, "a whole number from {min} to {max}"),
            ValueKind::Number(min, max) if *max == f64::MAX => write!(f, "a number, {min} or more"),
            ValueKind::Number(min, max) => write!(f, "a number from {min} to {max}"),
            ValueKind::Text => f.write_str("a string"),
            ValueKind::Word(words) => write!(f, "one of {}", words.join(", ")),
            ValueKind::Port => f.write_str("a port from 0 to 65535"),
            ValueKind::Duration => f.write_str("a duration such as 10s, 500ms or 10000 (ms)"),
            ValueKind::Time => f.write_str("a time with a unit, such as 10s, 1.5s or 500ms"),
            ValueKind::Size => f.write_str("a size such as 16gb, 512mb or 4096"),
            ValueKind::Define => f.write_str("KEY=VALUE"),
        }
    }
}

impl fmt::Display for FlagValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlagValue::Bool(b) => write!(f, "{b}"),
            FlagValue::Whole(n) => write!(f, "{n}"),
            FlagValue::Number(n) => write!(f, "{n}"),
            FlagValue::Text(text) => f.write_str(text),
            FlagValue::Duration(d) => f.write_str(&args::show_duration(*d)),
            FlagValue::Size(size) => write!(f, "{size}"),
        }
    }
}

/// A boolean, in any spelling that gflags or the store service accepts.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" | "enable" => Some(true),
        "0" | "f" | "false" | "n" | "no" | "off" | "disable" => Some(false),
        _ => None,
    }
}

/// A whole number, in decimal or (with the prefix `0x`) in hexadecimal, as in gflags.
fn parse_whole(text: &str) -> Option<i128> {
    let text = text.trim();
    let (digits, negative) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
    let (digits, radix) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")).map_or((digits, 10), |hex| (hex, 16));
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    i128::from_str_radix(digits, radix).ok().map(|n| if negative { -n } else { n })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Option<FlagValue> {
        ValueKind::Whole(-5, 300).parse(text)
    }

    #[test]
    fn a_whole_number_is_decimal_or_hexadecimal_and_in_range() {
        assert_eq!(whole("17"), Some(FlagValue::Whole(17)));
        assert_eq!(whole("0x2a"), Some(FlagValue::Whole(42)));
        assert_eq!(whole("-5"), Some(FlagValue::Whole(-5)));
        for bad in ["", "-", "--1", "+-1", "301", "-6", "1.0", "a", "0x", "99999999999999999999999999999999999999999"] {
            assert_eq!(whole(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_number_outside_its_range_is_refused() {
        let ratio = ValueKind::Number(0.0, 1.0);
        assert_eq!(ratio.parse(".5"), Some(FlagValue::Number(0.5)));
        for bad in ["1.01", "-0.1", "nan", "inf", "x"] {
            assert_eq!(ratio.parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn booleans_have_the_spellings_of_gflags_and_the_store_service() {
        for yes in ["1", "t", "TRUE", "y", "Yes", "on", "enable"] {
            assert_eq!(parse_bool(yes), Some(true));
        }
        for no in ["0", "f", "False", "n", "NO", "off", "disable"] {
            assert_eq!(parse_bool(no), Some(false));
        }
        assert_eq!(parse_bool("maybe"), None);
    }

    #[test]
    fn nearest_finds_typos_and_ignores_nonsense() {
        let known = ["rpc_port", "metrics_port", "eviction_ratio"];
        assert_eq!(nearest("rpc_prot", known.iter()), Some(&"rpc_port"));
        assert_eq!(nearest("evction_ratio", known.iter()), Some(&"eviction_ratio"));
        assert_eq!(nearest("RPC-PORT", known.iter()), Some(&"rpc_port"));
        for far in ["zzzz", "rpc_timeout", "metrics", "x", ""] {
            assert_eq!(nearest(far, known.iter()), None, "{far}");
        }
    }
}
