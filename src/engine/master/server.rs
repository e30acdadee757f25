//! Runs a [`MasterState`]: the lock, the clock, the RPC server, and the ticker, which is the task that does the state's background work.
//!
//! One mutex guards the whole state. No caller holds it for long (`mcctl_master_state_hold_seconds` measures this), and the ticker lets
//! waiting callers proceed between its slices.
//!
//! A panic while the state is locked may leave a partial change, for example memory that belongs to two objects. No caller uses the state
//! after that: all further calls end without a response, and [`MasterServer::failed`] ends the process.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};

use crate::engine::base::text::escaped;
use crate::engine::base::{ClientId, ErrorCode, Mono};
use crate::engine::env::Env;
use crate::engine::master::call::MasterCall;
use crate::engine::master::call::access::StateAccess;
use crate::engine::master::config::MasterConfig;
use crate::engine::master::effect::{Effects, StateEffect, UnmountReason};
use crate::engine::master::metrics::{MasterCounters, MasterGauges};
use crate::engine::master::remove::ObjectWalk;
use crate::engine::master::stall::{StallDetector, StallReport};
use crate::engine::master::state::MasterState;
use crate::engine::master::view::{AdminView, ReplicaView, RunState, SegmentView, ServiceView};
use crate::engine::rpc::WorkerPolls;
use crate::engine::rpc::{RpcServer, RpcService, ServerConfig, StartError};
use crate::engine::wire::method::dispatch;
use crate::engine::wire::{DecodeError, Method, TextBuf};

/// Number of events by which a subscriber may lag before it loses events. If a client has a thousand segments, all of them may be unmounted
/// at the same time.
const EVENTS_KEPT: usize = 16 << 10;
/// How long to sleep between two slices of work while other callers wait for the lock. The mutex is not fair. Yielding the processor
/// instead is worse: the scheduler may then resume the thread much later, perhaps while it has the state locked for its next slice.
const YIELD_PAUSE: Duration = Duration::from_micros(20);

/// A worker counts as stuck if it has not polled its connections for this long. `/health` and `/ready` then return 503. Polls are half a
/// second apart, and no call on a worker takes as long as a second.
pub const WORKER_STUCK_AFTER: Duration = Duration::from_secs(5);

/// If the state stays locked for longer than this, processor time is measured as well.
const LONG_LOCK: Duration = Duration::from_micros(500);
/// Maximum age of a thread's processor-time reading.
const CPU_MARK_INTERVAL: Duration = Duration::from_micros(250);

thread_local! {
    /// When the thread's processor time was last read, and the value read.
    static CPU_MARK: Cell<Option<(Mono, Duration)>> = const { Cell::new(None) };
}

/// Why a master could not start.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The RPC server could not start.
    #[error(transparent)]
    Rpc(#[from] StartError),
}

/// A running master. Dropping it stops it without waiting; [`MasterServer::stop`] waits.
pub struct MasterServer<E: Env> {
    handle: MasterHandle<E>,
    rpc: RpcServer,
    stop: watch::Sender<bool>,
    ticker: tokio::task::JoinHandle<()>,
}

impl<E: Env> MasterServer<E> {
    /// Starts listening and serving.
    ///
    /// # Errors
    /// The address is not available, or a thread cannot be started.
    pub async fn start(mut config: MasterConfig, env: E) -> Result<MasterServer<E>, MasterError> {
        if config.policy.seed == 0 {
            config.policy.seed = env.rng();
        }
        let shared = Arc::new(MasterShared {
            guarded: Mutex::new(GuardedState {
                stalls: StallDetector::new(env.now(), config.policy.client_ttl),
                state: MasterState::new(config.policy),
                planned: Mono::ZERO,
            }),
            waiting: AtomicUsize::new(0),
            wake: Notify::new(),
            unmount_events: broadcast::Sender::new(EVENTS_KEPT),
            env: env.clone(),
        });
        let server = ServerConfig { listen: config.listen, threads: config.threads, idle_timeout: config.idle_timeout };
        let rpc = RpcServer::start(server, env, shared.clone()).await?;
        let (stop, stopping) = watch::channel(false);
        let handle = MasterHandle { shared, polls: rpc.polls() };
        let ticker = tokio::spawn(run_ticker(handle.clone(), stopping));
        Ok(MasterServer { handle, rpc, stop, ticker })
    }

    /// The port that the RPC server listens on.
    pub fn rpc_port(&self) -> u16 {
        self.rpc.port()
    }

    /// Number of open RPC connections.
    pub fn connections(&self) -> usize {
        self.rpc.connections()
    }

    /// Returns access to the state, for the admin API.
    pub fn handle(&self) -> MasterHandle<E> {
        self.handle.clone()
    }

    /// Waits until a panic has made the state unusable, and then resumes the panic. Does not return while the master works.
    pub async fn failed(&mut self) -> Infallible {
        match (&mut self.ticker).await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => std::future::pending().await,
        }
    }

    /// Stops accepting connections, waits for calls in progress, and stops the ticker. If a panic has made the state unusable, resumes
    /// the panic.
    pub async fn stop(self) {
        self.rpc.stop().await;
        let _ = self.stop.send(true);
        match self.ticker.await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The ticker may have ended without locking the state.
            _ if self.handle.shared.guarded.is_poisoned() => {
                std::panic::resume_unwind(Box::new("a panic interrupted a change of the master's state"))
            }
            _ => {}
        }
    }
}

/// Access to a running master's state. Cheap to clone.
pub struct MasterHandle<E> {
    shared: Arc<MasterShared<E>>,
    polls: WorkerPolls,
}

impl<E> Clone for MasterHandle<E> {
    fn clone(&self) -> MasterHandle<E> {
        MasterHandle { shared: self.shared.clone(), polls: self.polls.clone() }
    }
}

impl<E: Env> MasterHandle<E> {
    /// Subscribes to unmounted segments and expired clients, for components that store related records elsewhere.
    pub fn unmount_events(&self) -> broadcast::Receiver<StateEffect> {
        self.shared.unmount_events.subscribe()
    }

    /// Returns true if a segment with this name is mounted.
    pub fn has_segment_named(&self, name: &str) -> bool {
        self.access().with_state(|state, _, _| state.has_segment_named(name.as_bytes()))
    }

    /// Calls RPC methods without a connection.
    pub fn call(&self) -> MasterCall<impl StateAccess + '_> {
        MasterCall(self.access())
    }

    fn access(&self) -> LockedAccess<'_, E> {
        LockedAccess { shared: &self.shared, peer: None }
    }
}

struct MasterShared<E> {
    guarded: Mutex<GuardedState>,
    /// Number of callers waiting for the lock.
    waiting: AtomicUsize,
    /// Wakes the ticker before its planned time.
    wake: Notify,
    unmount_events: broadcast::Sender<StateEffect>,
    env: E,
}

struct GuardedState {
    state: MasterState,
    /// When the ticker will run next.
    planned: Mono,
    /// Detects stalls, and keeps the state's time, which never goes backward.
    stalls: StallDetector,
}

impl<E: Env> MasterShared<E> {
    /// Locks the state. Also returns the time at which it was locked. `requested_at` is the time just before the call.
    fn lock(&self, requested_at: Mono) -> (MutexGuard<'_, GuardedState>, Mono) {
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

    /// Ends the call because a panic has made the state unusable. That panic has been reported, so this one is not. The ticker wakes, ends
    /// in the same way, and so ends the process.
    #[cold]
    fn end_call(&self) -> ! {
        self.wake.notify_one();
        std::panic::resume_unwind(Box::new("a panic has made the master's state unusable"))
    }

    /// Locks the state and runs `work` for a call from `peer`, or for the ticker.
    fn with_guarded<R>(&self, peer: Option<&str>, work: impl FnOnce(&mut GuardedState, Mono, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let requested_at = self.env.now();
        self.mark_cpu(requested_at);
        let (result, wake) = {
            let (mut guard, since) = self.lock(requested_at);
            let now = guard.stalls.latest();
            let result = work(&mut guard, now, &mut effects);
            let wake = guard.state.urgent().is_some_and(|at| at < guard.planned);
            if wake {
                guard.planned = Mono::ZERO;
            }
            self.record_lock_time(&mut guard.state.counters, since);
            (result, wake)
        };
        if wake {
            self.wake.notify_one();
        }
        self.perform(effects, peer);
        result
    }

    /// Records how long the state was locked.
    ///
    /// The thread may be preempted while it has the state locked. Wall-clock time then measures the load on the machine rather than the
    /// master's work. A long time is therefore replaced by the thread's processor time since its last reading, which was taken at most
    /// [`CPU_MARK_INTERVAL`] before the lock acquisition. The result is an upper bound on the processor time used with the state locked.
    /// Measuring it this way costs an occasional system call instead of two per RPC.
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
    fn answer(&self, peer: &str, method: Method, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        dispatch(&mut MasterCall(LockedAccess { shared: self, peer: Some(peer) }), method, body, out)
    }

    /// Returns true for methods that scan all keys.
    fn is_long(&self, method: Method) -> bool {
        matches!(method, Method::GetReplicaListByRegex | Method::RemoveByRegex | Method::RemoveAll)
    }
}

struct LockedAccess<'a, E> {
    shared: &'a MasterShared<E>,
    /// The caller's address, if the call came over a connection.
    peer: Option<&'a str>,
}

impl<E: Env> StateAccess for LockedAccess<'_, E> {
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        self.shared.with_guarded(self.peer, |guarded, now, effects| work(&mut guarded.state, now, effects))
    }

    fn yield_to_waiters(&mut self) {
        if self.shared.waiting.load(Ordering::Relaxed) > 0 {
            // This synchronous code runs on a worker thread and cannot await. The waiting callers are on other threads.
            self.shared.env.pause_thread(YIELD_PAUSE);
        }
    }
}

async fn run_ticker<E: Env>(master: MasterHandle<E>, mut stopping: watch::Receiver<bool>) {
    let MasterHandle { shared, polls } = master;
    loop {
        let slice = || {
            let answered_until = polls.oldest();
            shared.with_guarded(None, |guarded, now, effects| {
                // The next slice, or computing the next wakeup, follows immediately.
                guarded.stalls.expect_by(now);
                guarded.state.tick(now, answered_until.unwrap_or(now), effects)
            })
        };
        while slice() {
            if shared.waiting.load(Ordering::Relaxed) > 0 {
                shared.env.sleep(YIELD_PAUSE).await;
            } else {
                tokio::task::yield_now().await;
            }
            if *stopping.borrow() {
                return;
            }
        }
        let (pause, report) = {
            let answered_until = polls.oldest();
            let (mut guard, _) = shared.lock(shared.env.now());
            // Do not use the time that was just read: it may precede a stall that another caller has already observed.
            let now = guard.stalls.latest();
            let next = guard.state.next_wakeup(now, answered_until.unwrap_or(now));
            guard.planned = next;
            // A wakeup time in the past with no work to do would make the ticker spin. The shortest regular pause is the one between
            // eviction rounds.
            let pause = next.since(now).max(Duration::from_millis(1));
            guard.stalls.expect_by(now + pause);
            (pause, guard.stalls.take_report())
        };
        if let Some(StallReport { stalled, extension }) = report {
            tracing::warn!(
                ?stalled,
                client_ttl_extension = ?extension,
                "the master stalled (suspended, or short of processor time); client deadlines were extended"
            );
        }
        tokio::select! {
            () = shared.env.sleep(pause) => {}
            () = shared.wake.notified() => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
    }
}

/// Logs an effect of a call from `peer`, or of the ticker. Segment names come from clients and may contain any bytes.
fn log_effect(effect: &StateEffect, peer: Option<&str>) {
    let shown = |name: &TextBuf| escaped(&name.to_string_lossy());
    let peer = peer.unwrap_or("this process");
    match effect {
        StateEffect::Mounted { segment, name, client, bytes } => {
            tracing::info!(%segment, name = %shown(name), %client, %peer, bytes, "segment mounted");
        }
        StateEffect::Unmounted { segment, name, client, reason, .. } => {
            let name = shown(name);
            match reason {
                UnmountReason::Requested => tracing::info!(%segment, %name, %client, %peer, "segment unmounted"),
                UnmountReason::GraceElapsed => {
                    tracing::info!(%segment, %name, %client, "segment unmounted: grace period ended")
                }
                UnmountReason::ClientExpired => {
                    tracing::warn!(%segment, %name, %client, "segment lost: its client expired")
                }
                UnmountReason::Superseded { by } => tracing::warn!(
                    %segment,
                    %name,
                    %client,
                    new_client = %by,
                    %peer,
                    "segment replaced by a new mount, its objects are lost: its process restarted, or two processes have the \
                     same name"
                ),
            }
        }
        StateEffect::ClientExpired { client } => {
            tracing::warn!(%client, "client expired: no ping within its time to live")
        }
        StateEffect::Evicted { objects, bytes } => tracing::info!(objects, bytes, "evicted"),
    }
}

impl<E: Env> AdminView for MasterHandle<E> {
    fn service(&self) -> ServiceView {
        ServiceView { state: RunState::Serving, leader: None }
    }

    fn stuck_for(&self) -> Option<Duration> {
        let silent = self.shared.env.now().since(self.polls.oldest()?);
        (silent >= WORKER_STUCK_AFTER).then_some(silent)
    }

    fn metrics(&self) -> (MasterCounters, MasterGauges) {
        self.access().with_state(|state, _, _| (state.counters.clone(), state.gauges()))
    }

    fn segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64> {
        self.access().with_state(|state, _, _| state.view_segments(cursor, limit, visit))
    }

    fn heartbeats(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(ClientId, Duration)) -> Option<u64> {
        self.access().with_state(|state, now, _| state.view_heartbeats(now, cursor, limit, visit))
    }

    fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        self.access().with_state(|state, _, _| state.keys(cursor, limit, visit))
    }

    fn remove_slice(&self, walk: Option<ObjectWalk>, force: bool) -> (u64, Option<ObjectWalk>) {
        let slice = self.access().with_state(|state, now, _| {
            let mut walk = walk.unwrap_or_else(|| {
                state.counters.remove_all.add(true);
                state.walk()
            });
            let removed = state.remove_slice(now, &mut walk, force);
            (removed, (!walk.is_done()).then_some(walk))
        });
        self.access().yield_to_waiters();
        slice
    }

    fn replicas(&self, key: &[u8]) -> Result<Vec<ReplicaView>, ErrorCode> {
        self.access().with_state(|state, _, _| state.peek(key)).map_err(|refusal| refusal.code())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;
    use crate::engine::base::{ClientId, HostPort, SegmentId};
    use crate::engine::env::RealEnv;

    /// Returns the log lines for an effect.
    fn logged(effect: &StateEffect, peer: Option<&str>) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = {
            let lines = lines.clone();
            move || LogBuffer(lines.clone())
        };
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        tracing::subscriber::with_default(log, || log_effect(effect, peer));
        String::from_utf8(lines.lock().unwrap().clone()).unwrap()
    }

    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    const OLD: ClientId = ClientId(1, 1);
    const NEW: ClientId = ClientId(2, 2);

    #[tokio::test]
    async fn no_call_uses_the_state_after_a_panic() {
        let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
        config.threads = 1;
        let mut server = MasterServer::start(config, RealEnv::new()).await.unwrap();
        let handle = server.handle();
        assert!(!handle.has_segment_named("node:1"));
        let ends = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
        assert!(ends(&|| handle.access().with_state(|_, _, _| resume_unwind(Box::new("on purpose")))));
        assert!(ends(&|| assert!(!handle.has_segment_named("node:1"))));
        let failed = tokio::spawn(async move { server.failed().await }).await;
        assert!(failed.is_err_and(|error| error.is_panic()));
    }

    #[test]
    fn a_superseded_segment_is_a_warning_with_the_new_clients_address() {
        let reason = UnmountReason::Superseded { by: NEW };
        let name = TextBuf::from("node:1");
        let effect =
            StateEffect::Unmounted { segment: SegmentId(1, 1), name, client: OLD, reason, last_of_name: false };
        let line = logged(&effect, Some("10.0.0.9:4711"));
        for part in [" WARN ", "node:1", &OLD.to_string(), &NEW.to_string(), "10.0.0.9:4711"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn a_client_name_cannot_forge_log_lines_or_control_a_terminal() {
        let name = TextBuf::from("a\n2026-01-01 WARN forged\u{1b}]0;title\u{7}\u{1b}[2J");
        let effect = StateEffect::Mounted { segment: SegmentId(1, 1), name, client: OLD, bytes: 1 };
        let text = logged(&effect, None);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().contains(|c: char| c.is_control()), "{text:?}");
    }
}
