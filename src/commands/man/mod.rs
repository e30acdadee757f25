//! `mcctl man`: manual pages, generated from the tree that parses the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::help::page;
use crate::commands::help::tree;

/// Flags of `mcctl man`.
#[derive(Debug, clap::Args)]
#[command(before_long_help = "mcctl man store put | man -l -  # read one page\n\
    mcctl man --dir /usr/local/share/man/man1  # install all pages")]
pub struct Args {
    /// Command to print the page for [default: mcctl itself]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Vec<String>,
    /// Write the pages for all commands to this directory; it is created if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Args {
    /// Prints one page, or writes all pages.
    ///
    /// # Errors
    /// The command does not exist, or the pages cannot be written.
    pub fn run(self) -> Outcome {
        let mut tree = tree::with_flags_of_services();
        let Some(dir) = self.dir else {
            let command = tree::find(tree, &self.command)?;
            output::data(page(&command, &self.command.join(" "))?)?;
            return Ok(Exit::Done);
        };
        tree.build();
        let written = fs::create_dir_all(&dir).and_then(|()| write_all(&tree, "", &dir));
        written.map_err(|error| {
            let at = dir.display();
            Failure::host(format!("cannot write manual pages to {at}"))
                .tried(format!("--dir {at}"))
                .found(error.to_string())
        })?;
        Ok(Exit::Done)
    }
}

/// Writes the pages of `command`, whose words after `mcctl` are `path`, and of its subcommands.
fn write_all(command: &Command, path: &str, dir: &Path) -> io::Result<()> {
    for sub in command.get_subcommands() {
        write_all(sub, format!("{path} {}", sub.get_name()).trim_start(), dir)?;
    }
    fs::write(dir.join(format!("{}.1", page_name(path))), page(command, path)?)
}

fn page_name(path: &str) -> String {
    ["mcctl"].into_iter().chain(path.split_whitespace()).collect::<Vec<_>>().join("-")
}

/// The manual page of `command`, which was built.
fn page(command: &Command, path: &str) -> io::Result<Vec<u8>> {
    let name = page_name(path);
    let man = Man::new(command.clone().name(name.clone()));
    let mut page = Vec::new();
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    man.render_options_section(&mut page)?;
    examples(command).to_writer(&mut page)?;
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        self::notes(&notes.to_string()).to_writer(&mut page)?;
    }
    // Roff writes its definitions in front of each section, and leaves out an empty date.
    let sections = String::from_utf8_lossy(&page);
    let definitions = Roff::new().render();
    let title = format!(".TH {name} 1 \"\" \"mcctl {}\" \"mcctl manual\"\n", env!("CARGO_PKG_VERSION"));
    Ok(format!("{definitions}{title}{}", sections.replace(&definitions, "")).into_bytes())
}

/// The section SYNOPSIS: all flags with their values, then the arguments.
fn synopsis(command: &Command) -> Roff {
    let mut line = vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))];
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !arg.is_positional();
    let is_last = |arg: &Arg| matches!(arg.get_action(), ArgAction::Help | ArgAction::Version);
    let mut flags: Vec<&Arg> = command.get_arguments().filter(is_shown).collect();
    flags.sort_by_key(|arg| is_last(arg));
    for arg in flags {
        let shown = arg.to_string();
        let (name, value) = shown.split_at(shown.find([' ', '[', '=']).unwrap_or(shown.len()));
        let is_required = arg.is_required_set();
        line.push(roman(if is_required { " " } else { " [" }));
        line.push(bold(name));
        line.extend((!value.is_empty()).then(|| italic(value)));
        line.push(roman(if is_required { "" } else { "]" }));
    }
    for arg in command.get_positionals() {
        line.extend([roman(" "), italic(arg.to_string())]);
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("<COMMAND>")]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text(line);
    roff
}

/// The section EXAMPLES of a man page.
fn examples(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (line, meaning) in page::examples(command) {
        roff.control("TP", []);
        roff.text([bold(line)]);
        roff.text([roman(meaning)]);
    }
    roff
}

/// The sections NOTES and EXIT STATUS, from the text at the end of a help text. Lines that begin
/// with a space are a table.
fn notes(text: &str) -> Roff {
    let mut roff = Roff::new();
    let (before, codes) = text.split_once("Exit codes:").map_or((text, None), |(text, codes)| (text, Some(codes)));
    for (heading, text) in [("NOTES", Some(before)), ("EXIT STATUS", codes)] {
        let Some(text) = text.map(str::trim_end).filter(|text| !text.trim().is_empty()) else { continue };
        roff.control("SH", [heading]);
        for line in text.lines() {
            match line.trim().is_empty() {
                true => roff.control("PP", []),
                false => {
                    roff.text([roman(line.trim_end())]);
                    roff.control("br", [])
                }
            };
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(path: &str) -> String {
        let words: Vec<String> = path.split_whitespace().map(str::to_owned).collect();
        let command = tree::find(tree::with_flags_of_services(), &words).expect("a command");
        String::from_utf8(page(&command, path).expect("in memory")).expect("text")
    }

    #[test]
    fn a_page_has_a_version_values_examples_and_exit_codes() {
        let page = page_of("bench store");
        let title = format!(".TH mcctl-bench-store 1 \"\" \"mcctl {}\" \"mcctl manual\"", env!("CARGO_PKG_VERSION"));
        assert!(page.lines().any(|line| line == title), "{page}");
        let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        assert_eq!(
            sections,
            [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "\"COMMON OPTIONS\"",
                "EXAMPLES",
                "NOTES",
                "\"EXIT STATUS\""
            ]
        );
        assert!(page.contains("\\fB\\-\\-duration\\fR\\fI <TIME>\\fR"), "{page}");
    }

    #[test]
    fn no_page_has_a_section_without_a_meaning() {
        for path in ["", "serve master", "store", "bench store"] {
            let page = page_of(path);
            assert!(!page.contains(".SH EXTRA") && page.contains(".SH EXAMPLES"), "{path}");
        }
    }
}
