//! A switch that is followed by a value: `--soft-pin 1h`, `--upsert true`.
//!
//! clap takes such a value for the next argument, so that the command fails for another reason, or
//! uses the value as a key.

use clap::{Arg, ArgAction, Command};

use crate::commands::cli::error::{Exit, Failure};

/// Values with which users turn a switch on or off.
const SWITCH_VALUES: [&str; 6] = ["true", "false", "yes", "no", "on", "off"];

/// A flag of the command line, and the word after it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MisplacedValue {
    /// The flag accepts this value only after `=`.
    NeedsEquals { flag: String, value: String },
    /// The flag has no value.
    Switch { flag: String, value: String },
}

/// Rejects a value after a space, for a flag that accepts its value only after `=`. `args` begin
/// with the program name.
///
/// # Errors
/// The word after such a flag is a valid value for it.
pub fn check(command: &Command, args: &[String]) -> Result<(), Failure> {
    match find(command, args) {
        Some(MisplacedValue::NeedsEquals { flag, value }) => Err(Failure::usage(format!(
            "{flag} needs '=' before its value: '{value}' after a space is another argument"
        ))
        .next(format!("use {flag}={value}; if '{value}' is not the value of {flag}, put it first"))),
        _ => Ok(()),
    }
}

/// Explains a usage error of a command line in which a switch is followed by a value. Returns other
/// failures unchanged.
pub fn explained(failure: Failure, command: &Command, args: &[String]) -> Failure {
    if failure.exit != Exit::Usage {
        return failure;
    }
    match find(command, args) {
        Some(MisplacedValue::Switch { flag, value }) => {
            let what = format!("{flag} has no value, so '{value}' is another argument");
            let found = match &failure.found {
                Some(found) => format!("{}: {found}", failure.what),
                None => failure.what.clone(),
            };
            let next = format!("use {flag} for yes, and omit it for no");
            Failure { what, tried: None, found: Some(found), next: Some(next), ..failure }
        }
        _ => failure,
    }
}

/// The first flag that is followed by a misplaced value.
fn find(whole: &Command, args: &[String]) -> Option<MisplacedValue> {
    let mut command = whole;
    let mut words = args.get(1..)?.iter().take_while(|word| *word != "--").peekable();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix("--") else {
            command = command.find_subcommand(word).unwrap_or(command);
            continue;
        };
        let Some(arg) = (!name.contains('=')).then(|| named([command, whole], name)).flatten() else { continue };
        let Some(value) = words.peek().filter(|next| !next.starts_with('-')) else { continue };
        let flag = word.clone();
        let value = (*value).clone();
        if arg.is_require_equals_set() {
            if accepts(arg, &value) {
                return Some(MisplacedValue::NeedsEquals { flag, value });
            }
        } else if matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse | ArgAction::Count) {
            if SWITCH_VALUES.contains(&value.as_str()) {
                return Some(MisplacedValue::Switch { flag, value });
            }
        } else if arg.get_action().takes_values() {
            // The word is the value of this flag.
            words.next();
        }
    }
    None
}

/// The argument with this long name, of the first command that has it.
fn named<'a>(commands: [&'a Command; 2], name: &str) -> Option<&'a Arg> {
    commands.into_iter().flat_map(Command::get_arguments).find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).any(|long| long == name)
    })
}

/// Whether `value` is valid for `arg`. A bare number does not count, because it may be a key.
fn accepts(arg: &Arg, value: &str) -> bool {
    // Without a name, the parser of a time does not warn about it.
    let alone = Arg::new("value").value_parser(arg.get_value_parser().clone());
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    !is_number && Command::new("mcctl").no_binary_name(true).arg(alone).try_get_matches_from([value]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in(line: &str) -> Option<MisplacedValue> {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        find(&crate::commands::parser(), &args)
    }

    #[test]
    fn a_time_after_a_space_is_found_and_other_words_are_not() {
        let pin = || Some(MisplacedValue::NeedsEquals { flag: "--soft-pin".to_owned(), value: "1h".to_owned() });
        for line in
            ["mcctl store put --soft-pin 1h k f", "mcctl store put k --soft-pin 1h", "mcctl store put --soft-pin 1h"]
        {
            assert_eq!(find_in(line), pin(), "{line}");
        }
        for line in [
            "mcctl store put --soft-pin=1h k f",
            "mcctl store put --soft-pin key file",
            "mcctl store put --soft-pin 5 file",
            "mcctl store put key --soft-pin",
            "mcctl store put key --soft-pin --value 1h",
            "mcctl store put key -- --soft-pin 1h",
        ] {
            assert_eq!(find_in(line), None, "{line}");
        }
    }

    #[test]
    fn a_word_for_yes_or_no_after_a_switch_is_found() {
        for (line, flag, value) in
            [("mcctl store put k --upsert true", "--upsert", "true"), ("mcctl lint --json off f", "--json", "off")]
        {
            let expected = MisplacedValue::Switch { flag: flag.to_owned(), value: value.to_owned() };
            assert_eq!(find_in(line), Some(expected), "{line}");
        }
        assert_eq!(find_in("mcctl store put k --value true"), None);
        assert_eq!(find_in("mcctl store put k --upsert file"), None);
    }

    #[test]
    fn only_usage_errors_are_explained() {
        let args = ["mcctl", "store", "put", "k", "--upsert", "true"].map(str::to_owned);
        let explained = |failure| explained(failure, &crate::commands::parser(), &args);
        assert_eq!(explained(Failure::no("x")), Failure::no("x"));
        let failure = explained(Failure::usage("cannot read true").found("not found"));
        assert_eq!((failure.exit, failure.found.as_deref()), (Exit::Usage, Some("cannot read true: not found")));
    }
}
