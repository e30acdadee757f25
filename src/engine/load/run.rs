//! The run: the driver's plan against a server, and every exchange told as it ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::engine::base::Mono;
use crate::engine::env::{Env, deadline};
use crate::engine::load::answer::Arrival;
use crate::engine::load::target::{Connection, Exchange, Outcome, Target};
use crate::engine::load::workload::Workload;
use crate::engine::load::{Driver, Histogram, Start, Turn};

/// A request from its plan to its end. Times count from the start of the run.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which.
    pub turn: Turn,
    /// When it was to be sent. Latencies count from here.
    pub planned: Duration,
    /// From when on it could be sent: then, or when the cap left a place for it. What lies after it is the generator's own lag.
    pub free: Duration,
    /// Tokens that were asked for.
    pub max_tokens: u32,
    /// Tokens of its prompt that should have been cached, where somebody keeps count.
    pub expected: Option<u32>,
    /// What happened.
    pub exchange: Exchange,
}

impl Record {
    /// How late the generator was with it.
    pub fn lag(&self) -> Duration {
        self.exchange.wrote.saturating_sub(self.free)
    }
}

/// What a run does right now, for who watches it from beside.
#[derive(Debug, Default)]
pub struct Live {
    /// Requests that were sent.
    pub sent: AtomicU64,
    /// Requests that ended, well or not.
    pub ended: AtomicU64,
    /// Tokens that arrived.
    pub tokens: AtomicU64,
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// After this nothing more is sent; what is in flight is waited for.
    pub duration: Duration,
    /// Connections that are open before the clock starts.
    pub connections: usize,
}

/// What all exchanges share.
struct Shared<E: Env + Unpin> {
    env: E,
    target: Target,
    start: Mono,
    idle: Mutex<Vec<Connection<E>>>,
    /// Gaps between tokens.
    gaps: Mutex<Histogram>,
    live: Arc<Live>,
}

impl<E: Env + Unpin> Shared<E> {
    /// An open connection; a new one when none is idle.
    async fn connection(&self) -> Result<Connection<E>, String> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(connection) if connection.is_open() => return Ok(connection),
                Some(_) => {}
                None => return Connection::open(&self.env, &self.target, self.start).await,
            }
        }
    }

    async fn exchange(&self, body: bytes::Bytes, begun: Duration) -> Exchange {
        let mut connection = match self.connection().await {
            Ok(connection) => connection,
            Err(why) => {
                let end = self.env.now().since(self.start);
                return Exchange::without_connection(begun, end, why);
            }
        };
        let mut last: Option<Duration> = None;
        let exchange = connection
            .exchange(&self.target, body, begun, |Arrival { at, tokens }| {
                self.live.tokens.fetch_add(u64::from(tokens), Ordering::Relaxed);
                if let Some(last) = last {
                    // Tokens that came together share the gap before them.
                    let gap = at.saturating_sub(last) / tokens;
                    self.gaps.lock().unwrap_or_else(PoisonError::into_inner).record(gap, tokens);
                }
                last = Some(at);
            })
            .await;
        if !matches!(exchange.outcome, Outcome::Broken(_) | Outcome::TooSlow(_)) && connection.is_open() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        exchange
    }
}

/// What a run leaves beside its records.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Gaps between the tokens of an answer.
    pub gaps: Histogram,
    /// From the start to the end of the last exchange.
    pub took: Duration,
    /// Requests that were in flight when the run was broken off.
    pub unfinished: u64,
    /// Was it told to stop?
    pub stopped: bool,
    /// When its clock started.
    pub started: Mono,
}

/// Run `driver` over `workload` against `target`, and tell every record to `told`. When `stop` comes, nothing more is sent; when it
/// comes again, what is in flight is given up.
#[expect(clippy::too_many_arguments, reason = "each is another thing of the caller's")]
pub async fn run<E: Env + Unpin>(
    env: E,
    target: Target,
    workload: &mut (dyn Workload + Send),
    mut driver: Driver,
    bounds: Bounds,
    live: Arc<Live>,
    stop: &mut mpsc::Receiver<()>,
    mut told: impl FnMut(Record),
) -> Ran {
    // Connections are made on another clock than the run's: they are there when it starts.
    let zero = env.now();
    let mut idle = Vec::new();
    for _ in 0..bounds.connections {
        // A server that takes none is met again by the first request, and told there.
        let Ok(connection) = Connection::open(&env, &target, zero).await else { break };
        idle.push(connection);
    }
    let start = env.now();
    idle.iter_mut().for_each(|connection| connection.starts(start));
    let shared = Arc::new(Shared {
        env: env.clone(),
        target,
        start,
        idle: Mutex::new(idle),
        gaps: Mutex::new(Histogram::default()),
        live,
    });
    let (ended, mut ends) = mpsc::unbounded_channel::<Record>();
    let mut last_end = Duration::ZERO;
    let mut stopped = false;
    while !driver.is_over() {
        let now = env.now().since(start);
        if now >= bounds.duration {
            driver.stop();
        }
        for Start { turn, planned, free } in driver.due(now) {
            let ask = workload.ask(turn);
            let (max_tokens, expected) = (ask.max_tokens, ask.expected);
            shared.live.sent.fetch_add(1, Ordering::Relaxed);
            let body = shared.target.body(&ask);
            let (shared, ended) = (Arc::clone(&shared), ended.clone());
            tokio::spawn(async move {
                let begun = shared.env.now().since(shared.start);
                let exchange = shared.exchange(body, begun).await;
                // Nobody listens any more when the run was broken off.
                let _ = ended.send(Record { turn, planned, free, max_tokens, expected, exchange });
            });
        }
        let wake = driver.wake().unwrap_or(bounds.duration).min(bounds.duration);
        let now = env.now().since(start);
        let record = tokio::select! {
            biased;
            record = deadline(&env, wake.saturating_sub(now).max(Duration::from_micros(50)), ends.recv()) => record.ok().flatten(),
            Some(()) = stop.recv() => {
                driver.stop();
                if std::mem::replace(&mut stopped, true) {
                    break;
                }
                None
            }
        };
        let mut record = record;
        while let Some(one) = record {
            last_end = last_end.max(one.exchange.end);
            let well = one.exchange.outcome == Outcome::Ok;
            if well {
                workload.heard(one.turn, &one.exchange.answer);
            }
            if driver.ended(one.turn, one.exchange.end, well) {
                workload.over(one.turn);
            }
            shared.live.ended.fetch_add(1, Ordering::Relaxed);
            told(one);
            record = ends.try_recv().ok();
        }
    }
    let gaps = shared.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ran { gaps, took: last_end, unfinished: driver.in_flight() as u64, stopped, started: start }
}
