//! The run: the driver's plan against a server, and every exchange told as it ends.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;

use crate::engine::base::Mono;
use crate::engine::env::{Env, deadline};
use crate::engine::load::answer::Arrival;
use crate::engine::load::target::{ARRIVALS_MAX, Asking, Exchange, Outcome, Pool, Target};
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
        self.exchange.wrote.saturating_sub(self.free + self.exchange.waited)
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
    /// Exchanges for which connections are open before the clock starts.
    pub connections: usize,
}

/// The generator's share of its processor is looked at so often.
const SHARE_EVERY: Duration = Duration::from_secs(1);

/// What all exchanges share.
struct Shared<E: Env + Unpin> {
    env: E,
    pool: Pool<E>,
    start: Mono,
    /// Gaps between tokens of answers that went well.
    gaps: Mutex<Histogram>,
    retried: AtomicU64,
    live: Arc<Live>,
}

impl<E: Env + Unpin> Shared<E> {
    fn now(&self) -> Duration {
        self.env.now().since(self.start)
    }

    /// One exchange, and another after each answer that asks to come again later, as far as that is wanted.
    async fn exchange(&self, asking: Asking) -> Exchange {
        let begun = self.now();
        let limits = self.pool.target().limits;
        let mut left = limits.busy_retries;
        loop {
            let again = self.now();
            let mut exchange = self.once(asking.clone(), again).await;
            exchange.waited = again.saturating_sub(begun);
            let Outcome::Status { status: 429 | 503, retry_after: Some(wait), .. } = exchange.outcome else {
                return exchange;
            };
            if left == 0 || self.now().saturating_sub(begun).saturating_add(wait) > limits.whole {
                return exchange;
            }
            left -= 1;
            self.retried.fetch_add(1, Ordering::Relaxed);
            self.env.sleep(wait).await;
        }
    }

    async fn once(&self, asking: Asking, begun: Duration) -> Exchange {
        // Arrivals that the exchange does not keep, since they are too many.
        let (mut frames, mut last, mut beyond) = (0, Duration::ZERO, None);
        let told = |arrival: Arrival| {
            self.live.tokens.fetch_add(u64::from(arrival.tokens), Ordering::Relaxed);
            frames += 1;
            if frames > ARRIVALS_MAX {
                gap(beyond.get_or_insert_default(), last, arrival);
            }
            last = arrival.at;
        };
        let exchange = self.pool.exchange(asking, begun, told).await;
        // Only now it is known whether it went well. All other times are of answers that did.
        if exchange.outcome == Outcome::Ok {
            let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
            exchange.arrivals.windows(2).for_each(|two| gap(&mut gaps, two[0].at, two[1]));
            beyond.iter().for_each(|beyond| gaps.add(beyond));
        }
        exchange
    }

    /// One exchange from its beginning to its end. One that panics is a failed request, since the run would wait for it for ever.
    async fn whole(&self, asking: Asking) -> Exchange {
        let begun = self.now();
        let asked = AssertUnwindSafe(self.exchange(asking)).catch_unwind().await;
        asked.unwrap_or_else(|panic| {
            let mut exchange = Exchange::without_connection(begun, self.now(), String::new());
            exchange.outcome = Outcome::Bug(words(panic.as_ref()));
            exchange
        })
    }
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    said.unwrap_or("a panic that says nothing").to_owned()
}

/// Count the gap between the tokens that came at `last` and the next.
fn gap(gaps: &mut Histogram, last: Duration, next: Arrival) {
    // Tokens that came together share the gap before them.
    gaps.record(next.at.saturating_sub(last) / next.tokens, next.tokens);
}

/// At so many reads a second and more, they are done in batches.
const BATCH_FROM: f64 = 4_000.0;
/// One batch comes so long after the other.
const BATCH_EVERY: Duration = Duration::from_millis(1);
/// Whether batches are worth their while is decided so often.
const BATCH_DECISION: Duration = Duration::from_millis(20);

/// Read in batches while much comes in. A thread that waits for each frame of hundreds of streams goes to sleep and is woken for nearly
/// each, which costs as much as reading it. Where the system notes arrivals, tokens keep their times however late they are read; what
/// is to be sent leaves at most [`BATCH_EVERY`] later, and that is part of the lag that is told.
async fn batches<E: Env + Unpin>(shared: Arc<Shared<E>>) {
    let reads = || (shared.env.now(), shared.pool.noted());
    let many = |(then, before): (Mono, u64)| {
        let (now, after) = reads();
        (after - before) as f64 > now.since(then).as_secs_f64() * BATCH_FROM
    };
    loop {
        let before = reads();
        shared.env.sleep(BATCH_DECISION).await;
        let mut busy = many(before);
        while busy {
            let before = reads();
            while shared.env.now().since(before.0) < BATCH_DECISION {
                shared.env.pause_thread(BATCH_EVERY);
                // All that became ready meanwhile goes before.
                tokio::task::yield_now().await;
            }
            busy = many(before);
        }
    }
}

/// What a run leaves beside its records.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Gaps between the tokens of an answer, of answers that went well.
    pub gaps: Histogram,
    /// From the start to the end of the last exchange.
    pub took: Duration,
    /// Requests that were in flight when the run was broken off.
    pub unfinished: u64,
    /// Was it told to stop?
    pub stopped: bool,
    /// When its clock started.
    pub started: Mono,
    /// Requests that were sent once more, since their kept connection turned out to have been closed while it was idle.
    pub resent: u64,
    /// Answers of a busy server after which the request was sent again.
    pub retried: u64,
    /// Requests that a panic here broke off: bugs of mcctl.
    pub bugs: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// How long what came in had lain unread: it does not change the times of tokens where the system notes their arrival, and tells how
    /// far behind the generator was.
    pub delays: Histogram,
    /// The share of its processor that the generator used in its busiest second; `None` where that is not known.
    pub share: Option<f64>,
}

/// The generator's share of its processor.
struct Share {
    since: Mono,
    used: Option<Duration>,
    most: Option<f64>,
}

impl Share {
    fn new<E: Env>(env: &E) -> Share {
        Share { since: env.now(), used: env.thread_cpu(), most: None }
    }

    /// Look at it, if it is time or the run is `over`.
    fn look<E: Env>(&mut self, env: &E, over: bool) {
        let now = env.now();
        let passed = now.since(self.since);
        // The end of a run counts unless it is too short to tell anything.
        if passed < SHARE_EVERY && !(over && (self.most.is_none() || passed >= SHARE_EVERY / 4)) {
            return;
        }
        let used = env.thread_cpu();
        if let (Some(before), Some(after)) = (self.used, used)
            && !passed.is_zero()
        {
            let share = after.saturating_sub(before).as_secs_f64() / passed.as_secs_f64();
            self.most = Some(self.most.map_or(share, |most| most.max(share)));
        }
        (self.since, self.used) = (now, used);
    }
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
    // Connections are there when the clock starts, and so is what is to be sent at once.
    let mut pool = Pool::open(env.clone(), target, bounds.connections).await;
    let mut ready: Vec<Ready> = driver.due(Duration::ZERO).into_iter().map(|s| Ready::of(s, workload, &pool)).collect();
    let start = pool.starts();
    let (gaps, retried) = (Mutex::default(), AtomicU64::new(0));
    let shared = Arc::new(Shared { env: env.clone(), pool, start, gaps, retried, live });
    // With threads beside this one, one that pauses would hold up what the others could do.
    let alone = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
    let batches = alone.then(|| tokio::spawn(batches(Arc::clone(&shared))));
    let (ended, mut ends) = mpsc::unbounded_channel::<Record>();
    let mut last_end = Duration::ZERO;
    let (mut stopped, mut bugs) = (false, 0);
    let mut share = Share::new(&env);
    while !driver.is_over() {
        share.look(&env, false);
        let now = shared.now();
        if now >= bounds.duration {
            driver.stop();
        }
        ready.extend(driver.due(now).into_iter().map(|start| Ready::of(start, workload, &shared.pool)));
        for Ready { start: Start { turn, planned, free }, max_tokens, expected, asking } in ready.drain(..) {
            shared.live.sent.fetch_add(1, Ordering::Relaxed);
            let (shared, ended) = (Arc::clone(&shared), ended.clone());
            tokio::spawn(async move {
                let exchange = shared.whole(asking).await;
                // Nobody listens any more when the run was broken off.
                let _ = ended.send(Record { turn, planned, free, max_tokens, expected, exchange });
            });
        }
        let wake = driver.wake().unwrap_or(bounds.duration).min(bounds.duration);
        let wait = wake.saturating_sub(shared.now()).clamp(Duration::from_micros(50), SHARE_EVERY);
        let mut record = tokio::select! {
            biased;
            record = deadline(&env, wait, ends.recv()) => record.ok().flatten(),
            Some(()) = stop.recv() => {
                driver.stop();
                if std::mem::replace(&mut stopped, true) {
                    break;
                }
                None
            }
        };
        while let Some(one) = record {
            last_end = last_end.max(one.exchange.end);
            let well = one.exchange.outcome == Outcome::Ok;
            bugs += u64::from(matches!(one.exchange.outcome, Outcome::Bug(_)));
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
    if let Some(batches) = batches {
        batches.abort();
    }
    share.look(&env, true);
    Ran {
        gaps: shared.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        took: last_end,
        unfinished: driver.in_flight() as u64,
        stopped,
        started: start,
        resent: shared.pool.resent(),
        retried: shared.retried.load(Ordering::Relaxed),
        bugs,
        connections: shared.pool.opened(),
        delays: shared.pool.delays(),
        share: share.most,
    }
}

/// A request that is made and not sent yet.
struct Ready {
    start: Start,
    max_tokens: u32,
    expected: Option<u32>,
    asking: Asking,
}

impl Ready {
    fn of<E: Env + Unpin>(start: Start, workload: &mut (dyn Workload + Send), pool: &Pool<E>) -> Ready {
        let ask = workload.ask(start.turn);
        Ready { start, max_tokens: ask.max_tokens, expected: ask.expected, asking: pool.target().asking(&ask) }
    }
}
