//! How much memory a SGLang HiCache deployment on a Mooncake store takes, before anything is started.
//!
//! Pure: numbers in, numbers out. Never reads a file of the host or prints; what a host has comes in as an argument. Every rule
//! names the code it was read from: `sglang` is SGLang 0.5.23, `mooncake` is Mooncake 0.3.13.
//!
//! Bytes are `u64` where they are a host's, `u128` in products. What does not fit is an error, never a wrapped number.

pub mod client;
pub mod config_json;
pub mod error;
pub mod fit;
pub mod geometry;
pub mod guard;
pub mod hicache;
pub mod host_pool;
pub mod l2;
pub mod layout;
pub mod models;
pub mod need;
pub mod observed;
pub mod python_text;
pub mod reuse;
pub mod size_flag;
pub mod size_text;
pub mod tiers;
pub mod trace;
pub mod upstream;

pub use error::PlanError;
