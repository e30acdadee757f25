//! A digest of the state: the sum of one hash per segment, client, object, quarantined replica and
//! record of the metadata service.
//!
//! A state, and another one to which its records were applied, have the same digest. It depends on
//! what records describe, and neither on times (leases, ends of pins and quarantines) nor on the
//! order of tables. The hash is part of the data format: its values are stored in snapshots.

use crate::discard::DiscardedReplica;
use crate::eviction::index::PendingPin;
use crate::object::ReplicaRecord;
use crate::record::{NO_WRITER, ObjectContent, SegmentContent};
use crate::segment::MountedSegment;
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_election::ha::message::DigestPart;

/// The version of the digests that masters compare: only if both have the same one. Version 1
/// contained the writers of complete objects, and the checksums of objects that are written again.
/// Up to version 2, each digest contained all segments.
pub(super) const DIGEST_VERSION: u8 = 3;

const SEED: u64 = 0x243f_6a88_85a3_08d3;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of one element. Each number is mixed in with one multiplication.
#[derive(Clone, Copy)]
struct ElementHash(u64);

impl ElementHash {
    /// `kind` distinguishes the tables.
    fn new(kind: u64) -> ElementHash {
        ElementHash(SEED).number(kind)
    }

    #[inline]
    fn number(self, value: u64) -> ElementHash {
        let mixed = (self.0 ^ value).wrapping_mul(FACTOR);
        ElementHash(mixed ^ mixed >> 32)
    }

    fn bytes(mut self, bytes: &[u8]) -> ElementHash {
        self = self.number(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self = self.number(u64::from_le_bytes(word));
        }
        self
    }

    fn client(self, ClientId(high, low): ClientId) -> ElementHash {
        self.number(high).number(low)
    }

    fn replica(self, replica: &ReplicaRecord) -> ElementHash {
        self.number(replica.segment.0.into()).number(replica.offset).number(replica.id)
    }

    fn finish(self) -> u64 {
        self.number(FACTOR).0
    }
}

/// The hash of an object.
pub(super) fn object_digest(content: &ObjectContent<'_>, writing: bool, checksum: Option<u64>) -> u64 {
    let ObjectContent { slot, key, client, size, replicas, hard_pin, group, pin_ms, pending } = *content;
    let flags = [writing, checksum.is_some(), hard_pin, group.is_some(), pin_ms.is_some()];
    let flags = flags.into_iter().fold(1, |flags, set| flags << 1 | u64::from(set));
    let (kind, ttl_ms) = match pending {
        PendingPin::Keep => (0, 0),
        PendingPin::Set(ttl_ms) => (1, ttl_ms),
        PendingPin::Clear => (2, 0),
    };
    let hash = ElementHash::new(1).number(slot.0.into()).bytes(key).client(client).number(size).number(flags);
    let hash = hash.number(checksum.unwrap_or(0)).bytes(group.unwrap_or(&[])).number(kind).number(ttl_ms);
    replicas.iter().fold(hash, |hash, replica| hash.replica(&replica)).finish()
}

/// By how much the hash of an object in a snapshot is greater than that of the object in the state.
/// Earlier releases kept the writers of complete objects, and the checksums of objects that are
/// written again. For other objects, the result is 0.
pub(super) fn unkept_digest(saved: &ObjectContent<'_>, writing: bool, checksum: Option<u64>) -> u64 {
    let client = if writing { saved.client } else { NO_WRITER };
    let kept_checksum = checksum.filter(|_| !writing);
    if (client, kept_checksum) == (saved.client, checksum) {
        return 0;
    }
    let kept = ObjectContent { client, ..*saved };
    object_digest(saved, writing, checksum).wrapping_sub(object_digest(&kept, writing, kept_checksum))
}

/// The hash of a mounted segment.
pub(super) fn segment_digest(slot: SegmentSlot, mounted: &MountedSegment) -> u64 {
    let SegmentContent { id, name, base, size, te_endpoint, protocol, host_id } = SegmentContent::of(&mounted.segment);
    let hash = ElementHash::new(2).number(slot.0.into()).client(mounted.client);
    let hash = hash.number(id.0).number(id.1).bytes(name).number(base).number(size);
    let hash = hash.bytes(te_endpoint).bytes(protocol).bytes(host_id);
    let hash = hash.number(mounted.status.0.cast_unsigned().into());
    if mounted.held_until.is_some() { hash.number(1).finish() } else { hash.finish() }
}

/// The hash of a client.
pub(super) fn client_digest(client: ClientId, ok: bool) -> u64 {
    ElementHash::new(3).client(client).number(ok.into()).finish()
}

/// The hash of a quarantined replica.
pub(super) fn discard_digest(discarded: &DiscardedReplica) -> u64 {
    ElementHash::new(4).replica(&discarded.replica).number(discarded.bytes).finish()
}

impl MasterState {
    /// Returns the digest of the state. Scans all objects.
    pub fn digest(&self) -> u64 {
        let objects = (0..self.objects.slots()).map(ObjectSlot).filter(|at| self.objects.get(*at).is_some());
        let objects = objects.map(|at| {
            let saved = self.object_image(at, Mono::ZERO);
            object_digest(&saved.content, saved.writing, saved.checksum)
        });
        let discards = self.discards.iter().map(discard_digest);
        objects.chain(discards).fold(self.tables_digest(), u64::wrapping_add)
    }

    /// The digests of a part of the state: of these object slots, and of these segment slots with
    /// all clients and metadata records. The time depends only on the number of slots.
    pub fn part_digests(&self, part: &DigestPart) -> (u64, u64) {
        let objects = part.objects.slots(self.objects.slots()).map(ObjectSlot);
        let objects = objects.filter(|at| self.objects.get(*at).is_some());
        let objects = objects.map(|at| {
            let saved = self.object_image(at, Mono::ZERO);
            object_digest(&saved.content, saved.writing, saved.checksum)
        });
        let segments = self.segments_digest(part.segments.slots(self.segments.slots()));
        let tables = segments.wrapping_add(self.clients.digest()).wrapping_add(self.metadata.lock().digest());
        (objects.fold(0, u64::wrapping_add), tables)
    }

    fn segments_digest(&self, slots: std::ops::Range<u32>) -> u64 {
        let segments = slots.map(SegmentSlot).filter_map(|slot| Some(segment_digest(slot, self.segments.get(slot)?)));
        segments.fold(0, u64::wrapping_add)
    }

    /// Number of segment slots, free ones included.
    pub fn segment_slots(&self) -> u32 {
        self.segments.slots()
    }

    /// Number of object slots, free ones included.
    pub fn object_slots(&self) -> u32 {
        self.objects.slots()
    }

    /// The digest of the segments, the clients and the metadata service's records.
    pub(super) fn tables_digest(&self) -> u64 {
        let clients = self.clients.iter().map(|(id, client)| client_digest(id, client.ok));
        let clients = clients.fold(0, u64::wrapping_add);
        debug_assert_eq!(clients, self.clients.digest(), "each change of a client changes the sum");
        let segments = self.segments_digest(0..self.segments.slots());
        segments.wrapping_add(clients).wrapping_add(self.metadata.lock().digest())
    }
}
