//! `mcctl completions`: what a shell needs to complete our command line, from the same tree that parses it.

use clap_complete::Shell;

use crate::commands::error::{Exit, Outcome};
use crate::commands::{output, tree};

/// For which shell.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "bash: source <(mcctl completions bash), or write it to /usr/share/bash-completion/completions/mcctl\n\
    zsh: write it to a file _mcctl in a folder of $fpath\n\
    fish: mcctl completions fish > ~/.config/fish/completions/mcctl.fish"
)]
pub struct Args {
    /// The shell that reads the script from stdout
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Args {
    /// Write the script.
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
