//! The records of a master's changes. The master decides each change once; its records state the
//! result, so that another instance needs no clock, no random numbers and no allocator to repeat
//! it.
//!
//! A payload is one byte with the data format, followed by the records of one change ([`payload`]).
//! Objects and segments are named by their slots: the record that creates one contains the number.
//! A time is recorded as the duration until then, in milliseconds, rounded up. The frame around a
//! payload has the wall-clock time. A quarantine counts in full from the restart, because the wall
//! clock may have been set.
//!
//! The records of the metadata service are a part of the state, and their changes are records, too.
//!
//! Read leases, counters, random numbers and the progress of evictions are not recorded. A snapshot
//! consists of the same records, and of three that occur only there (`TableSizes`, `ObjectSaved`,
//! `DiscardSaved`).

use bytes::Bytes;

use crate::eviction::index::PendingPin;
use crate::object::ReplicaRecord;
use crate::record::codec::RecordReader;
use crate::slots::{ObjectSlot, SegmentSlot};
use mcctl_base::{ClientId, Mono, SegmentId};
use mcctl_wire::TextBuf;
use mcctl_wire::types::Segment;

pub mod buffer;
pub mod codec;

pub(super) mod payload;

pub(super) mod clock;

mod decode;
mod encode;

pub(super) use decode::read_payload;

/// A version of the records' encoding. A build reads all of them. It writes [`DATA_FORMAT`], unless
/// the operator chooses another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataFormat {
    #[default]
    V1 = 1,
    /// An object whose client is that of the object before it in the payload does not repeat the
    /// client's id. This saves 16 bytes per such object in batches and snapshots.
    V2 = 2,
    /// Like V2, and a payload may contain records of the metadata service. A payload that contains
    /// one has this format in every case.
    V3 = 3,
}

/// The format that a master writes by default. Earlier releases can read it. Records of the
/// metadata service always have [`DataFormat::V3`].
pub const DATA_FORMAT: DataFormat = DataFormat::V1;
/// The newest format that this build reads and writes.
pub const DATA_FORMAT_NEWEST: DataFormat = DataFormat::V3;

impl DataFormat {
    /// The format with this number, if this build knows it.
    pub fn from_number(number: u8) -> Option<DataFormat> {
        match number {
            1 => Some(DataFormat::V1),
            2 => Some(DataFormat::V2),
            3 => Some(DataFormat::V3),
            _ => None,
        }
    }

    /// The number at the beginning of a payload.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// One change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MasterRecord<'a> {
    /// A segment was mounted. The client exists from then on.
    SegmentMounted { slot: SegmentSlot, client: ClientId, segment: SegmentContent<'a> },
    /// The segment accepts no new objects. It will be unmounted after `remaining_ms`.
    SegmentClosed { slot: SegmentSlot, remaining_ms: u64 },
    /// The segment was mounted again. It accepts no new objects for `remaining_ms`.
    SegmentHeld { slot: SegmentSlot, remaining_ms: u64 },
    /// The segment accepts new objects from now on, unless it is being unmounted.
    SegmentHoldEnded { slot: SegmentSlot },
    /// The segment was removed. Records may still refer to its slot.
    SegmentRetired { slot: SegmentSlot },
    /// The client has registered its segments (`ok`), or must do so again. The client exists from
    /// then on.
    ClientMarked { client: ClientId, ok: bool },
    /// The client was removed. Its segments can no longer be read, and will be retired.
    ClientExpired { client: ClientId },
    /// A write of a new object started.
    ObjectStarted(ObjectContent<'a>),
    /// A write started that replaces the value in the same memory.
    ObjectRewritten { slot: ObjectSlot, client: ClientId, pending: PendingPin },
    /// The write ended. The pending change of the soft pin takes effect.
    ObjectCompleted { slot: ObjectSlot, checksum: Option<u64> },
    /// The object was removed and its memory freed.
    ObjectErased { slot: ObjectSlot },
    /// The object was removed. Its memory is quarantined for `remaining_ms`.
    ObjectDiscarded { slot: ObjectSlot, remaining_ms: u64 },
    /// All replicas except `kept` were freed.
    ReplicasDropped { slot: ObjectSlot, kept: ReplicaList<'a> },
    /// A quarantined replica was freed.
    DiscardReleased { replica_id: u64 },
    /// What is true of the process that records. Leases that it or an earlier process granted last
    /// at most `lease_ms`. Restored segments accept no new objects for `hold_ms`. If `complete`,
    /// the durable records contain everything that was acknowledged: the process sends each
    /// response only when its records are durable, or it has sent the last one.
    ProcessTerms { lease_ms: u64, hold_ms: u64, complete: bool },
    /// Restored segments accept new objects from now on.
    HoldEnded,
    /// A record of the metadata service was created or replaced.
    MetadataPut { key: &'a [u8], value: &'a [u8] },
    /// A record of the metadata service was removed.
    MetadataRemoved { key: &'a [u8] },
    /// Snapshot only: the number of slots of the object and segment tables, and the next replica
    /// id.
    TableSizes { objects: u32, segments: u32, next_replica: u64 },
    /// Snapshot only: an object. `lease_ms` is the time until the end of its lease; it may be
    /// negative.
    ObjectSaved { content: ObjectContent<'a>, writing: bool, checksum: Option<u64>, lease_ms: i64 },
    /// Snapshot only: a quarantined replica.
    DiscardSaved { replica: ReplicaRecord, bytes: u64, remaining_ms: u64 },
}

impl MasterRecord<'_> {
    /// Whether it belongs to the metadata service.
    #[inline]
    pub(super) fn is_of_metadata(&self) -> bool {
        matches!(self, MasterRecord::MetadataPut { .. } | MasterRecord::MetadataRemoved { .. })
    }
}

/// A client's description of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentContent<'a> {
    pub id: SegmentId,
    pub name: &'a [u8],
    pub base: u64,
    pub size: u64,
    pub te_endpoint: &'a [u8],
    pub protocol: &'a [u8],
    pub host_id: &'a [u8],
}

impl<'a> SegmentContent<'a> {
    /// Borrows the description of a mounted segment.
    pub(crate) fn of(segment: &'a Segment) -> SegmentContent<'a> {
        SegmentContent {
            id: segment.id,
            name: &segment.name.0,
            base: segment.base,
            size: segment.size,
            te_endpoint: &segment.te_endpoint.0,
            protocol: &segment.protocol.0,
            host_id: &segment.host_id.0,
        }
    }

    /// Copies the description, for a segment table.
    pub(crate) fn to_segment(self) -> Segment {
        let text = |bytes: &[u8]| TextBuf(Bytes::copy_from_slice(bytes));
        Segment {
            id: self.id,
            name: text(self.name),
            base: self.base,
            size: self.size,
            te_endpoint: text(self.te_endpoint),
            protocol: text(self.protocol),
            host_id: text(self.host_id),
        }
    }
}

/// Stands for the writer of a complete object in a snapshot. The snapshots of earlier releases
/// contain its id.
pub(super) const NO_WRITER: ClientId = ClientId(0, 0);

/// What a new object consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectContent<'a> {
    pub slot: ObjectSlot,
    pub key: &'a [u8],
    /// The client that writes the value. [`NO_WRITER`] for a complete object.
    pub client: ClientId,
    /// Requested size in bytes.
    pub size: u64,
    pub replicas: ReplicaList<'a>,
    pub hard_pin: bool,
    pub group: Option<&'a [u8]>,
    /// Time until the end of the soft pin, if there is one.
    pub pin_ms: Option<u64>,
    /// The change of the soft pin at the end of the write.
    pub pending: PendingPin,
}

/// The replicas of an object, at least one, in the state or in a payload. In a payload, they have
/// no allocator tickets.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplicaList<'a> {
    Records {
        first: &'a ReplicaRecord,
        rest: &'a [ReplicaRecord],
    },
    /// The first replica, and the others as they are encoded. Most objects have one replica, which
    /// is decoded once.
    Encoded {
        first: ReplicaRecord,
        /// Number of replicas in `bytes`.
        more: u32,
        bytes: &'a [u8],
    },
}

impl<'a> ReplicaList<'a> {
    /// The first replica. The ticket of a replica from a payload is 0.
    #[inline]
    pub(crate) fn first(self) -> ReplicaRecord {
        match self {
            ReplicaList::Records { first, .. } => *first,
            ReplicaList::Encoded { first, .. } => first,
        }
    }

    /// Returns true if there is only one replica.
    #[inline]
    pub(crate) fn is_single(self) -> bool {
        match self {
            ReplicaList::Records { rest, .. } => rest.is_empty(),
            ReplicaList::Encoded { more, .. } => more == 0,
        }
    }

    /// Iterates over the replicas after the first.
    fn rest(self) -> impl Iterator<Item = ReplicaRecord> + use<'a> {
        let rest: &[ReplicaRecord] = if let ReplicaList::Records { rest, .. } = self { rest } else { &[] };
        let bytes: &[u8] = if let ReplicaList::Encoded { bytes, .. } = self { bytes } else { &[] };
        let mut reader = RecordReader::new(bytes);
        let encoded = std::iter::from_fn(move || decode::replica(&mut reader).ok());
        rest.iter().copied().chain(encoded)
    }

    /// Iterates over the replicas, first replica first.
    pub(crate) fn iter(self) -> impl Iterator<Item = ReplicaRecord> + use<'a> {
        std::iter::once(self.first()).chain(self.rest())
    }

    /// Copies the replicas after the first.
    #[inline(always)]
    pub(crate) fn rest_to_vec(self) -> Vec<ReplicaRecord> {
        match self {
            _ if self.is_single() => Vec::new(),
            ReplicaList::Records { rest, .. } => rest.to_vec(),
            ReplicaList::Encoded { .. } => self.rest().collect(),
        }
    }
}

impl PartialEq for ReplicaList<'_> {
    fn eq(&self, other: &Self) -> bool {
        let place = |replica: ReplicaRecord| (replica.segment, replica.offset, replica.id);
        self.iter().map(place).eq(other.iter().map(place))
    }
}

impl Eq for ReplicaList<'_> {}

/// The recorded duration from `now` to `until`.
pub(super) fn remaining_ms(now: Mono, until: Mono) -> u64 {
    u64::try_from(until.since(now).as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
