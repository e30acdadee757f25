//! The driver's requests to etcd. Each runs as a task.

use std::time::Duration;

use crate::server::ha::driver::context::HaContext;
use crate::server::ha::driver::event::DriverEvent;
use crate::server::ha::driver::{HaDriver, StreamOf};
use crate::server::ha::leader::gate::GatePhase;
use mcctl_base::Mono;
use mcctl_base::text::escaped;
use mcctl_election::ha::{ElectionTxn, HaEvent, HandOverTxn, Observation, OfferTxn, RevokeReason, SyncTxn, TxnOutcome};
use mcctl_election::{ElectionBackend, ElectionError, ElectionWatch};
use mcctl_sys::env::Env;

/// Pause before a watch that ended is started again.
const WATCH_RETRY: Duration = Duration::from_millis(500);

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Runs a request. `work` is passed the time at which it was sent, and returns the event that
    /// follows.
    fn request<F>(&mut self, work: impl FnOnce(B, Mono) -> F)
    where
        F: Future<Output = DriverEvent<StreamOf<E>>> + Send + 'static,
    {
        let request = work(self.backend.clone(), self.context.env.boottime());
        let events = self.context.events.clone();
        self.spawn(async move {
            // An error means that the driver has ended.
            let _ = events.send(request.await);
        });
    }

    pub(super) fn grant_lease(&mut self) {
        let ttl = self.context.settings.config.lease_ttl;
        self.request(async move |backend, sent| {
            let lease = backend.grant_lease(ttl).await;
            let error = lease.as_ref().err().cloned();
            DriverEvent::LeaseRequested { event: HaEvent::LeaseGranted { sent, lease: lease.ok() }, error }
        });
    }

    pub(super) fn renew_lease(&mut self, lease: i64) {
        self.request(async move |backend, sent| {
            let renewed = backend.renew_lease(lease).await;
            let error = renewed.as_ref().err().cloned();
            let event = HaEvent::LeaseRenewed { sent, lease, renewed: renewed.ok() };
            DriverEvent::LeaseRequested { event, error }
        });
    }

    pub(super) fn revoke_lease(&mut self, lease: i64, reason: RevokeReason) {
        let leader = self.core.observed_leader().unwrap_or_default();
        match reason {
            RevokeReason::LeaderEnded => tracing::info!(
                "leader {leader} has closed its connections and refuses new ones: its lease is revoked, so that a standby is elected"
            ),
            RevokeReason::KeptKey => tracing::info!(
                "leader {leader} does not respond: the key that this standby has kept for it is deleted, so that a standby is elected"
            ),
            RevokeReason::EarlierProcess => tracing::info!("the lease of an earlier process of this master is revoked"),
            RevokeReason::Own => tracing::debug!(lease, "this master gives its lease back"),
        }
        self.request(async move |backend, _| {
            let _ = backend.revoke_lease(lease).await;
            DriverEvent::RecordsChanged
        });
    }

    pub(super) fn elect(&mut self, txn: ElectionTxn) {
        // Another master may be elected, for which this one keeps the key.
        if txn.address == self.core.me().rpc.to_string() {
            let gate = &self.context.hub.gate;
            gate.leave_phase(GatePhase::Closed, GatePhase::Electing);
            gate.leave_phase(GatePhase::Forwarding, GatePhase::Electing);
        }
        self.request(async move |backend, _| {
            let outcome = backend.elect(&txn).await;
            DriverEvent::Elected { txn, outcome }
        });
    }

    pub(super) fn end_election(&mut self, txn: ElectionTxn, outcome: TxnOutcome) {
        let is_own = txn.address == self.core.me().rpc.to_string();
        self.update(HaEvent::Elected { txn, outcome });
        if is_own {
            self.context.hub.gate.leave_phase(GatePhase::Electing, GatePhase::Closed);
        }
    }

    pub(super) fn offer(&mut self, txn: OfferTxn) {
        self.request(async move |backend, _| {
            let offers = backend.offer(&txn).await.ok();
            DriverEvent::Core(HaEvent::Offered { offers })
        });
    }

    pub(super) fn write_sync(&mut self, txn: SyncTxn) {
        self.request(async move |backend, _| {
            let outcome = backend.write_sync(&txn).await;
            DriverEvent::SyncWritten { txn, outcome }
        });
    }

    pub(super) fn end_sync_write(&mut self, txn: SyncTxn, outcome: TxnOutcome) {
        let before = matches!(outcome, TxnOutcome::Done(_)).then(|| self.listed_standbys());
        self.update(HaEvent::SyncWritten { txn, outcome });
        if let Some(before) = before {
            self.report_sync_record(&before);
        }
    }

    pub(super) fn delete_key(&mut self, txn: HandOverTxn) {
        self.request(async move |backend, _| {
            let outcome = backend.delete_key(&txn).await;
            DriverEvent::Core(HaEvent::KeyDeleted { outcome })
        });
    }

    /// Reads both records. A read that is in progress is followed by another one.
    pub(super) fn observe(&mut self) {
        if let Some(again) = &mut self.observing {
            *again = true;
            return;
        }
        self.observing = Some(false);
        self.request(async move |backend, sent| {
            let seen = backend.observe().await;
            DriverEvent::RecordsRead { sent, seen }
        });
    }

    pub(super) fn end_observation(&mut self, sent: Mono, seen: Result<Observation, ElectionError>) {
        let foreign = seen.as_ref().ok().and_then(|seen| self.foreign_value(seen));
        let event = self.etcd_errors.observed(seen.as_ref().err().or(foreign.as_ref()));
        self.report_etcd(event);
        if let Ok(seen) = seen {
            self.update(HaEvent::Observed { sent, seen });
        }
        if self.observing.take() == Some(true) {
            self.observe();
        }
    }

    /// The leader's key has a value that no master has written. No master is elected until it is
    /// deleted.
    fn foreign_value(&self, seen: &Observation) -> Option<ElectionError> {
        let key = seen.leader.as_ref().filter(|key| key.is_foreign())?;
        let name = format!("mooncake-store/{}/master_view", self.context.settings.cluster);
        let value = escaped(&key.address);
        let why = format!("it contains '{value}', which is not a master's address; delete it with etcdctl del {name}");
        Some(ElectionError::Invalid { key: name, why })
    }

    /// Keeps the result of a request to etcd that reads no record, and logs when etcd stops or
    /// resumes responding.
    pub(super) fn report_request(&mut self, error: Option<&ElectionError>) {
        let event = self.etcd_errors.requested(error);
        self.report_etcd(event);
    }
}

/// Requests a read of the records at each change of the leader's key.
pub(super) async fn watch_records<E: Env, B: ElectionBackend>(backend: B, context: HaContext<E>) {
    // An error means that the driver has ended.
    let report = || drop(context.events.send(DriverEvent::RecordsChanged));
    loop {
        match backend.watch().await {
            Ok(mut watch) => {
                report();
                while watch.changed().await.is_ok() {
                    report();
                }
            }
            Err(error) => tracing::debug!(%error, "cannot watch the leader's key"),
        }
        context.env.sleep(WATCH_RETRY).await;
    }
}
