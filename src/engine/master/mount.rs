//! Memory comes and goes: mounts, remounts, unmounts, and the clients behind them.
//!
//! **Two segments on one spot.** A node that was killed and is back at once mounts new segments, under new ids and a new client
//! id, while the old ones live on until their client's time is up. The old process's memory is gone, yet its segments carry the
//! same endpoint, so a reader of an old object would be sent to the new process and get whatever lies there. And an address range
//! that is mounted twice would be handed out twice. So, of two segments with one endpoint,
//!
//! * if their address ranges overlap, the newer one is right, whoever mounted them: a range belongs to one mapping of one process;
//! * if they have one name with a port in it but different clients, and the newer one comes from a `MountSegment` (which is how
//!   a process begins; a client that merely lost touch with the master sends `ReMountSegment`), the older client is gone: only
//!   one process listens on a port.
//!
//! The older segment is retired at once and its client has to remount. Should it be alive after all (two clients in one process,
//! told to use one name), its next ping says so, and it comes back through `ReMountSegment`, beside the newer one.
//! Upstream keeps both until the old client's time to live has passed. One client may lend many segments under one name, as upstream's
//! does with large sizes: those never collide.

use crate::engine::base::{ClientId, HostPort, Mono, SegmentId};
use crate::engine::master::client::Client;
use crate::engine::master::code::Refusal;
use crate::engine::master::effect::{Departure, Effect, Effects};
use crate::engine::master::segment::{NAME_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::engine::master::state::MasterState;
use crate::engine::wire::TextBuf;
use crate::engine::wire::types::{ClientStatus, Segment, SegmentStatus};

impl MasterState {
    /// A client is alive. Does it have to (re)mount its segments?
    pub fn ping(&mut self, now: Mono, client: ClientId) -> ClientStatus {
        let deadline = now + self.policy.client_ttl;
        if self.clients.refresh(client, deadline) && self.clients.get(client).is_some_and(|client| client.ok) {
            ClientStatus::OK
        } else {
            ClientStatus::NEED_REMOUNT
        }
    }

    /// A client lends memory. Saying it twice is fine.
    ///
    /// # Errors
    /// `BadArguments`, `SegmentBusy`, `Full`.
    pub fn mount(&mut self, now: Mono, segment: Segment, client: ClientId, out: &mut Effects) -> Result<(), Refusal> {
        check_segment(&segment)?;
        if let Some((_, mounted)) = self.segments.find(segment.id) {
            if mounted.status != SegmentStatus::OK {
                return Err(Refusal::SegmentBusy);
            }
            self.clients.refresh(client, now + self.policy.client_ttl);
            return Ok(());
        }
        if self.clients.is_full_for(client) || self.segments.is_full() {
            return Err(Refusal::Full);
        }
        self.add_segment(now, segment, client, Arrival::Fresh, out);
        Ok(())
    }

    /// A client tells all the memory that it lends. From then on it is ok.
    ///
    /// # Errors
    /// `BadArguments` for a segment that is mounted with other properties or by somebody else; `SegmentBusy`; `Full`.
    pub fn remount(
        &mut self,
        now: Mono,
        segments: Vec<Segment>,
        client: ClientId,
        out: &mut Effects,
    ) -> Result<(), Refusal> {
        if self.clients.get(client).is_some_and(|client| client.ok) {
            self.clients.refresh(client, now + self.policy.client_ttl);
            return Ok(());
        }
        for segment in &segments {
            check_segment(segment)?;
            if let Some((_, mounted)) = self.segments.find(segment.id) {
                if mounted.client != client || mounted.segment != *segment {
                    return Err(Refusal::BadArguments);
                }
                if mounted.status == SegmentStatus::UNMOUNTING {
                    return Err(Refusal::SegmentBusy);
                }
            }
        }
        if self.clients.is_full_for(client) {
            return Err(Refusal::Full);
        }
        for segment in segments {
            if self.segments.find(segment.id).is_none() {
                if self.segments.is_full() {
                    return Err(Refusal::Full);
                }
                self.add_segment(now, segment, client, Arrival::Again, out);
            }
        }
        self.clients.admit(client, now + self.policy.client_ttl).ok = true;
        Ok(())
    }

    fn add_segment(&mut self, now: Mono, segment: Segment, client: ClientId, arrival: Arrival, out: &mut Effects) {
        let rivals: Vec<u32> = self
            .segments
            .of_endpoint(&segment.te_endpoint.0)
            .iter()
            .copied()
            .filter(|slot| self.collides(*slot, &segment, client, arrival))
            .collect();
        for slot in rivals {
            if let Some(owner) = self.segments.get(slot).map(|mounted| mounted.client).filter(|owner| *owner != client)
                && let Some(owner) = self.clients.get_mut(owner)
            {
                owner.ok = false;
            }
            self.retire(slot, Departure::Superseded { by: client }, out);
        }
        out.list.push(Effect::Mounted { segment: segment.id, name: segment.name.clone(), client, bytes: segment.size });
        let slot = self.segments.mount(segment, client);
        self.clients.admit(client, now + self.policy.client_ttl).segments.push(slot);
    }

    /// Does the mounted segment in `slot` have to give way to `new`? Both have one endpoint. See the head of this file.
    fn collides(&self, slot: u32, new: &Segment, client: ClientId, arrival: Arrival) -> bool {
        let Some(mounted) = self.segments.get(slot) else { return false };
        let old = &mounted.segment;
        let overlap = old.base < new.base + new.size && new.base < old.base + old.size;
        let restarted = mounted.client != client
            && arrival == Arrival::Fresh
            && old.name == new.name
            && has_port(&new.name)
            && !new.te_endpoint.is_empty();
        overlap || restarted
    }

    /// A client takes memory back. An unknown id is fine. The client is not compared with the one that mounted the segment: upstream
    /// does not (a different client's unmount succeeds on 0.3.13.post1), so its operators' scripts may rely on it, while there is
    /// nothing to protect: ids are no secret and no call is authenticated.
    pub fn unmount(&mut self, segment: SegmentId, out: &mut Effects) {
        if let Some((slot, _)) = self.segments.find(segment) {
            self.retire(slot, Departure::Asked, out);
            // A small store is clean at once, so that counts are exact; a large one is swept by `tick`.
            self.sweep_slice();
        }
    }

    /// A client takes memory back at `now` + `grace_ms`; until then it can be read, but takes nothing new.
    ///
    /// # Errors
    /// `NoSegment` when the client lends nothing, `BadArguments` when not this.
    pub fn unmount_gracefully(
        &mut self,
        now: Mono,
        segment: SegmentId,
        client: ClientId,
        grace_ms: u64,
    ) -> Result<(), Refusal> {
        let owner = self.clients.get(client).filter(|client| !client.segments.is_empty()).ok_or(Refusal::NoSegment)?;
        let slot = match self.segments.find(segment) {
            Some((slot, _)) if owner.segments.contains(&slot) => slot,
            _ => return Err(Refusal::BadArguments),
        };
        let mounted = self.segments.get(slot).ok_or(Refusal::BadArguments)?;
        if mounted.status == SegmentStatus::UNMOUNTING {
            return Err(Refusal::SegmentBusy);
        }
        // Said again, the new period counts.
        if let Some(before) = mounted.grace_until {
            self.grace.remove(&(before, segment));
        }
        let until = now + std::time::Duration::from_millis(grace_ms);
        self.segments.close(slot, until);
        self.grace.insert((until, segment));
        Ok(())
    }

    /// Where in its life the segment with this id is.
    pub fn segment_status_by_id(&self, segment: SegmentId) -> Option<SegmentStatus> {
        self.segments.find(segment).map(|(_, mounted)| mounted.status)
    }

    /// Where in its life the (first) segment of this name is.
    pub fn segment_status(&self, name: &[u8]) -> Option<SegmentStatus> {
        if !self.segments.has_name(name) {
            return None;
        }
        (0..self.segments.slots())
            .filter_map(|slot| self.segments.get(slot))
            .find(|mounted| mounted.segment.name.0 == name)
            .map(|mounted| mounted.status)
    }

    /// Is a segment of this name mounted?
    pub fn has_segment_named(&self, name: &[u8]) -> bool {
        self.segments.has_name(name)
    }

    /// The hosts of a client's endpoints, each once; `None` when it lends nothing.
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

    /// A segment is gone; the records that point to it are swept later.
    pub(super) fn retire(&mut self, slot: u32, reason: Departure, out: &mut Effects) {
        let Some(mounted) = self.segments.get(slot) else { return };
        if let Some(until) = mounted.grace_until {
            self.grace.remove(&(until, mounted.segment.id));
        }
        let Some(departed) = self.segments.retire(slot, &mut out.waste) else { return };
        if let Some(client) = self.clients.get_mut(departed.client) {
            client.segments.retain(|other| *other != slot);
        }
        self.sweep_left = self.objects.slots();
        out.list.push(Effect::Unmounted {
            segment: departed.segment.id,
            name: departed.segment.name,
            client: departed.client,
            reason,
            last_of_name: departed.last_of_name,
        });
    }

    /// A client's time is up: nothing of it is readable from now on. Its segments are retired by the next steps of `tick`.
    pub(super) fn expire(&mut self, client: ClientId, out: &mut Effects) {
        let Some(Client { segments, .. }) = self.clients.remove(client) else { return };
        for slot in segments {
            self.segments.condemn(slot);
            self.condemned.push_back(slot);
        }
        out.list.push(Effect::ClientExpired { client });
    }
}

/// How a segment arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// By `MountSegment`: its process just made it.
    Fresh,
    /// By `ReMountSegment`: its process had it before.
    Again,
}

fn has_port(name: &TextBuf) -> bool {
    std::str::from_utf8(&name.0).is_ok_and(|name| matches!(HostPort::split(name), Ok((_, Some(_)))))
}

fn check_segment(segment: &Segment) -> Result<(), Refusal> {
    let texts = [&segment.name, &segment.te_endpoint, &segment.protocol, &segment.host_id];
    let fits = segment.base.checked_add(segment.size).is_some() && segment.size <= SEGMENT_BYTES_MAX;
    if segment.base == 0 || segment.size == 0 || !fits || texts.iter().any(|text| text.0.len() > NAME_BYTES_MAX) {
        return Err(Refusal::BadArguments);
    }
    Ok(())
}
