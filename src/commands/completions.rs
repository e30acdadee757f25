//! `mcctl completions`: shell completion scripts, generated from the command tree that parses the command line.

use clap_complete::Shell;

use crate::commands::error::{Exit, Outcome};
use crate::commands::{output, tree};

/// Flags of `mcctl completions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "bash: run source <(mcctl completions bash), or write the script to /usr/share/bash-completion/completions/mcctl\n\
    zsh: write the script to a file named _mcctl in a folder of $fpath\n\
    fish: mcctl completions fish > ~/.config/fish/completions/mcctl.fish"
)]
pub struct Args {
    /// Shell that runs the script
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Args {
    /// Print the script.
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
