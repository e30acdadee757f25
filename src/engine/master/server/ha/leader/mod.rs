//! The leader's part: which requests are processed and answered, and the streams of changes and
//! snapshots to standbys.

pub(in crate::server::ha) mod gate;
pub(in crate::server::ha) mod log_stream;
pub(in crate::server::ha) mod replication;
pub(in crate::server::ha) mod snapshot_stream;
pub(in crate::server::ha) mod standby_streams;
mod stream_part;
pub(in crate::server::ha) mod tail;
mod waiters;
