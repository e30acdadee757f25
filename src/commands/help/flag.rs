//! A flag or an argument in a help text: its names, its values and its description.

use clap::builder::PossibleValue;
use clap::{Arg, ArgAction};

use crate::commands::help::length::HelpLength;

/// Whether `arg` is `--help` or `--version`.
pub(super) fn is_built_in(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version)
}

/// Whether `arg` is only shown by `--help-all`. A hidden flag without a description is for mcctl's
/// own use.
pub(super) fn is_for_compatibility(arg: &Arg) -> bool {
    arg.is_hide_set() && arg.get_help().is_some()
}

/// The names of `arg` and a placeholder for its value: `-w, --watch`,
/// `--segment-size, --size <SIZE>`.
pub(super) fn head(arg: &Arg) -> String {
    let shown = arg.to_string();
    let Some(long) = arg.get_long() else { return shown };
    let value = shown.strip_prefix("--").and_then(|rest| rest.strip_prefix(long)).unwrap_or_default();
    let mut names: Vec<String> = arg.get_short().map(|short| format!("-{short}")).into_iter().collect();
    names.extend(arg.get_long_and_visible_aliases().unwrap_or_default().iter().map(|name| format!("--{name}")));
    names.extend(arg.get_visible_short_aliases().unwrap_or_default().iter().map(|name| format!("-{name}")));
    names.join(", ") + value
}

/// The values that `arg` accepts, if they are a fixed list.
pub(super) fn possible_values(arg: &Arg) -> Vec<PossibleValue> {
    if arg.is_hide_possible_values_set() || !arg.get_action().takes_values() {
        return Vec::new();
    }
    arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect()
}

/// The description of `arg`, with its values and its default.
pub(super) fn description(arg: &Arg, length: HelpLength) -> String {
    if is_built_in(arg) {
        return match arg.get_action() {
            ArgAction::Version => "Print the version".to_owned(),
            _ => "Print this help; -h prints a summary".to_owned(),
        };
    }
    let help = if length == HelpLength::Short { arg.get_help() } else { arg.get_long_help().or(arg.get_help()) };
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut notes = Vec::new();
    let values = possible_values(arg);
    let is_listed = values.iter().any(|value| value.get_help().is_some()) && length != HelpLength::Short;
    if !is_listed && values.iter().any(|value| !help.contains(value.get_name())) {
        let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
        notes.push(format!("one of {}", names.join(", ")));
    }
    if arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty() {
            notes.push(format!("default: {}", defaults.join(",")));
        }
    }
    match (notes.join("; "), help.strip_suffix(']')) {
        (notes, _) if notes.is_empty() => help,
        // The description ends with a note of its own.
        (notes, Some(start)) if start.contains(" [") => format!("{start}; {notes}]"),
        (notes, _) => format!("{help} [{notes}]"),
    }
}
