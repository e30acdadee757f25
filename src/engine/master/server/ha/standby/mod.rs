//! The standby's part: the copy of the state, and the stream from the leader that keeps it current.

pub(in crate::server::ha) mod connection;
pub(in crate::server::ha) mod copy;
pub(in crate::server::ha) mod copy_to_store;
pub(in crate::server::ha) mod deferred;
pub(in crate::server::ha) mod leader_stream;
pub(in crate::server::ha) mod load;
pub(in crate::server::ha) mod preparation;
