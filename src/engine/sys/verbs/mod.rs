//! RDMA verbs: devices, memory regions, completion queues and connected queue pairs. Uses libibverbs, which is opened
//! at run time.
//!
//! A missing library, kernel module or device is reported as [`VerbsUnavailable`], never as an error of the loader. Each owner
//! holds what it was created from ([`QueuePair`] its [`CompletionQueue`] and [`ProtectionDomain`], these their [`RdmaDevice`]), so nothing is
//! destroyed too early. [`MemoryRegion`] holds the memory that the device may access: it is deregistered before the memory is
//! freed, whatever happened to queue pairs and peers. Bytes of registered memory are never behind a reference
//! ([`Memory`](crate::engine::sys::Memory)), so a device that writes them at any time does not violate Rust's rules.
//! Nothing here waits except where a timeout is passed. Choices (devices, GID indices, sizes, retries) are up to the
//! transport.
//!
//! Without the cargo feature `rdma` the same types exist but cannot be created, and every request fails with
//! [`VerbsUnavailable::Feature`].

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
