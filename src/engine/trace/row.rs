//! A row of a format with one request per line.

/// A request as recorded, before sessions, times and block sizes are resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceRow {
    /// Name of the session, if the format names sessions.
    pub session: Option<String>,
    /// The turn before, if the format links turns.
    pub chat: Option<ChatLink>,
    /// Start of the request, in the unit of the format: see
    /// [`TraceFormat::time_unit`](crate::TraceFormat::time_unit).
    pub at: Option<f64>,
    /// Time after the turn before, in the same unit as `at`.
    pub delay: Option<f64>,
    /// Prompt length in tokens.
    pub input: Option<u64>,
    /// Reply length in tokens.
    pub output: Option<u64>,
    /// IDs of the prompt's blocks, in order. Without IDs, a row with a session has only the text
    /// that is new in this turn.
    pub ids: Option<Vec<u64>>,
    /// Tokens per block, if the row has it.
    pub block_tokens: Option<u64>,
    /// Whether the prompt is recorded as text.
    pub text: bool,
}

/// Links a turn to the turn before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatLink {
    pub id: i64,
    /// `None` for the first turn.
    pub parent: Option<i64>,
}
