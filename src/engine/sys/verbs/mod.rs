//! RDMA verbs: devices, memory regions, completion queues and connected queue pairs. Uses
//! libibverbs, which is opened at run time.
//!
//! A missing library, kernel module or device is reported as [`VerbsUnavailable`], never as a
//! loader error. Each owning type keeps alive the objects that it was created from: a [`QueuePair`]
//! keeps its [`CompletionQueue`] and [`ProtectionDomain`], which keep their [`RdmaDevice`]. Nothing
//! is therefore destroyed too early. A [`MemoryRegion`] keeps alive the memory that the device may
//! access. The region is deregistered before the memory is freed, whatever happens to queue pairs
//! and peers. No reference to bytes in registered memory ever exists ([`Memory`](crate::Memory)),
//! so a device may write to them at any time without violating Rust's aliasing rules. Nothing here
//! blocks except where a timeout is passed. Choices (devices, GID indices, sizes, retries) are up
//! to the transport.
//!
//! Without the Cargo feature `rdma`, the same types exist but cannot be created, and every request
//! fails with [`VerbsUnavailable::Feature`].

mod attributes;
mod completion;
mod error;
mod event;
#[cfg(feature = "rdma")]
mod live;
#[cfg(not(feature = "rdma"))]
mod stub;
mod types;

pub use attributes::{
    DeviceAttributes, GidEntry, LinkLayer, ListedDevice, Mtu, PortAttributes, PortState, VerbsGidKind,
};
pub use completion::{CompletionStatus, WorkCompletion};
pub use error::{VerbsError, VerbsUnavailable};
pub use event::AsyncEvent;
#[cfg(feature = "rdma")]
pub use live::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, RdmaDevice, WorkRequestList, devices, relaxed_ordering,
};
#[cfg(not(feature = "rdma"))]
pub use stub::{
    CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, RdmaDevice, WorkRequestList, devices, relaxed_ordering,
};
pub use types::{AccessFlags, Direction, PathAttributes, PostError, QpCaps, QpState, RdmaRequest};
