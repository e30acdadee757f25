//! Executes a run: sends the driver's requests to a server and reports each exchange when it ends.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;

use crate::answer::TokenArrival;
use crate::ceiling::PossibleHits;
use crate::target::{ARRIVALS_MAX, EncodedRequest, Exchange, ExchangeOutcome, HttpConnectionPool, LoadTarget};
use crate::workload::LoadWorkload;
use crate::{Driver, DueRequest, LatencyHistogram, Turn};
use mcctl_base::Mono;
use mcctl_sys::env::{Env, deadline};

/// The record of one request, from its scheduled send time to its end. Times are relative to the
/// start of the run.
#[derive(Clone, Debug)]
pub struct TimedRequest {
    pub turn: Turn,
    /// Scheduled send time. Latencies are measured from here.
    pub planned: Duration,
    /// Earliest possible send time: the scheduled time, or the time at which a slot became free.
    /// Any further delay is generator lag.
    pub eligible_at: Duration,
    pub max_tokens: u32,
    /// Prompt tokens that could have been cached, if known.
    pub possible: Option<PossibleHits>,
    /// Tokens that this turn adds to the prompt, as counted by the client. `None` if not counted.
    pub own_tokens: Option<u32>,
    pub exchange: Exchange,
}

impl TimedRequest {
    /// Returns the generator lag for this request.
    pub fn lag(&self) -> Duration {
        self.exchange.wrote.saturating_sub(self.eligible_at + self.exchange.waited)
    }
}

/// Live counters of a run, for the progress display.
#[derive(Debug, Default)]
pub struct LiveCounters {
    pub sent: AtomicU64,
    /// Number of finished requests, including failed ones.
    pub ended: AtomicU64,
    pub tokens: AtomicU64,
    /// Nothing is sent after this time, in ms after the start; 0 without a limit.
    pub sends_until_ms: AtomicU64,
}

/// Limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunLimits {
    /// Nothing is sent after this time. Requests in flight are still awaited.
    pub duration: Duration,
    /// Number of concurrent exchanges for which to open connections before the clock starts.
    pub connections: usize,
}

/// Sampling interval for the generator's CPU usage.
const SHARE_EVERY: Duration = Duration::from_secs(1);

/// State shared by all exchanges.
struct RunContext<E: Env + Unpin> {
    env: E,
    pool: HttpConnectionPool<E>,
    start: Mono,
    /// ITL of successful responses.
    gaps: Mutex<LatencyHistogram>,
    retried: AtomicU64,
    /// When the next request is due, in nanoseconds since the start.
    next_due: AtomicU64,
    live: Arc<LiveCounters>,
}

impl<E: Env + Unpin> RunContext<E> {
    fn now(&self) -> Duration {
        self.env.now().since(self.start)
    }

    /// Performs one exchange. After a busy response with `Retry-After`, it retries up to the
    /// configured number of times.
    async fn exchange(&self, request: EncodedRequest) -> Exchange {
        let begun = self.now();
        let limits = self.pool.target().limits;
        let mut left = limits.busy_retries;
        loop {
            let again = self.now();
            let mut exchange = self.once(request.clone(), again).await;
            exchange.waited = again.saturating_sub(begun);
            let ExchangeOutcome::Status { status: 429 | 503, retry_after: Some(wait), .. } = exchange.outcome else {
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

    async fn once(&self, request: EncodedRequest, begun: Duration) -> Exchange {
        // Gaps beyond the first `ARRIVALS_MAX` frames, for which the exchange stores no arrival
        // times.
        let mut frames = 0;
        let mut last = Duration::ZERO;
        let mut beyond = None;
        let on_record = |arrival: TokenArrival| {
            self.live.tokens.fetch_add(u64::from(arrival.tokens), Ordering::Relaxed);
            frames += 1;
            if frames > ARRIVALS_MAX {
                gap(beyond.get_or_insert_default(), last, arrival);
            }
            last = arrival.at;
        };
        let exchange = self.pool.exchange(request, begun, on_record).await;
        // Gaps are recorded only for successful responses, like all other latencies.
        if exchange.outcome == ExchangeOutcome::Ok {
            let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
            exchange.arrivals.windows(2).for_each(|two| gap(&mut gaps, two[0].at, two[1]));
            beyond.iter().for_each(|beyond| gaps.add(beyond));
        }
        exchange
    }

    /// Performs one exchange. A panic becomes a failed request, because otherwise the run would
    /// wait forever.
    async fn whole(&self, request: EncodedRequest) -> Exchange {
        let begun = self.now();
        let asked = AssertUnwindSafe(self.exchange(request)).catch_unwind().await;
        asked.unwrap_or_else(|panic| {
            let mut exchange = Exchange::without_connection(begun, self.now(), String::new());
            exchange.outcome = ExchangeOutcome::Bug(panic_message(panic.as_ref()));
            exchange
        })
    }
}

/// Returns the message from a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("panic without a message").to_owned()
}

/// Records the gap between `last` and the arrival of the next tokens.
fn gap(gaps: &mut LatencyHistogram, last: Duration, next: TokenArrival) {
    // Tokens that arrive together share the preceding gap.
    gaps.record(next.at.saturating_sub(last) / next.tokens, next.tokens);
}

/// Reads are batched at or above this rate, in reads per second.
const BATCH_FROM: f64 = 4_000.0;
/// Interval between two batches of reads.
const BATCH_EVERY: Duration = Duration::from_micros(500);
/// Interval at which batching is reconsidered.
const BATCH_DECISION: Duration = Duration::from_millis(20);

/// Batches reads under high load. A thread that waits for each frame of hundreds of streams sleeps
/// and wakes for nearly every frame, which costs as much as reading it. Tokens keep their arrival
/// times where the kernel timestamps them. A pause ends when the next request is due.
async fn batches<E: Env + Unpin>(shared: Arc<RunContext<E>>) {
    let reads = || (shared.env.now(), shared.pool.timestamped_reads());
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
                let due = Duration::from_nanos(shared.next_due.load(Ordering::Relaxed));
                shared.env.pause_thread(due.saturating_sub(shared.now()).min(BATCH_EVERY));
                // Run all tasks that have become ready in the meantime.
                tokio::task::yield_now().await;
            }
            busy = many(before);
        }
    }
}

/// A request whose time is known is built this long before it is due, so that building it does not
/// delay it.
const PREPARE_AHEAD: Duration = Duration::from_millis(6);
/// This long before a request is due, the thread pauses instead of using the runtime's timers,
/// which are up to a millisecond late, or two if reads are batched.
const PAUSES_FROM: Duration = Duration::from_micros(2_500);

/// Results of a run, in addition to its records.
#[derive(Clone, Debug, Default)]
pub struct RunStats {
    /// ITL of successful responses.
    pub gaps: LatencyHistogram,
    /// Time from the start to the end of the last exchange.
    pub took: Duration,
    /// Until when requests could be sent: the end of the duration, or of the last exchange if there
    /// was nothing more to send.
    pub sent_until: Duration,
    /// Requests that were in flight when the run was aborted.
    pub unfinished: u64,
    /// Whether a stop signal ended the run.
    pub stopped: bool,
    /// Start time of the run.
    pub started: Mono,
    /// Requests that were resent because their idle connection had been closed.
    pub resent: u64,
    /// Requests that were retried after a busy response.
    pub retried: u64,
    /// Requests that were aborted by a panic in mcctl.
    pub bugs: u64,
    pub connections: u64,
    /// Client read delay: how long bytes stayed unread, which shows how far behind the generator
    /// was. Where the kernel timestamps arrivals, token times are unaffected.
    pub delays: LatencyHistogram,
    /// The generator's CPU usage in its busiest second. `None` if unknown.
    pub share: Option<f64>,
}

/// Samples the generator's CPU usage.
struct CpuShare {
    since: Mono,
    used: Option<Duration>,
    most: Option<f64>,
}

impl CpuShare {
    fn new<E: Env>(env: &E) -> CpuShare {
        CpuShare { since: env.now(), used: env.thread_cpu(), most: None }
    }

    /// Takes a sample if one is due, or if the run is `over`.
    fn sample<E: Env>(&mut self, env: &E, over: bool) {
        let now = env.now();
        let passed = now.since(self.since);
        // The last interval counts unless it is too short to be meaningful.
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
        self.since = now;
        self.used = used;
    }
}

/// A run that is ready to start: `driver` decides when `workload`'s turns are sent to `target`.
pub struct LoadRun<'a, E: Env + Unpin> {
    pub env: E,
    pub target: LoadTarget,
    pub workload: &'a mut (dyn LoadWorkload + Send),
    pub driver: Driver,
    pub limits: RunLimits,
    /// Counters that are updated during the run.
    pub live: Arc<LiveCounters>,
}

impl<E: Env + Unpin> LoadRun<'_, E> {
    /// Executes the run and passes every record to `on_record`. After the first `stop`, nothing
    /// more is sent. After the second one, requests in flight are aborted.
    pub async fn execute(self, stop: &mut mpsc::Receiver<()>, mut on_record: impl FnMut(TimedRequest)) -> RunStats {
        let LoadRun { env, target, workload, mut driver, limits, live } = self;
        // Open connections and build the first requests before the clock starts.
        let mut pool = HttpConnectionPool::open(env.clone(), target, limits.connections).await;
        let due = driver.due(Duration::ZERO).into_iter();
        let mut ready: Vec<(DueRequest, PreparedRequest)> =
            due.map(|start| (start, PreparedRequest::of(start.turn, workload, &pool))).collect();
        let mut ahead: HashMap<Turn, PreparedRequest> = HashMap::new();
        let start = pool.start_clock();
        let gaps = Mutex::default();
        let retried = AtomicU64::new(0);
        let shared =
            Arc::new(RunContext { env: env.clone(), pool, start, gaps, retried, next_due: AtomicU64::new(0), live });
        // On a multi-threaded runtime, pausing this thread would block other tasks.
        let alone = Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread;
        let batches = alone.then(|| tokio::spawn(batches(Arc::clone(&shared))));
        let (ended, mut ends) = mpsc::unbounded_channel::<TimedRequest>();
        let mut last_end = Duration::ZERO;
        let mut stopped = false;
        let mut is_cut = false;
        let mut bugs = 0;
        let mut share = CpuShare::new(&env);
        while !driver.is_over() {
            share.sample(&env, false);
            let now = shared.now();
            if now >= limits.duration {
                is_cut |= !stopped;
                driver.stop();
            }
            for start in driver.due(now) {
                let built = ahead.remove(&start.turn);
                let built = built.unwrap_or_else(|| PreparedRequest::of(start.turn, workload, &shared.pool));
                ready.push((start, built));
            }
            for (start, built) in ready.drain(..) {
                let PreparedRequest { max_tokens, possible, own_tokens, request } = built;
                let DueRequest { turn, planned, eligible_at } = start;
                shared.live.sent.fetch_add(1, Ordering::Relaxed);
                let shared = Arc::clone(&shared);
                let ended = ended.clone();
                tokio::spawn(async move {
                    let exchange = shared.whole(request).await;
                    // If the run was aborted, the receiver no longer exists.
                    let _ = ended.send(TimedRequest {
                        turn,
                        planned,
                        eligible_at,
                        max_tokens,
                        possible,
                        own_tokens,
                        exchange,
                    });
                });
            }
            let wake = match driver.wake() {
                Some(at) => at.min(limits.duration),
                None if now < limits.duration => limits.duration,
                // Nothing more is sent.
                None => now + SHARE_EVERY,
            };
            let mut upcoming = driver.upcoming(wake).filter(|turn| !ahead.contains_key(turn));
            if let Some(turn) = upcoming.take_if(|_| wake.saturating_sub(shared.now()) <= PREPARE_AHEAD) {
                ahead.insert(turn, PreparedRequest::of(turn, workload, &shared.pool));
            }
            let wait = wake.saturating_sub(shared.now());
            // A pause does not change the times of tokens, because the kernel records them.
            let is_precise = alone && shared.pool.timestamped_reads() > 0;
            shared.next_due.store(u64::try_from(wake.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            let mut record = if is_precise && wait <= PAUSES_FROM {
                env.pause_thread(wait.min(BATCH_EVERY));
                // Run all tasks that have become ready in the meantime.
                tokio::task::yield_now().await;
                if stop.try_recv().is_ok() {
                    driver.stop();
                    if std::mem::replace(&mut stopped, true) {
                        break;
                    }
                }
                ends.try_recv().ok()
            } else {
                let early = match upcoming {
                    Some(_) => PREPARE_AHEAD,
                    None if is_precise => PAUSES_FROM,
                    None => Duration::ZERO,
                };
                let wait = wait.saturating_sub(early).clamp(Duration::from_micros(50), SHARE_EVERY);
                tokio::select! {
                    biased;
                    record = deadline(&env, wait, ends.recv()) => record.ok().flatten(),
                    Some(()) = stop.recv() => {
                        driver.stop();
                        if std::mem::replace(&mut stopped, true) {
                            break;
                        }
                        None
                    }
                }
            };
            while let Some(one) = record {
                last_end = last_end.max(one.exchange.end);
                let well = one.exchange.outcome == ExchangeOutcome::Ok;
                bugs += u64::from(matches!(one.exchange.outcome, ExchangeOutcome::Bug(_)));
                if well {
                    workload.on_response(one.turn, &one.exchange.answer);
                } else if one.exchange.first_token.is_none() {
                    workload.on_failure(one.turn);
                }
                let is_over = match one.exchange.outcome.is_context_overflow() {
                    // Later prompts of the conversation are assumed to be longer.
                    true => {
                        driver.abandon(one.turn, one.exchange.end);
                        true
                    }
                    false => driver.finish(one.turn, one.exchange.end, well),
                };
                if is_over {
                    workload.on_conversation_end(one.turn);
                }
                shared.live.ended.fetch_add(1, Ordering::Relaxed);
                on_record(one);
                record = ends.try_recv().ok();
            }
        }
        if let Some(batches) = batches {
            batches.abort();
        }
        share.sample(&env, true);
        RunStats {
            gaps: shared.gaps.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            took: last_end,
            sent_until: if is_cut { limits.duration } else { last_end },
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
}

/// A request that has been built but not sent.
struct PreparedRequest {
    max_tokens: u32,
    possible: Option<PossibleHits>,
    own_tokens: Option<u32>,
    request: EncodedRequest,
}

impl PreparedRequest {
    fn of<E: Env + Unpin>(
        turn: Turn,
        workload: &mut (dyn LoadWorkload + Send),
        pool: &HttpConnectionPool<E>,
    ) -> PreparedRequest {
        let ask = workload.request(turn);
        PreparedRequest {
            max_tokens: ask.max_tokens,
            possible: ask.possible,
            own_tokens: ask.own_tokens,
            request: pool.target().encode(&ask),
        }
    }
}
