//! `mcctl completions`: shell completion scripts, generated from the command tree that parses the command line.

use clap_complete::Shell;

use crate::commands::error::{Exit, Outcome};
use crate::commands::{output, tree};

/// Flags of `mcctl completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "bash: run source <(mcctl completions bash), or save the script as /usr/share/bash-completion/completions/mcctl\n\
    zsh: save the script as _mcctl in a directory on $fpath\n\
    fish: mcctl completions fish > ~/.config/fish/completions/mcctl.fish"
)]
pub struct Args {
    /// Shell to generate the script for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Args {
    /// Prints the script.
    ///
    /// # Errors
    /// stdout cannot be written.
    pub fn run(self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut tree::with_flags_of_services(), "mcctl", &mut script);
        output::data(script)?;
        Ok(Exit::Done)
    }
}
