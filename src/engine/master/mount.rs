//! Mounting, remounting and unmounting of segments, and the lifetime of the clients that own them.
//!
//! **Conflicting segments.** A node that was killed and restarts immediately mounts new segments
//! with new ids and a new client id. The old segments remain until their client's time to live has
//! passed. The old process's memory is gone, but its segments have the same endpoint. A reader of
//! an old object would be sent to the new process and read unrelated bytes. Memory in an address
//! range that is mounted twice would be allocated twice. Therefore, two segments with the same
//! endpoint conflict in two cases:
//!
//! * Their address ranges overlap. The newer segment wins, regardless of which client mounted it: a
//!   range belongs to one mapping in one process.
//! * They have the same name, which includes a port, but different clients, and the newer one was
//!   mounted by `MountSegment`. A process sends `MountSegment` when it starts; a client that lost
//!   contact with the master sends `ReMountSegment`. The older client is considered dead, because
//!   only one process can listen on a port.
//!
//! The older segment is retired immediately, and its client must remount. If that client is still
//! alive (two clients in one process with the same configured name), the response to its next ping
//! is "remount". It then remounts with `ReMountSegment`, alongside the newer segment. Upstream
//! keeps both segments until the old client's time to live has passed. One client may mount many
//! segments under one name, as upstream's client does for large memory sizes. These segments never
//! conflict.
//!
//! Segments that were restored after a restart must be confirmed first: see `confirm`. Segments
//! that are mounted again accept no objects at first: see `hold`.

use std::time::Duration;

use crate::client::ClientRecord;
use crate::effect::{Effects, StateEffect, UnmountReason};
use crate::record::buffer::RepeatedCall;
use crate::record::{MasterRecord, SegmentContent};
use crate::refusal::MasterRefusal;
use crate::segment::{NAME_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::slots::SegmentSlot;
use crate::state::MasterState;
use mcctl_base::{ClientId, HostPort, Mono, SegmentId};
use mcctl_wire::TextBuf;
use mcctl_wire::types::{ClientStatus, Segment, SegmentStatus};

impl MasterState {
    /// Records that a client is alive. The returned status tells it whether to (re)mount its
    /// segments.
    pub fn ping(&mut self, now: Mono, client: ClientId) -> ClientStatus {
        let deadline = now + self.policy.client_ttl;
        self.clients.refresh(client, deadline);
        match self.clients.get(client) {
            Some(ClientRecord { ok: true, restored, .. }) => {
                if *restored {
                    self.confirm_client(now, client);
                }
                ClientStatus::OK
            }
            _ => ClientStatus::NEED_REMOUNT,
        }
    }

    /// Mounts a client's segment. Repeating the call is harmless.
    ///
    /// # Errors
    /// `BadArguments`, `SegmentBusy`, `Full`.
    pub fn mount(
        &mut self,
        now: Mono,
        segment: Segment,
        client: ClientId,
        out: &mut Effects,
    ) -> Result<(), MasterRefusal> {
        check_segment(&segment)?;
        if let Some((slot, mounted)) = self.segments.find(segment.id) {
            if mounted.status != SegmentStatus::OK {
                return Err(MasterRefusal::SegmentBusy);
            }
            let confirmed = mounted.confirmed;
            let matches = mounted.client == client && mounted.segment == segment;
            if confirmed || matches {
                self.confirm_segment(now, slot);
                self.clients.refresh(client, now + self.policy.client_ttl);
                self.repeat(RepeatedCall { needs_sync: true, needs_standby: true });
                return Ok(());
            }
            self.supersede(slot, client, out);
        }
        if self.clients.is_full_for(client) || self.segments.is_full() {
            return Err(MasterRefusal::Full);
        }
        self.add_segment(now, segment, client, MountKind::New, out);
        Ok(())
    }

    /// Mounts all of a client's segments and marks the client as ok. A segment that is not mounted
    /// yet was mounted before, and accepts no new objects at first.
    ///
    /// # Errors
    /// `BadArguments` for a segment that is already mounted with other properties or by another
    /// client; `SegmentBusy`; `Full`.
    pub fn remount(
        &mut self,
        now: Mono,
        segments: Vec<Segment>,
        client: ClientId,
        out: &mut Effects,
    ) -> Result<(), MasterRefusal> {
        if self.clients.get(client).is_some_and(|client| client.ok && !client.restored) {
            self.clients.refresh(client, now + self.policy.client_ttl);
            self.repeat(RepeatedCall { needs_sync: true, needs_standby: true });
            return Ok(());
        }
        if segments.iter().map(text_bytes).sum::<usize>() > REMOUNT_TEXT_BYTES_MAX {
            return Err(MasterRefusal::BadArguments);
        }
        for segment in &segments {
            check_segment(segment)?;
            if let Some((_, mounted)) = self.segments.find(segment.id) {
                if mounted.confirmed && (mounted.client != client || mounted.segment != *segment) {
                    return Err(MasterRefusal::BadArguments);
                }
                if mounted.status == SegmentStatus::UNMOUNTING {
                    return Err(MasterRefusal::SegmentBusy);
                }
            }
        }
        if self.clients.is_full_for(client) {
            return Err(MasterRefusal::Full);
        }
        for segment in segments {
            if let Some((slot, mounted)) = self.segments.find(segment.id) {
                // The list may contain an id twice. The first description counts.
                if mounted.confirmed || mounted.client == client && mounted.segment == segment {
                    self.confirm_segment(now, slot);
                    continue;
                }
                // The segment was restored, and its id now belongs to other memory.
                self.supersede(slot, client, out);
            }
            if self.segments.is_full() {
                return Err(MasterRefusal::Full);
            }
            self.add_segment(now, segment, client, MountKind::Remount, out);
        }
        let record = self.clients.admit(client, now + self.policy.client_ttl);
        // The client has named all its segments. A later ping confirms no others.
        record.restored = false;
        self.mark_client(client, true);
        Ok(())
    }

    /// Sets whether the client has registered its segments.
    fn mark_client(&mut self, client: ClientId, ok: bool) {
        if self.clients.mark(client, ok) {
            self.record(&MasterRecord::ClientMarked { client, ok });
        }
    }

    /// Retires a segment because client `by` mounts one that replaces it. The segment's client must
    /// remount.
    fn supersede(&mut self, slot: SegmentSlot, by: ClientId, out: &mut Effects) {
        if let Some(owner) = self.segments.get(slot).map(|mounted| mounted.client).filter(|owner| *owner != by) {
            self.mark_client(owner, false);
        }
        self.retire(slot, UnmountReason::Superseded { by }, out);
    }

    fn add_segment(&mut self, now: Mono, segment: Segment, client: ClientId, kind: MountKind, out: &mut Effects) {
        let rivals: Vec<SegmentSlot> = self
            .segments
            .of_endpoint(&segment.te_endpoint.0)
            .iter()
            .copied()
            .filter(|slot| self.collides(*slot, &segment, client, kind))
            .collect();
        for slot in rivals {
            self.supersede(slot, client, out);
        }
        let held_for = if kind == MountKind::Remount { self.remount_hold(now) } else { Duration::ZERO };
        out.list.push(StateEffect::Mounted {
            segment: segment.id,
            name: segment.name.clone(),
            client,
            bytes: segment.size,
            held_for,
            earlier_replicas: self.segments.replicas_of_others(&segment.name.0, client),
        });
        let slot = self.segments.mount(segment, client);
        self.clients.admit(client, now + self.policy.client_ttl).segments.push(slot);
        if let Some((records, mounted)) = self.records.as_mut().zip(self.segments.get(slot)) {
            let segment = SegmentContent::of(&mounted.segment);
            records.add(&MasterRecord::SegmentMounted { slot, client, segment });
        }
        if !held_for.is_zero() {
            self.hold(now, slot, now + held_for);
        }
    }

    /// Returns true if `new` replaces the mounted segment in `slot`. Both segments have the same
    /// endpoint. See the module documentation for the rules.
    fn collides(&self, slot: SegmentSlot, new: &Segment, client: ClientId, kind: MountKind) -> bool {
        let Some(mounted) = self.segments.get(slot) else { return false };
        let old = &mounted.segment;
        let overlap = old.base < new.base + new.size && new.base < old.base + old.size;
        let restarted = mounted.client != client
            && kind == MountKind::New
            && old.name == new.name
            && has_port(&new.name)
            && !new.te_endpoint.is_empty();
        overlap || restarted
    }

    /// Unmounts a segment. An unknown id is accepted. Any client may unmount the segment, not only
    /// the one that mounted it. Upstream does not check this either (on 0.3.13.post1, another
    /// client's unmount succeeds), so operators' scripts may rely on it. A check would protect
    /// nothing, because ids are not secret and calls are not authenticated.
    pub fn unmount(&mut self, segment: SegmentId, out: &mut Effects) {
        if let Some((slot, _)) = self.segments.find(segment) {
            self.retire(slot, UnmountReason::Requested, out);
            // In a small store, the records are cleaned up immediately, so that the counts are
            // accurate. In a large one, `tick` does this.
            self.sweep_slice();
        } else {
            self.repeat(RepeatedCall { needs_sync: true, needs_standby: true });
        }
    }

    /// Unmounts a segment at `now` + `grace_ms`. Until then it is readable, but accepts no new
    /// objects.
    ///
    /// # Errors
    /// `NoSegment` if the client has no segment, `BadArguments` if the segment does not belong to
    /// the client.
    pub fn unmount_gracefully(
        &mut self,
        now: Mono,
        segment: SegmentId,
        client: ClientId,
        grace_ms: u64,
    ) -> Result<(), MasterRefusal> {
        let owner =
            self.clients.get(client).filter(|client| !client.segments.is_empty()).ok_or(MasterRefusal::NoSegment)?;
        let slot = match self.segments.find(segment) {
            Some((slot, _)) if owner.segments.contains(&slot) => slot,
            _ => return Err(MasterRefusal::BadArguments),
        };
        let mounted = self.segments.get(slot).ok_or(MasterRefusal::BadArguments)?;
        if mounted.status == SegmentStatus::UNMOUNTING {
            return Err(MasterRefusal::SegmentBusy);
        }
        // If the call is repeated, the new grace period replaces the old one.
        if let Some(before) = mounted.grace_until {
            self.grace.remove(&(before, segment));
        }
        let until = now + Duration::from_millis(grace_ms);
        // The call proves that the client still holds the memory.
        self.segments.confirm(slot);
        self.segments.close(slot, until);
        self.grace.insert((until, segment));
        self.record(&MasterRecord::SegmentClosed { slot, remaining_ms: grace_ms });
        Ok(())
    }

    /// Returns the status of the segment with this id.
    pub fn segment_status_by_id(&self, segment: SegmentId) -> Option<SegmentStatus> {
        self.segments.find(segment).map(|(_, mounted)| mounted.status)
    }

    /// Returns the status of the first segment with this name.
    pub fn segment_status(&self, name: &[u8]) -> Option<SegmentStatus> {
        if !self.segments.has_name(name) {
            return None;
        }
        (0..self.segments.slots())
            .filter_map(|slot| self.segments.get(SegmentSlot(slot)))
            .find(|mounted| mounted.segment.name.0 == name)
            .map(|mounted| mounted.status)
    }

    /// Returns true if a segment with this name is mounted.
    pub fn has_segment_named(&self, name: &[u8]) -> bool {
        self.segments.has_name(name)
    }

    /// Returns the distinct hosts of a client's endpoints; `None` if it has no segment.
    pub fn client_hosts(&self, client: ClientId) -> Option<Vec<TextBuf>> {
        let client = self.clients.get(client).filter(|client| !client.segments.is_empty())?;
        let mut hosts: Vec<TextBuf> = Vec::new();
        for endpoint in client.segments.iter().filter_map(|slot| Some(&self.segments.get(*slot)?.segment.te_endpoint)) {
            let text = endpoint.to_string_lossy();
            let host = HostPort::split(&text).map_or_else(|_| text.clone().into_owned(), |(host, _)| host);
            if !host.is_empty() && !hosts.iter().any(|known| known.0 == host.as_bytes()) {
                hosts.push(host.into());
            }
        }
        Some(hosts)
    }

    /// Removes a segment. The records that refer to it are cleaned up later.
    pub(super) fn retire(&mut self, slot: SegmentSlot, reason: UnmountReason, out: &mut Effects) {
        let Some(mounted) = self.segments.get(slot) else { return };
        if let Some(until) = mounted.grace_until {
            self.grace.remove(&(until, mounted.segment.id));
        }
        self.clear_hold(slot);
        let Some(departed) = self.segments.retire(slot, &mut out.waste) else { return };
        if let Some(client) = self.clients.get_mut(departed.client) {
            client.segments.retain(|other| *other != slot);
        }
        if reason.loses_replicas() {
            self.counters.lost_replicas += u64::from(departed.replicas);
        }
        self.record(&MasterRecord::SegmentRetired { slot });
        self.sweep_left = self.objects.slots();
        out.list.push(StateEffect::Unmounted {
            segment: departed.segment.id,
            name: departed.segment.name,
            client: departed.client,
            reason,
            last_of_name: departed.last_of_name,
            replicas: departed.replicas,
        });
    }

    /// Removes an expired client. Its segments become unreadable immediately; the next calls to
    /// `tick` retire them.
    pub(super) fn expire(&mut self, client: ClientId, out: &mut Effects) {
        let Some(ClientRecord { segments, .. }) = self.clients.remove(client) else { return };
        self.record(&MasterRecord::ClientExpired { client });
        let first = segments.first().and_then(|slot| self.segments.get(*slot));
        let name = first.map(|mounted| mounted.segment.name.clone());
        let count = segments.len();
        for slot in segments {
            self.segments.condemn(slot);
            self.condemned.push_back(slot);
        }
        out.list.push(StateEffect::ClientExpired { client, name, segments: count });
    }
}

/// The call that mounted a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountKind {
    /// `MountSegment`: the process has just created the segment.
    New,
    /// `ReMountSegment`: the segment was mounted before, and its memory may still be in use.
    Remount,
}

fn has_port(name: &TextBuf) -> bool {
    std::str::from_utf8(&name.0).is_ok_and(|name| matches!(HostPort::split(name), Ok((_, Some(_)))))
}

/// The texts in a segment's description.
fn texts(segment: &Segment) -> [&TextBuf; 4] {
    [&segment.name, &segment.te_endpoint, &segment.protocol, &segment.host_id]
}

fn text_bytes(segment: &Segment) -> usize {
    texts(segment).iter().map(|text| text.0.len()).sum()
}

/// Maximum total size of the texts in one `ReMountSegment`, so that a log file has room for its
/// records. 100,000 segments with texts of 80 bytes need this much.
const REMOUNT_TEXT_BYTES_MAX: usize = 8 << 20;

/// Checks the client's description of a segment.
///
/// # Errors
/// `BadArguments`.
pub(super) fn check_segment(segment: &Segment) -> Result<(), MasterRefusal> {
    let texts = texts(segment);
    let fits = segment.base.checked_add(segment.size).is_some() && segment.size <= SEGMENT_BYTES_MAX;
    if segment.base == 0 || segment.size == 0 || !fits || texts.iter().any(|text| text.0.len() > NAME_BYTES_MAX) {
        return Err(MasterRefusal::BadArguments);
    }
    Ok(())
}
