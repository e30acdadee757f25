//! The encoding of the records. A record is a tag and its fields in the order of `MasterRecord`.

use crate::eviction::index::PendingPin;
use crate::object::ReplicaRecord;
use crate::record::codec::RecordWriter;
use crate::record::{DataFormat, MasterRecord, ObjectContent, ReplicaList, SegmentContent};
use mcctl_base::ClientId;

/// The first byte of each record. A number is never reused for another record.
pub(super) mod tag {
    pub(crate) const SEGMENT_MOUNTED: u8 = 1;
    pub(crate) const SEGMENT_CLOSED: u8 = 2;
    pub(crate) const SEGMENT_RETIRED: u8 = 3;
    pub(crate) const CLIENT_MARKED: u8 = 4;
    pub(crate) const CLIENT_EXPIRED: u8 = 5;
    pub(crate) const SEGMENT_HELD: u8 = 6;
    pub(crate) const SEGMENT_HOLD_ENDED: u8 = 7;
    pub(crate) const OBJECT_STARTED: u8 = 16;
    pub(crate) const OBJECT_REWRITTEN: u8 = 17;
    pub(crate) const OBJECT_COMPLETED: u8 = 18;
    pub(crate) const OBJECT_ERASED: u8 = 19;
    pub(crate) const OBJECT_DISCARDED: u8 = 20;
    pub(crate) const REPLICAS_DROPPED: u8 = 21;
    pub(crate) const DISCARD_RELEASED: u8 = 22;
    pub(crate) const PROCESS_TERMS: u8 = 23;
    pub(crate) const HOLD_ENDED: u8 = 24;
    pub(crate) const METADATA_PUT: u8 = 25;
    pub(crate) const METADATA_REMOVED: u8 = 26;
    pub(crate) const TABLE_SIZES: u8 = 32;
    pub(crate) const OBJECT_SAVED: u8 = 33;
    pub(crate) const DISCARD_SAVED: u8 = 34;
}

/// Which optional fields a record has.
pub(super) mod flag {
    pub(crate) const HARD_PIN: u8 = 1;
    pub(crate) const GROUP: u8 = 1 << 1;
    pub(crate) const PIN: u8 = 1 << 2;
    /// The soft pin will be set at the end of the write.
    pub(crate) const PENDING_SET: u8 = 1 << 3;
    pub(crate) const PENDING_CLEAR: u8 = 1 << 4;
    pub(crate) const WRITING: u8 = 1 << 5;
    pub(crate) const CHECKSUM: u8 = 1 << 6;
    /// From format 2 on: the client is that of the object before it in the payload, and is left
    /// out.
    pub(crate) const SAME_CLIENT: u8 = 1 << 7;
}

impl MasterRecord<'_> {
    /// Appends the record to a payload of this format. `last_client` is the client of the last
    /// object in the payload.
    #[inline]
    pub(super) fn encode(&self, format: DataFormat, last_client: &mut Option<ClientId>, out: &mut Vec<u8>) {
        let mut out = RecordWriter(out);
        let mut is_same = |client| last_client.replace(client) == Some(client) && format >= DataFormat::V2;
        match *self {
            MasterRecord::SegmentMounted { slot, client, ref segment } => {
                out.byte(tag::SEGMENT_MOUNTED);
                out.number(slot.0.into());
                out.client(client);
                put_segment(&mut out, segment);
            }
            MasterRecord::SegmentClosed { slot, remaining_ms } => {
                out.byte(tag::SEGMENT_CLOSED);
                out.number(slot.0.into());
                out.number(remaining_ms);
            }
            MasterRecord::SegmentHeld { slot, remaining_ms } => {
                out.byte(tag::SEGMENT_HELD);
                out.number(slot.0.into());
                out.number(remaining_ms);
            }
            MasterRecord::SegmentHoldEnded { slot } => {
                out.byte(tag::SEGMENT_HOLD_ENDED);
                out.number(slot.0.into());
            }
            MasterRecord::SegmentRetired { slot } => {
                out.byte(tag::SEGMENT_RETIRED);
                out.number(slot.0.into());
            }
            MasterRecord::ClientMarked { client, ok } => {
                out.byte(tag::CLIENT_MARKED);
                out.client(client);
                out.byte(ok.into());
            }
            MasterRecord::ClientExpired { client } => {
                out.byte(tag::CLIENT_EXPIRED);
                out.client(client);
            }
            MasterRecord::ObjectStarted(ref content) => {
                out.byte(tag::OBJECT_STARTED);
                put_object(&mut out, content, optional(flag::SAME_CLIENT, is_same(content.client)));
            }
            MasterRecord::ObjectRewritten { slot, client, pending } => {
                out.byte(tag::OBJECT_REWRITTEN);
                out.byte(pending_flag(pending));
                out.number(slot.0.into());
                out.client(client);
                put_pending(&mut out, pending);
            }
            MasterRecord::ObjectCompleted { slot, checksum } => {
                out.byte(tag::OBJECT_COMPLETED);
                out.byte(optional(flag::CHECKSUM, checksum.is_some()));
                out.number(slot.0.into());
                checksum.into_iter().for_each(|checksum| out.fixed(checksum));
            }
            MasterRecord::ObjectErased { slot } => {
                out.byte(tag::OBJECT_ERASED);
                out.number(slot.0.into());
            }
            MasterRecord::ObjectDiscarded { slot, remaining_ms } => {
                out.byte(tag::OBJECT_DISCARDED);
                out.number(slot.0.into());
                out.number(remaining_ms);
            }
            MasterRecord::ReplicasDropped { slot, kept } => {
                out.byte(tag::REPLICAS_DROPPED);
                out.number(slot.0.into());
                put_replicas(&mut out, kept);
            }
            MasterRecord::DiscardReleased { replica_id } => {
                out.byte(tag::DISCARD_RELEASED);
                out.number(replica_id);
            }
            MasterRecord::ProcessTerms { lease_ms, hold_ms, complete } => {
                out.byte(tag::PROCESS_TERMS);
                out.number(lease_ms);
                out.number(hold_ms);
                out.byte(complete.into());
            }
            MasterRecord::HoldEnded => out.byte(tag::HOLD_ENDED),
            MasterRecord::MetadataPut { key, value } => {
                out.byte(tag::METADATA_PUT);
                out.bytes(key);
                out.bytes(value);
            }
            MasterRecord::MetadataRemoved { key } => {
                out.byte(tag::METADATA_REMOVED);
                out.bytes(key);
            }
            MasterRecord::TableSizes { objects, segments, next_replica } => {
                out.byte(tag::TABLE_SIZES);
                out.number(objects.into());
                out.number(segments.into());
                out.number(next_replica);
            }
            MasterRecord::ObjectSaved { ref content, writing, checksum, lease_ms } => {
                out.byte(tag::OBJECT_SAVED);
                let same_client = optional(flag::SAME_CLIENT, is_same(content.client));
                let more = optional(flag::WRITING, writing) | optional(flag::CHECKSUM, checksum.is_some());
                put_object(&mut out, content, same_client | more);
                checksum.into_iter().for_each(|checksum| out.fixed(checksum));
                out.signed(lease_ms);
            }
            MasterRecord::DiscardSaved { replica, bytes, remaining_ms } => {
                out.byte(tag::DISCARD_SAVED);
                put_replica(&mut out, &replica);
                out.number(bytes);
                out.number(remaining_ms);
            }
        }
    }
}

pub(super) fn optional(flag: u8, present: bool) -> u8 {
    if present { flag } else { 0 }
}

fn pending_flag(pending: PendingPin) -> u8 {
    match pending {
        PendingPin::Keep => 0,
        PendingPin::Set(_) => flag::PENDING_SET,
        PendingPin::Clear => flag::PENDING_CLEAR,
    }
}

fn put_pending(out: &mut RecordWriter<'_>, pending: PendingPin) {
    if let PendingPin::Set(ttl_ms) = pending {
        out.number(ttl_ms);
    }
}

#[inline]
fn put_object(out: &mut RecordWriter<'_>, content: &ObjectContent<'_>, more_flags: u8) {
    let flags = optional(flag::HARD_PIN, content.hard_pin)
        | optional(flag::GROUP, content.group.is_some())
        | optional(flag::PIN, content.pin_ms.is_some())
        | pending_flag(content.pending);
    out.byte(flags | more_flags);
    out.number(content.slot.0.into());
    out.bytes(content.key);
    if more_flags & flag::SAME_CLIENT == 0 {
        out.client(content.client);
    }
    out.number(content.size);
    put_replicas(out, content.replicas);
    content.group.into_iter().for_each(|group| out.bytes(group));
    content.pin_ms.into_iter().for_each(|ms| out.number(ms));
    put_pending(out, content.pending);
}

#[inline]
fn put_replicas(out: &mut RecordWriter<'_>, replicas: ReplicaList<'_>) {
    match replicas {
        ReplicaList::Records { first, rest } => {
            out.number(rest.len() as u64 + 1);
            put_replica(out, first);
            rest.iter().for_each(|replica| put_replica(out, replica));
        }
        ReplicaList::Encoded { first, more, bytes } => {
            out.number(u64::from(more) + 1);
            put_replica(out, &first);
            out.0.extend_from_slice(bytes);
        }
    }
}

#[inline]
fn put_replica(out: &mut RecordWriter<'_>, replica: &ReplicaRecord) {
    out.number(replica.segment.0.into());
    out.number(replica.offset);
    out.number(replica.id);
}

fn put_segment(out: &mut RecordWriter<'_>, segment: &SegmentContent<'_>) {
    out.segment(segment.id);
    out.bytes(segment.name);
    out.number(segment.base);
    out.number(segment.size);
    out.bytes(segment.te_endpoint);
    out.bytes(segment.protocol);
    out.bytes(segment.host_id);
}
