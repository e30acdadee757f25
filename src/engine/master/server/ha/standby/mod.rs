//! The standby's part: the copy of the state, and the stream from the leader that keeps it current.

pub(in crate::engine::master::server::ha) mod copy;
mod copy_stream;
mod deferred;
pub(in crate::engine::master::server::ha) mod follower;
