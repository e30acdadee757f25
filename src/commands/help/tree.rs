//! The command tree including service flags, for help texts, shell completions and manual pages.
//!
//! clap does not parse the service flags. This module converts their tables to clap arguments.

use clap::builder::{Resettable, StyledStr};
use clap::{Arg, ArgAction, Command, CommandFactory, ValueHint};

use crate::commands::Cli;
use crate::commands::cli::args;
use crate::commands::cli::error::Failure;
use crate::commands::cli::flags::{FileKey, FlagSpec, FlagSupport, FlagTable, FlagValue, ValueKind, spelled};
use crate::commands::cli::service_flags::{master_flags, metadata_flags, store_flags};

/// How the flags of a service are written, at the end of its help.
const SYNTAX: &str = "Flag syntax: --name VALUE or --name=VALUE, with one or two dashes, and with '-' or '_' between words. For a switch: \
    --name, --noname or --name=false.";

/// The complete command tree, including the service flags.
pub fn with_flags_of_services() -> Command {
    let services =
        [("master", &master_flags::TABLE), ("metadata", &metadata_flags::TABLE), ("store", &store_flags::TABLE)];
    let tree = Cli::command().mut_subcommand("serve", |serve| {
        services.into_iter().fold(serve, |serve, (name, table)| {
            serve.mut_subcommand(name, |short| {
                let summary = short.get_about().cloned().unwrap_or_default();
                let order = short.get_display_order();
                let command = command_of(table).name(name).about(summary).long_about(table.about);
                listed_as(command, &short).display_order(order)
            })
        })
    });
    hinted(tree)
}

/// `command` with the examples and the short list of flags of `other`.
pub(super) fn listed_as(command: Command, other: &Command) -> Command {
    let text = |text: Option<&StyledStr>| Resettable::from(text.cloned());
    command.before_help(text(other.get_before_help())).before_long_help(text(other.get_before_long_help()))
}

/// `command` with hints for completions: arguments whose placeholder is a file or a directory
/// complete paths.
fn hinted(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.iter().fold(command, |command, name| command.mut_subcommand(name, hinted));
    command.mut_args(|arg| {
        let hint = match arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str()) {
            "FILE" | "PATH" => ValueHint::FilePath,
            "DIR" => ValueHint::DirPath,
            "FILE|DIR" | "URL|FILE" => ValueHint::AnyPath,
            _ => return arg,
        };
        arg.value_hint(hint)
    })
}

/// A command with the flags in `table`. Flags without effect are hidden.
pub fn command_of(table: &'static FlagTable) -> Command {
    let name = table.command.rsplit(' ').next().unwrap_or(table.command);
    let command = Command::new(name).about(table.about).after_help(SYNTAX).disable_version_flag(true);
    let flags = table.groups.iter().flat_map(|(heading, flags)| flags.iter().map(|flag| argument(flag, heading)));
    command.args(flags)
}

fn argument(flag: &FlagSpec, heading: &'static str) -> Arg {
    let long = |name: &str| spelled(name).trim_start_matches('-').to_owned();
    let mut arg = Arg::new(flag.name).help(about(flag)).help_heading(heading).hide(!flag.works());
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
    match flag.kind {
        ValueKind::Bool => arg.action(ArgAction::SetTrue),
        ValueKind::Word(words) => {
            arg.value_name(flag.value_name()).value_parser(words.to_vec()).hide_possible_values(true)
        }
        _ => arg.value_name(flag.value_name()),
    }
}

/// The command that `words` specify.
///
/// # Errors
/// The command does not exist.
pub fn find(tree: Command, words: &[String]) -> Result<Command, Failure> {
    let mut found = tree;
    found.build();
    for word in words {
        let names: Vec<&str> = found.get_subcommands().map(Command::get_name).collect();
        let next = found.find_subcommand(word).cloned();
        found = next.ok_or_else(|| {
            let known = if names.is_empty() {
                "it has no subcommands".to_owned()
            } else {
                format!("use one of {}", names.join(", "))
            };
            Failure::usage(format!("{} has no subcommand '{word}'", found.get_bin_name().unwrap_or("mcctl")))
                .next(known)
        })?;
    }
    Ok(found)
}

/// The description of `flag` with its support note, choices, default, file key and environment
/// variable.
fn about(flag: &FlagSpec) -> String {
    let mut about = String::new();
    match flag.class {
        FlagSupport::Works => {}
        FlagSupport::NoEffect(_) => about.push_str("(no effect) "),
        FlagSupport::Absent(_) => about.push_str("(not available) "),
    }
    about.push_str(flag.help);
    if let ValueKind::Word(words) = flag.kind {
        about.push_str(&format!("; one of {}", words.join(", ")));
    }
    about.push_str(&note(flag));
    about
}

/// Default, unit, file key and environment variable in brackets, each only if the flag has one.
fn note(flag: &FlagSpec) -> String {
    let mut notes = Vec::new();
    if !flag.default.is_empty() && flag.kind != ValueKind::Define {
        let shown = match flag.kind {
            ValueKind::Duration | ValueKind::Time => match flag.default_value() {
                FlagValue::Duration(time) => args::flag_value(time),
                other => other.to_string(),
            },
            _ => flag.default.to_owned(),
        };
        notes.push(format!("default: {shown}"));
    }
    if flag.kind == ValueKind::Duration {
        notes.push("without a unit: ms".to_owned());
    }
    if let FileKey::Named(key) = flag.key {
        notes.push(format!("in a file: {key}"));
    }
    if let Some(name) = flag.env {
        notes.push(format!("environment: {name}"));
    }
    if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::flags::flag;

    #[test]
    fn a_description_has_a_mark_a_default_and_the_unit_of_a_bare_number() {
        let lease = flag("default_kv_lease_ttl", ValueKind::Duration, "10000", "Life of a read lease");
        let ha = flag("enable_ha", ValueKind::Bool, "false", "Standby masters").absent("high availability");
        let own = flag("stall", ValueKind::Time, "1500ms", "Time of a stall");
        insta::assert_snapshot!([lease, ha, own].map(|flag| about(&flag)).join("\n"));
    }

    /// What the value of `arg` is, if neither its help `text` nor its placeholder names the unit.
    /// Other placeholders than these are units, such as SECONDS, or values without a unit.
    fn missing_unit(arg: &Arg, text: &str) -> Option<&'static str> {
        let name = arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
        let text = text.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let default = default.or_else(|| text.split("default: ").nth(1).map(str::to_owned)).unwrap_or_default();
        let default = default.split([' ', ';', ']', ',']).next().unwrap_or_default();
        let default_has_unit =
            default.starts_with(|c: char| c.is_ascii_digit()) && default.ends_with(|c: char| c.is_ascii_alphabetic());
        match name {
            "TIME" if default_has_unit || has(&["without a unit: ms", "e.g. 30s", "e.g. 1h"]) => None,
            "TIME" => Some("a time"),
            _ if name.starts_with("SIZE") && (default_has_unit || has(&["byte", "e.g. ", "mib or "])) => None,
            _ if name.starts_with("SIZE") && has(&["2mb"]) => None,
            _ if name.starts_with("SIZE") => Some("a size"),
            // The text explains what is counted.
            "N" if has(&[" n ", "seed for"]) => None,
            "N" if has(&["timeout", "interval", "duration", "time "]) && !has(&["second", "ms"]) => Some("a time"),
            "N" if has(&["size", "length", "memory", "quota"])
                && !has(&["number of", "token", "byte", " mb", "ranks"]) =>
            {
                Some("a size")
            }
            _ => None,
        }
    }

    #[test]
    fn the_help_of_a_number_names_its_unit() {
        fn visit(command: &Command, path: &str, open: &mut Vec<String>) {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                let text = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
                if arg.is_hide_set() && text.is_empty() {
                    continue;
                }
                if let Some(what) = missing_unit(arg, &text) {
                    open.push(format!("{path} {arg}: {what}: {text}"));
                }
            }
            command.get_subcommands().for_each(|sub| visit(sub, &format!("{path} {}", sub.get_name()), open));
        }
        let mut open = Vec::new();
        let mut tree = with_flags_of_services();
        tree.build();
        visit(&tree, "mcctl", &mut open);
        assert!(open.is_empty(), "{}", open.join("\n"));
    }

    #[test]
    fn every_flag_of_a_service_is_an_argument() {
        let tree = with_flags_of_services();
        tree.clone().debug_assert();
        let serve = tree.find_subcommand("serve").unwrap();
        for table in [&master_flags::TABLE, &metadata_flags::TABLE, &store_flags::TABLE] {
            let name = table.command.strip_prefix("serve ").unwrap();
            let command = serve.find_subcommand(name).unwrap();
            for flag in table.flags() {
                let found = command.get_arguments().find(|a| a.get_id() == flag.name);
                assert!(found.is_some_and(|arg| arg.is_hide_set() != flag.works()), "{name} {}", flag.name);
            }
        }
    }
}
