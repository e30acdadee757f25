//! Whether a command line requests JSON on stdout. It is evaluated for failures, so it must also
//! work for command lines that clap rejects.

use clap::{Arg, ArgAction, Command};

/// Whether `args`, which begin with the program name, request a JSON document on stdout: `--json`,
/// `--json=-` or `--format json` of a command that has the flag. A command line with an unknown
/// command or without a command also requests one with `--json`.
pub fn is_set(mut command: &Command, args: &[String]) -> bool {
    let words = args.get(1..).unwrap_or_default();
    let mut words = words.iter().map(String::as_str).take_while(|word| *word != "--").peekable();
    while let Some(word) = words.next() {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            continue;
        }
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let found = match name {
            "--json" => match (accepts_file(command), value) {
                (true, Some(file)) => file == "-",
                // A word that begins with a dash is the next flag, or stdout.
                (true, None) => words.peek().is_none_or(|next| next.starts_with('-')),
                (false, value) => value.is_none(),
            },
            "--format" => is_format(command) && value.or_else(|| words.peek().copied()) == Some("json"),
            _ => false,
        };
        if found {
            return true;
        }
    }
    false
}

fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(name))
}

/// Whether the value of `--json` may be a file.
fn accepts_file(command: &Command) -> bool {
    flag(command, "json").is_some_and(|arg| matches!(arg.get_action(), ArgAction::Set))
}

/// Whether `--format json` is the same as `--json`.
fn is_format(command: &Command) -> bool {
    let values = flag(command, "format").map(Arg::get_possible_values).unwrap_or_default();
    flag(command, "json").is_some() && values.iter().any(|value| value.get_name() == "json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> bool {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        is_set(&crate::commands::parser(), &args)
    }

    #[test]
    fn the_flag_is_found_in_valid_and_invalid_command_lines() {
        for line in [
            "mcctl status --json",
            "mcctl status --json --nonsense",
            "mcctl --log-level warn store get k --json",
            "mcctl stor --json",
            "mcctl --json",
            "mcctl devices --format json",
            "mcctl devices --format=json",
            "mcctl bench multi-turn --json",
            "mcctl bench multi-turn --json --html x",
            "mcctl bench ladder --json=-",
            "mcctl bench ladder --json -",
            "mcctl version --json",
        ] {
            assert!(found(line), "{line}");
        }
    }

    #[test]
    fn files_and_values_are_not_the_flag() {
        for line in [
            "mcctl status",
            "mcctl bench multi-turn --json report.json",
            "mcctl bench multi-turn --json=report.json",
            "mcctl store put k --value=--json",
            "mcctl store get -- --json",
            "mcctl devices --format table",
            "mcctl init --format json",
            "mcctl",
        ] {
            assert!(!found(line), "{line}");
        }
    }
}
