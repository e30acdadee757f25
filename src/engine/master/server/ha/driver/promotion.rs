//! A standby becomes the leader: its copy is made ready, and then serves.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::server::data::MasterDataError;
use crate::server::effect_log::MissingText;
use crate::server::ha::disk::copy_note::{CopyNote, CopyStored};
use crate::server::ha::disk::{EndedLog, HaDisk};
use crate::server::ha::driver::context::HaContext;
use crate::server::ha::driver::event::DriverEvent;
use crate::server::ha::driver::{CopyStep, HaDriver};
use crate::server::ha::leader::gate::GatePhase;
use crate::server::ha::standby::leader_stream::FollowedLeader;
use crate::server::ha::standby::preparation::{CopyLoss, Preparation, PreparationReport, PreparedCopy, ServedCopy};
use crate::{RecordBuffer, StandbyState};
use mcctl_base::time::RoundedDuration;
use mcctl_election::ElectionBackend;
use mcctl_election::ha::planted::{HaMistake, is_planted};
use mcctl_election::ha::{HaEvent, HistoryId, MemberId};
use mcctl_sys::env::Env;

/// Time for which a call of upstream's client may wait for a leader that does not answer (its
/// default request timeout), and then retry.
pub(in crate::server) const CLIENT_CALL_MAX: Duration = Duration::from_secs(40);
/// A new leader without a standby logs this after this time.
pub(super) const NO_STANDBY_AFTER: Duration = Duration::from_secs(5);
/// Leases are assumed to be longer by this when a copy is made ready. If the copy begins to serve
/// later than that, they are assumed again.
const READY_SLACK: Duration = Duration::from_secs(1);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Makes the copy ready to serve. If it is being stored, that ends first. `lossy`: it
    /// may lack changes.
    pub(super) fn prepare(&mut self, lossy: bool) {
        if self.copy.cancel_store() || self.copy.is_elsewhere() {
            self.copy_next = Some(CopyStep::Prepare { lossy });
            return;
        }
        let is_proven = self.keeps_objects() || is_planted(HaMistake::BarrierIgnored);
        let Some(mut preparation) = self.copy.begin_prepare(lossy, is_proven) else {
            // It is ready already.
            let id = self.core.me().id;
            let history = self.copy.next_history();
            return self.events.push_back(HaEvent::Prepared { ready: true, id, history });
        };
        self.progress = Default::default();
        preparation.standby.report_progress(self.progress.0.clone());
        let Preparation { applied, parent, generation, .. } = preparation;
        let lossy = preparation.is_lossy();
        // A copy that may lack changes must not be confused with the one in the sync record.
        let id = if lossy { MemberId(self.context.env.rng()) } else { self.core.me().id };
        let history = HistoryId(self.context.env.rng());
        let announced = self.leader_last.max(self.core.alone_since().unwrap_or(0));
        self.may_lack = lossy.then(|| announced.saturating_sub(applied));
        let note = CopyNote::new(id, Some(history), parent, CopyStored::OnDisk);
        let number = self.context.number_note();
        let context = self.context.clone();
        let began = context.env.now();
        self.spawn(async move {
            let ended = match &context.hub.disk {
                // The directory does not have this copy: changes may be missing, or it was
                // discarded before.
                Some(disk) if lossy || disk.log().is_none() => Some(disk.end_log().await),
                _ => None,
            };
            let preparing = context.clone();
            let prepare = move || {
                let (preparation, loss) = preparation.drop_objects(preparing.env.now())?;
                let stored = store_before_serving(&preparing, preparation, note, number, ended)?;
                let stale = preparing.settings.config.stale_answers() + READY_SLACK;
                let (state, restored) = stored.run(preparing.env.now(), stale)?;
                Ok((state, PreparationReport { restored, loss }))
            };
            let result = context.env.run_blocking(prepare).await;
            let prepared = PreparedCopy { generation, began, id, history, result };
            let _ = context.events.send(DriverEvent::CopyPrepared(Box::new(prepared)));
        });
    }

    /// Handles the result of making the copy ready.
    pub(super) fn end_prepare(&mut self, prepared: PreparedCopy) {
        let PreparedCopy { generation, began, id, history, result } = prepared;
        if !self.copy.is_preparing(generation) {
            return self.context.drop_elsewhere(result);
        }
        let now = self.context.env.now();
        let ready = match result {
            Ok((state, PreparationReport { restored, loss })) => {
                let objects = restored.objects;
                let dropped = loss.dropped;
                let took = RoundedDuration(now.since(began));
                tracing::info!(dropped, "the copy is ready to serve: {objects} objects, prepared in {took}");
                self.copy.keep_ready(now, state, history, loss);
                true
            }
            Err(error) => {
                tracing::error!(%error, "the copy of the state cannot be used");
                false
            }
        };
        match self.copy_next.take() {
            Some(_) if !ready => self.update(HaEvent::CopyDamaged),
            Some(CopyStep::Resume) => self.resume(),
            Some(CopyStep::Prepare { lossy }) => {
                self.prepare(lossy);
                self.run_core();
            }
            None => self.update(HaEvent::Prepared { ready, id, history }),
        }
    }

    /// Reports to the core whether the copy has come closer to being ready to serve.
    pub(super) fn report_progress(&mut self) {
        let reached = self.progress.0.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.progress.1, reached) != reached {
            self.update(HaEvent::Preparing);
        }
    }

    /// Follows again with the copy, because another master leads. If a thread uses the copy, this
    /// waits. The stream is opened again, because some of its changes may not have been applied.
    pub(super) fn resume(&mut self) {
        let load = self.copy.cancel_load();
        self.context.drop_elsewhere(load);
        if let Some(followed) = &mut self.followed {
            let leader = followed.leader.clone();
            *followed = FollowedLeader::new(leader, self.context.env.now());
            self.events.push_back(HaEvent::StreamClosed { process_gone: false });
        }
        let Some(ready) = self.copy.begin_resume() else {
            self.copy_next = self.copy.is_elsewhere().then_some(CopyStep::Resume);
            return;
        };
        tracing::info!(change = self.copy.applied, "this copy follows again: this master was not elected");
        let note = self.copy.note(self.core.me().id);
        let number = self.context.number_note();
        let generation = self.copy.generation();
        let context = self.context.clone();
        self.spawn(async move {
            // An error ends the process. The note states the history of the copy before the changes
            // of another history are added.
            let _ = context.use_disk(move |disk| disk.store_note(note, true, number)).await;
            let standby = context.env.run_blocking(move || Box::new(StandbyState::of(*ready))).await;
            let _ = context.events.send(DriverEvent::CopyResumed { generation, standby });
        });
    }

    /// Continues to follow with the copy, which a thread has returned.
    pub(super) fn end_resume(&mut self, generation: u64, standby: Box<StandbyState>) {
        if let Err(discarded) = self.copy.end_resume(generation, standby) {
            return self.context.drop_elsewhere(discarded);
        }
        if let Some(CopyStep::Prepare { lossy }) = self.copy_next.take() {
            self.prepare(lossy);
            self.run_core();
        }
    }

    /// Serves as the leader of this view.
    pub(super) fn serve(&mut self, view: u64) {
        let Some(ServedCopy { mut state, since, calls, loss }) = self.copy.take() else {
            // The core elects only copies that are ready.
            tracing::error!("elected without a copy of the state");
            return self.discard(GatePhase::Closed);
        };
        let applied = self.copy.applied;
        let hub = self.context.hub.clone();
        let settings = self.context.settings.clone();
        let term = hub.gate.next_term();
        let (before, missing) = self.context.shared.with_guarded(|guarded, now, _| {
            state.counters = std::mem::take(&mut guarded.state.counters);
            state.view = view;
            if now.since(since) > READY_SLACK {
                let lease = state.policy().lease_ttl.max(state.earlier_lease());
                state.assume_leases(now + lease + settings.config.stale_answers());
            }
            state.wait_for_clients(now + CLIENT_CALL_MAX);
            for (client, last) in calls {
                state.confirm_recent(now, client, last);
            }
            state.expect_clients(now);
            let missing = state.missing_clients(now);
            state.start_recording(now, RecordBuffer::new(settings.format, applied + 1), false);
            guarded.term = term;
            guarded.log = hub.disk.as_ref().and_then(HaDisk::log);
            let following = state.take_following();
            ((std::mem::replace(&mut guarded.state, *state), following), missing)
        });
        let discard_writes = || self.context.shared.with_guarded(|it, now, _| it.state.discard_restored_writes(now));
        while loss.is_proven && discard_writes() {}
        let keys = self.context.shared.with_guarded(|guarded, _, _| guarded.state.gauges().keys);
        self.context.drop_elsewhere(before);
        self.promotions += 1;
        self.standbys.clear();
        self.known.clear();
        hub.gate.set_phase(GatePhase::Open);
        hub.tail.notify();
        self.context.shared.wake.notify_one();
        if let Some(known) = self.may_lack {
            self.report_loss(known, keys, loss);
        }
        tracing::info!(view, change = applied, "this master leads and serves clients, with {keys} keys");
        if let Some(missing) = missing {
            tracing::info!("{}", MissingText(&missing));
        }
        self.no_standby_report_at = Some(self.context.env.now() + NO_STANDBY_AFTER);
        self.store_note();
    }

    /// Whether a promotion of this copy would keep its objects, although it may lack changes.
    pub(super) fn keeps_objects(&self) -> bool {
        !self.copy.is_uncertain && self.core.is_proven(self.copy.history, self.copy.applied)
    }

    /// Logs what a leader has kept that may lack changes. `missing` of them are known.
    fn report_loss(&mut self, missing: u64, keys: u64, loss: CopyLoss) {
        self.dropped_objects += loss.dropped;
        if loss.is_proven {
            tracing::warn!(
                kept_objects = keys,
                changes_known_to_be_missing = missing,
                "this master was not in sync with the former leader. It keeps its objects, because their memory was not used again, \
                 and no removal is missing. Later puts are lost"
            );
        } else {
            tracing::warn!(
                dropped_objects = loss.dropped,
                changes_known_to_be_missing = missing,
                "this master was not in sync with the former leader, so it has dropped all objects: their memory may belong to others. \
                 Segments and clients are kept"
            );
        }
    }

    /// Makes the note of the copy durable. It was written without waiting for the disk, so that
    /// this master serves sooner.
    fn store_note(&mut self) {
        let note = self.copy.note(self.core.me().id);
        let number = self.context.number_note();
        let context = self.context.clone();
        self.spawn(async move {
            // An error ends the process.
            let _ = context.use_disk(move |disk| disk.store_note(note, true, number)).await;
        });
    }
}

/// Stores the note in the data directory, and the copy itself if the directory's log has `ended`.
/// Waits for the disk.
fn store_before_serving<E: Env>(
    context: &HaContext<E>,
    mut preparation: Preparation,
    note: CopyNote,
    number: u64,
    ended: Option<EndedLog>,
) -> Result<Preparation, MasterDataError> {
    let Some(disk) = &context.hub.disk else { return Ok(preparation) };
    let stored = match ended {
        None => disk.store_note(note, false, number),
        Some(ended) => {
            let last = preparation.applied;
            let standby = &mut preparation.standby;
            standby.begin_snapshot(context.env.now(), context.settings.format);
            let slices = |slots| standby.snapshot_slots(slots);
            let begun = disk.begin(ended, &context.env, slices, last, note, number);
            standby.cancel_snapshot();
            begun
        }
    };
    stored.or_else(|error| disk.fail(error))?;
    Ok(preparation)
}
