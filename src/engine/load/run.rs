//! The run: the driver's plan against a server, and every exchange told as it ends.

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
    /// Tokens that were asked for.
    pub max_tokens: u32,
    /// What happened.
    pub exchange: Exchange,
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
}

/// Run `driver` over `workload` against `target`, and tell every record to `told`. When `stop` comes, nothing more is sent; when it
/// comes again, what is in flight is given up.
pub async fn run<E: Env + Unpin>(
    env: E,
    target: Target,
    workload: &mut (dyn Workload + Send),
    mut driver: Driver,
    bounds: Bounds,
    stop: &mut mpsc::Receiver<()>,
    mut told: impl FnMut(&Record),
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
    });
    let (ended, mut ends) = mpsc::unbounded_channel::<Record>();
    let mut last_end = Duration::ZERO;
    let mut stopped = false;
    while !driver.is_over() {
        let now = env.now().since(start);
        if now >= bounds.duration {
            driver.stop();
        }
        for Start { turn, planned } in driver.due(now) {
            let ask = workload.ask(turn);
            let max_tokens = ask.max_tokens;
            let body = shared.target.body(&ask);
            let (shared, ended) = (Arc::clone(&shared), ended.clone());
            tokio::spawn(async move {
                let begun = shared.env.now().since(shared.start);
                let exchange = shared.exchange(body, begun).await;
                // Nobody listens any more when the run was broken off.
                let _ = ended.send(Record { turn, planned, max_tokens, exchange });
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
            driver.ended(one.turn, one.exchange.end, well);
            told(&one);
            record = ends.try_recv().ok();
        }
    }
    let gaps = shared.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ran { gaps, took: last_end, unfinished: driver.in_flight() as u64 }
}
