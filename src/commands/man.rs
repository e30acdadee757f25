//! `mcctl man`: manual pages, from the same tree that parses the command line.

use std::fs;
use std::path::PathBuf;

use clap_mangen::Man;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::{output, tree};

/// Which page, or where all of them go.
#[derive(Debug, clap::Args)]
#[command(after_help = "Read one: mcctl man store put | man -l -\n\
    Install all: mcctl man --dir /usr/local/share/man/man1")]
pub struct Args {
    /// The command whose page is written to stdout; without one it is the program's
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Vec<String>,
    /// Write the pages of all commands into this folder, which is made if need be
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Args {
    /// Write the page, or all.
    ///
    /// # Errors
    /// There is no such command, or the pages cannot be written.
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
            Failure::host(format!("cannot write manual pages into {at}"))
                .tried(format!("--dir {at}"))
                .found(error.to_string())
        })?;
        Ok(Exit::Done)
    }
}

/// The command of these words, under the name of its page.
fn find(tree: clap::Command, words: &[String]) -> Result<clap::Command, Failure> {
    let mut found = tree;
    found.build();
    for word in words {
        let names: Vec<&str> = found.get_subcommands().map(clap::Command::get_name).collect();
        let next = found.find_subcommand(word).cloned();
        found = next.ok_or_else(|| {
            let known = if names.is_empty() {
                "it has no commands".to_owned()
            } else {
                format!("known are {}", names.join(", "))
            };
            Failure::usage(format!("{} has no command '{word}'", found.get_bin_name().unwrap_or("mcctl"))).next(known)
        })?;
    }
    let name = found.get_display_name().unwrap_or("mcctl").to_owned();
    Ok(found.name(name))
}
