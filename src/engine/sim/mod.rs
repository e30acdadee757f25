//! A simulator of a SGLang endpoint with HiCache, for laptops and CI: no model, no GPU, and the cache of the real one.
//!
//! What is real: the radix tree over device and host (the one of [`crate::engine::plan::hicache`], which records of a real SGLang hold
//! to it), the page-exact rule, the queue, and storage, which is any Mooncake store, through the real client. What is not: tokens are a
//! stated rule over bytes, answers come from the prompt's hash, and time is a stated cost model. It says so in everything that it
//! answers.
//!
//! [`scheduler`] is a state machine without clock and socket; `server` and `storage` are its shell.

mod answer;
mod ask;
pub mod config;
pub mod counters;
mod exposition;
mod info;
mod page;
pub mod scheduler;
mod server;
pub mod storage;
pub mod token;

pub use config::{Config, Cost, Refused};
pub use server::{Running, Simulator, start};
pub use storage::Storage;

/// The header that every answer has, with the value `1`.
pub const HEADER: &str = "x-mcctl-simulator";
/// What it calls itself: `version` of `/server_info`, `system_fingerprint` of OpenAI's answers.
pub const VERSION: &str = concat!("mcctl-sim ", env!("CARGO_PKG_VERSION"), " (a simulator: no model ran)");
