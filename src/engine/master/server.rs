//! The shell around [`MasterState`]: the lock, the clock, the RPC server, and the task that turns the state's own clockwork.
//!
//! One mutex guards the whole state. Nobody holds it long (`mcctl_master_state_hold_seconds` shows how long), and the clockwork lets
//! callers that wait go first between its slices.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};

use crate::engine::base::text::escaped;
use crate::engine::base::{ErrorCode, Mono};
use crate::engine::env::Env;
use crate::engine::master::call::{Call, Hold};
use crate::engine::master::config::MasterConfig;
use crate::engine::master::effect::{Departure, Effect, Effects};
use crate::engine::master::metrics::{Counters, Gauges};
use crate::engine::master::remove::Walk;
use crate::engine::master::standstill::{Standstills, Told};
use crate::engine::master::state::MasterState;
use crate::engine::master::view::{AdminView, ReplicaView, RunState, SegmentView, ServiceView};
use crate::engine::rpc::WorkerPolls;
use crate::engine::rpc::server::{RpcServer, ServerConfig, Service, StartError};
use crate::engine::wire::method::dispatch;
use crate::engine::wire::{DecodeError, Method, TextBuf};

/// Departures that a subscriber may be behind before it loses some: a client's thousand segments leave at once.
const DEPARTURES_KEPT: usize = 16 << 10;
/// How long whoever works in slices sleeps between two of them while others wait for the state. A mutex is not fair, and yielding the
/// processor instead is worse: the scheduler takes it for a wish to run much later, perhaps in the middle of the next slice.
const STEP_ASIDE: Duration = Duration::from_micros(20);

/// A worker is stuck when it has not polled its connections for this long: `/health` and `/ready` answer 503. Polls are half a second
/// apart, and no call on a worker takes a second.
pub const WORKER_STUCK_AFTER: Duration = Duration::from_secs(5);

/// Holds longer than this are looked at twice.
const LONG_HOLD: Duration = Duration::from_micros(500);
/// How old the mark of a thread's processor time may be.
const MARK_EVERY: Duration = Duration::from_micros(250);

thread_local! {
    /// When the thread's processor time was last looked at, and what it was.
    static CPU_MARK: Cell<Option<(Mono, Duration)>> = const { Cell::new(None) };
}

/// Why there is no master.
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
    clockwork: tokio::task::JoinHandle<()>,
}

impl<E: Env> MasterServer<E> {
    /// Listen and serve.
    ///
    /// # Errors
    /// The address is taken, or a thread cannot be started.
    pub async fn start(mut config: MasterConfig, env: E) -> Result<MasterServer<E>, MasterError> {
        if config.policy.seed == 0 {
            config.policy.seed = env.rng();
        }
        let shared = Arc::new(Shared {
            guarded: Mutex::new(Guarded {
                standstills: Standstills::new(env.now(), config.policy.client_ttl),
                state: MasterState::new(config.policy),
                planned: Mono::ZERO,
            }),
            waiting: AtomicUsize::new(0),
            wake: Notify::new(),
            departures: broadcast::Sender::new(DEPARTURES_KEPT),
            env: env.clone(),
        });
        let server = ServerConfig { listen: config.listen, threads: config.threads, idle_timeout: config.idle_timeout };
        let rpc = RpcServer::start(server, env, shared.clone()).await?;
        let (stop, stopping) = watch::channel(false);
        let handle = MasterHandle { shared, polls: rpc.polls() };
        let clockwork = tokio::spawn(run_clockwork(handle.clone(), stopping));
        Ok(MasterServer { handle, rpc, stop, clockwork })
    }

    /// The RPC port that was bound.
    pub fn rpc_port(&self) -> u16 {
        self.rpc.port()
    }

    /// Open RPC connections.
    pub fn connections(&self) -> usize {
        self.rpc.connections()
    }

    /// The state, for admin surfaces.
    pub fn handle(&self) -> MasterHandle<E> {
        self.handle.clone()
    }

    /// Accept no more, let calls under way finish, stop.
    pub async fn stop(self) {
        self.rpc.stop().await;
        let _ = self.stop.send(true);
        let _ = self.clockwork.await;
    }
}

/// The state of a running master. Cheap to clone.
pub struct MasterHandle<E> {
    shared: Arc<Shared<E>>,
    polls: WorkerPolls,
}

impl<E> Clone for MasterHandle<E> {
    fn clone(&self) -> MasterHandle<E> {
        MasterHandle { shared: self.shared.clone(), polls: self.polls.clone() }
    }
}

impl<E: Env> MasterHandle<E> {
    /// Segments that went and clients that expired from now on, for whoever keeps something about them elsewhere.
    pub fn departures(&self) -> broadcast::Receiver<Effect> {
        self.shared.departures.subscribe()
    }

    /// Is a segment of this name mounted?
    pub fn has_segment_named(&self, name: &str) -> bool {
        self.shared.hold(|state, _, _| state.has_segment_named(name.as_bytes()))
    }

    /// Call methods without a connection.
    pub fn call(&self) -> Call<impl Hold + '_> {
        Call(Holder { shared: &self.shared, peer: None })
    }
}

struct Shared<E> {
    guarded: Mutex<Guarded>,
    /// Callers that found the state held.
    waiting: AtomicUsize,
    /// Wakes the clockwork before its time.
    wake: Notify,
    departures: broadcast::Sender<Effect>,
    env: E,
}

struct Guarded {
    state: MasterState,
    /// When the clockwork will look again by itself.
    planned: Mono,
    /// The state's time, and in which of it nothing ran.
    standstills: Standstills,
}

impl<E: Env> Shared<E> {
    /// The state, and since when it is held. `asked` is the time just before.
    fn lock(&self, asked: Mono) -> (MutexGuard<'_, Guarded>, Mono) {
        let (mut guard, since) = match self.guarded.try_lock() {
            Ok(guard) => (guard, asked),
            Err(_) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                // A panic while the state was held is a bug; the state is no less usable for it than the process is.
                let guard = self.guarded.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                (guard, self.env.now())
            }
        };
        let longer = guard.standstills.look(since);
        if !longer.is_zero() {
            guard.state.resume(longer);
        }
        (guard, since)
    }

    fn hold<R>(&self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        self.hold_for(None, work)
    }

    /// Hold the state for a call of `peer`.
    fn hold_for<R>(&self, peer: Option<&str>, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        self.hold_guarded(peer, |guarded, now, effects| work(&mut guarded.state, now, effects))
    }

    fn hold_guarded<R>(&self, peer: Option<&str>, work: impl FnOnce(&mut Guarded, Mono, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let asked = self.env.now();
        self.mark_cpu(asked);
        let (result, wake) = {
            let (mut guard, since) = self.lock(asked);
            let now = guard.standstills.latest();
            let result = work(&mut guard, now, &mut effects);
            let wake = guard.state.urgent().is_some_and(|at| at < guard.planned);
            if wake {
                guard.planned = Mono::ZERO;
            }
            self.record_hold(&mut guard.state.counters, since);
            (result, wake)
        };
        if wake {
            self.wake.notify_one();
        }
        self.perform(effects, peer);
        result
    }

    /// Record how long a hold took.
    ///
    /// A holder can be preempted, and then the wall clock tells more of the machine's load than of the master's work. So a long hold
    /// counts with what the thread used of its processor since a mark that is at most [`MARK_EVERY`] older than the hold: an upper
    /// bound that costs a system call now and then instead of two for every call.
    fn record_hold(&self, counters: &mut Counters, since: Mono) {
        let mut held = self.env.now().since(since);
        if held >= LONG_HOLD
            && let Some(used) = CPU_MARK.get().and_then(|(_, mark)| Some(self.env.thread_cpu()?.saturating_sub(mark)))
            && used < held / 2
        {
            counters.state_hold_preempted += 1;
            held = used;
        }
        counters.state_hold_ns.record(u64::try_from(held.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Mark the thread's processor time, if the last mark is old. Before the state is held.
    fn mark_cpu(&self, now: Mono) {
        if CPU_MARK.get().is_none_or(|(at, _)| now.since(at) >= MARK_EVERY) {
            CPU_MARK.set(self.env.thread_cpu().map(|used| (now, used)));
        }
    }

    fn perform(&self, effects: Effects, peer: Option<&str>) {
        for effect in effects.list {
            tell(&effect, peer);
            if matches!(effect, Effect::Unmounted { .. } | Effect::ClientExpired { .. }) {
                // Nobody may listen.
                let _ = self.departures.send(effect);
            }
        }
    }
}

impl<E: Env> Service for Shared<E> {
    fn answer(&self, peer: &str, method: Method, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        dispatch(&mut Call(Holder { shared: self, peer: Some(peer) }), method, body, out)
    }

    /// Walks over all keys.
    fn is_long(&self, method: Method) -> bool {
        matches!(method, Method::GetReplicaListByRegex | Method::RemoveByRegex | Method::RemoveAll)
    }
}

struct Holder<'a, E> {
    shared: &'a Shared<E>,
    /// Whose call it is, if it came over a connection.
    peer: Option<&'a str>,
}

impl<E: Env> Hold for Holder<'_, E> {
    fn hold<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        self.shared.hold_for(self.peer, work)
    }

    fn step_aside(&mut self) {
        if self.shared.waiting.load(Ordering::Relaxed) > 0 {
            // In the midst of a plain function on a worker thread: there is nothing to await, and the others are other threads.
            self.shared.env.pause_thread(STEP_ASIDE);
        }
    }
}

async fn run_clockwork<E: Env>(master: MasterHandle<E>, mut stopping: watch::Receiver<bool>) {
    let MasterHandle { shared, polls } = master;
    loop {
        let slice = || {
            let heard = polls.oldest();
            shared.hold_guarded(None, |guarded, now, effects| {
                // The next slice, or the look at what comes next, follows at once.
                guarded.standstills.expect(now);
                guarded.state.tick(now, heard.unwrap_or(now), effects)
            })
        };
        while slice() {
            if shared.waiting.load(Ordering::Relaxed) > 0 {
                shared.env.sleep(STEP_ASIDE).await;
            } else {
                tokio::task::yield_now().await;
            }
            if *stopping.borrow() {
                return;
            }
        }
        let (pause, told) = {
            let heard = polls.oldest();
            let (mut guard, _) = shared.lock(shared.env.now());
            // Not the time that was asked for: it may be from before a standstill that somebody else has seen.
            let now = guard.standstills.latest();
            let next = guard.state.next_wakeup(now, heard.unwrap_or(now));
            guard.planned = next;
            // A time that has passed although nothing was left to do would spin; the eviction's pause is the shortest there is.
            let pause = next.since(now).max(Duration::from_millis(1));
            guard.standstills.expect(now + pause);
            (pause, guard.standstills.tell())
        };
        if let Some(Told { stood_still, longer }) = told {
            tracing::warn!(
                ?stood_still,
                clients_live_longer = ?longer,
                "the master stood still (stopped, or out of processor time)"
            );
        }
        tokio::select! {
            () = shared.env.sleep(pause) => {}
            () = shared.wake.notified() => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
    }
}

/// Log an effect of a call of `peer`, or of the clockwork. Names are the clients' own and may contain anything.
fn tell(effect: &Effect, peer: Option<&str>) {
    let shown = |name: &TextBuf| escaped(&name.to_string_lossy());
    let peer = peer.unwrap_or("this process");
    match effect {
        Effect::Mounted { segment, name, client, bytes } => {
            tracing::info!(%segment, name = %shown(name), %client, %peer, bytes, "segment mounted");
        }
        Effect::Unmounted { segment, name, client, reason, .. } => {
            let name = shown(name);
            match reason {
                Departure::Asked => tracing::info!(%segment, %name, %client, %peer, "segment unmounted"),
                Departure::GraceOver => {
                    tracing::info!(%segment, %name, %client, "segment unmounted, its grace period is over")
                }
                Departure::Expired => tracing::warn!(%segment, %name, %client, "segment lost with its client"),
                Departure::Superseded { by } => tracing::warn!(
                    %segment,
                    %name,
                    %client,
                    new_client = %by,
                    %peer,
                    "segment superseded by a mount from this peer, its objects are lost: its process was restarted, or two \
                     processes have one name"
                ),
            }
        }
        Effect::ClientExpired { client } => tracing::warn!(%client, "client lost: no ping for its time to live"),
        Effect::Evicted { objects, bytes } => tracing::info!(objects, bytes, "evicted"),
    }
}

impl<E: Env> AdminView for MasterHandle<E> {
    fn service(&self) -> ServiceView {
        ServiceView { state: RunState::Serving, leader: None }
    }

    fn stuck(&self) -> Option<Duration> {
        let silent = self.shared.env.now().since(self.polls.oldest()?);
        (silent >= WORKER_STUCK_AFTER).then_some(silent)
    }

    fn figures(&self) -> (Counters, Gauges) {
        self.shared.hold(|state, _, _| (state.counters.clone(), state.gauges()))
    }

    fn segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64> {
        self.shared.hold(|state, _, _| state.view_segments(cursor, limit, visit))
    }

    fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        self.shared.hold(|state, _, _| state.keys(cursor, limit, visit))
    }

    fn remove_slice(&self, walk: Option<Walk>, force: bool) -> (u64, Option<Walk>) {
        let slice = self.shared.hold(|state, now, _| {
            let mut walk = walk.unwrap_or_else(|| {
                state.counters.remove_all.add(true);
                state.walk()
            });
            let removed = state.remove_slice(now, &mut walk, force);
            (removed, (!walk.is_done()).then_some(walk))
        });
        Holder { shared: &self.shared, peer: None }.step_aside();
        slice
    }

    fn replicas(&self, key: &[u8]) -> Result<Vec<ReplicaView>, ErrorCode> {
        self.shared.hold(|state, _, _| state.peek(key)).map_err(|refusal| refusal.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::{ClientId, SegmentId};

    /// The log lines of an effect.
    fn told(effect: &Effect, peer: Option<&str>) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = {
            let lines = lines.clone();
            move || Lines(lines.clone())
        };
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        tracing::subscriber::with_default(log, || tell(effect, peer));
        String::from_utf8(lines.lock().unwrap().clone()).unwrap()
    }

    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
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

    #[test]
    fn a_superseded_segment_is_a_warning_with_the_newcomers_address() {
        let reason = Departure::Superseded { by: NEW };
        let name = TextBuf::from("node:1");
        let effect = Effect::Unmounted { segment: SegmentId(1, 1), name, client: OLD, reason, last_of_name: false };
        let line = told(&effect, Some("10.0.0.9:4711"));
        for part in [" WARN ", "node:1", &OLD.to_string(), &NEW.to_string(), "10.0.0.9:4711"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn a_name_from_outside_cannot_forge_log_lines_or_control_a_terminal() {
        let name = TextBuf::from("a\n2026-01-01 WARN forged\u{1b}]0;title\u{7}\u{1b}[2J");
        let effect = Effect::Mounted { segment: SegmentId(1, 1), name, client: OLD, bytes: 1 };
        let text = told(&effect, None);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().contains(|c: char| c.is_control()), "{text:?}");
    }
}
