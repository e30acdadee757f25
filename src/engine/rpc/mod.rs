//! Framed requests and responses over `env`, with the codecs of [`crate::engine::wire`].
//!
//! This folder handles frames and method numbers, but not the meaning of the methods. Upstream: yalantinglibs `coro_rpc`.

pub mod client;
pub mod connection;
mod log;
pub mod polls;
pub mod server;

pub use client::{CallError, RpcClient, Timeouts};
pub use polls::WorkerPolls;
pub use server::{RpcServer, RpcService, ServerConfig, StartError};
