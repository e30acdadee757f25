//! The shell around [`MasterState`]: the lock, the clock, the RPC server, and the task that turns the state's own clockwork.
//!
//! One mutex guards the whole state. Nobody holds it long (`mcctl_master_state_hold_seconds` shows how long), and the clockwork lets
//! callers that wait go first between its slices.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};

use crate::engine::base::{ErrorCode, Mono};
use crate::engine::env::Env;
use crate::engine::master::call::{Call, Hold};
use crate::engine::master::config::MasterConfig;
use crate::engine::master::effect::{Departure, Effect, Effects};
use crate::engine::master::metrics::{Counters, Gauges};
use crate::engine::master::standstill::{Standstills, Told};
use crate::engine::master::state::MasterState;
use crate::engine::master::view::{AdminView, ReplicaView, RunState, SegmentView, ServiceView};
use crate::engine::rpc::server::{RpcServer, ServerConfig, Service, StartError};
use crate::engine::wire::method::dispatch;
use crate::engine::wire::{DecodeError, Method};

/// Departures that a subscriber may be behind before it loses some: a client's thousand segments leave at once.
const DEPARTURES_KEPT: usize = 16 << 10;
/// How long whoever works in slices sleeps between two of them while others wait for the state. A mutex is not fair, and yielding the
/// processor instead is worse: the scheduler takes it for a wish to run much later, perhaps in the middle of the next slice.
const STEP_ASIDE: Duration = Duration::from_micros(20);

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
        let clockwork = tokio::spawn(run_clockwork(shared.clone(), stopping));
        Ok(MasterServer { handle: MasterHandle(shared), rpc, stop, clockwork })
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
pub struct MasterHandle<E>(Arc<Shared<E>>);

impl<E> Clone for MasterHandle<E> {
    fn clone(&self) -> MasterHandle<E> {
        MasterHandle(self.0.clone())
    }
}

impl<E: Env> MasterHandle<E> {
    /// Segments that went and clients that expired from now on, for whoever keeps something about them elsewhere.
    pub fn departures(&self) -> broadcast::Receiver<Effect> {
        self.0.departures.subscribe()
    }

    /// Is a segment of this name mounted?
    pub fn has_segment_named(&self, name: &str) -> bool {
        self.0.hold(|state, _, _| state.has_segment_named(name.as_bytes()))
    }

    /// Call methods without a connection.
    pub fn call(&self) -> Call<impl Hold + '_> {
        Call(Holder(&self.0))
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
        self.hold_guarded(|guarded, now, effects| work(&mut guarded.state, now, effects))
    }

    fn hold_guarded<R>(&self, work: impl FnOnce(&mut Guarded, Mono, &mut Effects) -> R) -> R {
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
        self.perform(effects);
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

    fn perform(&self, effects: Effects) {
        for effect in effects.list {
            tell(&effect);
            if matches!(effect, Effect::Unmounted { .. } | Effect::ClientExpired { .. }) {
                // Nobody may listen.
                let _ = self.departures.send(effect);
            }
        }
    }
}

impl<E: Env> Service for Shared<E> {
    fn answer(&self, method: Method, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        dispatch(&mut Call(Holder(self)), method, body, out)
    }
}

struct Holder<'a, E>(&'a Shared<E>);

impl<E: Env> Hold for Holder<'_, E> {
    fn hold<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        self.0.hold(work)
    }

    fn step_aside(&mut self) {
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            // In the midst of a plain function on a worker thread: there is nothing to await, and the others are other threads.
            self.0.env.pause_thread(STEP_ASIDE);
        }
    }
}

async fn run_clockwork<E: Env>(shared: Arc<Shared<E>>, mut stopping: watch::Receiver<bool>) {
    loop {
        while shared.hold_guarded(|guarded, now, effects| {
            // The next slice, or the look at what comes next, follows at once.
            guarded.standstills.expect(now);
            guarded.state.tick(now, effects)
        }) {
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
            let (mut guard, _) = shared.lock(shared.env.now());
            // Not the time that was asked for: it may be from before a standstill that somebody else has seen.
            let now = guard.standstills.latest();
            let next = guard.state.next_wakeup(now);
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

fn tell(effect: &Effect) {
    match effect {
        Effect::Mounted { segment, name, client, bytes } => {
            tracing::info!(%segment, %name, %client, bytes, "segment mounted");
        }
        Effect::Unmounted { segment, name, client, reason, .. } => match reason {
            Departure::Asked => tracing::info!(%segment, %name, %client, "segment unmounted"),
            Departure::GraceOver => {
                tracing::info!(%segment, %name, %client, "segment unmounted, its grace period is over")
            }
            Departure::Expired => tracing::warn!(%segment, %name, %client, "segment lost with its client"),
            Departure::Superseded => {
                tracing::warn!(%segment, %name, %client, "segment superseded: its process was restarted");
            }
        },
        Effect::ClientExpired { client } => tracing::warn!(%client, "client lost: no ping for its time to live"),
        Effect::Evicted { objects, bytes } => tracing::info!(objects, bytes, "evicted"),
    }
}

impl<E: Env> AdminView for MasterHandle<E> {
    fn service(&self) -> ServiceView {
        ServiceView { state: RunState::Serving, leader: None }
    }

    fn figures(&self) -> (Counters, Gauges) {
        self.0.hold(|state, _, _| (state.counters.clone(), state.gauges()))
    }

    fn segments(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(SegmentView<'_>)) -> Option<u64> {
        self.0.hold(|state, _, _| state.view_segments(cursor, limit, visit))
    }

    fn keys(&self, cursor: u64, limit: usize, visit: &mut dyn FnMut(&[u8])) -> Option<u64> {
        self.0.hold(|state, _, _| state.keys(cursor, limit, visit))
    }

    fn replicas(&self, key: &[u8]) -> Result<Vec<ReplicaView>, ErrorCode> {
        self.0.hold(|state, _, _| state.peek(key)).map_err(|refusal| refusal.code())
    }
}
