//! A host's RDMA devices, GPUs, NUMA nodes and interfaces, and which devices to use.
//!
//! Everything is read from files below a root (`sys::FileTree`), so a directory can serve as a test
//! host. The exception is [`VerbsReport`]: attributes that only libibverbs reports
//! ([`UNKNOWN_WITHOUT_VERBS`]), for this host only. No packets are sent. A malformed or unreadable
//! file becomes a [`DeviceFinding`] and does not stop the scan.

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

pub use choice::{DeviceChoice, DeviceSelection, ExcludedDevice, ExclusionReason, PickedDevice};
pub use device::{DeviceTransport, HostRdmaDevice, RdmaPort, UNKNOWN_WITHOUT_VERBS};
pub use finding::{DeviceFinding, FindingLevel};
pub use gid::{Gid, GidPick, GidReason, GidType};
pub use host::{Gpu, HostTopology, Memlock, NumaNode, RdmaSupport};
pub use interface::Interface;
pub use live::{VerbsDevice, VerbsPort, VerbsReport};
pub use matrix::Matrix;
pub use pci::PciLink;
