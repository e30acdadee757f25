//! A help text, laid out the same for all commands: summary, examples, usage, commands, arguments
//! and flags, by group.
//!
//! The options that all commands have are the last group. Each flag takes two or three lines,
//! without blank lines between flags.
//!
//! Two attributes of a command select its contents: `before_help` has the long names of the flags
//! that `-h` lists, and `before_long_help` has the examples, one `COMMAND  # MEANING` per line.

use clap::{Arg, Command};

use crate::commands::cli::logging::COMMON;
use crate::commands::help::flag::{description, head, is_built_in, is_for_compatibility, possible_values};
use crate::commands::help::length::HelpLength;

/// Column at which a flag's description begins.
const INDENT: usize = 8;
/// Heading of the flags without another one.
const OWN: &str = "Options";

/// The help text of one command.
pub(super) struct HelpPage<'a> {
    /// The command, after [`Command::build`].
    pub command: &'a Command,
    pub length: HelpLength,
    /// Maximum length of a line, in columns.
    pub width: usize,
    /// Whether headings are bold.
    pub has_colour: bool,
}

impl HelpPage<'_> {
    /// The page as text, with bold headings if it has colours.
    pub(super) fn render(&self) -> String {
        let is_short = self.length == HelpLength::Short;
        let about = self.command.get_about().map(ToString::to_string).unwrap_or_default();
        let long = self.command.get_long_about().map_or_else(|| about.clone(), ToString::to_string);
        let mut text = format!("{}\n", wrap(if is_short { &about } else { &long }, 0, self.width));
        let examples = examples(self.command);
        if !is_short && !examples.is_empty() {
            text.push_str(&self.heading("Examples"));
            for (line, meaning) in examples {
                for part in wrap(&meaning, 0, self.width - 4).lines() {
                    text.push_str(&format!("  # {part}\n"));
                }
                text.push_str(&format!("  {line}\n"));
            }
        }
        let usage = self.command.clone().render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
        text.push_str(&format!("\n{} {}\n", self.bold("Usage:"), usage.trim()));
        text.push_str(&self.commands());
        text.push_str(&self.arguments());
        if is_short {
            text.push_str(&self.heading(OWN));
            self.first().into_iter().for_each(|arg| text.push_str(&self.entry(arg)));
            text.push_str(&format!("\nSee --help for examples and all {} flags.\n", self.flags().count()));
            return text;
        }
        for (heading, flags) in self.groups() {
            text.push_str(&self.heading(heading));
            flags.into_iter().for_each(|arg| text.push_str(&self.entry(arg)));
        }
        if let Some(line) = self.hidden_line() {
            text.push_str(&format!("\n{}\n", wrap(&line, 0, self.width)));
        }
        if let Some(notes) = self.command.get_after_long_help().or(self.command.get_after_help()) {
            text.push('\n');
            notes.to_string().lines().for_each(|line| text.push_str(&folded(line, self.width)));
        }
        text
    }

    fn bold(&self, text: &str) -> String {
        if self.has_colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn heading(&self, text: &str) -> String {
        format!("\n{}\n", self.bold(&format!("{text}:")))
    }

    /// The subcommands with their summaries, in two columns.
    fn commands(&self) -> String {
        let mut all: Vec<&Command> = self.command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
        all.sort_by_key(|sub| sub.get_display_order());
        let Some(longest) = all.iter().map(|sub| sub.get_name().len()).max() else { return String::new() };
        let lines = all.iter().map(|sub| {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let about = wrap(&about, longest + 4, self.width);
            format!("  {:<longest$}  {}\n", sub.get_name(), about.trim_start())
        });
        self.heading("Commands") + &lines.collect::<String>()
    }

    fn arguments(&self) -> String {
        let entries: String = self.command.get_positionals().map(|arg| self.entry(arg)).collect();
        if entries.is_empty() { entries } else { self.heading("Arguments") + &entries }
    }

    /// The flags that the help shows.
    fn flags(&self) -> impl Iterator<Item = &Arg> {
        let shows_hidden = self.length == HelpLength::All;
        let flags = self.command.get_arguments().filter(|arg| !arg.is_positional());
        flags.filter(move |arg| !arg.is_hide_set() || (shows_hidden && is_for_compatibility(arg)))
    }

    /// The flags of the short help: those that the command lists, in that order. Without a list,
    /// all but the common ones.
    fn first(&self) -> Vec<&Arg> {
        let Some(names) = self.command.get_before_help().map(ToString::to_string) else {
            return self.flags().filter(|arg| arg.get_help_heading() != Some(COMMON)).collect();
        };
        let find =
            |name| self.flags().find(|arg| arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&name)));
        names.split_whitespace().filter_map(find).collect()
    }

    /// The flags by heading, in the order of the command. The options of all commands are last.
    fn groups(&self) -> Vec<(&str, Vec<&Arg>)> {
        let mut groups: Vec<(&str, Vec<&Arg>)> = vec![(OWN, Vec::new())];
        let mut common = Vec::new();
        for arg in self.flags() {
            let heading = arg.get_help_heading().unwrap_or(OWN);
            if heading == COMMON || is_built_in(arg) {
                common.push(arg);
            } else if let Some((_, flags)) = groups.iter_mut().find(|(known, _)| *known == heading) {
                flags.push(arg);
            } else {
                groups.push((heading, vec![arg]));
            }
        }
        // clap adds --help and --version in front of the options of the parent command.
        common.sort_by_key(|arg| is_built_in(arg));
        groups.push((COMMON, common));
        groups.retain(|(_, flags)| !flags.is_empty());
        groups
    }

    /// How many flags are not shown, and how to show them. If they are shown, what their marks
    /// mean.
    fn hidden_line(&self) -> Option<String> {
        let hidden = self.command.get_arguments().filter(|arg| is_for_compatibility(arg)).count();
        if hidden > 0 && self.length == HelpLength::All {
            return Some(
                "(no effect): accepted but ignored. (not available): only the default is accepted.".to_owned(),
            );
        }
        let flags = if hidden == 1 { "flag that is" } else { "flags that are" };
        let name = self.command.get_bin_name().unwrap_or_else(|| self.command.get_name());
        (hidden > 0).then(|| {
            format!(
                "Not shown: {hidden} {flags} accepted for compatibility with other programs. {name} --help-all shows all."
            )
        })
    }

    /// A flag or an argument with its description.
    fn entry(&self, arg: &Arg) -> String {
        let described = wrap(&description(arg, self.length), INDENT, self.width);
        let newline = if described.is_empty() { "" } else { "\n" };
        format!("  {}\n{described}{newline}{}", head(arg), self.values(arg))
    }

    /// The possible values that have descriptions, one per line.
    fn values(&self, arg: &Arg) -> String {
        let values = possible_values(arg);
        if self.length == HelpLength::Short || !values.iter().any(|value| value.get_help().is_some()) {
            return String::new();
        }
        let longest = values.iter().map(|value| value.get_name().len()).max().unwrap_or(0);
        let indent = INDENT + 2 + longest + 2;
        let lines = values.iter().map(|value| {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            let help = wrap(&help, indent, self.width);
            format!("{:INDENT$}  {:<longest$}  {}\n", "", value.get_name(), help.trim_start())
        });
        lines.collect()
    }
}

/// The examples of `command`: command lines, each with its meaning.
pub fn examples(command: &Command) -> Vec<(String, String)> {
    let text = command.get_before_long_help().map(ToString::to_string).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once("  # "));
    lines.map(|(line, meaning)| (line.to_owned(), meaning.to_owned())).collect()
}

/// Wraps `text` to `width` columns, with each line indented by `indent` spaces. Paragraphs begin on
/// a new line.
pub(super) fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let mut is_start = true;
        for word in paragraph.split_whitespace() {
            match lines.last_mut() {
                Some(line) if !is_start && line.chars().count() + 1 + word.chars().count() <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(format!("{}{word}", " ".repeat(indent))),
            }
            is_start = false;
        }
    }
    lines.join("\n")
}

/// `line` with a newline. If it is wider than `width`, it is broken at spaces, and all lines have
/// its indentation.
fn folded(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return format!("{}\n", line.trim_end());
    }
    let indent = line.chars().take_while(|c| *c == ' ').count();
    wrap(line, indent, width) + "\n"
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    const WIDTH: usize = 60;

    fn page(command: &Command, length: HelpLength) -> String {
        HelpPage { command, length, width: WIDTH, has_colour: false }.render()
    }

    fn sample() -> Command {
        let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help);
        let mut command = Command::new("demo")
            .about("Do a thing")
            .arg(flag("log-level", "Log level").help_heading(COMMON).value_name("LEVEL"))
            .arg(
                flag("kind", "Kind of thing").value_parser(["big", "small"]).default_value("big").visible_alias("type"),
            )
            .arg(flag("rate", "Objects per second [environment: RATE]").help_heading("Load").default_value("5"))
            .arg(flag("old", "No effect").hide(true).action(ArgAction::SetTrue))
            .arg(Arg::new("internal").long("internal").hide(true));
        command.build();
        command
    }

    #[test]
    fn the_options_of_all_commands_are_the_last_group() {
        insta::assert_snapshot!(page(&sample(), HelpLength::Long), @r"
        Do a thing

        Usage: demo [OPTIONS]

        Options:
          --kind, --type <kind>
                Kind of thing [one of big, small; default: big]

        Load:
          --rate <rate>
                Objects per second [environment: RATE; default: 5]

        Common options:
          --log-level <LEVEL>
                Log level
          -h, --help
                Print this help; -h prints a summary

        Not shown: 1 flag that is accepted for compatibility with
        other programs. demo --help-all shows all.
        ");
    }

    #[test]
    fn all_shows_the_flags_for_compatibility() {
        let text = page(&sample(), HelpLength::All);
        assert!(text.contains("\n  --old\n") && !text.contains("Not shown") && !text.contains("--internal"), "{text}");
    }

    #[test]
    fn headings_are_bold_only_with_colour() {
        let command = sample();
        let page = HelpPage { command: &command, length: HelpLength::Long, width: WIDTH, has_colour: true };
        assert!(page.render().contains("\n\x1b[1mOptions:\x1b[0m\n"));
    }

    #[test]
    fn wrapped_lines_keep_width_and_indent() {
        for width in [40, 100] {
            let text = wrap(&"word ".repeat(100), 8, width);
            assert!(text.lines().all(|line| line.len() <= width && line.starts_with("        word")));
        }
        assert_eq!(folded("  1   objects failed, and then more", 20), "  1 objects failed,\n  and then more\n");
    }
}
