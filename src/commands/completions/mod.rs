//! `mcctl completions`: shell completion scripts, generated from the command tree that parses the
//! command line.

use clap::Command;
use clap_complete::Shell;

use crate::commands::cli::error::{Exit, Outcome};
use crate::commands::cli::output;
use crate::commands::help::tree;
use crate::engine::plan::models::models;

/// Flags of `mcctl completions`.
#[derive(Debug, clap::Args)]
#[command(before_long_help = "source <(mcctl completions bash)  # complete command lines in this shell")]
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
        output::data(script(self.shell))?;
        Ok(Exit::Done)
    }
}

fn script(shell: Shell) -> String {
    // The flag also accepts a file, which a shell completes if no name matches.
    let models = models().iter().filter_map(|model| model.names.first().cloned()).collect::<Vec<_>>();
    let mut tree = tree::with_flags_of_services()
        .mut_subcommand("size-hugepages", |command| command.mut_arg("model", |arg| arg.value_parser(models)));
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut tree, "mcctl", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Bash { with_arguments(&script, &tree) } else { script }
}

/// The bash `script`, changed so that a word that does not begin with a dash is completed as an
/// argument: a subcommand, one of the values of the first argument, or a path. clap_complete offers
/// all flags there.
fn with_arguments(script: &str, tree: &Command) -> String {
    const FLAGS_HERE: &str = "if [[ ${cur} == -* || ${COMP_CWORD} -eq ";
    const LAST: &str = "            COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )";
    let mut text = String::new();
    let mut completion = String::new();
    for line in script.lines() {
        let trimmed = line.trim_start();
        if let Some(words) = trimmed.strip_prefix("opts=\"").and_then(|rest| rest.strip_suffix('"')) {
            let (flags, words): (Vec<&str>, Vec<&str>) = words.split(' ').partition(|word| word.starts_with('-'));
            completion = words.join(" ");
            text.push_str(&format!("            opts=\"{}\"\n", flags.join(" ")));
        } else if let Some(level) = trimmed.strip_prefix(FLAGS_HERE) {
            let level: String = level.chars().take_while(char::is_ascii_digit).collect();
            completion = match completion.split(' ').all(|word| is_subcommand(tree, word)) {
                true => format!("            COMPREPLY=( $(compgen -W \"{completion}\" -- \"${{cur}}\") )"),
                false => format!(
                    "            [[ ${{COMP_CWORD}} -eq {level} ]] && COMPREPLY=( $(compgen -W \"{completion}\" -- \"${{cur}}\") )"
                ),
            };
            text.push_str("            if [[ ${cur} == -* ]] ; then\n");
        } else if line == LAST {
            text.push_str(&format!("{completion}\n"));
        } else {
            text.push_str(&format!("{line}\n"));
        }
    }
    text
}

/// Whether a command in `tree` has a subcommand `word`.
fn is_subcommand(tree: &Command, word: &str) -> bool {
    tree.get_subcommands().any(|sub| sub.get_name() == word || is_subcommand(sub, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_completed_without_flags() {
        let script = script(Shell::Bash);
        let block = |name: &str| {
            let block = script.split(&format!("        {name})\n            opts=")).nth(1).expect(name);
            block.split("\n            ;;").next().expect("a block").to_owned()
        };
        let render = block("mcctl__subcmd__render");
        assert!(render.contains("-eq 2 ]] && COMPREPLY=( $(compgen -W \"env sglang systemd docker"), "{render}");
        assert!(!render.contains("== -* ||"), "{render}");
        let store = block("mcctl__subcmd__store");
        assert!(store.contains("            COMPREPLY=( $(compgen -W \"put get exists"), "{store}");
        assert!(block("mcctl__subcmd__size__subcmd__hugepages").contains("Qwen3-32B"));
    }
}
