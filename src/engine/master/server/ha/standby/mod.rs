//! The standby's part: the copy of the state, and the stream from the leader that keeps it current.

pub(in crate::engine::master::server::ha) mod connection;
pub(in crate::engine::master::server::ha) mod copy;
pub(in crate::engine::master::server::ha) mod copy_to_store;
pub(in crate::engine::master::server::ha) mod deferred;
pub(in crate::engine::master::server::ha) mod leader_stream;
pub(in crate::engine::master::server::ha) mod load;
pub(in crate::engine::master::server::ha) mod preparation;
