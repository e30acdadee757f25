//! A recorded request, independent of the format of its trace.

use std::ops::Range;

/// Number of a session in a trace, from 0.
pub type SessionId = u32;

/// A request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// The line at which the request starts, or the line of its session, from 1.
    pub line: u64,
    pub session: SessionId,
    /// Start in seconds after the first request of the trace; `None` if the trace has no times.
    pub at: Option<f64>,
    /// Prompt length in tokens, at least 1.
    pub input: u64,
    /// Reply length in tokens, at least 1.
    pub output: u64,
    pub prompt: TracePrompt,
}

/// Which part of a prompt other requests share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TracePrompt {
    /// The prompt's blocks, as a range of the trace's prefix keys; of a sampled trace, the blocks
    /// that belong to the sample. The last block of the range has `last_tokens` tokens, all others
    /// are full. Tokens after the last block of a prompt are not shared with any request.
    Blocks { keys: Range<usize>, last_tokens: u64 },
    /// The first `prefix` tokens are the first tokens of the session's request before, including
    /// its reply. The rest is new. For traces that have lengths only.
    Continued { prefix: u64 },
}
