//! The fence: the only folder with `unsafe`, and the readers of `/proc` and `/sys`.
//!
//! Raw pointers do not leave it. What leaves are owners ([`Memory`], [`Slice`]) with checked ranges, and plain numbers for addresses
//! that go on the wire.
#![expect(unsafe_code, reason = "this is the one folder for it; every block argues its case")]

pub mod cgroup;
pub mod clock;
pub mod descriptors;
pub mod host;
pub mod hugetlb;
pub mod interface;
pub mod memory;
pub mod own;
pub mod pages;
pub mod ports;
pub mod process;
pub mod readiness;
pub mod reserve;
pub mod signal;
pub mod socket;
pub mod tree;
pub mod verbs;

pub use memory::{Memory, OutOfRange, Slice};
pub use pages::{HugePage, MemoryError, MemoryPolicy, MemorySource};
pub use tree::{Tree, Unreadable};
