//! The handshake port: one small request and one reply per connection, for what the data plane cannot carry.
//!
//! It serves metadata (our segment document, if no metadata service is used), notify, probe, and RDMA's connection
//! requests. An engine without RDMA answers the latter with empty fields. Upstream serves one connection at a time, and
//! any of them can stall it. This server handles many at once, each with a time limit.

mod client;
mod server;

pub use client::{RequestLimits, send_request};
pub(in crate::engine::transfer) use server::is_notify_accepted;
pub use server::{HandshakeHandler, HandshakeLimits, serve};
