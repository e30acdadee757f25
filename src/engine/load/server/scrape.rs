//! Scrapes the server's counters over time: at the start, every second, at the end of each pass,
//! and whenever a request had fewer cached tokens than expected. Memory is bounded, so long runs
//! keep fewer samples.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;

use crate::server::{ServerClient, ServerCounters, StoreCounters};
use mcctl_base::Mono;
use mcctl_sys::env::{Env, deadline};

/// Maximum number of samples to keep.
pub const POINTS_MAX: usize = 4096;
/// Minimum interval between two scrapes, even if more are requested.
const LEAST_GAP: Duration = Duration::from_millis(20);

/// Counters at one point in time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CounterSample {
    /// Time at which all pages had been read.
    #[serde(skip)]
    pub at: Mono,
    pub server: Option<ServerCounters>,
    pub master: Option<StoreCounters>,
}

/// Samples in chronological order. Above the limit, every second sample is dropped, except for the
/// first, the last and marked ones. No I/O.
#[derive(Clone, Debug, Default)]
pub struct CounterHistory {
    points: Vec<(CounterSample, bool)>,
    /// Minimum observed lag of L3 behind L2: tokens that will never be written.
    least_behind: Option<i64>,
}

/// Returns how many tokens L3 lags behind L2.
fn behind(counters: &ServerCounters) -> i64 {
    let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    signed(counters.backed_up) - signed(counters.stored)
}

impl CounterHistory {
    /// Adds a sample. Samples with `marks` set (end of a pass, shortfall) are kept longer.
    pub fn push(&mut self, point: CounterSample, marks: bool) {
        if self.points.last().is_some_and(|(last, _)| last.at > point.at) {
            return;
        }
        if let Some(counters) = &point.server {
            self.least_behind = Some(self.least_behind.unwrap_or(i64::MAX).min(behind(counters)));
        }
        self.points.push((point, marks));
        if self.points.len() > POINTS_MAX {
            // Drop marked samples only if too few other samples remain.
            let spare = self.points.iter().filter(|(_, marks)| !marks).count() >= POINTS_MAX / 8;
            let mut place = 0;
            let last = self.points.len() - 1;
            self.points.retain(|(_, marks)| {
                let at = place;
                place += 1;
                at == 0 || at == last || (*marks && spare) || at % 2 == 0
            });
        }
    }

    /// Returns the last sample at or before `at`, or the first one if there is none.
    pub fn before(&self, at: Mono) -> Option<&CounterSample> {
        let place = self.points.partition_point(|(point, _)| point.at <= at);
        self.points.get(place.saturating_sub(1)).map(|(point, _)| point)
    }

    /// Returns the first sample at or after `at`, or the last one if there is none.
    pub fn after(&self, at: Mono) -> Option<&CounterSample> {
        let place = self.points.partition_point(|(point, _)| point.at < at);
        self.points.get(place).or(self.points.last()).map(|(point, _)| point)
    }

    /// Returns the samples between `from` and `to`.
    pub fn between(&self, from: Mono, to: Mono) -> impl Iterator<Item = &CounterSample> {
        self.points.iter().map(|(point, _)| point).filter(move |point| point.at >= from && point.at <= to)
    }

    /// Returns the tokens that had not yet been written to L3 when a request arrived at `came`.
    /// Uses the last sample before the arrival, unless that sample is older than `since`, the end
    /// of the response that last used the request's prefix. In that case, the next sample is used,
    /// less the request's `own` tokens, which it may include.
    pub fn unwritten_at(&self, since: Mono, came: Mono, own: u64) -> u64 {
        let last = self.before(came).filter(|point| point.at >= since && point.at <= came);
        match last {
            Some(point) => self.unwritten(point),
            None => self.after(came).map_or(0, |point| self.unwritten(point).saturating_sub(own)),
        }
    }

    /// Returns the tokens not yet written to L3 at `point`: the lag behind L2 in excess of its
    /// minimum.
    fn unwritten(&self, point: &CounterSample) -> u64 {
        let (Some(counters), Some(least)) = (&point.server, self.least_behind) else { return 0 };
        u64::try_from(behind(counters).saturating_sub(least)).unwrap_or(0)
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

/// State shared by the scraper and its users.
#[derive(Debug, Default)]
struct ScrapeState {
    ring: Mutex<CounterHistory>,
    wanted: Notify,
}

impl ScrapeState {
    fn push(&self, point: CounterSample, marks: bool) {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).push(point, marks);
    }
}

/// Requests a sample as soon as possible, without waiting for it.
#[derive(Clone, Debug)]
pub struct ScrapeTrigger(Arc<ScrapeState>);

impl ScrapeTrigger {
    /// Requests a sample without waiting for it.
    pub fn fire(&self) {
        self.0.wanted.notify_one();
    }
}

/// Scrapes a server's pages until the scraper is dropped.
#[derive(Debug)]
pub struct Scraper {
    server: ServerClient,
    shared: Arc<ScrapeState>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn point<E: Env>(env: &E, server: &ServerClient, woken: bool) -> CounterSample {
    let (counters, master) = tokio::join!(server.counters(woken), server.master());
    CounterSample { at: env.now(), server: counters, master }
}

impl Scraper {
    /// Starts scraping `server` at the interval `every`.
    pub fn start<E: Env>(env: &E, server: ServerClient, every: Duration) -> Scraper {
        let shared = Arc::new(ScrapeState::default());
        let env = env.clone();
        let scraped = server.clone();
        let mine = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            loop {
                let wanted = deadline(&env, every, mine.wanted.notified()).await.is_ok();
                mine.push(point(&env, &scraped, wanted).await, wanted);
                env.sleep(LEAST_GAP).await;
            }
        });
        Scraper { server, shared, task }
    }

    /// Takes a marked sample immediately.
    pub async fn point<E: Env>(&self, env: &E) -> CounterSample {
        let point = point(env, &self.server, true).await;
        self.shared.push(point.clone(), true);
        point
    }

    /// Returns a handle for requesting samples.
    pub fn trigger(&self) -> ScrapeTrigger {
        ScrapeTrigger(Arc::clone(&self.shared))
    }

    /// Returns the samples taken so far.
    pub fn history(&self) -> CounterHistory {
        self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(ms: u64) -> CounterSample {
        CounterSample { at: Mono::from_ms(ms), server: None, master: None }
    }

    #[test]
    fn long_run_keeps_ends_and_marked_samples_within_the_limit() {
        let mut ring = CounterHistory::default();
        for ms in 0..100_000 {
            ring.push(point(ms), ms % 1000 == 7);
        }
        assert!(ring.len() <= POINTS_MAX, "{}", ring.len());
        assert_eq!(
            (ring.points[0].0.at, ring.points.last().map(|p| p.0.at)),
            (Mono::ZERO, Some(Mono::from_ms(99_999)))
        );
        assert_eq!(ring.points.iter().filter(|(_, marks)| *marks).count(), 100);
        let mut all = CounterHistory::default();
        (0..20_000).for_each(|ms| all.push(point(ms), true));
        assert!(all.len() <= POINTS_MAX);
    }

    #[test]
    fn a_time_lies_between_its_neighbouring_samples() {
        let mut ring = CounterHistory::default();
        assert_eq!((ring.before(Mono::ZERO), ring.after(Mono::ZERO)), (None, None));
        for ms in [10, 20, 30] {
            ring.push(point(ms), false);
        }
        let at = |found: Option<&CounterSample>| found.map(|point| point.at.0 / 1_000_000);
        assert_eq!((at(ring.before(Mono::from_ms(25))), at(ring.after(Mono::from_ms(25)))), (Some(20), Some(30)));
        assert_eq!((at(ring.before(Mono::from_ms(5))), at(ring.after(Mono::from_ms(35)))), (Some(10), Some(30)));
        assert_eq!((at(ring.before(Mono::from_ms(20))), at(ring.after(Mono::from_ms(20)))), (Some(20), Some(20)));
        assert_eq!(ring.between(Mono::from_ms(10), Mono::from_ms(20)).count(), 2);
    }
}
