//! Reasons why a dataset row is malformed.

use crate::workload::{TemplateError, TokenizerError};

/// Maximum size of a row, in bytes.
pub const ROW_BYTES_MAX: usize = 64 << 20;
/// Maximum number of tokens that a row may request, for the output or the prompt.
pub const TOKENS_MAX: u32 = 1 << 24;

/// Why a dataset row is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Message from the JSON parser, including the position.
    #[error("{0}")]
    Json(String),
    #[error("not a JSON object")]
    NotAnObject,
    #[error("not a JSON array")]
    NotAnArray,
    #[error("nested more than {0} levels deep")]
    TooDeep(usize),
    #[error("longer than {} MiB", ROW_BYTES_MAX >> 20)]
    TooLong,
    /// Position (from 1) and value of the first invalid byte.
    #[error("invalid UTF-8: byte {at} is 0x{byte:02x}")]
    InvalidUtf8 { at: usize, byte: u8 },
    #[error("the file is not a JSON object")]
    FileNotAnObject,
    #[error("the file is not a JSON array")]
    FileNotAnArray,
    #[error("no array \"{0}\" found in the object")]
    NoSuchArray(&'static str),
    #[error("the array is not terminated")]
    UnterminatedArray,
    #[error("the file ends in the middle of a row")]
    UnexpectedEnd,
    #[error("a string is not terminated on its line")]
    UnterminatedString,
    #[error("the row is not terminated before the next one starts")]
    UnterminatedRow,
    #[error("unmatched '{0}'")]
    UnmatchedBracket(char),
    /// An error in the member `name`.
    #[error("{name}: {error}")]
    Member { name: &'static str, error: Box<RowError> },
    /// An error in a turn. Turns are numbered from 1.
    #[error("turn {number}: {error}")]
    Turn { number: usize, error: Box<RowError> },
    /// An error in a message. Messages are numbered from 1.
    #[error("message {number}: {error}")]
    Message { number: usize, error: Box<RowError> },
    #[error("no messages")]
    NoMessages,
    #[error("the message has no role")]
    NoRole,
    #[error("the message has no text")]
    NoText,
    #[error("the role {0} is not a string")]
    InvalidRole(String),
    #[error("unknown speaker '{0}'")]
    UnknownSpeaker(String),
    #[error("neither 'conversations' nor 'conversation' found")]
    NoConversation,
    #[error("{name} {value} is not a number of tokens from 1 to {TOKENS_MAX}")]
    InvalidTokens { name: String, value: String },
    #[error("{name} {value} is not a valid time")]
    InvalidTime { name: String, value: String },
    #[error("message_mode {0} is neither history nor delta")]
    InvalidMessageMode(String),
    #[error("expected hash_ids, input_length, messages or text_input")]
    NoPrompt,
    #[error("the prompt is empty: neither hash_ids nor input_length is set")]
    EmptyPrompt,
    #[error("hash_ids (with input_length), messages and text_input are mutually exclusive")]
    SeveralPrompts,
    #[error("message_mode requires messages")]
    ModeWithoutMessages,
    #[error("tools require messages")]
    ToolsWithoutMessages,
    #[error("'extra' must not contain the key 'messages': it would replace the history")]
    ExtraMessages,
    #[error("{tokens} tokens exceed the maximum of {TOKENS_MAX}")]
    TooManyTokens { tokens: u64 },
    /// An error in a request of a session. Requests are numbered from 1.
    #[error("request {number} of the session: {error}")]
    Request { number: usize, error: Box<RowError> },
    /// An error from the reader of traces.
    #[error(transparent)]
    Trace(Box<mcctl_trace::RowError>),
    /// `line` is the first line of the session.
    #[error("message_mode differs from the mode of its session, which starts on line {line}")]
    MixedMessageModes { line: u64 },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl From<mcctl_trace::RowError> for RowError {
    fn from(error: mcctl_trace::RowError) -> RowError {
        RowError::Trace(Box::new(error))
    }
}

impl From<serde_json::Error> for RowError {
    fn from(error: serde_json::Error) -> RowError {
        RowError::Json(error.to_string())
    }
}

impl RowError {
    /// Attributes the error to the member `name`.
    pub(super) fn in_member(self, name: &'static str) -> RowError {
        RowError::Member { name, error: Box::new(self) }
    }

    /// Attributes the error to the turn with index `at`, from 0.
    pub(super) fn in_turn(self, at: usize) -> RowError {
        RowError::Turn { number: at + 1, error: Box::new(self) }
    }

    /// Attributes the error to the message with index `at`, from 0.
    pub(super) fn in_message(self, at: usize) -> RowError {
        RowError::Message { number: at + 1, error: Box::new(self) }
    }

    /// Attributes the error to the request with index `at`, from 0.
    pub(super) fn in_request(self, at: usize) -> RowError {
        RowError::Request { number: at + 1, error: Box::new(self) }
    }

    /// Converts positions within a row, as reported by the JSON parser, to positions in the file.
    /// The row starts on `line`.
    pub(super) fn located(self, line: u64) -> RowError {
        match self {
            RowError::Json(message) => RowError::Json(located(message, line)),
            RowError::Member { name, error } => error.located(line).in_member(name),
            RowError::Turn { number, error } => RowError::Turn { number, error: Box::new(error.located(line)) },
            RowError::Message { number, error } => RowError::Message { number, error: Box::new(error.located(line)) },
            RowError::Request { number, error } => RowError::Request { number, error: Box::new(error.located(line)) },
            other => other,
        }
    }
}

fn located(message: String, line: u64) -> String {
    let position = || {
        let (text, position) = message.rsplit_once(" at line ")?;
        let (within, column) = position.split_once(" column ")?;
        let (within, column): (u64, u64) = (within.parse().ok()?, column.parse().ok()?);
        Some(match within {
            0 | 1 => format!("{text} at column {column}"),
            _ => format!("{text} at line {}, column {column}", line + within - 1),
        })
    };
    position().unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_refer_to_the_file() {
        let located = |message: &str| located(message.to_owned(), 10);
        assert_eq!(located("oops at line 1 column 7"), "oops at column 7");
        assert_eq!(located("oops at line 3 column 7"), "oops at line 12, column 7");
        assert_eq!(located("oops at line x column 7"), "oops at line x column 7");
        assert_eq!(located("no text"), "no text");
    }
}
