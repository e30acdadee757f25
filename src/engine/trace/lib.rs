//! Request traces: one reader for each public format, and one type for all of them.
//!
//! - `request`: a recorded request, and which part of its prompt other requests share
//!
//! The crate reads from a `BufRead`. It opens no file and reads no clock.

mod request;

pub use request::{SessionId, TracePrompt, TraceRequest};
