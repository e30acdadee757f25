//! A host's RDMA devices, GPUs, memory nodes and interfaces, and which devices to use for what.
//!
//! Everything is read from plain files below a root (`sys::FileTree`), so that a host is a folder in tests, but for [`Live`]: what only
//! libibverbs can tell ([`UNKNOWN_WITHOUT_VERBS`]), of this host alone. No packet is sent. A file that is odd or cannot be read is a
//! [`Finding`], never the end.

pub mod choice;
pub mod device;
pub mod finding;
pub mod gid;
pub mod host;
pub mod interface;
pub mod live;
pub mod matrix;
pub mod pci;
mod reader;
mod remedy;

pub use choice::{Choice, LeftOut, Picked, WhyNot, Wish};
pub use device::{Device, Port, Transport, UNKNOWN_WITHOUT_VERBS};
pub use finding::{Finding, Level};
pub use gid::{Because, Gid, GidKind, GidPick};
pub use host::{Gpu, Host, Memlock, Node, Rdma};
pub use interface::Interface;
pub use live::{Live, LiveDevice, LivePort};
pub use matrix::Matrix;
pub use pci::Link;
