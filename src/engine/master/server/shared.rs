//! The lock around the state, and the steps at each acquisition: the clock, the measurement of the
//! time, the log, and the effects.
//!
//! One mutex guards the whole state. No caller holds it for long (`mcctl_master_state_hold_seconds`
//! measures this), and the ticker lets waiting callers proceed between its slices.
//!
//! A panic while the state is locked may leave a partial change, for example memory that belongs to
//! two objects. No caller uses the state after that: all further calls end without a response, and
//! [`MasterServer::failed`](super::MasterServer::failed) ends the process.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::sync::{Notify, broadcast};

use crate::call::MasterCall;
use crate::call::access::StateAccess;
use crate::effect::{Effects, StateEffect};
use crate::metrics::MasterCounters;
use crate::owner;
use crate::restarted_writes::ConnectionId;
use crate::server::effect_log::log_effect;
use crate::server::ha::{HaDisk, HaHub, NOT_SERVING};
use crate::server::log::MasterLog;
use crate::stall::StallDetector;
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_metadata::records::SharedTable;
use mcctl_net::rpc::releases;
use mcctl_net::rpc::{AdmissionWait, CommitWait, Receipt, RpcCall, RpcService};
use mcctl_sys::env::Env;
use mcctl_wire::method::dispatch;
use mcctl_wire::{DecodeError, Method};

/// Number of events by which a subscriber may lag before it loses events. If a client has a
/// thousand segments, all of them may be unmounted at the same time.
const EVENTS_KEPT: usize = 16 << 10;

/// Sleep between two slices of work while other callers wait for the lock. The mutex is not fair.
/// Yielding the processor instead is worse: the scheduler may then resume the thread much later,
/// perhaps while it has the state locked for its next slice.
pub(super) const YIELD_PAUSE: Duration = Duration::from_micros(20);

/// If the state stays locked for longer than this, processor time is measured as well.
const LONG_LOCK: Duration = Duration::from_micros(500);

/// Maximum age of a thread's processor-time reading.
const CPU_MARK_INTERVAL: Duration = Duration::from_micros(250);

thread_local! {
    /// The time of the last reading of the thread's processor time, and its value.
    static CPU_MARK: Cell<Option<(Mono, Duration)>> = const { Cell::new(None) };
}

/// The state behind its lock, and the values that callers and the ticker share.
pub(super) struct MasterShared<E> {
    pub guarded: Mutex<GuardedState>,
    /// Number of callers waiting for the lock.
    pub waiting: AtomicUsize,
    /// Wakes the ticker before its planned time.
    pub wake: Notify,
    pub unmount_events: broadcast::Sender<StateEffect>,
    pub env: E,
    /// The metadata service's records, of the state or of the copy that will be the state.
    metadata: Mutex<SharedTable>,
    /// The log of the state's changes. `None`: the state is only in memory.
    pub log: Option<Arc<MasterLog>>,
    /// The hub of a master in a cluster.
    pub ha: Option<Arc<HaHub>>,
}

/// The values that the lock protects.
pub(super) struct GuardedState {
    pub state: MasterState,
    /// Time at which the ticker will run next.
    pub planned: Mono,
    /// Detects stalls, and keeps the state's time, which never goes backward.
    pub stalls: StallDetector,
    /// In a cluster: the term of the gate in which the state serves, or another number if it does
    /// not.
    pub term: u64,
    /// In a cluster: this master has handed over, so responses of calls that are processed now are
    /// never sent.
    pub is_released: bool,
    /// In a cluster: the log of the state that serves.
    pub log: Option<Arc<MasterLog>>,
}

impl<E: Env> MasterShared<E> {
    /// Puts `state` behind its lock. A `log` continues after the changes that the state contains.
    pub(super) fn new(
        state: MasterState,
        log: Option<Arc<MasterLog>>,
        ha: Option<Arc<HaHub>>,
        env: E,
    ) -> MasterShared<E> {
        MasterShared {
            metadata: Mutex::new(state.metadata().clone()),
            guarded: Mutex::new(GuardedState {
                stalls: StallDetector::new(env.now(), state.policy().client_ttl),
                state,
                planned: Mono::ZERO,
                term: NOT_SERVING,
                is_released: false,
                log: None,
            }),
            waiting: AtomicUsize::new(0),
            wake: Notify::new(),
            unmount_events: broadcast::Sender::new(EVENTS_KEPT),
            env,
            log,
            ha,
        }
    }

    /// Locks the state. Also returns the time at which it was locked. `requested_at` is the time
    /// just before the call.
    pub(super) fn lock(&self, requested_at: Mono) -> (MutexGuard<'_, GuardedState>, Mono) {
        let (mut guard, since) = match self.guarded.try_lock() {
            Ok(guard) => (guard, requested_at),
            Err(TryLockError::Poisoned(_)) => self.end_call(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let guard = self.guarded.lock();
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                (guard.unwrap_or_else(|_| self.end_call()), self.env.now())
            }
        };
        let longer = guard.stalls.observe(since);
        if !longer.is_zero() {
            guard.state.extend_client_deadlines(longer);
        }
        (guard, since)
    }

    /// Ends the call because a panic has made the state unusable. That panic has been reported, so
    /// this one is not. The ticker wakes, ends in the same way, and so ends the process.
    #[cold]
    fn end_call(&self) -> ! {
        self.wake.notify_one();
        std::panic::resume_unwind(Box::new("a panic has made the master's state unusable"))
    }

    /// The metadata service's records.
    pub(super) fn metadata_table(&self) -> SharedTable {
        self.metadata.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses these records of the metadata service from now on, because another copy of the state
    /// replaces the present one.
    pub(super) fn set_metadata_table(&self, records: SharedTable) {
        *self.metadata.lock().unwrap_or_else(PoisonError::into_inner) = records;
    }

    /// The data directory of a cluster's master.
    pub(super) fn disk(&self) -> Option<&HaDisk> {
        self.ha.as_ref()?.disk.as_ref()
    }

    /// Whether the state's background work may run.
    pub(super) fn may_tick(&self) -> bool {
        self.ha.as_ref().is_none_or(|ha| ha.gate.is_serving(self.env.boottime()))
    }

    /// Whether this master leads a cluster, but its responses wait, because it cannot prove that it
    /// leads.
    pub(super) fn is_fenced(&self) -> bool {
        self.ha.as_ref().is_some_and(|ha| ha.gate.is_fenced(self.env.boottime()))
    }

    /// Runs `work` as a call from `peer`, which may lock the state several times. Also returns the
    /// receipt that the response to the call waits for. See [`RpcService::commit`].
    pub(super) fn call<R>(
        &self,
        peer: Option<&str>,
        work: impl FnOnce(&mut MasterCall<LockedAccess<'_, E>>) -> R,
    ) -> (R, Receipt) {
        let mut call = MasterCall(LockedAccess { shared: self, peer, receipt: Receipt::default() });
        let result = work(&mut call);
        (result, call.0.receipt)
    }

    /// Locks the state and runs `work`, which reads it or does background work. There is no
    /// receipt, so no response may report a change that `work` makes. [`call`](Self::call) is for
    /// such changes.
    pub(super) fn with_guarded<R>(&self, work: impl FnOnce(&mut GuardedState, Mono, &mut Effects) -> R) -> R {
        self.with_receipt(None, work).0
    }

    /// Locks the state and runs `work`. Also returns the receipt that a response reporting its
    /// result waits for.
    fn with_receipt<R>(
        &self,
        peer: Option<&str>,
        work: impl FnOnce(&mut GuardedState, Mono, &mut Effects) -> R,
    ) -> (R, Receipt) {
        let mut effects = Effects::default();
        let requested_at = self.env.now();
        self.mark_cpu(requested_at);
        let (result, receipt, wake) = {
            let (mut guard, since) = self.lock(requested_at);
            let now = guard.stalls.latest();
            let result = work(&mut guard, now, &mut effects);
            let receipt = self.close_change(&mut guard);
            let wake = guard.state.urgent().is_some_and(|at| at < guard.planned);
            if wake {
                guard.planned = Mono::ZERO;
            }
            self.record_lock_time(&mut guard.state.counters, since);
            (result, receipt, wake)
        };
        if wake {
            self.wake.notify_one();
        }
        self.perform(effects, peer);
        (result, receipt)
    }

    /// Appends the change that the state has made since it was locked, if there is one. Returns the
    /// receipt that a response from this state waits for.
    #[inline]
    fn close_change(&self, guarded: &mut GuardedState) -> Receipt {
        let now = || self.env.unix();
        match (&self.ha, &self.log) {
            (Some(ha), _) => {
                let term = if guarded.is_released { NOT_SERVING } else { guarded.term };
                ha.close_change(&mut guarded.state, term, guarded.log.as_deref(), now)
            }
            (None, Some(log)) => log.close_change(&mut guarded.state, now),
            (None, None) => Receipt::default(),
        }
    }

    /// Records how long the state was locked.
    ///
    /// The thread may be preempted while it has the state locked. Wall-clock time then measures the
    /// load on the machine rather than the master's work. A long time is therefore replaced by the
    /// thread's processor time since its last reading, which was taken at most
    /// [`CPU_MARK_INTERVAL`] before the lock acquisition. The result is an upper bound on the
    /// processor time used with the state locked. Measuring it this way costs an occasional system
    /// call instead of two per RPC.
    fn record_lock_time(&self, counters: &mut MasterCounters, since: Mono) {
        let mut locked = self.env.now().since(since);
        if locked >= LONG_LOCK
            && let Some(used) = CPU_MARK.get().and_then(|(_, mark)| Some(self.env.thread_cpu()?.saturating_sub(mark)))
            && used < locked / 2
        {
            counters.state_lock_preempted += 1;
            locked = used;
        }
        counters.state_lock_ns.record(u64::try_from(locked.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Renews the thread's processor-time reading if it is old. Call this before locking the state.
    fn mark_cpu(&self, now: Mono) {
        if CPU_MARK.get().is_none_or(|(at, _)| now.since(at) >= CPU_MARK_INTERVAL) {
            CPU_MARK.set(self.env.thread_cpu().map(|used| (now, used)));
        }
    }

    fn perform(&self, effects: Effects, peer: Option<&str>) {
        for effect in effects.list {
            log_effect(&effect, peer);
            if matches!(effect, StateEffect::Unmounted { .. } | StateEffect::ClientExpired { .. }) {
                // An error means that there are no subscribers.
                let _ = self.unmount_events.send(effect);
            }
        }
    }
}

impl<E: Env> RpcService for MasterShared<E> {
    fn answer(&self, request: RpcCall<'_>, out: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
        let RpcCall { peer, method, layout, body } = request;
        let (answered, receipt) = self.call(Some(peer), |call| dispatch(call, method, layout, body, out));
        answered.map(|()| receipt)
    }

    fn admits(&self, method: Method) -> bool {
        self.admits_request(method)
    }

    fn admission(&self, method: Method) -> AdmissionWait<'_> {
        self.request_admission(method)
    }

    fn commit(&self, receipt: Receipt) -> Option<CommitWait<'_>> {
        if let Some(ha) = &self.ha {
            ha.tail.notify();
            return ha.commit(receipt, &self.env);
        }
        self.log.as_ref()?.commit(receipt)
    }

    /// Returns true for methods that scan all keys.
    fn is_long(&self, method: Method) -> bool {
        matches!(method, Method::GetReplicaListByRegex | Method::RemoveByRegex | Method::RemoveAll)
    }
}

/// Access for a call from a peer or from this process. [`MasterShared::call`] creates it, and
/// returns its receipt.
pub(super) struct LockedAccess<'a, E> {
    shared: &'a MasterShared<E>,
    /// The caller's address, if the call came over a connection.
    peer: Option<&'a str>,
    /// The receipt that the response to the call waits for, merged from all lock acquisitions so
    /// far.
    receipt: Receipt,
}

impl<E: Env> StateAccess for LockedAccess<'_, E> {
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        let (result, receipt) =
            self.shared.with_receipt(self.peer, |guarded, now, effects| work(&mut guarded.state, now, effects));
        self.receipt.merge(receipt);
        result
    }

    fn connection(&self) -> ConnectionId {
        ConnectionId::of(self.peer)
    }

    fn unnamed_client(&self) -> ClientId {
        let host = self.peer.map(releases::host);
        owner::unnamed_client(FixedState::default().hash_one(host))
    }

    fn yield_to_waiters(&mut self) {
        self.shared.limit_log_buffer();
        if self.shared.waiting.load(Ordering::Relaxed) > 0 {
            // This synchronous code runs on a worker thread and cannot await. The waiting callers
            // are on other threads.
            self.shared.env.pause_thread(YIELD_PAUSE);
        }
    }
}
