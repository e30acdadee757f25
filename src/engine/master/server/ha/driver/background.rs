//! The periodic work of the driver: it reports which changes are replicated, starts threads, and
//! sends digests.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::server::ha::disk::HaDisk;
use crate::server::ha::disk::threads::log_threads;
use crate::server::ha::driver::HaDriver;
use crate::server::ha::driver::promotion::NO_STANDBY_AFTER;
use crate::server::ha::leader::gate::GatePhase;
use crate::server::ha::leader::standby_streams::STANDBY_SILENCE_MAX;
use crate::server::ha::standby::leader_stream::LeaderStream;
use crate::server::ha::stream::{StreamError, StreamMessage};
use mcctl_base::Mono;
use mcctl_base::time::RoundedDuration;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::message::{ClientPings, DigestPart, SlotRange, StateDigest};
use mcctl_election::ha::{HaEvent, HaRole, MemberId};
use mcctl_sys::env::Env;

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(20);
/// Time between two messages about the clients' last calls, and between two digests.
const CLIENTS_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two hand-overs because of a disk that has stalled. The first one may be cancelled.
const STALL_RETRY: Duration = Duration::from_secs(10);
/// Number of clients that are visited while the state is locked once.
const CLIENTS_PER_SLICE: usize = 1024;
/// The first digest. The number of slots is the same for all. Computing one takes some hundred
/// microseconds.
pub(super) const FIRST_DIGEST: DigestPart =
    DigestPart { objects: SlotRange { from: 0, count: 1024 }, segments: SlotRange { from: 0, count: 512 } };
/// Maximum number of clients in a message.
const CLIENTS_PER_MESSAGE: usize = 100_000;

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Performs the periodic work. A late tick counts as one, so that no stream ends because this
    /// thread did not run.
    pub(super) fn tick(&mut self, now: Mono) {
        self.next_tick = now + TICK;
        self.is_view_old = true;
        self.watch_streams();
        self.report_not_promoted(now);
        self.report_no_standby(now);
        self.report_returned_standbys();
        self.report_progress();
        self.leave_stalled_disk(now);
        self.start_log_threads();
        self.report_reusable();
        self.context.hub.tail.notify();
        let boottime = self.context.env.boottime();
        if self.core.role() == HaRole::Leader && boottime >= self.clients_at && !self.standbys.is_empty() {
            self.clients_at = boottime + CLIENTS_INTERVAL;
            self.send_clients();
            if self.standbys.compare_digests() {
                self.send_digest();
            }
            self.run_core();
        }
    }

    /// Starts the threads for a log that does not have them yet.
    fn start_log_threads(&mut self) {
        let threads = self.context.hub.disk.as_ref().and_then(|disk| log_threads(disk, &self.context));
        for thread in threads.into_iter().flatten() {
            let running = self.context.env.run_thread(thread);
            self.spawn(running);
        }
    }

    /// Ends the streams that are silent.
    fn watch_streams(&mut self) {
        if let Some(Err(error)) = self.stream().map(|stream| LeaderStream::watch(stream, TICK)) {
            self.end_stream(&error);
        }
        if let Some(silent) = self.standbys.watch(TICK) {
            self.close_standby(silent, &StreamError::Silent(STANDBY_SILENCE_MAX));
        }
    }

    fn report_not_promoted(&mut self, now: Mono) {
        if let Some(why) = self.core.not_promoted(self.context.env.boottime(), self.keeps_objects())
            && self.repeated_messages.is_due(now, "", &why)
        {
            tracing::warn!("no master leads, and this standby is not promoted: {why}");
        }
    }

    /// Logs that standbys are in sync again which never left the sync record, because it could not
    /// be written without etcd. The others are reported with the new record.
    fn report_returned_standbys(&mut self) {
        if self.lost_standbys.is_empty() {
            return;
        }
        let listed: BTreeSet<MemberId> = self.core.listed_standbys().iter().copied().collect();
        self.lost_standbys.retain(|id| listed.contains(id));
        let is_back = |id: MemberId| {
            let mut standbys = self.core.standbys();
            standbys.any(|(member, replica)| member == id && replica.is_connected && replica.is_in_sync())
        };
        let returned: Vec<MemberId> = self.lost_standbys.iter().copied().filter(|id| is_back(*id)).collect();
        for id in returned {
            self.lost_standbys.remove(&id);
            let consequence = self.redundancy(None);
            tracing::info!(%id, "standby {} is in sync again: {consequence}", self.standby_address(id));
        }
    }

    /// Logs once that no standby has joined this leader, a little after its promotion.
    fn report_no_standby(&mut self, now: Mono) {
        if self.no_standby_report_at.is_none_or(|at| now < at) {
            return;
        }
        self.no_standby_report_at = None;
        if self.core.role() == HaRole::Leader && !self.core.standbys().any(|(_, standby)| standby.is_connected) {
            let time = RoundedDuration(NO_STANDBY_AFTER);
            let consequence = self.redundancy(None);
            tracing::warn!("this master has led for {time}, and {consequence}. Start another master of this cluster");
        }
    }

    /// Hands over to a standby in sync, if there is one and the disk of this leader's log has
    /// stalled while changes wait for it.
    fn leave_stalled_disk(&mut self, now: Mono) {
        let log = self.context.hub.disk.as_ref().and_then(HaDisk::log);
        let Some(stalled) = log.and_then(|log| log.stalled_for(now)) else { return };
        let has_standby = self.core.standbys().any(|(_, standby)| standby.is_connected && standby.is_in_sync());
        if self.core.role() == HaRole::Leader && has_standby && now >= self.leave_disk_at {
            self.leave_disk_at = now + STALL_RETRY;
            let stalled = RoundedDuration(stalled);
            tracing::warn!(
                "the disk of the data directory has not responded for {stalled}: this leader hands over to a standby"
            );
            self.update(HaEvent::StepDown { is_ending: false });
        }
    }

    /// A range that is freed may be used again when the change cannot be lost: the standbys have
    /// it, and the log, and the sync record has no barrier before it.
    fn report_reusable(&mut self) {
        let hub = &self.context.hub;
        if !matches!(hub.gate.phase(), GatePhase::Open | GatePhase::ChangesHeld) {
            return;
        }
        let reusable = self.core.reusable(hub.tail.appended());
        let barrier = self.core.barrier();
        let log = hub.disk.as_ref().and_then(HaDisk::log);
        let durable = log.map_or(reusable, |log| log.writer.durable().min(reusable));
        let must_remove = self.context.shared.with_guarded(|guarded, _, _| {
            guarded.state.durable(durable);
            guarded.state.set_barrier(barrier)
        });
        if must_remove {
            self.update(HaEvent::BarrierRemovalNeeded);
        }
    }

    /// Sends the time of each client's last call to the standbys, so that the client counts as
    /// confirmed after a promotion.
    pub(super) fn send_clients(&mut self) {
        let mut pings = Vec::new();
        let mut cursor = None;
        loop {
            cursor = self.context.shared.with_guarded(|guarded, now, _| {
                guarded.state.recent_calls(now, cursor, CLIENTS_PER_SLICE, &mut |client, age| {
                    pings.push((client, u32::try_from(age.as_millis()).unwrap_or(u32::MAX)));
                })
            });
            if cursor.is_none() || pings.len() >= CLIENTS_PER_MESSAGE {
                break;
            }
        }
        let mut encoded = Vec::new();
        ClientPings(pings).encode(&mut encoded);
        let slow = self.standbys.send_all(&StreamMessage::Clients(encoded.into()));
        self.end_slow_standbys(slow);
    }

    /// Adds a digest of a part of the state to the streams, which the standbys compare with their
    /// copies.
    fn send_digest(&mut self) {
        let part = self.digest_part;
        let hub = &self.context.hub;
        self.digest_part = self.context.shared.with_guarded(|guarded, _, _| {
            let (objects, tables) = guarded.state.part_digests(&part);
            let mut digest = Vec::new();
            StateDigest { part, objects, tables }.encode(&mut digest);
            // The state is locked, so no change is made between the two.
            hub.tail.append_digest(digest);
            DigestPart {
                objects: part.objects.next(guarded.state.object_slots()),
                segments: part.segments.next(guarded.state.segment_slots()),
            }
        });
        hub.tail.notify_always();
    }
}
