//! RDMA verbs: devices, registered memory, completion queues and connected queue pairs, over libibverbs, which is opened at run time.
//!
//! What a host lacks is told by [`Absent`] and is never a loader's error. Each owner holds what it was made from ([`Pair`] its
//! [`Queue`] and [`Domain`], these their [`Device`]), so nothing can be torn down too early, and [`Region`] holds the memory that the
//! device may touch: it is deregistered before it is let go of, whatever happened to pairs and peers. Bytes of registered memory are
//! never behind a reference ([`Memory`](crate::engine::sys::Memory)), so that a device that writes them whenever it likes does no
//! harm to Rust's rules. Nothing here waits but where a timeout is given, and nothing chooses: devices, rows, numbers and retries are
//! the transport's.
//!
//! Without the cargo feature `rdma` the same types exist, none can be made, and all that is asked is [`Absent::Feature`].

mod absent;
mod attributes;
mod completion;
mod event;
#[cfg(feature = "rdma")]
mod live;
#[cfg(not(feature = "rdma"))]
mod none;
mod way;

pub use absent::{Absent, VerbsError};
pub use attributes::{DeviceAttributes, GidKind, GidRow, LinkLayer, Listed, Mtu, PortAttributes, PortState};
pub use completion::{Completion, Status};
pub use event::AsyncEvent;
#[cfg(feature = "rdma")]
pub use live::{Chain, Device, Domain, Pair, Queue, Region, devices, relaxed_ordering};
#[cfg(not(feature = "rdma"))]
pub use none::{Chain, Device, Domain, Pair, Queue, Region, devices, relaxed_ordering};
pub use way::{Caps, Direction, PairState, Refused, Rights, Way, Work};
