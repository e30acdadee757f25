//! Help output for all commands: `-h` fits on one screen, `--help` begins with examples, and
//! `--help-all` also lists the flags that are accepted for compatibility. `page` lays a text out.

use clap::Command;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::FlagTable;
use crate::commands::cli::output;
use crate::commands::help::length::HelpLength;
use crate::commands::help::page::HelpPage;
use crate::commands::help::tree;

/// Help width for a pipe or file, in columns.
const WIDTH: usize = 100;
/// Minimum help width, in columns.
const WIDTH_MIN: usize = 40;

/// The flag for [`HelpLength::All`].
pub const HELP_ALL: &str = "--help-all";

/// The first word of the text with which clap answers `-h` and `--help`.
const ANSWER: &str = "help";
/// Separates the words in that text: see [`guided`].
const MARK: char = '|';

/// Replaces clap's help texts. clap then answers `-h` and `--help` with the name of the command and
/// the length, which [`requested`] reads.
pub fn guided(command: Command) -> Command {
    guide(command, "")
}

fn guide(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command.mut_subcommand(&name, |sub| guide(sub, &path))
    });
    let mark = |length: &str| format!("{ANSWER}{MARK}{path}{MARK}{length}{MARK}");
    command.help_template("{before-help}").before_help(mark("short")).before_long_help(mark("long"))
}

/// The command and the length that clap's answer `text` names. `None` if it is another text.
pub fn requested(text: &str) -> Option<(String, HelpLength)> {
    let mut parts = text.split(MARK);
    let path = parts.next().filter(|word| *word == ANSWER).and_then(|_| parts.next())?;
    let length = if parts.next()? == "long" { HelpLength::Long } else { HelpLength::Short };
    Some((path.to_owned(), length))
}

/// The help text of the command `path`, the words after `mcctl`, for stdout.
///
/// # Errors
/// The command does not exist.
pub fn text(path: &str, length: HelpLength) -> Result<String, Failure> {
    Ok(page(&command(path)?, length, output::is_fancy()))
}

/// The help text of the command `path` without colours, for stderr.
///
/// # Errors
/// The command does not exist.
pub fn plain_text(path: &str, length: HelpLength) -> Result<String, Failure> {
    Ok(page(&command(path)?, length, false))
}

/// The help text for a program with the flags in `table`, for stdout.
pub fn of_table(table: &'static FlagTable, length: HelpLength) -> String {
    let mut command = tree::command_of(table).bin_name(format!("mcctl {}", table.command));
    if let Ok(other) = self::command(table.command) {
        command = tree::listed_as(command, &other);
    }
    command.build();
    page(&command, length, output::is_fancy())
}

fn command(path: &str) -> Result<Command, Failure> {
    let words: Vec<String> = path.split_whitespace().map(str::to_owned).collect();
    tree::find(tree::with_flags_of_services(), &words)
}

fn page(command: &Command, length: HelpLength, has_colour: bool) -> String {
    let width = output::terminal_width().unwrap_or(WIDTH).clamp(WIDTH_MIN, WIDTH);
    HelpPage { command, length, width, has_colour }.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::help::page::examples;

    #[test]
    fn clap_answers_with_the_command_and_the_length() {
        let answer = |line: &str| {
            let error = crate::commands::parser().try_get_matches_from(line.split(' ')).expect_err("help");
            requested(&error.to_string())
        };
        let expected = |path: &str, length| Some((path.to_owned(), length));
        assert_eq!(answer("mcctl store put -h"), expected("store put", HelpLength::Short));
        assert_eq!(answer("mcctl --log-level doctor store put --help"), expected("store put", HelpLength::Long));
        assert_eq!(answer("mcctl --help"), expected("", HelpLength::Long));
        assert_eq!(answer("mcctl store"), expected("store", HelpLength::Short));
        assert_eq!(answer("mcctl --version"), None);
    }

    #[test]
    fn every_command_has_examples_and_its_short_list_names_flags_that_exist() {
        fn visit(command: &Command) {
            let name = command.get_name();
            assert!(!examples(command).is_empty(), "{name} has no example");
            let first = command.get_before_help().map(ToString::to_string).unwrap_or_default();
            for flag in first.split_whitespace() {
                let names = |arg: &clap::Arg| arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&flag));
                assert!(command.get_arguments().any(names), "{name} has no flag --{flag}");
            }
            command.get_subcommands().for_each(visit);
        }
        let mut tree = tree::with_flags_of_services();
        tree.build();
        visit(&tree);
    }
}
