//! The driver of a master in a cluster: it runs the core, publishes what the core decided, and performs its actions.
//!
//! Everything here runs on one thread. An update never waits; what may take long runs as a task, which reports its result in another update.

mod etcd_errors;
mod links;
pub(in crate::engine::master::server::ha) mod perform;
mod repeats;
mod run;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};

use crate::engine::base::text::escaped;
use crate::engine::base::{HostPort, Mono};
use crate::engine::election::{ElectionBackend, ElectionError, ElectionWatch};
use crate::engine::env::Env;
use crate::engine::ha::message::{ClientPings, StateDigest};
use crate::engine::ha::{
    HaAction, HaCore, HaEvent, HaMessage, MemberId, MemberInfo, Observation, ResponseGate, ResponseLimits,
};
use crate::engine::journal::JournalError;
use crate::engine::master::config::StorePolicy;
use crate::engine::master::server::ha::disk::{FoundCopy, HaDisk};
use crate::engine::master::server::ha::driver::etcd_errors::{EtcdErrors, EtcdEvent};
use crate::engine::master::server::ha::driver::links::StreamLinks;
use crate::engine::master::server::ha::driver::repeats::RepeatedMessages;
use crate::engine::master::server::ha::leader::gate::GatePhase;
use crate::engine::master::server::ha::standby::copy::StandbyCopy;
use crate::engine::master::server::ha::stream::StreamMessage;
use crate::engine::master::server::ha::{HaHub, HaSettings};
use crate::engine::master::server::shared::MasterShared;

/// Pause before a watch that ended is started again.
const WATCH_RETRY: Duration = Duration::from_millis(500);
/// Number of clients that are visited while the state is locked once.
const CLIENTS_PER_SLICE: usize = 1024;
/// Number of object slots per digest. Computing it takes some hundred microseconds.
const DIGEST_SLOTS: u32 = 1024;
/// Maximum number of clients in a message.
const CLIENTS_PER_MESSAGE: usize = 100_000;

/// Runs the core of one master, and performs its actions.
pub(in crate::engine::master::server) struct HaDriver<E, B> {
    pub(in crate::engine::master::server::ha) env: E,
    pub(in crate::engine::master::server::ha) shared: Arc<MasterShared<E>>,
    pub(in crate::engine::master::server::ha) hub: Arc<HaHub>,
    pub(in crate::engine::master::server::ha) backend: B,
    pub(in crate::engine::master::server::ha) settings: HaSettings,
    pub(in crate::engine::master::server::ha) copy: Mutex<StandbyCopy>,
    pub(in crate::engine::master::server::ha) state: Mutex<DriverState>,
    pub(in crate::engine::master::server::ha) tasks: Mutex<JoinSet<()>>,
}

/// The core, and what changes while the driver runs.
pub(in crate::engine::master::server::ha) struct DriverState {
    pub core: HaCore,
    actions: VecDeque<HaAction>,
    is_performing: bool,
    pub links: StreamLinks,
    /// The RPC addresses of this leader's standbys.
    pub addresses: HashMap<MemberId, String>,
    pub follower: Option<AbortHandle>,
    /// A read of the records is in progress, and whether another one must follow.
    observing: Option<bool>,
    pub clients_at: Mono,
    /// The first object slot of the next digest.
    digest_from: u32,
    /// Number of digests of the leader that agreed with the copy.
    pub digests: u64,
    /// The leader's last change, from its last ping.
    pub leader_last: u64,
    pub etcd_errors: EtcdErrors,
    /// Messages that would be logged again and again.
    pub repeated_messages: RepeatedMessages,
    /// This master leads, or is about to, without having been in sync: number of the former leader's announced changes that it does not have.
    pub may_lack: Option<u64>,
    pub promotions: u64,
    pub demotions: u64,
}

impl DriverState {
    /// Drops the addresses of masters that are not standbys of this leader any more.
    pub fn drop_old_addresses(&mut self) {
        let listed: Vec<MemberId> = self.core.standbys().map(|(member, _)| member).collect();
        self.addresses.retain(|member, _| listed.contains(member));
    }
}

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// A driver for `shared`, whose RPC port is `rpc_port`.
    pub fn new(
        shared: Arc<MasterShared<E>>,
        hub: Arc<HaHub>,
        backend: B,
        settings: HaSettings,
        rpc_port: u16,
        found: Option<FoundCopy>,
        policy: StorePolicy,
    ) -> HaDriver<E, B> {
        let env = shared.env.clone();
        let address = |port| HostPort::new(settings.host.clone(), port);
        let id = found.as_ref().map_or_else(|| MemberId(env.rng()), |found| found.note.member);
        let me = MemberInfo { id, rpc: address(rpc_port), replication: address(0) };
        let (core, copy) = match found {
            Some(found) => {
                hub.tail.restart(found.last + 1);
                let core = HaCore::with_copy(settings.config, me, env.boottime(), found.last);
                (core, StandbyCopy::found(policy, found))
            }
            None => (HaCore::new(settings.config, me), StandbyCopy::new(policy)),
        };
        let state = DriverState {
            core,
            actions: VecDeque::new(),
            is_performing: false,
            links: StreamLinks::default(),
            addresses: HashMap::new(),
            follower: None,
            observing: None,
            clients_at: Mono::ZERO,
            digest_from: 0,
            digests: 0,
            leader_last: 0,
            etcd_errors: EtcdErrors::default(),
            repeated_messages: RepeatedMessages::default(),
            may_lack: None,
            promotions: 0,
            demotions: 0,
        };
        let copy = Mutex::new(copy);
        HaDriver { env, shared, hub, backend, settings, copy, state: Mutex::new(state), tasks: Mutex::default() }
    }

    /// Runs a task on this thread.
    pub(in crate::engine::master::server::ha) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        self.tasks.lock().expect(NO_PANIC).spawn(task)
    }

    /// Number of copies that were discarded, for work with the data directory.
    pub(in crate::engine::master::server::ha) fn copies_discarded(&self) -> u64 {
        self.hub.disk.as_ref().map_or(0, HaDisk::discarded)
    }

    /// Runs work with the data directory, if there is one, on another thread. An error ends the process, or the use of the directory.
    ///
    /// # Errors
    /// The disk reports an error that ends the process.
    pub(in crate::engine::master::server::ha) async fn use_disk(
        self: &Arc<Self>,
        work: impl FnOnce(&HaDisk, &HaDriver<E, B>) -> Result<(), JournalError> + Send + 'static,
    ) -> Result<(), JournalError> {
        if self.hub.disk.is_none() {
            return Ok(());
        }
        let driver = self.clone();
        let work = move || {
            let Some(disk) = &driver.hub.disk else { return Ok(()) };
            work(disk, &driver).or_else(|error| disk.fail(error))
        };
        self.env.run_blocking(work).await
    }

    pub(in crate::engine::master::server::ha) fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().expect(NO_PANIC)
    }

    pub(in crate::engine::master::server::ha) fn copy(&self) -> MutexGuard<'_, StandbyCopy> {
        self.copy.lock().expect(NO_PANIC)
    }

    /// Passes an event to the core, and performs its actions.
    pub(in crate::engine::master::server::ha) fn update(self: &Arc<Self>, event: HaEvent) {
        {
            let mut state = self.state();
            let state = &mut *state;
            state.actions.extend(state.core.handle(self.env.boottime(), event, &**self));
            #[cfg(test)]
            self.hub.note_core(&state.core);
            if std::mem::replace(&mut state.is_performing, true) {
                return;
            }
        }
        loop {
            let action = {
                let mut state = self.state();
                let action = state.actions.pop_front();
                state.is_performing = action.is_some();
                action
            };
            let Some(action) = action else { return };
            self.perform(action);
        }
    }

    /// Changes up to `last` were received. Returns the acknowledgement to send.
    pub(in crate::engine::master::server::ha) fn acknowledge(&self, last: u64) -> Option<HaMessage> {
        let mut state = self.state();
        let state = &mut *state;
        let mut ack = None;
        for action in state.core.handle(self.env.boottime(), HaEvent::ChangesReceived { last }, self) {
            match action {
                HaAction::Send(_, message) => ack = Some(message),
                action => state.actions.push_back(action),
            }
        }
        ack
    }

    /// The address of this master's RPC port, as in the leader's key.
    pub(in crate::engine::master::server::ha) fn address(&self) -> String {
        self.state().core.me().rpc.to_string()
    }

    /// Tells the standbys when each client last called, so that they count as confirmed after a promotion.
    pub(in crate::engine::master::server::ha) fn send_clients(&self) {
        let (mut pings, mut cursor) = (Vec::new(), None);
        loop {
            cursor = self.shared.with_guarded(None, |guarded, now, _| {
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
        self.state().links.send_all(&StreamMessage::Clients(encoded.into()));
    }

    /// Adds a digest of a part of the state to the streams, which the standbys compare with their copies.
    pub(in crate::engine::master::server::ha) fn send_digest(&self) {
        let from = self.state().digest_from;
        let next = self.shared.with_guarded(None, |guarded, _, _| {
            let (objects, tables) = guarded.state.part_digests(from, DIGEST_SLOTS);
            let mut digest = Vec::new();
            StateDigest { from, slots: DIGEST_SLOTS, objects, tables }.encode(&mut digest);
            // No change comes in between, because the state is locked.
            self.hub.tail.append_digest(digest);
            Some(from + DIGEST_SLOTS).filter(|next| *next < guarded.state.object_slots())
        });
        self.hub.tail.notify_always();
        self.state().digest_from = next.unwrap_or(0);
    }

    /// Reads both records. A read that is in progress is followed by another one.
    pub(in crate::engine::master::server::ha) fn observe(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if let Some(again) = &mut state.observing {
                *again = true;
                return;
            }
            state.observing = Some(false);
        }
        let driver = self.clone();
        self.spawn(async move {
            let sent = driver.env.boottime();
            let seen = driver.backend.observe().await;
            let foreign = seen.as_ref().ok().and_then(|seen| driver.foreign_value(seen));
            let event = driver.state().etcd_errors.observed(seen.as_ref().err().or(foreign.as_ref()));
            event.inspect(EtcdEvent::log);
            if let Ok(seen) = seen {
                driver.update(HaEvent::Observed { sent, seen });
            }
            let again = driver.state().observing.take();
            if again == Some(true) {
                driver.observe();
            }
        });
    }

    /// The leader's key has a value that no master has written. No master is elected until it is deleted.
    fn foreign_value(&self, seen: &Observation) -> Option<ElectionError> {
        let key = seen.leader.as_ref().filter(|key| key.is_foreign())?;
        let name = format!("mooncake-store/{}/master_view", self.settings.cluster);
        let value = escaped(&key.address);
        let why = format!("it contains '{value}', which is not a master's address; delete it with etcdctl del {name}");
        Some(ElectionError::Invalid { key: name, why })
    }

    /// Keeps the error of a request to etcd that reads no record, or its absence, and logs when etcd responds again or not any more.
    pub(in crate::engine::master::server::ha) fn report(&self, error: Option<&ElectionError>) {
        let event = self.state().etcd_errors.requested(error);
        event.inspect(EtcdEvent::log);
    }

    /// Observes at each change of the leader's key.
    pub(in crate::engine::master::server::ha) async fn watch(self: Arc<Self>) {
        loop {
            match self.backend.watch().await {
                Ok(mut watch) => {
                    self.observe();
                    while watch.changed().await.is_ok() {
                        self.observe();
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot watch the leader's key"),
            }
            self.env.sleep(WATCH_RETRY).await;
        }
    }
}

impl<E: Env, B> ResponseGate for HaDriver<E, B> {
    fn appended(&self) -> u64 {
        self.hub.tail.appended()
    }

    fn publish(&self, limits: ResponseLimits) {
        let gate = &self.hub.gate;
        gate.publish(&self.env, limits.fence, limits.acked.unwrap_or(u64::MAX));
        if limits.fence.is_none() && matches!(gate.phase(), GatePhase::Open | GatePhase::ChangesHeld) {
            gate.set_phase(GatePhase::Released);
        }
    }

    fn appended_before_publish(&self) -> u64 {
        self.hub.tail.last_locked()
    }
}

/// Drops something large without stopping this thread for the time that it takes.
pub(in crate::engine::master::server::ha) fn drop_elsewhere(env: &impl Env, large: impl Send + 'static) {
    drop(env.run_blocking(move || drop(large)));
}

pub(in crate::engine::master::server::ha) const NO_PANIC: &str = "no task panics while it has this locked";
