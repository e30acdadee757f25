//! Help output for all commands: `-h` fits on one screen, `--help` begins with examples. `guides` lists the flags that `-h` shows.

use clap::Command;

use crate::commands::flags::{FileKey, FlagSpec, FlagSupport, FlagTable, ValueKind, spelled};
use crate::commands::guides::{self, Guide};
use crate::commands::output;

/// Help width for a pipe or file, in columns.
const WIDTH: usize = 100;
/// Minimum help width, in columns.
const WIDTH_MIN: usize = 40;
/// Column at which a flag's description begins.
const INDENT: usize = 8;
/// Layout of clap's help.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// The requested help format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelpLength {
    /// `-h`: the most commonly needed flags, on one screen.
    Short,
    /// `--help`: examples and all flags.
    Long,
}

/// Applies the help layout and the examples from `guides` to `command` and all of its subcommands.
pub fn guided(command: Command) -> Command {
    let globals = command.get_arguments().filter(|arg| arg.is_global_set() && !arg.is_hide_set()).count();
    guide(command, "", globals)
}

fn guide(command: Command, path: &str, globals: usize) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command.mut_subcommand(&name, |sub| guide(sub, &path, globals))
    });
    let Some(guide) = guides::find(path) else { return command };
    let command = command.mut_args(|arg| {
        let is_first = arg.get_long().is_some_and(|long| guide.first.contains(&long));
        let is_hidden = !(is_first || arg.is_positional() || guide.first.is_empty());
        arg.hide_short_help(is_hidden)
    });
    let own = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()).count();
    // clap adds --help to every command, and --version to the root.
    let all = if path.is_empty() { own + 2 } else { own + globals + 1 };
    let notes = command.get_after_long_help().or(command.get_after_help()).cloned().unwrap_or_default();
    command.help_template(TEMPLATE).before_long_help(examples(guide)).after_help(see_all(all)).after_long_help(notes)
}

/// The last line of the short help.
fn see_all(flags: usize) -> String {
    format!("See --help for examples and all {flags} flags.")
}

fn examples(guide: &Guide) -> String {
    let mut text = "Examples:".to_owned();
    for (line, meaning) in guide.examples {
        text.push_str(&format!("\n  # {meaning}\n  {line}"));
    }
    text
}

/// The help text for a command with the flags in `table`.
pub fn render(table: &FlagTable, length: HelpLength) -> String {
    let width = output::terminal_width().unwrap_or(WIDTH).clamp(WIDTH_MIN, WIDTH);
    let usage = format!("Usage: mcctl {} [FLAGS]\n", table.command);
    let guide = guides::find(table.command);
    if length == HelpLength::Short {
        let first = guide.map_or(&[][..], |guide| guide.first);
        let flags = first.iter().filter_map(|name| table.find(name));
        let flags: String = flags.map(|flag| entry(flag, width)).collect();
        let summary = table.about.split_once(". ").map_or(table.about, |(summary, _)| summary).trim_end_matches('.');
        let summary = wrap(summary, 0, width);
        return format!("{summary}\n\n{usage}\nFlags:\n{flags}\n{}\n", see_all(table.flags().count()));
    }
    let mut text = format!("{}\n\n", wrap(table.about, 0, width));
    if let Some(guide) = guide {
        text.push_str(&format!("{}\n\n", examples(guide)));
    }
    text.push_str(&format!("{usage}\n"));
    text.push_str(&wrap(
        "Flag syntax: --name VALUE or --name=VALUE, with one or two dashes, and with '-' or '_' between words. For a switch: \
         --name, --noname or --name=false. (no effect): accepted but ignored. (not available): only the default is \
         accepted.",
        0,
        width,
    ));
    text.push('\n');
    for (heading, flags) in table.groups {
        text.push_str(&format!("\n{heading}:\n"));
        for flag in *flags {
            text.push_str(&entry(flag, width));
        }
    }
    text
}

fn entry(flag: &FlagSpec, width: usize) -> String {
    let mut head = format!("  {}", flag.spelled());
    for alias in flag.aliases {
        head.push_str(&format!(", {}", spelled(alias)));
    }
    if flag.kind != ValueKind::Bool {
        head.push_str(&format!(" {}", flag.kind.value_name()));
    }
    format!("{head}\n{}\n", wrap(&about(flag), INDENT, width))
}

/// The description of `flag` with its support note, choices, default, file key and environment variable.
pub(super) fn about(flag: &FlagSpec) -> String {
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

/// Default, file key and environment variable in brackets, each only if the flag has one.
fn note(flag: &FlagSpec) -> String {
    let mut notes = Vec::new();
    if !flag.default.is_empty() && flag.kind != ValueKind::Define {
        let shown = match flag.kind {
            ValueKind::Duration => flag.default_value().to_string(),
            _ => flag.default.to_owned(),
        };
        notes.push(format!("default {shown}"));
    }
    if let FileKey::Named(key) = flag.key {
        notes.push(format!("in a file: {key}"));
    }
    if let Some(name) = flag.env {
        notes.push(format!("environment: {name}"));
    }
    if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join("; ")) }
}

/// Wraps `text` to `width` columns, with each line indented by `indent` spaces.
fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{}{word}", " ".repeat(indent))),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::flags::flag;

    #[test]
    fn an_entry_shows_spelling_value_mark_and_default() {
        let lease = flag("default_kv_lease_ttl", ValueKind::Duration, "10000", "Life of a read lease");
        let ha = flag("enable_ha", ValueKind::Bool, "false", "Standby masters").absent("high availability");
        insta::assert_snapshot!(format!("{}{}", entry(&lease, WIDTH), entry(&ha, WIDTH)), @r"
          --default-kv-lease-ttl TIME
                Life of a read lease [default 10 s]
          --enable-ha
                (not available) Standby masters [default false]
        ");
    }

    #[test]
    fn wrapped_lines_keep_width_and_indent() {
        for width in [WIDTH_MIN, WIDTH] {
            let text = wrap(&"word ".repeat(100), 8, width);
            assert!(text.lines().all(|line| line.len() <= width && line.starts_with("        word")));
        }
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
                let exists = *name == "help" || command.get_arguments().any(names);
                assert!(exists, "'{path}' has no flag --{name}");
            }
            for sub in command.get_subcommands() {
                let name = sub.get_name();
                visit(sub, &if path.is_empty() { name.to_owned() } else { format!("{path} {name}") }, seen);
            }
            seen.push(path.to_owned());
        }
        let mut seen = Vec::new();
        visit(&crate::commands::tree::with_flags_of_services(), "", &mut seen);
        for guide in guides::GUIDES {
            assert!(seen.iter().any(|path| path == guide.command), "no command '{}'", guide.command);
        }
    }
}
