//! A standby becomes the leader: its copy is made ready, and then serves.

use std::time::Duration;

use crate::engine::election::ElectionBackend;
use crate::engine::env::Env;
use crate::engine::ha::{HaEvent, HistoryId};
use crate::engine::master::RecordBuffer;
use crate::engine::master::restore::RestoreReport;
use crate::engine::master::server::data::MasterDataError;
use crate::engine::master::server::ha::disk::copy_note::{CopyNote, CopyStored};
use crate::engine::master::server::ha::disk::{EndedLog, HaDisk};
use crate::engine::master::server::ha::driver::HaDriver;
use crate::engine::master::server::ha::driver::context::HaContext;
use crate::engine::master::server::ha::driver::event::DriverEvent;
use crate::engine::master::server::ha::leader::gate::GatePhase;
use crate::engine::master::server::ha::standby::preparation::{Preparation, PreparedCopy, ServedCopy};
use crate::engine::master::state::MasterState;

/// Minimum time for which restored segments accept no new objects if acknowledged changes may be missing.
const LOSSY_HOLD: Duration = Duration::from_secs(30);
/// How long a call of upstream's client may hang at a leader that does not answer (its default request timeout), and
/// then retry.
pub(in crate::engine::master::server) const CLIENT_CALL_MAX: Duration = Duration::from_secs(40);
/// Leases are assumed to be longer by this when a copy is made ready. If it serves later than that, they are assumed
/// again.
const READY_SLACK: Duration = Duration::from_secs(1);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Makes the copy ready to serve. If it is being stored, this ends first.
    pub(super) fn prepare(&mut self, lossy: bool) {
        if self.copy.cancel_store() {
            self.prepare_next = Some(lossy);
            return;
        }
        let Some(preparation) = self.copy.begin_prepare() else {
            // It is ready already.
            return self.events.push_back(HaEvent::Prepared { ready: true });
        };
        let lossy = lossy || preparation.is_uncertain;
        let history = HistoryId(self.context.env.rng());
        let announced = self.leader_last.max(self.core.alone_since().unwrap_or(0));
        self.may_lack = lossy.then(|| announced.saturating_sub(preparation.applied));
        let note = CopyNote::new(self.core.me().id, Some(history), preparation.parent, CopyStored::OnDisk);
        let number = self.context.number_note();
        let context = self.context.clone();
        let began = context.env.now();
        self.spawn(async move {
            let generation = preparation.generation;
            let ended = match &context.hub.disk {
                // The copy was discarded before, so the directory does not have it.
                Some(disk) if disk.log().is_none() => Some(disk.end_log().await),
                _ => None,
            };
            let preparing = context.clone();
            let prepare = move || {
                let stored = store_before_serving(&preparing, preparation, note, number, ended)?;
                activate(&preparing, stored, lossy)
            };
            let result = context.env.run_blocking(prepare).await;
            let prepared = PreparedCopy { generation, began, lossy, history, result };
            let _ = context.events.send(DriverEvent::CopyPrepared(Box::new(prepared)));
        });
    }

    /// The copy is ready, or cannot be used.
    pub(super) fn end_prepare(&mut self, prepared: PreparedCopy) {
        let PreparedCopy { generation, began, lossy, history, result } = prepared;
        if !self.copy.is_preparing(generation) {
            return self.context.drop_elsewhere(result);
        }
        let now = self.context.env.now();
        let ready = match result {
            Ok((state, report)) => {
                let took = now.since(began);
                tracing::info!(objects = report.objects, lossy, ?took, "the copy is ready to serve");
                self.copy.keep_ready(now, state, history);
                true
            }
            Err(error) => {
                tracing::error!(%error, "the copy of the state cannot be used");
                false
            }
        };
        self.update(HaEvent::Prepared { ready });
    }

    /// Serves as the leader of this view.
    pub(super) fn serve(&mut self, view: u64) {
        let Some(ServedCopy { mut state, since, calls }) = self.copy.take() else {
            // The core elects only copies that are ready.
            tracing::error!("elected without a copy of the state");
            return self.discard(GatePhase::Closed);
        };
        let applied = self.copy.applied;
        let keys = state.gauges().keys;
        let is_lossy = self.may_lack.is_some();
        let hub = self.context.hub.clone();
        let settings = self.context.settings.clone();
        let term = hub.gate.next_term();
        let before = self.context.shared.with_guarded(|guarded, now, _| {
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
            state.start_recording(now, RecordBuffer::new(settings.format, applied + 1), false);
            while is_lossy && state.discard_restored_writes(now) {}
            guarded.term = term;
            guarded.log = hub.disk.as_ref().and_then(HaDisk::log);
            std::mem::replace(&mut guarded.state, *state)
        });
        self.context.drop_elsewhere(before);
        self.promotions += 1;
        self.standbys.clear();
        self.addresses.clear();
        hub.gate.set_phase(GatePhase::Open);
        hub.tail.notify();
        self.context.shared.wake.notify_one();
        if let Some(known) = self.may_lack {
            tracing::warn!(
                changes_known_to_be_missing = known,
                "this master was not in sync: acknowledged keys may be lost, also of later changes"
            );
        }
        tracing::info!(view, keys, change = applied, "this master leads and serves clients");
        self.store_note();
    }

    /// Makes the note of the copy durable. It was written without waiting for the disk, so that this master serves
    /// sooner.
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

/// Stores the note in the data directory, and the copy itself if the directory's log has `ended`. Waits for the disk.
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

/// Makes the copy ready to serve.
fn activate<E: Env>(
    context: &HaContext<E>,
    preparation: Preparation,
    lossy: bool,
) -> Result<(MasterState, RestoreReport), MasterDataError> {
    let stale = context.settings.config.stale_answers() + READY_SLACK;
    Ok(preparation.run(context.env.now(), lossy.then_some(LOSSY_HOLD), stale)?)
}
