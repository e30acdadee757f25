//! Snapshots: the state at one moment as chunks of records, written while the state goes on
//! changing.
//!
//! The small tables (segments, clients) are written when the snapshot begins, and the quarantined
//! replicas and the metadata service's records are copied. The replicas and the objects are written
//! in slices; the state is locked for one slice at a time. See [`SnapshotWalk`] for objects that
//! change in the meantime.

use std::time::Duration;

use crate::digest::{discard_digest, object_digest};
use crate::record::clock::{is_recorded_use, recorded_use_ms};
use crate::record::{DataFormat, MasterRecord, NO_WRITER, ObjectContent, ReplicaList, SegmentContent, remaining_ms};
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::snapshot_walk::SnapshotWalk;
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_wire::types::SegmentStatus;

/// Slots visited per slice. The state is locked once per slice, for about 15 µs.
pub(super) const SLOTS_PER_SLICE: u32 = 64;
/// Quarantined replicas written per slice.
const DISCARDS_PER_SLICE: usize = 512;
/// Records of the metadata service written per slice.
const METADATA_PER_SLICE: usize = 64;

/// What a snapshot contains, for its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Number of objects, including unfinished writes.
    pub objects: u64,
    /// The state's digest when the snapshot began ([`MasterState::digest`]).
    pub digest: u64,
}

/// The result of one slice of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    /// Continue, without writing anything.
    More,
    /// Write this chunk and continue.
    Chunk(Vec<u8>),
    Done(SnapshotSummary),
}

/// An object as it is saved.
pub(super) struct ObjectImage<'a> {
    pub content: ObjectContent<'a>,
    pub writing: bool,
    pub checksum: Option<u64>,
    /// Time until the end of the lease, in milliseconds. It may be negative.
    pub lease_ms: i64,
}

impl MasterState {
    /// Begins a snapshot of the state at `now`. Returns the number of the last change that it
    /// contains, or 0 if changes are not recorded. Returns `None`, and does nothing, if another
    /// snapshot is in progress or the current change has not been closed.
    pub fn begin_snapshot(&mut self, now: Mono, format: DataFormat) -> Option<u64> {
        let open_change = self.records.as_ref().is_some_and(|records| !records.is_empty());
        if self.walk.is_some() || open_change {
            return None;
        }
        let mut walk = SnapshotWalk::new(format, now, self.objects.slots());
        self.save_tables(now, self.objects.slots(), &mut walk);
        walk.discards = self.discards.iter().copied().collect();
        // The copies share the bytes. Later records must not come before earlier ones.
        walk.metadata = self.metadata.lock().image().into_records();
        walk.metadata.reverse();
        self.walk = Some(Box::new(walk));
        Some(self.records.as_ref().map_or(0, |records| records.sequence() - 1))
    }

    /// Continues the snapshot by one slice. Returns `None` if no snapshot is in progress.
    pub fn snapshot_slice(&mut self) -> Option<SnapshotStep> {
        self.snapshot_slots(SLOTS_PER_SLICE)
    }

    /// Continues the snapshot by up to `slots` object slots.
    pub(super) fn snapshot_slots(&mut self, slots: u32) -> Option<SnapshotStep> {
        let mut walk = self.walk.take()?;
        for discarded in walk.discards.split_off(walk.discards.len().saturating_sub(DISCARDS_PER_SLICE)) {
            walk.digest = walk.digest.wrapping_add(discard_digest(&discarded));
            let remaining_ms = remaining_ms(walk.begun, discarded.until);
            walk.add(&MasterRecord::DiscardSaved { replica: discarded.replica, bytes: discarded.bytes, remaining_ms });
        }
        let before = walk.metadata.len();
        while before - walk.metadata.len() < METADATA_PER_SLICE && !walk.has_chunk() {
            let Some((key, value)) = walk.metadata.pop() else { break };
            walk.add(&MasterRecord::MetadataPut { key: &key, value: &value });
        }
        let slots = if walk.discards.is_empty() && walk.metadata.is_empty() { slots } else { 0 };
        let end = walk.end.min(walk.next.saturating_add(slots));
        while walk.next < end && !walk.has_chunk() {
            let at = ObjectSlot(walk.next);
            walk.next += 1;
            if !walk.is_claimed(at) && self.objects.get(at).is_some() {
                self.save_object(at, &mut walk);
            }
        }
        let is_last = walk.next >= walk.end && walk.discards.is_empty() && walk.metadata.is_empty();
        let step = match walk.pop_chunk(is_last) {
            Some(chunk) => SnapshotStep::Chunk(chunk),
            None if is_last => {
                return Some(SnapshotStep::Done(SnapshotSummary { objects: walk.objects, digest: walk.digest }));
            }
            None => SnapshotStep::More,
        };
        self.walk = Some(walk);
        Some(step)
    }

    /// Ends the snapshot in progress, if there is one, without completing it.
    pub fn cancel_snapshot(&mut self) {
        self.walk = None;
    }

    /// Saves the object's image for the snapshot in progress. For use before the object changes.
    #[inline]
    pub(super) fn preserve(&mut self, at: ObjectSlot) {
        if self.walk.is_some() {
            self.preserve_for_snapshot(at);
        }
    }

    /// Excludes an object that is created from the snapshot in progress: its slot was free when the
    /// snapshot began.
    #[inline]
    pub(super) fn claim_new(&mut self, at: ObjectSlot) {
        if let Some(walk) = self.walk.as_mut() {
            walk.claim(at);
        }
    }

    #[cold]
    fn preserve_for_snapshot(&mut self, at: ObjectSlot) {
        let Some(mut walk) = self.walk.take() else { return };
        if walk.claim(at) && self.objects.get(at).is_some() {
            self.save_object(at, &mut walk);
        }
        self.walk = Some(walk);
    }

    fn save_object(&self, at: ObjectSlot, walk: &mut SnapshotWalk) {
        let ObjectImage { content, writing, checksum, lease_ms } = self.object_image(at, walk.begun);
        walk.digest = walk.digest.wrapping_add(object_digest(&content, writing, checksum));
        walk.objects += 1;
        walk.add(&MasterRecord::ObjectSaved { content, writing, checksum, lease_ms });
    }

    /// The object as it is saved. Durations count from `from`.
    pub(super) fn object_image(&self, at: ObjectSlot, from: Mono) -> ObjectImage<'_> {
        let object = &self.objects[at];
        let pin = object.extra.as_ref().map(|extra| extra.soft_pin);
        let content = ObjectContent {
            slot: at,
            key: self.objects.key(at),
            client: if object.eviction.is_writing() { self.owners.id(object.owner) } else { NO_WRITER },
            size: object.size,
            replicas: ReplicaList::Records { first: &object.replica, rest: object.more_replicas() },
            hard_pin: object.eviction.hard_pin(),
            group: object.group().map(|group| self.groups.name(group)),
            pin_ms: object.soft_pin().map(|end| remaining_ms(from, end)),
            pending: pin.map(|pin| pin.pending()).unwrap_or_default(),
        };
        let lease = object.eviction.lease_until();
        let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        let lease_ms = if is_recorded_use(lease) {
            recorded_use_ms(lease, from)
        } else {
            ms(lease.since(from)) - ms(from.since(lease))
        };
        ObjectImage { content, writing: object.eviction.is_writing(), checksum: object.eviction.checksum(), lease_ms }
    }

    /// Adds the segments and clients, and a table of objects with `objects` slots.
    pub(super) fn save_tables(&self, now: Mono, objects: u32, walk: &mut SnapshotWalk) {
        walk.add(&MasterRecord::TableSizes {
            objects,
            segments: self.segments.slots(),
            next_replica: self.segments.next_replica(),
        });
        // A segment that waits to be retired belongs to a client that has expired. Such clients
        // come first, because the same client may have registered again.
        for is_condemned in [true, false] {
            let mut owners: Vec<ClientId> = Vec::new();
            for slot in (0..self.segments.slots()).map(SegmentSlot) {
                let Some(mounted) = self.segments.get(slot) else { continue };
                if (mounted.status == SegmentStatus::UNMOUNTING) != is_condemned {
                    continue;
                }
                let segment = SegmentContent::of(&mounted.segment);
                walk.add(&MasterRecord::SegmentMounted { slot, client: mounted.client, segment });
                if let Some(until) = mounted.held_until {
                    walk.add(&MasterRecord::SegmentHeld { slot, remaining_ms: remaining_ms(now, until) });
                }
                if is_condemned && owners.last() != Some(&mounted.client) {
                    owners.push(mounted.client);
                }
                if let Some(until) = mounted.grace_until.filter(|_| !is_condemned) {
                    walk.add(&MasterRecord::SegmentClosed { slot, remaining_ms: remaining_ms(now, until) });
                }
            }
            owners.sort_unstable();
            owners.dedup();
            owners.into_iter().for_each(|client| walk.add(&MasterRecord::ClientExpired { client }));
        }
        walk.add(&self.process_record(now));
        for (client, record) in self.clients.iter() {
            walk.add(&MasterRecord::ClientMarked { client, ok: record.ok });
        }
        walk.digest = self.tables_digest();
    }
}
