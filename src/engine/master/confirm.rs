//! Restored segments: after a restart, the master cannot determine which clients still hold the
//! memory that its records describe.
//!
//! Until a segment's client confirms it, its objects cannot be read and it accepts no new objects.
//! The objects are kept, so a put of such a key is refused. A segment that is not confirmed within
//! a client's time to live is dropped with its objects. A call confirms as follows:
//!
//! * `Ping` confirms all segments of the client, and the response is OK. Every process chooses its
//!   client id at random, so the id proves that the process is the same. It also still holds each
//!   of these segments:
//!     * A client whose `UnmountSegment` fails because the master is away keeps the segment mounted
//!       and its memory registered. This is true of upstream (`Client::UnmountSegment` in
//!       `mooncake-store/src/client_service.cpp`) and of `store::segment_manager`.
//!     * A client whose `UnmountSegment` succeeded no longer has the segment, and neither do the
//!       records: the response to this call waits, in every mode, until the record is durable
//!       ([`ClosedChange::needs_sync`]).
//!     * A node of this project stops its pings before it unmounts at its end. Upstream's client
//!       stops them afterwards (`Client::~Client`), so the last pings of a client that closes while
//!       the master restarts may confirm segments. The memory is registered until the client has
//!       closed. Then transfers to it fail, and the client expires, as if its process had been
//!       killed.
//! * The ping of a client that had not registered before the restart (no `ReMountSegment` since its
//!   first mount, or superseded) confirms nothing. The response is "remount".
//! * `ReMountSegment` confirms the listed segments that are equal in every field, as upstream
//!   requires. A segment that it does not list is not confirmed by later pings. A segment with the
//!   same id but another description replaces the restored one.
//! * `MountSegment` confirms one segment in the same way. `GracefulUnmountSegment` by the segment's
//!   client confirms it until the grace period ends.
//!
//! One case cannot be known. If a `MountSegment` was recorded but its response was lost, a client
//! may have freed the memory and still send pings for other segments. Its node then refuses
//! transfers to that memory. This can happen without a restart, too.
//!
//! [`ClosedChange::needs_sync`]: crate::record::buffer::ClosedChange

use std::time::Duration;

use crate::effect::{Effects, UnmountReason};
use crate::record::MasterRecord;
use crate::slots::SegmentSlot;
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_wire::types::SegmentStatus;

/// Unconfirmed segments dropped per slice.
const SEGMENTS_PER_SLICE: usize = 32;

impl MasterState {
    /// Confirms all segments of a restored client.
    pub(super) fn confirm_client(&mut self, now: Mono, client: ClientId) {
        let Some(record) = self.clients.get_mut(client) else { return };
        record.restored = false;
        for slot in record.segments.clone() {
            self.confirm_segment(now, slot);
        }
    }

    /// Passes up to `limit` registered clients to `visit`, with the time since each one's last
    /// call. The first `cursor` is `None`. Returns the next one, or `None` at the end.
    pub fn recent_calls(
        &self,
        now: Mono,
        cursor: Option<(Mono, ClientId)>,
        limit: usize,
        visit: &mut dyn FnMut(ClientId, Duration),
    ) -> Option<(Mono, ClientId)> {
        let mut last = None;
        let mut count = 0;
        for (deadline, client) in self.clients.deadlines_behind(cursor, limit) {
            last = Some((deadline, client));
            count += 1;
            if self.clients.get(client).is_some_and(|record| record.ok && !record.restored) {
                visit(client, (now + self.policy.client_ttl).since(deadline));
            }
        }
        last.filter(|_| count == limit)
    }

    /// Gives all clients of a master that has just taken over until `deadline` to call, if that is
    /// later than their time to live: a client whose call hangs at the previous leader sends no
    /// ping until its request times out.
    pub fn wait_for_clients(&mut self, deadline: Mono) {
        if self.confirm_until.is_some_and(|until| until < deadline) {
            self.confirm_until = Some(deadline);
            self.clients.restore_all(deadline);
        }
    }

    /// Confirms a restored client that called another master at `last`, if that is less than a
    /// client's time to live ago.
    pub fn confirm_recent(&mut self, now: Mono, client: ClientId, last: Mono) {
        let is_recent = last + self.policy.client_ttl > now;
        if is_recent && self.clients.get(client).is_some_and(|record| record.ok && record.restored) {
            self.confirm_client(now, client);
            if let Some(record) = self.clients.get_mut(client) {
                record.called_before = Some(last);
            }
        }
    }

    /// Confirms a segment, if it is not confirmed yet. A segment whose grace period has ended is
    /// about to be retired, and its client may have freed the memory.
    pub(super) fn confirm_segment(&mut self, now: Mono, slot: SegmentSlot) {
        let has_ended = |until: Option<Mono>| until.is_some_and(|until| until <= now);
        if self.segments.get(slot).is_none_or(|mounted| mounted.confirmed || has_ended(mounted.grace_until)) {
            return;
        }
        self.segments.confirm(slot);
        if self.open_at.is_none() {
            self.segments.open_confirmed(slot);
        }
    }

    /// Opens the confirmed segments for new objects, if it is time.
    pub(super) fn open_restored(&mut self, now: Mono) {
        if self.open_at.is_none_or(|at| at > now) {
            return;
        }
        self.open_at = None;
        self.record(&MasterRecord::HoldEnded);
        (0..self.segments.slots()).for_each(|slot| self.segments.open_confirmed(SegmentSlot(slot)));
    }

    /// Drops some segments that were not confirmed in time. Returns true if there may be more.
    /// Calls that arrived before `answered_until` have been answered.
    pub(super) fn drop_unconfirmed_slice(&mut self, answered_until: Mono, out: &mut Effects) -> bool {
        if self.confirm_until.is_none_or(|until| until > answered_until) {
            return false;
        }
        // The segments of expired clients are retired as such.
        let is_unconfirmed = |slot: &SegmentSlot| {
            let mounted = self.segments.get(*slot);
            mounted.is_some_and(|mounted| !mounted.confirmed && mounted.status != SegmentStatus::UNMOUNTING)
        };
        let slots = (0..self.segments.slots()).map(SegmentSlot);
        let dropped: Vec<SegmentSlot> = slots.filter(is_unconfirmed).take(SEGMENTS_PER_SLICE).collect();
        for slot in &dropped {
            self.retire(*slot, UnmountReason::Unconfirmed, out);
        }
        let more = dropped.len() == SEGMENTS_PER_SLICE;
        if !more {
            self.confirm_until = None;
        }
        more
    }
}
