//! Framed requests and responses on `env`, with the codecs from [`mcctl_wire`].
//!
//! This directory handles frames and method numbers, but does not interpret the methods. Upstream:
//! yalantinglibs `coro_rpc`.

pub mod client;
mod client_connection;
pub mod connection;
mod connection_client;
mod host_releases;
pub mod latency;
mod log;
pub mod polls;
pub mod receipt;
pub mod releases;
pub mod server;
pub mod server_address;
pub mod service;
mod shared_stream;
#[cfg(test)]
mod tests;

pub use client::{CallError, RpcClient, Timeouts, master_calls};
pub use client_connection::ConnectionError;
pub use latency::RpcLatency;
pub use polls::WorkerPolls;
pub use receipt::Receipt;
pub use releases::{ClientReleases, UnknownRequests};
pub use server::{RpcServer, ServerConfig, StartError};
pub use server_address::ServerAddress;
pub use service::{AdmissionWait, Admitted, CommitWait, RpcCall, RpcService};
