//! Questions on a terminal. Nobody is asked where nobody can answer.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::commands::error::Failure;

/// Can somebody read a question and type an answer?
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// An answer; an empty one is `default`.
///
/// # Errors
/// The answers ended.
pub fn ask(what: &str, default: &str) -> Result<String, Failure> {
    let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
    let mut stderr = io::stderr().lock();
    // Nobody is left to ask when stderr is gone; the answers end then, too.
    let _ = write!(stderr, "{what}{shown}: ").and_then(|()| stderr.flush());
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err(Failure::usage("the answers ended").next("give the values as flags; --help lists them")),
        Ok(_) => Ok(Some(line.trim()).filter(|line| !line.is_empty()).unwrap_or(default).to_owned()),
        Err(error) => Err(Failure::host("cannot read an answer").found(error.to_string())),
    }
}

/// An answer that is a number.
///
/// # Errors
/// As [`ask`]; or it is no number.
pub fn number(what: &str, default: u64) -> Result<u64, Failure> {
    let text = ask(what, &default.to_string())?;
    text.parse().map_err(|_| Failure::usage(format!("'{text}' is not a number")).tried(what))
}

/// An answer that is a list, separated by commas.
///
/// # Errors
/// As [`ask`].
pub fn list(what: &str, default: &str) -> Result<Vec<String>, Failure> {
    let text = ask(what, default)?;
    Ok(text.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect())
}
