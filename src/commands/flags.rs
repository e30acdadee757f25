//! What a flag is: one entry of a table from which parsing, configuration files, `--help` and the errors are derived.
//!
//! The tables themselves stand beside the commands that they belong to (`serve/*_flags.rs`).

use std::fmt;
use std::time::Duration;

use crate::commands::args;
use crate::engine::base::ByteSize;

/// One flag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flag {
    /// Upstream's name where it has one, with underscores; ours otherwise.
    pub name: &'static str,
    /// Other names that mean the same.
    pub aliases: &'static [&'static str],
    /// What a value looks like.
    pub kind: Kind,
    /// The value when none is given, as it would be written.
    pub default: &'static str,
    /// What it does, one sentence without a full stop, with the unit where the kind does not tell it.
    pub help: &'static str,
    /// Does it do anything here?
    pub class: Class,
    /// Its name in a configuration file.
    pub key: Key,
    /// The environment variable that sets it.
    pub env: Option<&'static str>,
}

/// What a value of a flag looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// true or false; the flag may stand alone.
    Bool,
    /// A whole number in a range.
    Whole(i64, u64),
    /// A number in a range.
    Number(f64, f64),
    /// Anything.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A TCP port.
    Port,
    /// A duration; without a unit in milliseconds.
    Duration,
    /// A number of bytes.
    Size,
    /// `KEY=VALUE`, sets the flag of that configuration key. Only the parser of flags sees it.
    Define,
}

/// Does a flag do anything here?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Yes.
    Works,
    /// It is accepted and has no effect; the text says why.
    NoEffect(&'static str),
    /// It would change what is kept or served, by a feature that is not there: only its default is accepted.
    Absent(&'static str),
}

/// A flag's name in a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The flag's name.
    Same,
    /// Another one.
    Named(&'static str),
    /// It cannot stand in a file; the text says what can instead.
    None(&'static str),
}

/// A value of a flag.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// [`Kind::Bool`].
    Bool(bool),
    /// [`Kind::Whole`] and [`Kind::Port`].
    Whole(i128),
    /// [`Kind::Number`].
    Number(f64),
    /// [`Kind::Text`] and [`Kind::Word`].
    Text(String),
    /// [`Kind::Duration`].
    Duration(Duration),
    /// [`Kind::Size`].
    Size(ByteSize),
}

/// The flags of one command.
#[derive(Debug)]
pub struct Table {
    /// The command, as it is typed after `mcctl`.
    pub command: &'static str,
    /// One or two sentences for `--help`.
    pub about: &'static str,
    /// The flags, in groups with a heading, in the order of `--help`.
    pub groups: &'static [(&'static str, &'static [Flag])],
}

/// A flag that works, in files under its own name and in no environment variable; the other functions change that.
pub const fn flag(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, aliases: &[], kind, default, help, class: Class::Works, key: Key::Same, env: None }
}

impl Flag {
    /// It is accepted without an effect, because of `why`.
    pub const fn no_effect(mut self, why: &'static str) -> Flag {
        self.class = Class::NoEffect(why);
        self
    }

    /// It belongs to `feature`, which is not there.
    pub const fn absent(mut self, feature: &'static str) -> Flag {
        self.class = Class::Absent(feature);
        self
    }

    /// In a file its name is `key`.
    pub const fn key(mut self, key: &'static str) -> Flag {
        self.key = Key::Named(key);
        self
    }

    /// It cannot stand in a file; `instead` says what to do.
    pub const fn not_in_file(mut self, instead: &'static str) -> Flag {
        self.key = Key::None(instead);
        self
    }

    /// The environment variable `name` sets it.
    pub const fn env(mut self, name: &'static str) -> Flag {
        self.env = Some(name);
        self
    }

    /// These names mean the same.
    pub const fn aliases(mut self, names: &'static [&'static str]) -> Flag {
        self.aliases = names;
        self
    }

    /// The flag as we write it: `--rpc-port`.
    pub fn spelled(&self) -> String {
        spelled(self.name)
    }

    /// The name that a configuration file uses, if it can stand in one.
    pub fn file_key(&self) -> Option<&'static str> {
        match self.key {
            Key::Same => Some(self.name),
            Key::Named(key) => Some(key),
            Key::None(_) => None,
        }
    }

    /// The default as a value.
    pub fn default_value(&self) -> Value {
        self.kind.parse(self.default).expect("every default in the tables is of its kind, which a test checks")
    }
}

/// A flag's name as we write it on a command line.
pub fn spelled(name: &str) -> String {
    match name.len() {
        1 => format!("-{name}"),
        _ => format!("--{}", name.replace('_', "-")),
    }
}

impl Table {
    /// Every flag.
    pub fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.groups.iter().flat_map(|(_, flags)| flags.iter())
    }

    /// The flag named `name`, in which `-` and `_` are the same.
    pub fn find(&self, name: &str) -> Option<&'static Flag> {
        let name = name.replace('-', "_");
        self.flags().find(|flag| flag.name == name || flag.aliases.contains(&name.as_str()))
    }

    /// The flag that a configuration file calls `key`.
    pub fn find_key(&self, key: &str) -> Option<&'static Flag> {
        self.flags().find(|flag| flag.file_key() == Some(key))
    }

    /// The known flag name that `name` is most like.
    pub fn nearest(&self, name: &str) -> Option<String> {
        let name = name.replace('-', "_");
        nearest(&name, self.flags().flat_map(|flag| std::iter::once(&flag.name).chain(flag.aliases)).copied())
            .map(spelled)
    }

    /// The known configuration key that `key` is most like.
    pub fn nearest_key(&self, key: &str) -> Option<&'static str> {
        nearest(key, self.flags().filter_map(Flag::file_key))
    }
}

/// The one of `known` that was probably meant by `name`, if any is: no more than a third of the letters are wrong.
pub fn nearest<S: AsRef<str>>(name: &str, known: impl Iterator<Item = S>) -> Option<S> {
    let name = name.to_ascii_lowercase();
    let mistakes_max = (name.chars().count() / 3).max(1);
    // A swap of neighbours is one mistake.
    let mistakes = |s: &S| strsim::osa_distance(&name, &s.as_ref().to_ascii_lowercase());
    known.map(|s| (mistakes(&s), s)).filter(|(n, _)| *n <= mistakes_max).min_by_key(|(n, _)| *n).map(|(_, s)| s)
}

impl Kind {
    /// The value that `text` is; `None` when it is not of this kind.
    pub fn parse(&self, text: &str) -> Option<Value> {
        match *self {
            Kind::Bool => parse_bool(text).map(Value::Bool),
            Kind::Whole(min, max) => {
                parse_whole(text).filter(|n| (i128::from(min)..=i128::from(max)).contains(n)).map(Value::Whole)
            }
            Kind::Port => parse_whole(text).filter(|n| (0..=65535).contains(n)).map(Value::Whole),
            Kind::Number(min, max) => {
                text.trim().parse().ok().filter(|n: &f64| (min..=max).contains(n)).map(Value::Number)
            }
            Kind::Word(words) => words.contains(&text).then(|| Value::Text(text.to_owned())),
            Kind::Text | Kind::Define => Some(Value::Text(text.to_owned())),
            Kind::Duration => args::duration(text).ok().map(Value::Duration),
            Kind::Size => text.parse().ok().map(Value::Size),
        }
    }

    /// A word for the value in `--help`.
    pub fn value_name(&self) -> &'static str {
        match self {
            Kind::Bool => "",
            Kind::Whole(..) | Kind::Number(..) => "N",
            Kind::Text => "TEXT",
            Kind::Word(_) => "WORD",
            Kind::Port => "PORT",
            Kind::Duration => "TIME",
            Kind::Size => "SIZE",
            Kind::Define => "KEY=VALUE",
        }
    }
}

impl fmt::Display for Kind {
    /// What is expected: `a port from 0 to 65535`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bool => f.write_str("true or false"),
            Kind::Whole(min, u64::MAX) => write!(f, "a whole number, {min} or more"),
            Kind::Whole(min, max) => write!(f, "a whole number from {min} to {max}"),
            Kind::Number(min, max) if *max == f64::MAX => write!(f, "a number, {min} or more"),
            Kind::Number(min, max) => write!(f, "a number from {min} to {max}"),
            Kind::Text => f.write_str("a text"),
            Kind::Word(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Port => f.write_str("a port from 0 to 65535"),
            Kind::Duration => f.write_str("a duration such as 10s, 500ms or 10000 (ms)"),
            Kind::Size => f.write_str("a size such as 16gb, 512mb or 4096"),
            Kind::Define => f.write_str("KEY=VALUE"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(b) => write!(f, "{b}"),
            Value::Whole(n) => write!(f, "{n}"),
            Value::Number(n) => write!(f, "{n}"),
            Value::Text(text) => f.write_str(text),
            Value::Duration(d) => f.write_str(&args::show_duration(*d)),
            Value::Size(size) => write!(f, "{size}"),
        }
    }
}

/// gflags' words for a boolean and those that the store service adds.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" | "on" | "enable" => Some(true),
        "0" | "f" | "false" | "n" | "no" | "off" | "disable" => Some(false),
        _ => None,
    }
}

/// A whole number, decimal or, as in gflags, hexadecimal after `0x`.
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

    fn whole(text: &str) -> Option<Value> {
        Kind::Whole(-5, 300).parse(text)
    }

    #[test]
    fn a_whole_number_is_decimal_or_hexadecimal_and_in_its_range() {
        assert_eq!(whole("17"), Some(Value::Whole(17)));
        assert_eq!(whole("0x2a"), Some(Value::Whole(42)));
        assert_eq!(whole("-5"), Some(Value::Whole(-5)));
        for bad in ["", "-", "--1", "+-1", "301", "-6", "1.0", "a", "0x", "99999999999999999999999999999999999999999"] {
            assert_eq!(whole(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_number_out_of_range_or_not_a_number_is_refused() {
        let ratio = Kind::Number(0.0, 1.0);
        assert_eq!(ratio.parse(".5"), Some(Value::Number(0.5)));
        for bad in ["1.01", "-0.1", "nan", "inf", "x"] {
            assert_eq!(ratio.parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_words_of_gflags_and_of_the_store_service_are_booleans() {
        for yes in ["1", "t", "TRUE", "y", "Yes", "on", "enable"] {
            assert_eq!(parse_bool(yes), Some(true));
        }
        for no in ["0", "f", "False", "n", "NO", "off", "disable"] {
            assert_eq!(parse_bool(no), Some(false));
        }
        assert_eq!(parse_bool("maybe"), None);
    }

    #[test]
    fn the_nearest_name_is_found_and_nonsense_has_none() {
        let known = ["rpc_port", "metrics_port", "eviction_ratio"];
        assert_eq!(nearest("rpc_prot", known.iter()), Some(&"rpc_port"));
        assert_eq!(nearest("evction_ratio", known.iter()), Some(&"eviction_ratio"));
        assert_eq!(nearest("RPC-PORT", known.iter()), Some(&"rpc_port"));
        for far in ["zzzz", "rpc_timeout", "metrics", "x", ""] {
            assert_eq!(nearest(far, known.iter()), None, "{far}");
        }
    }
}
