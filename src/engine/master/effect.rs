//! What the state requests from its environment, as values. The server performs them after it has released the state.

use crate::engine::alloc::OffsetAllocator;
use crate::engine::base::{ClientId, SegmentId};
use crate::engine::wire::TextBuf;

/// Something for the server to do or to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateEffect {
    /// A segment was mounted.
    Mounted {
        segment: SegmentId,
        name: TextBuf,
        client: ClientId,
        /// Size of the segment.
        bytes: u64,
    },
    /// A segment was removed, and with it every replica in it.
    Unmounted {
        segment: SegmentId,
        name: TextBuf,
        client: ClientId,
        reason: UnmountReason,
        /// No other segment has this name. If the client expired as well, the metadata service should drop what it stores under
        /// the name.
        last_of_name: bool,
    },
    /// A client expired: it sent no ping within its time to live. The `Unmounted` effects of its segments come first.
    ClientExpired { client: ClientId },
    /// A round of eviction ended.
    Evicted {
        objects: u64,
        /// Freed bytes, over all replicas.
        bytes: u64,
    },
}

/// Why a segment was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountReason {
    /// Its client requested it.
    Requested,
    /// Its grace period ended.
    GraceElapsed,
    ClientExpired,
    /// A newer segment replaced it, because its process restarted.
    Superseded {
        /// The client that mounted the newer segment.
        /// The client that mounted the other segment.
        by: ClientId,
    },
}

/// Effects in the order in which they occurred.
#[derive(Debug, Default)]
pub struct Effects {
    pub list: Vec<StateEffect>,
    /// Allocators to drop outside the lock: dropping a large segment's records takes a while.
    pub(super) waste: Vec<OffsetAllocator>,
}
