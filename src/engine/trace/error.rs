//! Why a trace, or a row of it, cannot be read.

use std::fmt;

use crate::block_size::BlockSizes;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot read line {line}: {source}")]
    Io { line: u64, source: std::io::Error },
    /// The file starts with the bytes 1f 8b.
    #[error("the trace is compressed with gzip")]
    Gzip,
    #[error("the trace is empty")]
    Empty,
    /// No row has prompt tokens and a time.
    #[error("none of the {rows} rows is a request with prompt tokens and a time")]
    NoRequests { rows: u64 },
    /// The format is known, but sizes cannot be derived from it.
    #[error(transparent)]
    Refused(#[from] TraceRefusal),
    /// The first row matches no format. `found` is the start of the row.
    #[error("unknown trace format: the first row is {found:?}")]
    UnknownFormat { found: String },
    #[error(transparent)]
    Row(#[from] BadRow),
    /// All rows were skipped.
    #[error("all {rows} rows are invalid; the first is {first}")]
    AllRowsBad { rows: u64, first: BadRow },
    /// A trace can have 2^32 - 1 sessions.
    #[error("the trace has too many sessions")]
    TooManySessions,
}

/// Why a file is refused although its format is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceRefusal {
    #[error("a BurstGPT file has times and lengths only; it does not record which prompts share a prefix")]
    BurstGpt,
    #[error(
        "a ShareGPT file has texts without token counts and times; it does not record which prompts share a prefix"
    )]
    ShareGpt,
    #[error("the rows have messages or text, but no token counts")]
    TextOnly,
    #[error("no row has hash IDs or a session, so the trace does not record which prompts share a prefix")]
    NoPrefixes,
    #[error("the file is a records file of mcctl bench, not a trace")]
    BenchRecords,
    #[error("the file has Dynamo's agentic format with a header row, which is not supported")]
    DynamoAgentic,
    #[error("the file is one JSON array; a trace has one JSON object per line")]
    JsonArray,
}

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}{}: {reason}", .request.map(|request| format!(", request {request} of the session")).unwrap_or_default())]
pub struct BadRow {
    /// Line at which the row starts, from 1.
    pub line: u64,
    /// Position within the session, from 1, in formats with one session per row.
    pub request: Option<u64>,
    pub reason: RowError,
}

/// Why a row cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    #[error("invalid JSON at column {column}: {reason}")]
    Json { column: usize, reason: String },
    /// `at` is the position of the invalid byte in the row, from 1.
    #[error("invalid UTF-8 at byte {at}")]
    InvalidUtf8 { at: usize },
    #[error("the row has more than {max} bytes")]
    TooLong { max: usize },
    #[error("the row has no {0}")]
    Missing(&'static str),
    #[error("{0} is empty")]
    EmptyField(&'static str),
    #[error("the row has messages or text, but no token counts")]
    TextOnly,
    #[error("invalid prompt length: {0} tokens")]
    PromptLength(u64),
    #[error("invalid reply length: {0} tokens")]
    ReplyLength(u64),
    #[error("invalid block size: {0} tokens")]
    BlockSize(u64),
    #[error("the row has blocks of {found} tokens, the rows before have blocks of {used} tokens")]
    OtherBlockSize { found: u64, used: u64 },
    #[error("invalid time in {field}: {value}")]
    Time { field: &'static str, value: String },
    #[error("invalid block hash {0:?}: expected 16 hexadecimal digits")]
    BlockHash(String),
    #[error("{0}")]
    BlockCount(BlockCountError),
}

/// A prompt whose length does not match its number of hash IDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockCountError {
    pub tokens: u64,
    pub blocks: u64,
    /// The block size that was used, in tokens.
    pub block_tokens: u64,
    /// The block sizes that match this row.
    pub row_sizes: Option<BlockSizes>,
    /// The block sizes that match this row and all rows read so far.
    pub common_sizes: Option<BlockSizes>,
    /// The most plausible of the common sizes.
    pub suggested: Option<u64>,
}

impl fmt::Display for BlockCountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockCountError { tokens, blocks, block_tokens, .. } = self;
        write!(f, "{tokens} tokens do not match {blocks} blocks of {block_tokens} tokens; ")?;
        match (self.row_sizes, self.suggested) {
            (None, _) => f.write_str("no block size fits this row"),
            (Some(sizes), Some(size)) => {
                write!(f, "this row fits blocks of {sizes}, and all rows read so far fit blocks of {size} tokens")
            }
            (Some(sizes), None) => {
                write!(f, "this row fits blocks of {sizes}, but no size fits all rows read so far")
            }
        }
    }
}

impl From<serde_json::Error> for RowError {
    fn from(error: serde_json::Error) -> RowError {
        let text = error.to_string();
        // The line number is always 1, because each row is parsed on its own.
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        RowError::Json { column: error.column(), reason: reason.chars().take(200).collect() }
    }
}
