//! Request traces: one reader for each public format, and one type for all of them.
//!
//! - [`read()`]: reads a whole trace for sizing
//! - [`RowReader`], [`SizeCheck`]: what a replay of a trace uses instead, to stop early
//! - [`TraceFormat`]: recognizes a format by its first row, and parses single rows
//! - `request`: a recorded request, and which part of its prompt other requests share
//! - `row`: a row of a format with one request per line
//! - `mooncake`, `bailian`, `litellm`, `tracelab`, `weka`: the formats
//! - [`reuse`]: the hit rate of a cache of any size
//! - `builder`, `block_size`, `size_check`, `keys`, `prefix_key`, `sessions`, `times`: what all
//!   formats share
//!
//! The crate reads from a `BufRead`. It opens no file and reads no clock.
#![forbid(unsafe_code)]

mod bailian;
mod block_size;
mod builder;
mod caveat;
mod error;
mod format;
mod keys;
mod litellm;
mod mooncake;
mod prefix_key;
mod read;
mod request;
pub mod reuse;
mod row;
mod rows;
mod sessions;
mod size_check;
mod times;
mod tracelab;
mod weka;

pub use block_size::{BlockRule, BlockSizes};
pub use caveat::TraceCaveat;
pub use error::{BadRow, BlockCountError, RowError, TraceError, TraceRefusal};
pub use format::TraceFormat;
pub use prefix_key::PrefixKeys;
pub use read::{LIVE_SESSIONS, Trace, TraceOptions, read};
pub use request::{SessionId, TracePrompt, TraceRequest};
pub use row::{ChatLink, TraceRow};
pub use rows::{ROW_BYTES_MAX, Row, RowReader};
pub use size_check::{CheckedPrompt, PromptCounts, SizeCheck};
pub use times::TimeUnit;
pub use tracelab::{TraceLabRound, TraceLabRounds};
pub use weka::{LiveSessions, WekaRequest, WekaSession};
