//! The values of a command's flags. Each value is stored with its origin, which error messages
//! include.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::{FlagSpec, FlagSupport, FlagTable, FlagValue, ValueKind};
use crate::commands::cli::origin::{Origin, ValueOrigin};
use crate::commands::cli::times;
use crate::engine::base::ByteSize;
use crate::engine::base::text::masked_address;

/// A string that sets a flag.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    pub flag: &'static FlagSpec,
    pub text: String,
    pub origin: ValueOrigin,
}

/// The values of all flags in a table.
#[derive(Debug)]
pub struct Settings {
    set: Vec<(&'static FlagSpec, Origin<FlagValue>)>,
    /// Warnings about values that a later release will refuse, by the flag's name. A value that is
    /// replaced has no warning.
    deprecated: BTreeMap<&'static str, String>,
}

impl Settings {
    /// All flags in `table`, set to their defaults.
    pub fn new(table: &'static FlagTable) -> Settings {
        let default = |flag: &'static FlagSpec| (flag, Origin::default(flag.default_value()));
        Settings { set: table.flags().map(default).collect(), deprecated: BTreeMap::new() }
    }

    /// Sets a flag. A later assignment replaces an earlier one, so sources must be applied in order
    /// of increasing precedence.
    ///
    /// # Errors
    /// The string does not parse as the flag's kind.
    pub fn assign(&mut self, given: &Assignment) -> Result<(), Failure> {
        let value = given.flag.kind.parse(&given.text).ok_or_else(|| ill_typed(given))?;
        self.deprecated.remove(given.flag.name);
        if given.flag.kind == ValueKind::Time
            && let Some(warning) = times::unit_warning(&setting_of(given), &given.text, "ms")
        {
            self.deprecated.insert(given.flag.name, warning);
        }
        let entry = self.set.iter_mut().find(|(flag, _)| flag.name == given.flag.name);
        entry.expect("assignments use flags of the same table").1 = Origin { value, origin: given.origin.clone() };
        Ok(())
    }

    /// Applies all of `given` in order.
    ///
    /// # Errors
    /// The same as [`Settings::assign`].
    pub fn assign_all(&mut self, given: &[Assignment]) -> Result<(), Failure> {
        given.iter().try_for_each(|one| self.assign(one))
    }

    /// The value of the flag `name` and its origin.
    pub fn get(&self, name: &str) -> &Origin<FlagValue> {
        &self.find(name).1
    }

    fn find(&self, name: &str) -> &(&'static FlagSpec, Origin<FlagValue>) {
        self.set.iter().find(|(flag, _)| flag.name == name).expect("commands use only flags of their own table")
    }

    /// Whether the flag `name` was set from any source.
    pub fn is_given(&self, name: &str) -> bool {
        self.get(name).is_given()
    }

    /// The value of the boolean flag `name`.
    pub fn bool(&self, name: &str) -> bool {
        matches!(self.get(name).value, FlagValue::Bool(true))
    }

    /// The value of the whole-number flag `name`. The range in the table guarantees that it fits
    /// into `T`.
    pub fn whole<T: TryFrom<i128>>(&self, name: &str) -> T {
        match self.get(name).value {
            FlagValue::Whole(n) => T::try_from(n).ok().expect("the range in the table fits into the type"),
            ref other => unreachable!("{name} is not a whole number but {other}"),
        }
    }

    /// The value of the number flag `name`.
    pub fn number(&self, name: &str) -> f64 {
        match self.get(name).value {
            FlagValue::Number(n) => n,
            ref other => unreachable!("{name} is not a number but {other}"),
        }
    }

    /// The value of the string flag `name`.
    pub fn text(&self, name: &str) -> &str {
        match &self.get(name).value {
            FlagValue::Text(text) => text,
            other => unreachable!("{name} is not a string but {other}"),
        }
    }

    /// The value of the duration flag `name`.
    pub fn duration(&self, name: &str) -> Duration {
        match self.get(name).value {
            FlagValue::Duration(d) => d,
            ref other => unreachable!("{name} is not a duration but {other}"),
        }
    }

    /// The value of the duration flag `name`.
    ///
    /// # Errors
    /// It is not within `range`.
    pub fn duration_within(&self, name: &str, range: RangeInclusive<Duration>) -> Result<Duration, Failure> {
        let value = self.duration(name);
        if range.contains(&value) {
            return Ok(value);
        }
        let (flag, _) = self.find(name);
        let min = show_duration(*range.start());
        let max = show_duration(*range.end());
        let default = flag.default_value().to_string().replace(' ', "");
        Err(Failure::usage(format!("{} must be between {min} and {max}", flag.spelled()))
            .found(self.describe(name))
            .next(format!("use {}={default}", flag.spelled())))
    }

    /// The value of the whole-number flag `name`, in seconds, as a duration.
    pub fn seconds(&self, name: &str) -> Duration {
        Duration::from_secs(self.whole(name))
    }

    /// The value of the size flag `name`.
    pub fn size(&self, name: &str) -> ByteSize {
        match self.get(name).value {
            FlagValue::Size(size) => size,
            ref other => unreachable!("{name} is not a size but {other}"),
        }
    }

    /// The flag `name` with value and origin, for errors: `--rpc-port 50051 (default)`.
    pub fn describe(&self, name: &str) -> String {
        let (flag, setting) = self.find(name);
        format!("{} {} ({})", flag.spelled(), masked_address(&setting.value.to_string()), origin_text(&setting.origin))
    }

    /// `value`, parsed from the flag `name`, with the flag's [description](Settings::describe).
    pub fn described<T>(&self, name: &str, value: T) -> Origin<T> {
        Origin::described(value, self.describe(name))
    }

    /// [`Settings::describe`] for all flags that were set.
    pub fn given(&self) -> Vec<String> {
        let given = self.set.iter().filter(|(_, setting)| setting.is_given());
        given.map(|(flag, _)| self.describe(flag.name)).collect()
    }

    /// Checks the values against mcctl's features. Returns a warning for each flag that has no
    /// effect, and for each value without a required unit.
    ///
    /// # Errors
    /// A flag for a feature that mcctl does not have is not at its default.
    pub fn check_features(&self) -> Result<Vec<String>, Failure> {
        let mut warnings: Vec<String> = self.deprecated.values().cloned().collect();
        for (flag, setting) in &self.set {
            if setting.value == flag.default_value() {
                continue;
            }
            match flag.class {
                FlagSupport::Works => {}
                FlagSupport::NoEffect(why) => {
                    warnings.push(format!("{} has no effect: {why}", self.describe(flag.name)));
                }
                FlagSupport::Absent(feature) => {
                    return Err(Failure::usage(format!("{} is not available: {feature}", flag.spelled()))
                        .found(self.describe(flag.name))
                        .next("remove the flag; mcctl does not ignore it, because that would change what is stored or served"));
                }
            }
        }
        Ok(warnings)
    }
}

fn origin_text(origin: &ValueOrigin) -> String {
    match origin {
        ValueOrigin::Flag(_) => "command line".to_owned(),
        other => other.to_string(),
    }
}

/// The setting as the user wrote it: the flag, the variable, or the key, with the file that
/// contains it.
fn setting_of(given: &Assignment) -> String {
    match &given.origin {
        ValueOrigin::File { path, key } => format!("{}: key '{key}'", path.display()),
        ValueOrigin::FlagFile { path, line } => format!("{}:{line}: {}", path.display(), given.flag.spelled()),
        ValueOrigin::Env(name) => name.clone(),
        _ => given.flag.spelled(),
    }
}

fn ill_typed(given: &Assignment) -> Failure {
    Failure::usage(format!("{} is '{}', expected {}", setting_of(given), given.text, given.flag.kind))
        .found(format!("'{}' from {}", given.text, given.origin))
        .next(format!("{}: {}", given.flag.spelled(), given.flag.help))
}

/// Reads the text file `path`, which may be at most `limit` bytes long. `origin` is the flag or
/// variable that specifies the file.
///
/// # Errors
/// The file cannot be read, is larger than `limit`, or is not UTF-8.
pub fn read_text(path: &Path, origin: &str, limit: u64) -> Result<String, Failure> {
    use std::io::Read;
    let fail = |found: String| {
        Failure::usage(format!("cannot read {}", path.display()))
            .tried(format!("open the file specified by {origin}"))
            .found(found)
            .next("pass the path of a readable text file")
    };
    let file = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
    let mut text = String::new();
    let read = file.take(limit + 1).read_to_string(&mut text).map_err(|error| fail(error.to_string()))?;
    if read as u64 > limit {
        return Err(fail(format!("the file is larger than {}", ByteSize(limit))));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;
    use crate::commands::cli::flags::flag;

    static TABLE: FlagTable = FlagTable {
        command: "test",
        about: "",
        groups: &[(
            "All",
            &[
                flag("port", ValueKind::Port, "50051", "Port to listen on"),
                flag("nodelay", ValueKind::Whole(0, 9), "1", "Send at once").no_effect("always on"),
                flag("ha", ValueKind::Bool, "false", "Elect a master").absent("high availability"),
                flag("stall", ValueKind::Time, "2s", "Time after which a call is a stall"),
                flag("lease", ValueKind::Duration, "10000", "Life of a read lease"),
            ],
        )],
    };

    fn give(name: &str, text: &str) -> Assignment {
        let flag = TABLE.find(name).expect(name);
        Assignment { flag, text: text.to_owned(), origin: ValueOrigin::Flag(format!("--{name}")) }
    }

    #[test]
    fn the_last_value_wins_and_keeps_its_origin() {
        let mut settings = Settings::new(&TABLE);
        assert_eq!(settings.describe("port"), "--port 50051 (default)");
        settings.assign_all(&[give("port", "1"), give("port", "0x2")]).expect("both are ports");
        assert_eq!((settings.whole::<u16>("port"), settings.is_given("port")), (2, true));
        assert_eq!(settings.describe("port"), "--port 2 (command line)");
    }

    #[test]
    fn errors_name_flag_value_origin_and_expected_kind() {
        let file = ValueOrigin::File { path: "m.yaml".into(), key: "port".to_owned() };
        let mut settings = Settings::new(&TABLE);
        let in_file = settings.assign(&Assignment { origin: file, ..give("port", "abc") }).expect_err("no port");
        let on_line = settings.assign(&give("port", "65536")).expect_err("no port");
        settings.assign_all(&[give("nodelay", "2")]).expect("well typed");
        let warnings = settings.check_features().expect("only a warning");
        settings.assign(&give("ha", "on")).expect("well typed");
        let absent = settings.check_features().expect_err("an absent feature");
        assert!([&in_file, &on_line, &absent].iter().all(|failure| failure.exit == Exit::Usage));
        insta::assert_snapshot!(format!("{in_file}\n{on_line}\n{absent}\n{}", warnings.join("\n")));
    }

    #[test]
    fn only_own_flags_warn_about_a_time_without_a_unit() {
        let mut settings = Settings::new(&TABLE);
        settings.assign_all(&[give("lease", "500"), give("stall", "1.5s")]).expect("times");
        assert_eq!(settings.check_features(), Ok(vec![]));
        assert_eq!(settings.duration("stall"), Duration::from_millis(1_500));
        settings.assign(&give("stall", "500")).expect("a time");
        assert_eq!(settings.check_features().map(|warnings| warnings.len()), Ok(1));
        assert_eq!(settings.duration("stall"), Duration::from_millis(500));
    }

    #[test]
    fn a_warning_about_a_time_names_its_origin() {
        let file = ValueOrigin::File { path: "m.yaml".into(), key: "mcctl.stall".to_owned() };
        let line = ValueOrigin::FlagFile { path: "m.flags".into(), line: 3 };
        let origins = [file, line, ValueOrigin::Env("MCCTL_STALL".to_owned()), ValueOrigin::Flag("--stall".to_owned())];
        let warnings = origins.map(|origin| {
            let mut settings = Settings::new(&TABLE);
            settings.assign(&Assignment { origin, ..give("stall", "500") }).expect("a time");
            settings.check_features().expect("only a warning").join("\n")
        });
        insta::assert_snapshot!(warnings.join("\n"));
    }

    #[test]
    fn a_replaced_time_without_a_unit_has_no_warning() {
        let file = ValueOrigin::File { path: "m.yaml".into(), key: "stall".to_owned() };
        let in_file = Assignment { origin: file, ..give("stall", "500") };
        let mut settings = Settings::new(&TABLE);
        settings.assign_all(&[in_file.clone(), give("stall", "1s")]).expect("times");
        assert_eq!(settings.check_features(), Ok(vec![]));
        settings.assign_all(&[in_file]).expect("a time");
        assert_eq!(settings.check_features().map(|warnings| warnings.len()), Ok(1));
    }

    #[test]
    fn defaults_of_absent_features_are_accepted_without_warning() {
        let mut settings = Settings::new(&TABLE);
        settings.assign_all(&[give("nodelay", "1"), give("ha", "no")]).expect("well typed");
        assert_eq!(settings.check_features(), Ok(vec![]));
    }
}
