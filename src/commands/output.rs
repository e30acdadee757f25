//! Where a command writes: stdout carries data and nothing else, stderr carries talk.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::commands::error::Failure;
use crate::commands::logging;
use crate::engine::base::text::masked;

/// Write `text` to stdout as it is.
///
/// # Errors
/// stdout cannot be written; a reader that went away ends the command well.
pub fn data(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_ref())?;
    Ok(stdout.flush()?)
}

/// Write `text` and a newline to stdout.
///
/// # Errors
/// As [`data`].
pub fn line(text: impl std::fmt::Display) -> Result<(), Failure> {
    data(format!("{text}\n"))
}

/// Write `value` as one JSON document and a newline to stdout.
///
/// # Errors
/// As [`data`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string(value).expect("our own documents have only text keys"))
}

/// Write `text` and a newline to stderr, without the passwords of URLs in it, as [`logging::to_stderr`] does.
pub fn say(text: impl std::fmt::Display) {
    logging::to_stderr(&format!("{}\n", masked(&text.to_string())));
}

/// May stdout carry colours and cursor movements?
pub fn is_fancy() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}
