//! The actions that the state requests from its environment, represented as values. The server
//! performs them after unlocking the state.

use std::time::Duration;

use crate::alloc::OffsetAllocator;
use crate::memory_shortage::MemoryShortage;
use crate::missing_clients::MissingClients;
use mcctl_base::{ClientId, SegmentId};
use mcctl_wire::TextBuf;

/// An action for the server to perform, or an event to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateEffect {
    /// A segment was mounted.
    Mounted {
        segment: SegmentId,
        name: TextBuf,
        client: ClientId,
        /// Size of the segment in bytes.
        bytes: u64,
        /// How long the segment accepts no new objects, because it was mounted before.
        held_for: Duration,
        /// Number of replicas in other segments with this name, which belong to an earlier process
        /// of the node, unless two processes have the same name.
        earlier_replicas: u64,
    },
    /// A segment was removed, together with all replicas in it.
    Unmounted {
        segment: SegmentId,
        name: TextBuf,
        client: ClientId,
        reason: UnmountReason,
        /// True if no other segment has this name. If the client expired as well, the metadata
        /// service should drop the records that it stores under the name.
        last_of_name: bool,
        /// Number of replicas in the segment. They are lost.
        replicas: u32,
    },
    /// A client expired because it sent no ping within its time to live. The `Unmounted` effects
    /// for its segments come first.
    ClientExpired {
        client: ClientId,
        /// The name of one of its segments. A client without segments does not expire.
        name: Option<TextBuf>,
        segments: usize,
    },
    /// Ends of writes over other connections than those of their starts, which their client had
    /// started again ([`restarted_writes`](crate::restarted_writes)).
    SuspiciousEnd {
        /// The client of the last one.
        client: ClientId,
        /// Number of such ends since the start of the process.
        total: u64,
    },
    /// Restored segments wait for their clients, which have not called for some seconds.
    ClientsMissing(MissingClients),
    /// No restored segment waits for its client any longer. Follows `ClientsMissing`.
    NoClientMissing,
    /// Puts failed because no memory could be allocated.
    MemoryShortage(MemoryShortage),
    /// An eviction round ended.
    Evicted {
        objects: u64,
        /// Freed bytes, summed over all replicas.
        bytes: u64,
    },
}

/// Why a segment was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountReason {
    /// The client requested it.
    Requested,
    /// The grace period ended.
    GraceElapsed,
    ClientExpired,
    /// The segment was restored after a restart, and its client did not confirm within the time to
    /// live that it still holds the memory.
    Unconfirmed,
    /// A newer segment replaced it because the client's process restarted.
    Superseded {
        /// The client that mounted the newer segment.
        by: ClientId,
    },
}

impl UnmountReason {
    /// Whether the replicas in the segment are lost although no client asked for that.
    pub fn loses_replicas(self) -> bool {
        match self {
            UnmountReason::Requested | UnmountReason::GraceElapsed => false,
            UnmountReason::ClientExpired | UnmountReason::Unconfirmed | UnmountReason::Superseded { .. } => true,
        }
    }
}

/// Effects in the order in which they occurred.
#[derive(Debug, Default)]
pub struct Effects {
    pub list: Vec<StateEffect>,
    /// Allocators to drop after unlocking the state: dropping the records of a large segment takes
    /// time.
    pub(super) waste: Vec<OffsetAllocator>,
}
