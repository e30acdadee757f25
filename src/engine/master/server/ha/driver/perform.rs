//! The actions that the core requires.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::election::ElectionBackend;
use crate::engine::env::Env;
use crate::engine::ha::{HaAction, HaEvent, HistoryId, MemberId, StopReason, TxnOutcome};
use crate::engine::master::RecordBuffer;
use crate::engine::master::restore::RestoreReport;
use crate::engine::master::server::data::MasterDataError;
use crate::engine::master::server::ha::disk::copy_note::{CopyNote, CopyStored};
use crate::engine::master::server::ha::disk::{EndedLog, HaDisk};
use crate::engine::master::server::ha::driver::{HaDriver, drop_elsewhere};
use crate::engine::master::server::ha::leader::gate::{GatePhase, NOT_SERVING};
use crate::engine::master::server::ha::standby::copy::Preparation;
use crate::engine::master::server::ha::standby::follower::follow;
use crate::engine::master::server::ha::stream::StreamMessage;
use crate::engine::master::state::MasterState;
use crate::engine::master::view::{HaStandbyView, HaView};

/// Minimum time for which restored segments accept no new objects if acknowledged changes may be missing.
const LOSSY_HOLD: Duration = Duration::from_secs(30);
/// How long new connections are forwarded after a hand-over. Connections that are forwarded then stay so.
const FORWARD_FOR: Duration = Duration::from_secs(10);
/// How long a call of upstream's client may hang at a leader that does not answer (its default request timeout), and then retry.
pub(in crate::engine::master::server) const CLIENT_CALL_MAX: Duration = Duration::from_secs(40);
/// Leases are assumed to be longer by this when a copy is made ready. If it serves later than that, they are assumed again.
const READY_SLACK: Duration = Duration::from_secs(1);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Performs an action. Never waits.
    pub(in crate::engine::master::server::ha) fn perform(self: &Arc<Self>, action: HaAction) {
        match action {
            HaAction::GrantLease => self.request(async |driver, sent| {
                let lease = driver.backend.grant_lease(driver.settings.config.lease_ttl).await;
                driver.report(lease.as_ref().err());
                driver.update(HaEvent::LeaseGranted { sent, lease: lease.ok() });
            }),
            HaAction::RenewLease(id) => self.request(async move |driver, sent| {
                let renewed = driver.backend.renew_lease(id).await;
                driver.report(renewed.as_ref().err());
                driver.update(HaEvent::LeaseRenewed { sent, lease: id, renewed: renewed.ok() });
            }),
            HaAction::RevokeLease(id) => {
                tracing::info!("revoking the lease of a leader that has exited or cannot be reached");
                self.request(async move |driver, _| {
                    let _ = driver.backend.revoke_lease(id).await;
                    driver.observe();
                });
            }
            HaAction::Observe => self.observe(),
            HaAction::Elect(txn) => self.request(async move |driver, _| {
                // Another master may be elected, for which this one keeps the key.
                if txn.address == driver.address() {
                    driver.hub.gate.leave_phase(GatePhase::Closed, GatePhase::Electing);
                    driver.hub.gate.leave_phase(GatePhase::Forwarding, GatePhase::Electing);
                }
                let outcome = driver.backend.elect(&txn).await;
                driver.update(HaEvent::Elected { txn, outcome });
                driver.hub.gate.leave_phase(GatePhase::Electing, GatePhase::Closed);
            }),
            HaAction::WriteSync(txn) => self.request(async move |driver, _| {
                let in_sync: Vec<String> = txn.sync.in_sync.iter().map(ToString::to_string).collect();
                let outcome = driver.backend.write_sync(&txn).await;
                if let TxnOutcome::Done(_) = outcome {
                    tracing::info!(?in_sync, alone_since = txn.sync.alone_since, "sync record written");
                }
                driver.update(HaEvent::SyncWritten { txn, outcome });
            }),
            HaAction::DeleteKey { view, address } => self.request(async move |driver, _| {
                let outcome = driver.backend.delete_key(view, &address).await;
                driver.update(HaEvent::KeyDeleted { outcome });
            }),
            HaAction::Follow(leader) => {
                let before = self.state().follower.take();
                before.inspect(tokio::task::AbortHandle::abort);
                let load = self.copy().cancel_load();
                drop_elsewhere(&self.env, load);
                if let Some(leader) = leader.filter(|_| !self.hub.is_ending()) {
                    let driver = self.clone();
                    let task = self.spawn(async move { follow(&driver, leader).await });
                    self.state().follower = Some(task);
                }
            }
            HaAction::Send(to, message) => {
                self.state().links.send(to, StreamMessage::Control(message));
            }
            HaAction::Prepare { lossy } => self.prepare(lossy),
            HaAction::Discard(why) => {
                tracing::warn!(%why, "this master discards its copy of the state, and gets another one from the leader");
                self.discard(GatePhase::Closed);
            }
            HaAction::StopServing(StopReason::Superseded) => {
                tracing::warn!("another master was elected: this one stops serving and discards its state");
                self.state().demotions += 1;
                self.discard(GatePhase::Closed);
            }
            HaAction::Serve { view } => self.serve(view),
            HaAction::HoldChanges(true) => {
                self.hub.gate.set_phase(GatePhase::ChangesHeld);
                // A call that has the state locked ends first. One that has passed the gate may still follow; its response is never sent.
                let last = self.shared.with_guarded(None, |_, _, _| self.hub.tail.appended());
                let last = last.max(self.hub.tail.appended());
                self.send_clients();
                self.hub.tail.notify();
                self.update(HaEvent::ChangesHeld { last });
            }
            HaAction::HoldChanges(false) => {
                tracing::warn!("the hand-over was cancelled: this master keeps leading");
                self.hub.gate.set_phase(GatePhase::Open);
            }
            HaAction::Forward(successor) => self.forward(successor),
        }
    }

    /// Runs a request to the coordination service. `work` gets the time at which it was sent.
    fn request<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>, Mono) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let sent = self.env.boottime();
        self.spawn(work(self.clone(), sent));
    }

    fn prepare(self: &Arc<Self>, lossy: bool) {
        let begun = self.copy().begin_prepare();
        let Some(preparation) = begun else {
            // It is ready already.
            return self.update(HaEvent::Prepared { ready: true });
        };
        let lossy = lossy || preparation.is_uncertain;
        let history = HistoryId(self.env.rng());
        let note = {
            let mut state = self.state();
            let announced = state.leader_last.max(state.core.alone_since().unwrap_or(0));
            state.may_lack = lossy.then(|| announced.saturating_sub(preparation.applied));
            CopyNote::new(state.core.me().id, Some(history), preparation.parent, CopyStored::OnDisk)
        };
        let (driver, discarded, began) = (self.clone(), self.copies_discarded(), self.env.now());
        self.spawn(async move {
            let generation = preparation.generation();
            let ended = match &driver.hub.disk {
                // The copy was discarded before, so the directory does not have it.
                Some(disk) if disk.log().is_none() => Some(disk.end_log().await),
                _ => None,
            };
            let preparing = driver.clone();
            let prepare =
                move || preparing.activate(preparing.store_before_serving(preparation, note, discarded, ended)?, lossy);
            let ready = driver.env.run_blocking(prepare).await;
            if !driver.copy().is_preparing(generation) {
                return drop_elsewhere(&driver.env, ready);
            }
            let ready = match ready {
                Ok((state, report)) => {
                    let took = driver.env.now().since(began);
                    tracing::info!(objects = report.objects, lossy, ?took, "the copy is ready to serve");
                    driver.copy().prepared(driver.env.now(), state, history);
                    true
                }
                Err(error) => {
                    tracing::error!(%error, "the copy of the state cannot be used");
                    false
                }
            };
            driver.update(HaEvent::Prepared { ready });
        });
    }

    /// Stores the note in the data directory, and the copy itself if the directory's log has `ended`. Waits for the disk.
    fn store_before_serving(
        &self,
        mut preparation: Preparation,
        note: CopyNote,
        discarded: u64,
        ended: Option<EndedLog>,
    ) -> Result<Preparation, MasterDataError> {
        let Some(disk) = &self.hub.disk else { return Ok(preparation) };
        let stored = match ended {
            None => disk.store_note(note, false, discarded),
            Some(ended) => {
                let (standby, applied) = (&mut preparation.standby, preparation.applied);
                standby.begin_snapshot(self.env.now(), self.settings.format);
                let slices = |slots| standby.snapshot_slots(slots);
                let begun = disk.begin(ended, &self.env, slices, applied, note, discarded);
                standby.cancel_snapshot();
                begun
            }
        };
        stored.or_else(|error| disk.fail(error))?;
        Ok(preparation)
    }

    /// Makes the copy ready to serve.
    fn activate(&self, preparation: Preparation, lossy: bool) -> Result<(MasterState, RestoreReport), MasterDataError> {
        let stale = self.settings.config.stale_answers() + READY_SLACK;
        Ok(preparation.run(self.env.now(), lossy.then_some(LOSSY_HOLD), stale)?)
    }

    fn serve(self: &Arc<Self>, view: u64) {
        let taken = self.copy().take();
        let Some((mut state, since, calls)) = taken else {
            // The core elects only copies that are ready.
            tracing::error!("elected without a copy of the state");
            return self.discard(GatePhase::Closed);
        };
        let applied = self.copy().applied;
        let keys = state.gauges().keys;
        let is_lossy = self.state().may_lack.is_some();
        let term = self.hub.gate.next_term();
        let before = self.shared.with_guarded(None, |guarded, now, _| {
            state.counters = std::mem::take(&mut guarded.state.counters);
            state.view = view;
            if now.since(since) > READY_SLACK {
                let lease = state.policy().lease_ttl.max(state.earlier_lease());
                state.assume_leases(now + lease + self.settings.config.stale_answers());
            }
            state.wait_for_clients(now + CLIENT_CALL_MAX);
            for (client, last) in calls {
                state.confirm_recent(now, client, last);
            }
            state.start_recording(now, RecordBuffer::new(self.settings.format, applied + 1), false);
            while is_lossy && state.discard_restored_writes(now) {}
            guarded.term = term;
            guarded.log = self.hub.disk.as_ref().and_then(HaDisk::log);
            std::mem::replace(&mut guarded.state, state)
        });
        drop_elsewhere(&self.env, before);
        let may_lack = {
            let mut state = self.state();
            state.promotions += 1;
            // The streams to other masters are those of a standby.
            state.links.clear();
            state.addresses.clear();
            state.may_lack
        };
        // The first change is the one that has just been made.
        self.update(HaEvent::Timeout);
        self.hub.gate.set_phase(GatePhase::Open);
        self.hub.tail.notify();
        self.shared.wake.notify_one();
        if let Some(known) = may_lack {
            tracing::warn!(
                changes_known_to_be_missing = known,
                "this master was not in sync: acknowledged keys may be lost, also of later changes"
            );
        }
        tracing::info!(view, keys, change = applied, "this master leads and serves clients");
        // The note was written without waiting for the disk, so that this master serves sooner.
        let note = self.copy().note(self.state().core.me().id);
        let (driver, discarded) = (self.clone(), self.copies_discarded());
        self.spawn(async move {
            // An error ends the process.
            let _ = driver.use_disk(move |disk, _| disk.store_note(note, true, discarded)).await;
        });
    }

    /// Discards the state and the copy, and takes a new ID.
    pub(in crate::engine::master::server::ha) fn discard(self: &Arc<Self>, phase: GatePhase) {
        if self.hub.gate.term() % 2 == 1 {
            self.hub.gate.next_term();
        }
        if phase == GatePhase::Closed {
            self.hub.gate.set_phase(phase);
        }
        let before = self.shared.with_guarded(None, |guarded, _, _| {
            let mut empty = MasterState::new(guarded.state.policy().clone());
            empty.counters = std::mem::take(&mut guarded.state.counters);
            guarded.term = NOT_SERVING;
            guarded.log = None;
            std::mem::replace(&mut guarded.state, empty)
        });
        drop_elsewhere(&self.env, before);
        if let Some(disk) = &self.hub.disk {
            disk.discard();
        }
        let before = self.copy().discard();
        drop_elsewhere(&self.env, before);
        self.hub.tail.restart(1);
        self.hub.tail.notify_always();
        {
            let mut state = self.state();
            state.links.clear();
            state.addresses.clear();
            let follower = state.follower.take();
            follower.inspect(tokio::task::AbortHandle::abort);
        }
        let id = MemberId(self.env.rng());
        self.update(HaEvent::Reset { id });
    }

    fn forward(self: &Arc<Self>, successor: MemberId) {
        let address = self.state().core.leader_address();
        tracing::info!(%successor, ?address, "handed over: the successor leads");
        match address {
            Some(address) => {
                self.hub.gate.forward_to(address, self.env.boottime() + FORWARD_FOR);
                self.discard(GatePhase::Forwarding);
            }
            None => self.discard(GatePhase::Closed),
        }
    }

    /// What is shown of this master.
    pub(in crate::engine::master::server::ha) fn view(&self) -> HaView {
        let (applied, objects) = {
            let copy = self.copy();
            (copy.applied, copy.objects())
        };
        let serving = self.hub.gate.is_open();
        let objects =
            if serving { self.shared.with_guarded(None, |guarded, _, _| guarded.state.gauges().keys) } else { objects };
        let state = self.state();
        let status = state.core.status();
        let tail = &self.hub.tail;
        let standbys = state.core.standbys().map(|(member, replica)| HaStandbyView {
            member,
            rpc: state.addresses.get(&member).cloned(),
            required: replica.is_required(),
            in_sync: replica.is_in_sync(),
            connected: replica.is_connected,
            acked: replica.acked,
        });
        let standbys: Vec<HaStandbyView> = standbys.collect();
        let (acked, last) = match standbys.iter().map(|standby| standby.acked).min() {
            Some(slowest) if serving => (slowest, tail.appended()),
            None if serving => (tail.appended(), tail.appended()),
            _ => (applied, state.leader_last.max(applied)),
        };
        let leader = if serving { Some(state.core.me().rpc.to_string()) } else { state.core.observed_leader() };
        HaView {
            role: status.role,
            serving,
            view: status.view,
            leader,
            member: Some(state.core.me().id),
            in_sync: status.in_sync,
            acked,
            last,
            lag_bytes: if serving && last > acked { tail.bytes_behind(acked) } else { 0 },
            objects,
            not_promotable: if serving { None } else { state.core.not_promotable() },
            standbys,
            digests: state.digests,
            backend_error: state.etcd_errors.last().map(ToString::to_string),
            may_lack: state.may_lack.filter(|_| serving),
            promotions: state.promotions,
            demotions: state.demotions,
        }
    }
}
