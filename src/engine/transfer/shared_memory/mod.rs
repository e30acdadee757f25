//! Shared memory between processes on the same host.
//!
//! A node's memory is a sealed memfd. A client on the same host receives it over a Unix socket,
//! maps it for reading, and copies objects from it. For writes, the client sends its own buffer,
//! and the node copies from it. Memory that is not in a memfd, and processes that do not support
//! this, use the engine's transport.
//!
//! Reads are valid only in the node's current *generation*, a number that the node shares with its
//! clients. The node increments it when it ends transfers ([`TransferEngine::end_inbound`]) and
//! when it deregisters memory. A client compares it before and after each read. A batch belongs to
//! the generation in which it was submitted, and fails in a later one.
//!
//! A write belongs to the era in which its connection was accepted, and has a deadline. The node
//! checks both before it copies. So a client that was stopped and resumes does not change memory
//! that it no longer owns.
//!
//! [`TransferEngine::end_inbound`]: crate::TransferEngine::end_inbound

mod bound_peer;
pub mod codec;
mod host;
mod link;
mod link_slot;
mod peer;
mod received;
mod serve;
mod server;
mod settings;
#[cfg(test)]
mod tests;
mod write_connection;
mod write_pool;

pub use host::SharedMemoryHost;
pub use peer::SharedMemoryPeer;
pub use server::SharedMemoryServer;
pub use settings::{SharedMemorySettings, SocketDirectoryError, may_share};
