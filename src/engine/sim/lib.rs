//! Simulator of an SGLang endpoint with HiCache, for laptops and CI. It runs no model and needs no
//! GPU, but its caches behave like those of a real server.
//!
//! These parts are real: the radix tree over device and host, page-granular matching, the queue,
//! and storage. The tree is [`mcctl_deploy::plan::hicache`], which is tested against recordings
//! from a real SGLang server. Storage is any Mooncake store, accessed with the real client. These
//! parts are simulated: tokens are derived from bytes by a simple rule, responses are derived from
//! a hash of the prompt, and time follows a cost model. Every response identifies the simulator.
//!
//! [`scheduler`] is a state machine without a clock or sockets. `server` and `storage` provide
//! these.
#![forbid(unsafe_code)]

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

pub use config::{AdmissionError, Config, Cost};
pub use server::{RunningSimulator, Simulator, start};
pub use storage::Storage;

/// Header sent with every response; its value is `1`.
pub const HEADER: &str = "x-mcctl-simulator";
/// Version string: `version` in `/server_info`, and `system_fingerprint` in OpenAI responses.
pub const VERSION: &str = concat!("mcctl-sim ", env!("CARGO_PKG_VERSION"), " (a simulator: no model ran)");
