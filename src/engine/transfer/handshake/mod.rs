//! The handshake port: one small request and one reply per connection, for messages that the data
//! plane cannot carry.
//!
//! It serves metadata requests (for our segment document, if no metadata service is used), notify
//! requests, probes, and RDMA connection requests. An engine without RDMA replies to connection
//! requests with empty fields. Upstream serves one connection at a time, so any client can stall
//! it. This server handles many connections at once, each with a time limit.

mod client;
mod server;

pub use client::{RequestLimits, send_request};
pub(crate) use server::is_notify_accepted;
pub use server::{HandshakeHandler, HandshakeLimits, serve};
