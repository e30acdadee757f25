//! Basic types: sizes, ids, times, error codes, addresses. No I/O, no async, no clock.
#![forbid(unsafe_code)]

pub mod addr;
pub mod check;
pub mod cidr;
pub mod code;
pub mod id;
pub mod json_comments;
pub mod latency;
pub mod rng;
pub mod size;
pub mod text;
pub mod time;
pub mod upstream;

pub use addr::HostPort;
pub use cidr::CidrList;
pub use code::ErrorCode;
pub use id::{ClientId, ObjectKey, SegmentId, TaskId};
pub use latency::{LatencyHistogram, LatencySnapshot};
pub use rng::Rng;
pub use size::ByteSize;
pub use time::{Mono, Unix};
