//! Progress of a session: figures over the last two seconds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::session::{AfterPass, Observer, PassId, PassResult};
use crate::target::ExchangeOutcome;
use crate::{LiveCounters, TimedRequest};
use mcctl_base::Mono;
use mcctl_sys::env::Env;

/// Interval between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Time in a pass after which the remaining time is estimated. The first requests of a pass take
/// longer.
const ESTIMATE_AFTER: Duration = Duration::from_secs(3);
/// Number of samples in the moving window (two seconds).
const WINDOW_SAMPLES: usize = 8;

/// Totals for one sample interval.
#[derive(Clone, Copy, Debug, Default)]
struct ProgressWindow {
    ended: u64,
    tokens: u64,
    first_tokens: u64,
    ttft: Duration,
    prompt: u64,
    device: u64,
    host: u64,
    storage: u64,
    somewhere: u64,
}

/// Observer that keeps the current figures. Its owner calls [`Progress::sample`] every
/// [`SAMPLE_INTERVAL`].
#[derive(Debug)]
pub struct Progress<E: Env> {
    env: E,
    /// The current pass and its number of requests.
    pass: Option<(PassId, u64, Arc<LiveCounters>)>,
    began: Mono,
    /// Number of requests that ended in this run. Excludes those of an interrupted run that is
    /// resumed.
    done: u64,
    failed: u64,
    /// Totals since the last sample.
    current: ProgressWindow,
    slots: VecDeque<ProgressWindow>,
    tokens: u64,
}

/// The figures at one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressSnapshot {
    /// The names of the endpoint and the pass.
    pub label: String,
    /// Time since the start of the pass, in seconds.
    pub seconds: u64,
    /// Number of finished requests in the pass, including failed ones.
    pub ended: u64,
    /// Number of requests in the pass.
    pub requests: u64,
    /// Estimated time until the end of the pass, if the rate so far continues; `None` until the
    /// estimate is useful.
    pub remaining: Option<Duration>,
    pub failed: u64,
    pub in_flight: u64,
    pub requests_per_s: f64,
    pub tokens_per_s: f64,
    /// Mean TTFT from the scheduled send time.
    pub ttft: Option<Duration>,
    /// Cached share of the prompt tokens, in percent: in all tiers, L1, L2 and L3.
    pub cached: Option<[f64; 4]>,
}

impl<E: Env> Progress<E> {
    /// Creates an observer that has seen no pass yet.
    pub fn new(env: E) -> Progress<E> {
        let began = env.now();
        let current = ProgressWindow::default();
        let slots = VecDeque::new();
        Progress { env, pass: None, began, done: 0, failed: 0, current, slots, tokens: 0 }
    }

    /// Closes the current sample and returns the figures. Returns `None` between passes.
    pub fn sample(&mut self) -> Option<ProgressSnapshot> {
        self.sample_at(self.env.now())
    }

    fn sample_at(&mut self, now: Mono) -> Option<ProgressSnapshot> {
        let (id, requests, live) = self.pass.as_ref()?;
        let sent = live.sent.load(Ordering::Relaxed);
        let ended = live.ended.load(Ordering::Relaxed);
        let tokens = live.tokens.load(Ordering::Relaxed);
        let mut slot = std::mem::take(&mut self.current);
        slot.tokens = tokens.saturating_sub(self.tokens);
        self.tokens = tokens;
        self.slots.push_back(slot);
        if self.slots.len() > WINDOW_SAMPLES {
            self.slots.pop_front();
        }
        let seconds = SAMPLE_INTERVAL.as_secs_f64() * self.slots.len() as f64;
        let sum = |of: fn(&ProgressWindow) -> u64| self.slots.iter().map(of).sum::<u64>();
        let first_tokens = sum(|slot| slot.first_tokens);
        let ttft: Duration = self.slots.iter().map(|slot| slot.ttft).sum();
        let prompt = sum(|slot| slot.prompt);
        let tiers = [sum(|slot| slot.device), sum(|slot| slot.host), sum(|slot| slot.storage)];
        let all = tiers.iter().sum::<u64>() + sum(|slot| slot.somewhere);
        let percent = |part: u64| 100.0 * part as f64 / prompt as f64;
        Some(ProgressSnapshot {
            label: format!("{} {}", id.side_name, id.name),
            seconds: now.since(self.began).as_secs(),
            ended,
            requests: *requests,
            remaining: self.remaining(now, requests.saturating_sub(ended), live.sends_until_ms.load(Ordering::Relaxed)),
            failed: self.failed,
            in_flight: sent.saturating_sub(ended),
            requests_per_s: sum(|slot| slot.ended) as f64 / seconds,
            tokens_per_s: sum(|slot| slot.tokens) as f64 / seconds,
            ttft: (first_tokens > 0).then(|| ttft / u32::try_from(first_tokens).unwrap_or(u32::MAX)),
            cached: (prompt > 0).then(|| [percent(all), percent(tiers[0]), percent(tiers[1]), percent(tiers[2])]),
        })
    }
}

impl<E: Env> Progress<E> {
    /// Estimates how long the pass needs for `left` more requests. None is sent after
    /// `sends_until_ms`, if that is not 0.
    fn remaining(&self, now: Mono, left: u64, sends_until_ms: u64) -> Option<Duration> {
        let elapsed = now.since(self.began);
        if elapsed < ESTIMATE_AFTER || self.done == 0 {
            return None;
        }
        let estimate = Duration::try_from_secs_f64(elapsed.as_secs_f64() * left as f64 / self.done as f64).ok()?;
        let limit = Some(Duration::from_millis(sends_until_ms)).filter(|limit| !limit.is_zero());
        Some(limit.map_or(estimate, |limit| estimate.min(limit.saturating_sub(elapsed))))
    }
}

impl<E: Env> Observer for Progress<E> {
    fn pass_started(&mut self, pass: &PassId, _: u64, requests: u64, live: &Arc<LiveCounters>) {
        *self = Progress::new(self.env.clone());
        self.pass = Some((pass.clone(), requests, Arc::clone(live)));
    }

    fn record(&mut self, _: &PassId, record: &TimedRequest) {
        let exchange = &record.exchange;
        self.current.ended += 1;
        self.done += 1;
        if exchange.outcome != ExchangeOutcome::Ok {
            self.failed += 1;
            return;
        }
        let current = &mut self.current;
        let answer = &exchange.answer;
        if let Some(first) = exchange.first_token {
            current.first_tokens += 1;
            current.ttft += first.saturating_sub(record.planned);
        }
        current.prompt += u64::from(answer.prompt_tokens.unwrap_or(0));
        let [device, host, storage, somewhere] = answer.cached_by_tier().map(u64::from);
        current.device += device;
        current.host += host;
        current.storage += storage;
        current.somewhere += somewhere;
    }

    fn resumed(&mut self, _: &PassId, _: &TimedRequest) {
        // Resumed requests do not count as current progress.
    }

    fn pass_ended(&mut self, _: &PassResult) -> AfterPass {
        self.pass = None;
        AfterPass::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_sys::env::RealEnv;

    #[test]
    fn progress_covers_the_last_two_seconds() {
        let live = Arc::new(LiveCounters::default());
        live.sent.store(30, Ordering::Relaxed);
        let id = PassId { side: 0, side_name: "A".to_owned(), name: "run".to_owned(), block: 0 };
        let mut state = Progress::new(RealEnv::new());
        state.pass = Some((id, 100, Arc::clone(&live)));
        let slot = ProgressWindow {
            ended: 1,
            first_tokens: 1,
            ttft: Duration::from_millis(40),
            prompt: 200,
            device: 50,
            storage: 100,
            ..ProgressWindow::default()
        };
        for at in 1..=20_u64 {
            live.ended.store(at, Ordering::Relaxed);
            live.tokens.store(at * 25, Ordering::Relaxed);
            state.current = slot;
            let shown = state.sample_at(Mono::ZERO + SAMPLE_INTERVAL * at as u32).expect("a pass runs");
            assert_eq!((shown.requests_per_s, shown.tokens_per_s, shown.in_flight), (4.0, 100.0, 30 - at));
        }
        assert_eq!(state.slots.len(), WINDOW_SAMPLES);
        let shown = state.sample_at(Mono::ZERO + Duration::from_secs(65)).expect("a pass runs");
        assert_eq!((shown.label.as_str(), shown.ended, shown.requests_per_s), ("A run", 20, 3.5));
        assert_eq!(shown.remaining, None, "no request was recorded");
        state.began = Mono::ZERO;
        state.done = 20;
        let shown = state.sample_at(Mono::ZERO + Duration::from_secs(65));
        assert_eq!(shown.and_then(|shown| shown.remaining), Some(Duration::from_secs(260)));
        let shown = state.sample_at(Mono::ZERO + Duration::from_secs(2));
        assert_eq!(shown.and_then(|shown| shown.remaining), None, "too early");
        let shown = state.sample_at(Mono::ZERO + Duration::from_secs(65)).expect("a pass runs");
        assert_eq!((shown.ttft, shown.cached), (Some(Duration::from_millis(40)), Some([75.0, 25.0, 0.0, 50.0])));
        state.pass = None;
        assert_eq!(state.sample_at(Mono::ZERO), None);
    }
}
