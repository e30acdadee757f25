//! Detects that an answer of the master no longer holds, although its lease has not ended.
//!
//! The master's answers to a lookup and to the start of a put name memory of nodes. They hold as
//! long as the master keeps its records, and as long as the node keeps its memory mounted. A master
//! that restarts without its records assigns the memory to other objects. It also closes its
//! connections. So an answer holds until the connection over which it came is lost.
//!
//! Before fences are compared, [`StoreClient::check_connection`] queries the connection. The
//! client's runtime may not have noticed the loss yet, for example because its thread has
//! transferred bytes in the meantime.
//!
//! If a master's host loses power, nothing reports that the connection is lost. The client then
//! notices it only at the next call.

use crate::StoreClient;
use mcctl_sys::env::Env;

/// The time before a call to the master. Two of them are equal if answers from the first one still
/// held at the last [`StoreClient::check_connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MasterFence {
    /// Number of connections to the master that were lost before.
    losses: u64,
    /// How often this process has mounted its own memory again.
    era: u64,
}

impl<E: Env> StoreClient<E> {
    /// Returns the fence for answers of the master from now on.
    pub(crate) fn fence(&self) -> MasterFence {
        MasterFence { losses: self.inner.master.0.losses(), era: self.engine().era() }
    }
}
