//! Moving bytes between segments: registered memory of one process, read and written by others without its help.
//!
//! Start with [`TransferEngine`]. It offers this process's memory ([`TransferEngine::register`]) and reads and writes that of others
//! ([`TransferEngine::submit`]), by way of the transports of [`transport`]. Addresses on the wire are virtual addresses of the
//! owning process. Only memory that was registered as remotely accessible can be reached (upstream's TCP serves all of it).
//!
//! Control traffic (handshakes, metadata) is async and goes through `Env`. The data plane is neither: see [`tcp`].
//! Upstream: `transfer_engine_impl.cpp`, `transfer_metadata.cpp`, `tcp_transport.cpp`.

pub mod breaker;
mod calls;
pub mod config;
pub mod counters;
mod directory;
mod engine;
mod error;
pub mod handshake;
pub mod local;
mod notices;
pub mod rdma;
pub mod region;
mod remote;
mod remotes;
pub mod tcp;
pub mod transport;
mod variables;

use std::sync::Arc;

use crate::engine::base::Mono;

pub use config::{Protocol, TransferConfig, TransferSettings};
pub use counters::{EngineCounters, PeerCounters, RailFailures, RailFigures, TargetFigures};
pub use engine::{Registration, TransferEngine};
pub use error::{Step, TransferError};
pub use rdma::{Blame, RdmaFault, RdmaSettings, RdmaStep, RdmaWish};
pub use region::Access;
pub use remote::Pending;
pub use transport::{Op, OpKind, RemoteAddr};

/// Monotonic time for code that blocks; it is the `Env`'s.
pub type Clock = Arc<dyn Fn() -> Mono + Send + Sync>;
