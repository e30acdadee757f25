//! Framed request and response over `env`: the shell around [`crate::engine::wire`].
//!
//! Knows frames and methods, nothing of what they mean. Upstream: yalantinglibs `coro_rpc`.

pub mod client;
pub mod connection;
mod log;
pub mod polls;
pub mod server;

pub use client::{CallError, RpcClient, Timeouts};
pub use polls::WorkerPolls;
pub use server::{RpcServer, ServerConfig, Service, StartError};
