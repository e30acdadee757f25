//! Progress on stderr: a progress bar if stderr is a terminal, otherwise a line every few seconds. Never writes to stdout.
//!
//! A separate thread samples the run's counters four times a second, so the overhead for the run is small.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::ProgressBar;

use crate::commands::output;
use crate::commands::progress_bar::{is_on_terminal, terminal_bar};
use crate::engine::base::Mono;
use crate::engine::env::{Env, RealEnv};
use crate::engine::load::session::{AfterPass, Observer, PassId, PassResult};
use crate::engine::load::target::ExchangeOutcome;
use crate::engine::load::{LiveCounters, TimedRequest};

/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Number of samples in the moving window (two seconds).
const WINDOW_SAMPLES: usize = 8;
/// Number of samples between two lines if stderr is not a terminal (five seconds).
const LINE_SAMPLES: u32 = 20;

/// Destination for messages during a run.
#[derive(Clone)]
pub(in crate::commands::bench) struct Screen {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Screen {
    /// Returns a screen that has a progress bar if stderr is a terminal.
    pub fn new(quiet: bool) -> Screen {
        let bar = (!quiet && is_on_terminal()).then(|| terminal_bar("{msg}", None));
        Screen { bar, quiet }
    }

    /// Returns a screen that shows only warnings.
    #[cfg(test)]
    pub fn quiet() -> Screen {
        Screen { bar: None, quiet: true }
    }

    /// Prints `text`, unless the screen is quiet.
    pub fn print(&self, text: &str) {
        if !self.quiet {
            self.warn(text);
        }
    }

    /// Prints `text`, even if the screen is quiet.
    pub fn warn(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::say(text)),
            None => output::say(text),
        }
    }
}

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

/// State of the current pass.
#[derive(Default)]
struct ProgressState {
    pass: Option<(PassId, u64, Arc<LiveCounters>)>,
    began: Mono,
    failed: u64,
    /// Totals since the last sample.
    current: ProgressWindow,
    slots: VecDeque<ProgressWindow>,
    tokens: u64,
}

/// Observer that shows progress.
pub(in crate::commands::bench) struct ProgressView {
    state: Arc<Mutex<ProgressState>>,
    screen: Screen,
    /// Dropping this sender ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressView {
    /// Starts the progress thread, unless `hidden`. Shows nothing if the thread cannot be started.
    pub fn new(screen: Screen, hidden: bool) -> ProgressView {
        let state = Arc::new(Mutex::new(ProgressState::default()));
        let (stop, stopped) = channel::<()>();
        let mut view = ProgressView { state: Arc::clone(&state), screen: screen.clone(), stop: None, thread: None };
        if !screen.quiet && !hidden {
            let sample = move || {
                let mut samples = 0_u32;
                while stopped.recv_timeout(SAMPLE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    samples = samples.wrapping_add(1);
                    let shown = state.lock().unwrap_or_else(PoisonError::into_inner).sample(RealEnv::new().now());
                    let Some(shown) = shown else { continue };
                    match &screen.bar {
                        Some(bar) => bar.set_message(shown.bar()),
                        None if samples.is_multiple_of(LINE_SAMPLES) => screen.print(&shown.line()),
                        None => {}
                    }
                }
                if let Some(bar) = &screen.bar {
                    bar.finish_and_clear();
                }
            };
            view.thread = std::thread::Builder::new().name("live".to_owned()).spawn(sample).ok();
            view.stop = Some(stop);
        }
        view
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The thread ends within one sample interval. A panic in it has already been printed.
            let _ = thread.join();
        }
    }
}

impl Observer for ProgressView {
    fn pass_started(&mut self, pass: &PassId, _: u64, requests: u64, live: &Arc<LiveCounters>) {
        let pass = Some((pass.clone(), requests, Arc::clone(live)));
        *self.state() = ProgressState { pass, began: RealEnv::new().now(), ..ProgressState::default() };
    }

    fn record(&mut self, _: &PassId, record: &TimedRequest) {
        let mut state = self.state();
        let exchange = &record.exchange;
        state.current.ended += 1;
        if exchange.outcome != ExchangeOutcome::Ok {
            state.failed += 1;
            return;
        }
        let (current, answer) = (&mut state.current, &exchange.answer);
        if let Some(first) = exchange.first_token {
            current.first_tokens += 1;
            current.ttft += first.saturating_sub(record.planned);
        }
        current.prompt += u64::from(answer.prompt_tokens.unwrap_or(0));
        match &answer.cached {
            Some(cached) => {
                current.device += u64::from(cached.device);
                current.host += u64::from(cached.host);
                current.storage += u64::from(cached.storage);
            }
            None => current.somewhere += u64::from(answer.cached_tokens.unwrap_or(0)),
        }
    }

    fn resumed(&mut self, _: &PassId, _: &TimedRequest) {
        // Resumed requests do not count as current progress.
    }

    fn pass_ended(&mut self, _: &PassResult) -> AfterPass {
        self.state().pass = None;
        AfterPass::Continue
    }

    fn note(&mut self, text: &str) {
        self.screen.print(text);
    }
}

/// Figures shown on the screen.
#[derive(Clone, Debug, PartialEq)]
struct ProgressSnapshot {
    label: String,
    seconds: u64,
    ended: u64,
    requests: u64,
    failed: u64,
    in_flight: u64,
    requests_per_s: f64,
    tokens_per_s: f64,
    ttft: Option<Duration>,
    /// Cached share of the prompt tokens, in percent: in all tiers, L1, L2 and L3.
    cached: Option<[f64; 4]>,
}

impl ProgressState {
    /// Closes the current sample and returns the figures to show.
    fn sample(&mut self, now: Mono) -> Option<ProgressSnapshot> {
        let (id, requests, live) = self.pass.as_ref()?;
        let (sent, ended) = (live.sent.load(Ordering::Relaxed), live.ended.load(Ordering::Relaxed));
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
            failed: self.failed,
            in_flight: sent.saturating_sub(ended),
            requests_per_s: sum(|slot| slot.ended) as f64 / seconds,
            tokens_per_s: sum(|slot| slot.tokens) as f64 / seconds,
            ttft: (first_tokens > 0).then(|| ttft / u32::try_from(first_tokens).unwrap_or(u32::MAX)),
            cached: (prompt > 0).then(|| [percent(all), percent(tiers[0]), percent(tiers[1]), percent(tiers[2])]),
        })
    }
}

impl ProgressSnapshot {
    fn figures(&self) -> String {
        let mut text = format!("{:.1} requests/s, {:.0} tokens/s", self.requests_per_s, self.tokens_per_s);
        if let Some(ttft) = self.ttft {
            text.push_str(&format!(", TTFT {:.1} ms", ttft.as_secs_f64() * 1e3));
        }
        if let Some([all, device, host, storage]) = self.cached {
            text.push_str(&format!(", cached {all:.0} %"));
            if device + host + storage > 0.0 {
                text.push_str(&format!(" (L1 {device:.0}, L2 {host:.0}, L3 {storage:.0})"));
            }
        }
        text.push_str(&format!(", {} in flight", self.in_flight));
        if self.failed > 0 {
            text.push_str(&format!(", {} failed", self.failed));
        }
        text
    }

    fn clock(&self) -> String {
        let (minutes, seconds) = (self.seconds / 60, self.seconds % 60);
        format!("{minutes}:{seconds:02}")
    }

    /// Formats the figures as one log line.
    fn line(&self) -> String {
        format!("{} {}: {} of {} requests; {}", self.label, self.clock(), self.ended, self.requests, self.figures())
    }

    /// Formats the figures as two terminal lines.
    fn bar(&self) -> String {
        const WIDTH: u64 = 40;
        let done = (self.ended.min(self.requests) * WIDTH).checked_div(self.requests).unwrap_or(0);
        let bar = format!("{}{}", "#".repeat(done as usize), ".".repeat((WIDTH - done) as usize));
        format!("{} [{bar}] {}/{} {}\n  {}", self.label, self.ended, self.requests, self.clock(), self.figures())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_covers_the_last_two_seconds() {
        let live = Arc::new(LiveCounters::default());
        live.sent.store(30, Ordering::Relaxed);
        let id = PassId { side: 0, side_name: "A".to_owned(), name: "run".to_owned(), block: 0 };
        let mut state = ProgressState { pass: Some((id, 100, Arc::clone(&live))), ..ProgressState::default() };
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
            let shown = state.sample(Mono::ZERO + SAMPLE_INTERVAL * at as u32).expect("a pass runs");
            assert_eq!((shown.requests_per_s, shown.tokens_per_s, shown.in_flight), (4.0, 100.0, 30 - at));
        }
        assert_eq!(state.slots.len(), WINDOW_SAMPLES);
        let shown = state.sample(Mono::ZERO + Duration::from_secs(65)).expect("a pass runs");
        assert_eq!((shown.clock().as_str(), shown.ended, shown.requests_per_s), ("1:05", 20, 3.5));
        assert_eq!((shown.ttft, shown.cached), (Some(Duration::from_millis(40)), Some([75.0, 25.0, 0.0, 50.0])));
        assert!(shown.bar().starts_with("A run [########................................] 20/100 1:05\n"));
        state.pass = None;
        assert_eq!(state.sample(Mono::ZERO), None);
    }
}
