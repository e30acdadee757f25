//! Help output for all commands: `-h` fits on one screen, `--help` begins with examples, and `--help-all` also lists the flags that are
//! accepted for compatibility. `guides` lists the flags that `-h` shows, and `help_page` lays a text out.

use clap::Command;

use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::FlagTable;
use crate::commands::cli::output;
use crate::commands::help::guides;
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

/// Replaces clap's help texts. clap then answers `-h` and `--help` with the name of the command and the length, which
/// [`requested`] reads.
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
    Ok(page(&command(path)?, path, length, output::is_fancy()))
}

/// The help text of the command `path` without colours, for stderr.
///
/// # Errors
/// The command does not exist.
pub fn plain_text(path: &str, length: HelpLength) -> Result<String, Failure> {
    Ok(page(&command(path)?, path, length, false))
}

/// The help text for a program with the flags in `table`, for stdout.
pub fn of_table(table: &'static FlagTable, length: HelpLength) -> String {
    let mut command = tree::command_of(table).bin_name(format!("mcctl {}", table.command));
    command.build();
    page(&command, table.command, length, output::is_fancy())
}

fn command(path: &str) -> Result<Command, Failure> {
    let words: Vec<String> = path.split_whitespace().map(str::to_owned).collect();
    tree::find(tree::with_flags_of_services(), &words)
}

fn page(command: &Command, path: &str, length: HelpLength, has_colour: bool) -> String {
    let width = output::terminal_width().unwrap_or(WIDTH).clamp(WIDTH_MIN, WIDTH);
    HelpPage { command, guide: guides::find(path), length, width, has_colour }.render()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_command_has_a_guide_and_every_guide_names_flags_that_exist() {
        fn visit(command: &Command, path: &str, seen: &mut Vec<String>) {
            let guide = guides::find(path).unwrap_or_else(|| panic!("no guide for '{path}'"));
            assert!(!guide.examples.is_empty(), "'{path}' has no example");
            for name in guide.first {
                let spelled = name.replace('_', "-");
                let names =
                    |arg: &clap::Arg| arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&&*spelled));
                let is_built_in = ["help", "version"].contains(name);
                let exists = is_built_in || command.get_arguments().any(names);
                assert!(exists, "'{path}' has no flag --{name}");
            }
            for sub in command.get_subcommands() {
                let name = sub.get_name();
                visit(sub, &if path.is_empty() { name.to_owned() } else { format!("{path} {name}") }, seen);
            }
            seen.push(path.to_owned());
        }
        let mut seen = Vec::new();
        visit(&crate::commands::help::tree::with_flags_of_services(), "", &mut seen);
        for guide in guides::GUIDES {
            assert!(seen.iter().any(|path| path == guide.command), "no command '{}'", guide.command);
        }
    }
}
