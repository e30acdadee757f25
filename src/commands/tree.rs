//! The command tree including service flags, for shell completions, manual pages and `mcctl help`.
//!
//! clap does not parse the service flags. This module converts their tables to clap arguments.

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::commands::flags::{FlagTable, ValueKind, spelled};
use crate::commands::service_flags::{master_flags, metadata_flags, store_flags};
use crate::commands::{Cli, help};

/// The complete command tree, including the service flags.
pub(super) fn with_flags_of_services() -> Command {
    let services =
        [("master", &master_flags::TABLE), ("metadata", &metadata_flags::TABLE), ("store", &store_flags::TABLE)];
    Cli::command().mut_subcommand("serve", |serve| {
        services.into_iter().fold(serve, |serve, (name, table)| serve.mut_subcommand(name, |_| service(name, table)))
    })
}

fn service(name: &'static str, table: &'static FlagTable) -> Command {
    let mut command = Command::new(name).about(table.about);
    for (heading, flags) in table.groups {
        for flag in *flags {
            let mut arg = Arg::new(flag.name).help(help::about(flag)).help_heading(*heading);
            let long = |name: &str| spelled(name).trim_start_matches('-').to_owned();
            arg = match flag.name.len() {
                1 => arg.short(flag.name.chars().next().expect("one character")),
                _ => arg.long(long(flag.name)),
            };
            for alias in flag.aliases {
                arg = match alias.len() {
                    1 => arg.visible_short_alias(alias.chars().next().expect("one character")),
                    _ => arg.visible_alias(long(alias)),
                };
            }
            arg = match flag.kind {
                ValueKind::Bool => arg.action(ArgAction::SetTrue),
                ValueKind::Word(words) => {
                    arg.value_name(flag.kind.value_name()).value_parser(words.to_vec()).hide_possible_values(true)
                }
                _ => arg.value_name(flag.kind.value_name()),
            };
            command = command.arg(arg);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_a_service_is_an_argument() {
        let tree = with_flags_of_services();
        tree.clone().debug_assert();
        let serve = tree.find_subcommand("serve").unwrap();
        for table in [&master_flags::TABLE, &metadata_flags::TABLE, &store_flags::TABLE] {
            let name = table.command.strip_prefix("serve ").unwrap();
            let command = serve.find_subcommand(name).unwrap();
            for flag in table.flags() {
                assert!(command.get_arguments().any(|a| a.get_id() == flag.name), "{name} {}", flag.name);
            }
        }
    }
}
