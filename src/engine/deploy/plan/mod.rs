//! Computes the memory that an SGLang HiCache deployment with a Mooncake store will use, before the
//! deployment is started.
//!
//! All functions are pure. They do not read host files or print anything; the host's resources are
//! passed as arguments. Every rule cites the code that it was derived from: `sglang` is SGLang
//! 0.5.23, `mooncake` is Mooncake 0.3.13.
//!
//! Byte counts for a host are `u64`; products are `u128`. Overflow is an error; values never wrap.

pub mod client;
pub mod config_json;
mod device_pool;
pub mod error;
pub mod fit;
pub mod geometry;
pub mod guard;
pub mod hicache;
pub mod host_pool;
pub mod l2;
pub mod layout;
pub mod live_prefixes;
pub mod master_disk;
mod model_name;
pub mod models;
pub mod need;
pub mod observed;
pub mod python_text;
pub mod size_flag;
pub mod size_text;
pub mod sizing_input;
pub mod tiers;
pub mod upstream;
pub mod worth;

pub use error::SizingError;
