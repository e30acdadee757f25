//! What a script leaves besides processes: text that it writes, and places that were not followed.

use crate::lint::shell::choice::ScriptSpan;
use mcctl_base::check::SourceLocation;

/// A part of a script that was not followed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreadPlace {
    pub place: SourceLocation,
    /// The number of lines, at least 1.
    pub lines: u32,
    pub reason: String,
    /// The file that would have to be provided to follow it.
    pub needs: Option<String>,
}

/// Text that a script writes to a file, or passes to `kubectl apply`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenText {
    /// The path as the script names it. Empty for standard input.
    pub name: String,
    pub text: String,
    /// The location of the first character.
    pub place: SourceLocation,
    pub span: ScriptSpan,
    /// The text of a script that the same script runs. It has been followed.
    pub is_followed: bool,
    /// Why the file has another text when it is read: `is changed by sed`. `None` if it has this
    /// one.
    pub changed: Option<String>,
}

/// A file that the script has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrittenFile {
    /// Position in the list of written texts.
    pub index: usize,
    /// The line on which the text ends.
    pub end: u32,
}
