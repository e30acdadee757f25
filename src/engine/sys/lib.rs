//! System interfaces: the only directory with `unsafe` code, and the readers for `/proc` and
//! `/sys`.
//!
//! Raw pointers do not leave this directory. It exports owning types ([`Memory`], [`Slice`]) with
//! checked ranges, and plain numbers for addresses that are sent to peers.
#![warn(clippy::cast_possible_truncation)]
#![expect(unsafe_code, reason = "the only directory with unsafe code; every block has a SAFETY comment")]

pub mod caller_memory;
pub mod cgroup;
pub mod clock;
pub mod crc64;
pub mod descriptors;
pub mod env;
pub mod file_tree;
pub mod host;
pub mod hugetlb;
pub mod interface;
pub mod machine;
mod memfd;
pub mod memory;
pub mod packet_socket;
pub mod pages;
pub mod ports;
pub mod process_group;
pub mod process_metrics;
pub mod process_stats;
pub mod procfs;
pub mod readiness;
pub mod reserve;
pub mod shared_counter;
pub mod shared_memory;
pub mod signal;
pub mod socket;
pub mod terminal;
pub mod verbs;

pub use file_tree::{FileReadError, FileTree};
pub use memory::{Memory, OutOfRange, Slice};
pub use pages::{HugePage, MemoryError, MemoryPolicy, MemorySource};
pub use shared_memory::{SharedSource, SharedView};
