//! The values of a command's flags, each with where it came from, so that an error can name it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::commands::error::Failure;
use crate::commands::flags::{Class, Flag, Table, Value};
use crate::engine::base::ByteSize;
use crate::engine::base::text::masked;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody gave one.
    Default,
    /// The command line, as it was spelled there.
    Flag(String),
    /// A line of a `--flagfile`.
    FlagFile {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
    },
    /// An environment variable.
    Env(String),
    /// A key of a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Flag(spelled) => f.write_str(spelled),
            Origin::FlagFile { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Env(name) => write!(f, "environment variable {name}"),
            Origin::File { path, key } => write!(f, "key {key} in {}", path.display()),
        }
    }
}

/// A text that somebody gave for a flag.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The flag's name in the table.
    pub flag: &'static Flag,
    /// What was given.
    pub text: String,
    /// Where.
    pub origin: Origin,
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
}

/// The values of all flags of a table.
#[derive(Debug)]
pub struct Settings {
    table: &'static Table,
    set: Vec<(&'static Flag, Setting)>,
}

impl Settings {
    /// All flags of `table` at their defaults.
    pub fn new(table: &'static Table) -> Settings {
        let default = |flag: &'static Flag| (flag, Setting { value: flag.default_value(), origin: Origin::Default });
        Settings { table, set: table.flags().map(default).collect() }
    }

    /// Take a value. A later one replaces an earlier one, so the weakest source comes first.
    ///
    /// # Errors
    /// The text is not of the flag's kind.
    pub fn assign(&mut self, given: &Assignment) -> Result<(), Failure> {
        let value = given.flag.kind.parse(&given.text).ok_or_else(|| ill_typed(given))?;
        let place = self.set.iter_mut().find(|(flag, _)| flag.name == given.flag.name);
        place.expect("assignments are made from the same table").1 = Setting { value, origin: given.origin.clone() };
        Ok(())
    }

    /// Take all of `given`.
    ///
    /// # Errors
    /// As [`Settings::assign`].
    pub fn assign_all(&mut self, given: &[Assignment]) -> Result<(), Failure> {
        given.iter().try_for_each(|one| self.assign(one))
    }

    /// The value of the flag `name` and its origin.
    pub fn get(&self, name: &str) -> &Setting {
        &self.find(name).1
    }

    fn find(&self, name: &str) -> &(&'static Flag, Setting) {
        self.set.iter().find(|(flag, _)| flag.name == name).expect("commands ask only for flags of their own table")
    }

    /// Was the flag `name` given by anybody?
    pub fn is_given(&self, name: &str) -> bool {
        self.get(name).origin != Origin::Default
    }

    /// A [`Value::Bool`].
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.get(name).value, Value::Bool(true))
    }

    /// A [`Value::Whole`], as far as `T` can hold it: a table's range keeps it inside.
    pub fn whole<T: TryFrom<i128>>(&self, name: &str) -> T {
        match self.get(name).value {
            Value::Whole(n) => T::try_from(n).ok().expect("the range in the table fits the type it is used as"),
            ref other => unreachable!("{name} is no whole number but {other}"),
        }
    }

    /// A [`Value::Number`].
    pub fn number(&self, name: &str) -> f64 {
        match self.get(name).value {
            Value::Number(n) => n,
            ref other => unreachable!("{name} is no number but {other}"),
        }
    }

    /// A [`Value::Text`].
    pub fn text(&self, name: &str) -> &str {
        match &self.get(name).value {
            Value::Text(text) => text,
            other => unreachable!("{name} is no text but {other}"),
        }
    }

    /// A [`Value::Duration`].
    pub fn duration(&self, name: &str) -> Duration {
        match self.get(name).value {
            Value::Duration(d) => d,
            ref other => unreachable!("{name} is no duration but {other}"),
        }
    }

    /// A whole number of seconds.
    pub fn seconds(&self, name: &str) -> Duration {
        Duration::from_secs(self.whole(name))
    }

    /// A [`Value::Size`].
    pub fn size(&self, name: &str) -> ByteSize {
        match self.get(name).value {
            Value::Size(size) => size,
            ref other => unreachable!("{name} is no size but {other}"),
        }
    }

    /// The flag, its value and where that came from, for errors: `--rpc-port 50051 (default)`.
    pub fn describe(&self, name: &str) -> String {
        let (flag, setting) = self.find(name);
        format!("{} {} ({})", flag.spelled(), masked(&setting.value.to_string()), origin_in_words(&setting.origin))
    }

    /// What is not at its default, in words.
    pub fn given(&self) -> Vec<String> {
        let given = self.set.iter().filter(|(_, setting)| setting.origin != Origin::Default);
        given.map(|(flag, _)| self.describe(flag.name)).collect()
    }

    /// Check what is given against what is there: a warning for each flag that has no effect.
    ///
    /// # Errors
    /// A flag of an absent feature has another value than its default.
    pub fn check_features(&self) -> Result<Vec<String>, Failure> {
        let mut warnings = Vec::new();
        for (flag, setting) in &self.set {
            if setting.value == flag.default_value() {
                continue;
            }
            match flag.class {
                Class::Works => {}
                Class::NoEffect(why) => {
                    warnings.push(format!("{} has no effect: {why}", self.describe(flag.name)));
                }
                Class::Absent(feature) => {
                    return Err(Failure::usage(format!("{} is not available: {feature}", flag.spelled()))
                        .found(self.describe(flag.name))
                        .next("leave it out; it is refused because ignoring it would change what is kept or served"));
                }
            }
        }
        Ok(warnings)
    }

    /// The table.
    pub fn table(&self) -> &'static Table {
        self.table
    }
}

fn origin_in_words(origin: &Origin) -> String {
    match origin {
        Origin::Flag(_) => "command line".to_owned(),
        other => other.to_string(),
    }
}

fn ill_typed(given: &Assignment) -> Failure {
    let name = match &given.origin {
        Origin::File { key, .. } => format!("key '{key}'"),
        Origin::Env(name) => name.clone(),
        _ => given.flag.spelled(),
    };
    let place = match &given.origin {
        Origin::File { path, .. } => format!("{}: ", path.display()),
        Origin::FlagFile { path, line } => format!("{}:{line}: ", path.display()),
        _ => String::new(),
    };
    Failure::usage(format!("{place}{name} is '{}', but {} is expected", given.text, given.flag.kind))
        .found(format!("'{}' from {}", given.text, given.origin))
        .next(format!("{}: {}", given.flag.spelled(), given.flag.help))
}

/// Read a text file of at most `limit` bytes that the user named in `origin`.
///
/// # Errors
/// It cannot be read, is longer, or is not UTF-8.
pub fn read_text(path: &Path, origin: &str, limit: u64) -> Result<String, Failure> {
    use std::io::Read;
    let fail = |found: String| {
        Failure::usage(format!("cannot read {}", path.display()))
            .tried(format!("open the file named by {origin}"))
            .found(found)
            .next("name a readable text file")
    };
    let file = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let mut text = String::new();
    let read = file.take(limit + 1).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
    if read as u64 > limit {
        return Err(fail(format!("it is longer than {}", ByteSize(limit))));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::error::Exit;
    use crate::commands::flags::{Kind, flag};

    static TABLE: Table = Table {
        command: "test",
        about: "",
        groups: &[(
            "All",
            &[
                flag("port", Kind::Port, "50051", "where"),
                flag("speed", Kind::Whole(0, 9), "1", "how fast").no_effect("speed is always best"),
                flag("magic", Kind::Bool, "false", "magic").absent("there is no magic"),
            ],
        )],
    };

    fn give(name: &str, text: &str) -> Assignment {
        let flag = TABLE.find(name).expect(name);
        Assignment { flag, text: text.to_owned(), origin: Origin::Flag(format!("--{name}")) }
    }

    #[test]
    fn the_last_value_counts_and_keeps_its_origin() {
        let mut settings = Settings::new(&TABLE);
        assert_eq!(settings.describe("port"), "--port 50051 (default)");
        settings.assign_all(&[give("port", "1"), give("port", "0x2")]).expect("both are ports");
        assert_eq!((settings.whole::<u16>("port"), settings.is_given("port")), (2, true));
        assert_eq!(settings.describe("port"), "--port 2 (command line)");
    }

    #[test]
    fn a_value_of_another_kind_names_flag_value_and_expectation() {
        let file = Origin::File { path: "m.yaml".into(), key: "port".to_owned() };
        let error =
            Settings::new(&TABLE).assign(&Assignment { origin: file, ..give("port", "abc") }).expect_err("no port");
        assert_eq!(error.exit, Exit::Usage);
        assert_eq!(error.what, "m.yaml: key 'port' is 'abc', but a port from 0 to 65535 is expected");
        let error = Settings::new(&TABLE).assign(&give("port", "65536")).expect_err("no port");
        assert_eq!(error.what, "--port is '65536', but a port from 0 to 65535 is expected");
    }

    #[test]
    fn a_flag_without_effect_warns_and_one_of_an_absent_feature_is_refused_unless_it_is_the_default() {
        let mut settings = Settings::new(&TABLE);
        settings.assign_all(&[give("speed", "1"), give("magic", "no")]).expect("well typed");
        assert_eq!(settings.check_features(), Ok(vec![]));
        settings.assign(&give("speed", "2")).expect("well typed");
        assert_eq!(
            settings.check_features().expect("only a warning"),
            ["--speed 2 (command line) has no effect: speed is always best"]
        );
        settings.assign(&give("magic", "on")).expect("well typed");
        let error = settings.check_features().expect_err("no magic");
        assert_eq!((error.exit, error.what.as_str()), (Exit::Usage, "--magic is not available: there is no magic"));
    }
}
