//! Computes the memory of a SGLang HiCache deployment with a Mooncake store before it is started.
//!
//! All functions are pure: they read no files of the host and print nothing; the host's resources are arguments. Every rule names the code
//! that it was derived from: `sglang` is SGLang 0.5.23, `mooncake` is Mooncake 0.3.13.
//!
//! Byte counts of a host are `u64`, products are `u128`. Overflow is an error and never wraps.

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

pub use error::SizingError;
