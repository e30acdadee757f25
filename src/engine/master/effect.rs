//! What the state wants to happen outside, as values: the shell performs them after it let go of the state.

use crate::engine::alloc::OffsetAllocator;
use crate::engine::base::{ClientId, SegmentId};
use crate::engine::wire::TextBuf;

/// Something for the shell to do or to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A segment is there.
    Mounted {
        /// Which.
        segment: SegmentId,
        /// Its name.
        name: TextBuf,
        /// Whose.
        client: ClientId,
        /// Its length, bytes.
        bytes: u64,
    },
    /// A segment is gone, and with it every replica in it.
    Unmounted {
        /// Which.
        segment: SegmentId,
        /// Its name.
        name: TextBuf,
        /// Whose it was.
        client: ClientId,
        /// Why.
        reason: Departure,
        /// No segment of this name is left. When the client is gone, too (`Expired`), so should be what the metadata service
        /// keeps under the name.
        last_of_name: bool,
    },
    /// A client is gone: nothing was heard of it for its time to live. Its segments' `Unmounted` came before.
    ClientExpired {
        /// Who.
        client: ClientId,
    },
    /// A round of eviction ended.
    Evicted {
        /// Objects.
        objects: u64,
        /// Bytes.
        bytes: u64,
    },
}

/// Why a segment went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its client asked for it.
    Asked,
    /// Its grace period is over.
    GraceOver,
    /// Its client is gone.
    Expired,
    /// Another segment claimed its place: its process was restarted.
    Superseded {
        /// The client that mounted the other segment.
        by: ClientId,
    },
}

/// Effects in the order in which they arose.
#[derive(Debug, Default)]
pub struct Effects {
    /// To be done.
    pub list: Vec<Effect>,
    /// To be dropped where nobody waits: a large segment's records take a while.
    pub(super) waste: Vec<OffsetAllocator>,
}
