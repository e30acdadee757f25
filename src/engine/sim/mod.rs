//! Simulator of an SGLang endpoint with HiCache, for laptops and CI. It has no model and no GPU, but caches like the
//! real server.
//!
//! The following is real: the radix tree over device and host, the page-granular matching, the queue, and storage.
//! The tree is that of [`crate::engine::plan::hicache`], which is tested against recordings of a real SGLang. Storage
//! is any Mooncake store, accessed with the real client. The following is simulated: tokens follow a simple rule over
//! bytes, answers derive from a hash of the prompt, and time follows a cost model. Every response identifies the
//! simulator.
//!
//! [`scheduler`] is a state machine without clock or socket. `server` and `storage` connect it to them.

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

/// Header of every response, with the value `1`.
pub const HEADER: &str = "x-mcctl-simulator";
/// Version string: `version` of `/server_info`, and `system_fingerprint` of OpenAI responses.
pub const VERSION: &str = concat!("mcctl-sim ", env!("CARGO_PKG_VERSION"), " (a simulator: no model ran)");
