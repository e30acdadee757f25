//! Moves bytes between segments. A segment is one process's registered memory, which other
//! processes read and write directly.
//!
//! Start with [`TransferEngine`]. It exposes this process's memory ([`TransferEngine::register`]),
//! and reads and writes other processes' memory ([`TransferEngine::submit`]) through a
//! [`transport`]. Addresses on the wire are virtual addresses in the owning process. Only memory
//! registered for remote access can be reached (upstream's TCP transport serves all of a process's
//! memory).
//!
//! Control traffic (handshakes, metadata) is async and goes through `Env`. The data plane blocks,
//! and uses sockets or verbs directly: see [`tcp`] and [`rdma`]. Processes on the same host use
//! [`shared_memory`] instead, where they can.
//!
//! Upstream: `transfer_engine_impl.cpp`, `transfer_metadata.cpp`, `tcp_transport.cpp`.
#![forbid(unsafe_code)]

pub mod breaker;
pub mod config;
mod control_plane;
pub mod counters;
mod device_fault;
mod directory;
mod engine;
mod error;
pub mod handshake;
mod listen;
pub mod local;
mod notifications;
mod options;
pub mod path_probe;
mod ports;
pub mod rdma;
pub mod region;
mod remote;
mod remote_table;
pub mod shared_memory;
mod start;
pub mod tcp;
pub mod topology;
pub mod transport;
pub mod transports;
pub mod types;
mod variables;

use std::sync::Arc;

use mcctl_base::Mono;

pub use config::{TransferConfig, TransferSettings};
pub use counters::{EngineCounters, Flow, PeerCounters, RailCounters, RailFailures, TargetCounters};
pub use device_fault::{Blame, DeviceFault, DeviceStep};
pub use engine::{Registration, TransferEngine};
pub use error::{TransferError, TransferStep};
pub use options::TransportOptions;
pub use remote::PendingTransfer;
pub use shared_memory::{SharedMemorySettings, SocketDirectoryError};
pub use transports::{TransferProtocol, TransportSettings};
pub use types::{Access, Op, OpKind, RemoteAddr, WriteRetry};
pub use variables::VariableReader;

/// The `Env`'s [`boottime`](mcctl_sys::env::Env::boottime), for blocking code.
pub type MonoClock = Arc<dyn Fn() -> Mono + Send + Sync>;

/// A source of random numbers.
pub type RandomSource = Arc<dyn Fn() -> u64 + Send + Sync>;
