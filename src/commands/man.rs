//! `mcctl man`: manual pages, generated from the tree that parses the command line.

use std::fs;
use std::path::PathBuf;

use clap_mangen::Man;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::{output, tree};

/// Flags of `mcctl man`.
#[derive(Debug, clap::Args)]
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
        let tree = tree::with_flags_of_services();
        let Some(dir) = self.dir else {
            let mut page = Vec::new();
            Man::new(find(tree, &self.command)?).render(&mut page)?;
            output::data(page)?;
            return Ok(Exit::Done);
        };
        let written = fs::create_dir_all(&dir).and_then(|()| clap_mangen::generate_to(tree, &dir));
        written.map_err(|error| {
            let at = dir.display();
            Failure::host(format!("cannot write manual pages to {at}"))
                .tried(format!("--dir {at}"))
                .found(error.to_string())
        })?;
        Ok(Exit::Done)
    }
}

/// The command that `words` specify, renamed to the name of its manual page.
///
/// # Errors
/// The command does not exist.
pub(super) fn find(tree: clap::Command, words: &[String]) -> Result<clap::Command, Failure> {
    let mut found = tree;
    found.build();
    for word in words {
        let names: Vec<&str> = found.get_subcommands().map(clap::Command::get_name).collect();
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
    let name = found.get_display_name().unwrap_or("mcctl").to_owned();
    Ok(found.name(name))
}
