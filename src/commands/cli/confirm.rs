//! Confirmation for commands that empty a store or caches: a y/N prompt on a terminal, otherwise
//! --yes.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::commands::cli::error::Failure;

/// The flag that confirms without a prompt.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfirmArgs {
    /// Do not ask for confirmation; required without a terminal
    #[arg(long)]
    pub yes: bool,
}

/// Returns `Ok` only if `yes` is set or the user confirms. `what` completes the sentence "This ..."
/// and names the data and the target.
///
/// # Errors
/// The user did not confirm (exit code 1), or stdin or stderr is not a terminal (exit code 2). In
/// both cases, nothing was changed.
pub fn destruction(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(refused(what));
    }
    ask(what, &mut io::stdin().lock(), &mut io::stderr().lock())
}

fn refused(what: &str) -> Failure {
    Failure::usage(format!("this {what}: --yes is required"))
        .found("stdin or stderr is not a terminal, so mcctl cannot ask for confirmation")
        .next("add --yes if this is intended; nothing was changed")
}

fn ask(what: &str, input: &mut impl BufRead, output: &mut impl Write) -> Result<(), Failure> {
    // Accept an answer only if the prompt was displayed.
    let shown = write!(output, "This {what}. Continue? [y/N] ").and_then(|()| output.flush());
    let mut answer = String::new();
    let read = shown.and_then(|()| input.read_line(&mut answer));
    match (read, answer.trim().to_ascii_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => Err(Failure::no("not confirmed; nothing was changed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::error::Exit;

    #[test]
    fn only_yes_confirms_and_the_question_names_the_target() {
        for (typed, is_agreed) in [("y\n", true), ("YES\n", true), ("\n", false), ("", false), ("no\n", false)] {
            let mut shown = Vec::new();
            let answer = ask("removes all objects from m:1", &mut typed.as_bytes(), &mut shown);
            assert_eq!(answer.is_ok(), is_agreed, "{typed:?}");
            assert!(String::from_utf8_lossy(&shown).contains("removes all objects from m:1"));
            assert!(answer.err().is_none_or(|failure| failure.exit == Exit::No));
        }
    }

    #[test]
    fn the_flag_is_required_without_a_terminal() {
        let failure = refused("removes all objects from m:1");
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.what.contains("m:1") && failure.next.is_some_and(|next| next.contains("--yes")));
        assert!(destruction(true, "anything").is_ok());
    }
}
