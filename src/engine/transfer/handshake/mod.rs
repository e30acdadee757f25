//! The handshake port: one small request and one reply per connection, for what the data plane cannot carry.
//!
//! Metadata (our segment document, where there is no metadata service), notify, probe, and RDMA's connection requests, which an
//! engine without RDMA answers with empty fields. Upstream serves one connection at a time and can be stalled by any of them; we
//! serve many, each within its time.

mod ask;
mod serve;

pub use ask::{AskLimits, ask};
pub(in crate::engine::transfer) use serve::was_taken;
pub use serve::{Answers, ServeLimits, serve};
