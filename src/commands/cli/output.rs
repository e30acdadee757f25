//! Command output: only data goes to stdout; notes and errors go to stderr.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::commands::cli::error::Failure;
use crate::commands::cli::logging;
use crate::commands::cli::progress_bar;
use crate::engine::base::text::{masked, printable};
use crate::engine::sys::terminal;

/// Writes `text` to stdout unchanged.
///
/// # Errors
/// stdout cannot be written. A closed pipe becomes a failure with exit code 0 and no message.
pub fn data(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_ref())?;
    Ok(stdout.flush()?)
}

/// Writes `text` and a newline to stdout.
///
/// # Errors
/// The same as [`data`].
pub fn line(text: impl std::fmt::Display) -> Result<(), Failure> {
    data(format!("{text}\n"))
}

/// Whether [`json`] was called: the command's document has been written, or stdout cannot be
/// written.
static HAS_DOCUMENT: AtomicBool = AtomicBool::new(false);

/// Whether the command has printed its JSON document. Documents that [`json_line`] printed do not
/// count.
pub fn has_document() -> bool {
    HAS_DOCUMENT.load(Ordering::Relaxed)
}

/// Writes `value` to stdout as the command's only or last JSON document, followed by a newline. No
/// error document follows it.
///
/// # Errors
/// The same as [`data`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    HAS_DOCUMENT.store(true, Ordering::Relaxed);
    json_line(value)
}

/// Writes `value` to stdout as one of several JSON documents, one per line. An error document may
/// follow it.
///
/// # Errors
/// The same as [`data`].
pub fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string(value).expect("all documents have only string keys"))
}

/// Writes `text` and a newline to stderr with [`logging::to_stderr`]. Passwords in URLs are masked,
/// and control characters are escaped.
pub fn say(text: impl std::fmt::Display) {
    let line = format!("{}\n", masked(&printable(&text.to_string())));
    progress_bar::suspended(|| logging::to_stderr(&line));
}

/// Whether stdout supports colors and cursor movement.
pub fn is_fancy() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Width of the terminal at stdout, in columns. The variable `COLUMNS` overrides it. `None` for a
/// pipe or file without that variable.
pub fn terminal_width() -> Option<usize> {
    // Unit tests do not depend on the terminal in which they run.
    if cfg!(test) {
        return None;
    }
    let named = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok()).filter(|columns| *columns > 0);
    named.or_else(|| terminal::width(io::stdout()))
}

/// Column at which the text in [`labelled`] begins.
const LABEL_WIDTH: usize = 10;

/// `label` and `text`, wrapped to the terminal width, with control characters escaped.
pub fn labelled(label: &str, text: &str) -> String {
    let width = terminal_width().unwrap_or(usize::MAX).max(4 * LABEL_WIDTH);
    let mut lines = vec![format!("{label:<LABEL_WIDTH$}")];
    for word in printable(text).split(' ') {
        let line = lines.last_mut().expect("at least one line");
        if line.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("{:LABEL_WIDTH$}{word}", ""));
        } else {
            let blank = if line.chars().count() > LABEL_WIDTH { " " } else { "" };
            line.push_str(&format!("{blank}{word}"));
        }
    }
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}
