//! The run while it runs, on stderr: a bar on a terminal, a line every few seconds elsewhere. stdout is never touched.
//!
//! A thread of its own looks at what the run counts four times a second, so that it costs the run next to nothing.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::commands::output;
use crate::engine::base::Mono;
use crate::engine::env::{Env, RealEnv};
use crate::engine::load::session::{Next, Observer, Pass, PassId};
use crate::engine::load::target::Outcome;
use crate::engine::load::{Live, Record};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// What "now" means: the last so many looks, two seconds.
const NOW: usize = 8;
/// Looks between two lines where there is no terminal: five seconds.
const LINE: u32 = 20;

/// Where what is said during a run goes.
#[derive(Clone)]
pub(in crate::commands::bench) struct Screen {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Screen {
    /// One for a run: with a bar if stderr is a terminal.
    pub fn new(quiet: bool) -> Screen {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let bar = !quiet && !dumb && std::io::stderr().is_terminal();
        let bar = bar.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4));
            bar.set_style(ProgressStyle::with_template("{msg}").expect("it is one"));
            bar
        });
        Screen { bar, quiet }
    }

    /// One on which nothing is seen but warnings.
    #[cfg(test)]
    pub fn quiet() -> Screen {
        Screen { bar: None, quiet: true }
    }

    /// Say `text`, unless nothing is to be said.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            self.warn(text);
        }
    }

    /// Say `text` in any case.
    pub fn warn(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::say(text)),
            None => output::say(text),
        }
    }
}

/// Sums over one look.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
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

/// What is known of the pass in hand.
#[derive(Default)]
struct State {
    pass: Option<(PassId, u64, Arc<Live>)>,
    began: Mono,
    failed: u64,
    /// What came since the last look.
    fresh: Slot,
    slots: VecDeque<Slot>,
    tokens: u64,
}

/// The observer.
pub(in crate::commands::bench) struct View {
    state: Arc<Mutex<State>>,
    screen: Screen,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl View {
    /// Begin to look, unless it is to be hidden. A host without a thread for it shows nothing.
    pub fn new(screen: Screen, hidden: bool) -> View {
        let state = Arc::new(Mutex::new(State::default()));
        let (stop, stopped) = channel::<()>();
        let mut view = View { state: Arc::clone(&state), screen: screen.clone(), stop: None, thread: None };
        if !screen.quiet && !hidden {
            let looks = move || {
                let mut looks = 0_u32;
                while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    looks = looks.wrapping_add(1);
                    let shown = state.lock().unwrap_or_else(PoisonError::into_inner).look(RealEnv::new().now());
                    let Some(shown) = shown else { continue };
                    match &screen.bar {
                        Some(bar) => bar.set_message(shown.bar()),
                        None if looks.is_multiple_of(LINE) => screen.say(&shown.line()),
                        None => {}
                    }
                }
                if let Some(bar) = &screen.bar {
                    bar.finish_and_clear();
                }
            };
            view.thread = std::thread::Builder::new().name("live".to_owned()).spawn(looks).ok();
            view.stop = Some(stop);
        }
        view
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It ends within a look, and a panic of it has been told.
            let _ = thread.join();
        }
    }
}

impl Observer for View {
    fn begins(&mut self, pass: &PassId, _: u64, requests: u64, live: &Arc<Live>) {
        let pass = Some((pass.clone(), requests, Arc::clone(live)));
        *self.state() = State { pass, began: RealEnv::new().now(), ..State::default() };
    }

    fn record(&mut self, _: &PassId, record: &Record) {
        let mut state = self.state();
        let exchange = &record.exchange;
        state.fresh.ended += 1;
        if exchange.outcome != Outcome::Ok {
            state.failed += 1;
            return;
        }
        let (fresh, answer) = (&mut state.fresh, &exchange.answer);
        if let Some(first) = exchange.first_token {
            fresh.first_tokens += 1;
            fresh.ttft += first.saturating_sub(record.planned);
        }
        fresh.prompt += u64::from(answer.prompt_tokens.unwrap_or(0));
        match &answer.cached {
            Some(cached) => {
                fresh.device += u64::from(cached.device);
                fresh.host += u64::from(cached.host);
                fresh.storage += u64::from(cached.storage);
            }
            None => fresh.somewhere += u64::from(answer.cached_tokens.unwrap_or(0)),
        }
    }

    fn before(&mut self, _: &PassId, _: &Record) {
        // It is not of now.
    }

    fn ended(&mut self, _: &Pass) -> Next {
        self.state().pass = None;
        Next::GoOn
    }

    fn note(&mut self, text: &str) {
        self.screen.say(text);
    }
}

/// What is shown.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    label: String,
    seconds: u64,
    ended: u64,
    requests: u64,
    failed: u64,
    in_flight: u64,
    requests_per_s: f64,
    tokens_per_s: f64,
    ttft: Option<Duration>,
    /// Per cent of the prompts' tokens: all tiers, device, host, store.
    cached: Option<[f64; 4]>,
}

impl State {
    /// Close the look in hand and say what is to be shown.
    fn look(&mut self, now: Mono) -> Option<Shown> {
        let (id, requests, live) = self.pass.as_ref()?;
        let (sent, ended) = (live.sent.load(Ordering::Relaxed), live.ended.load(Ordering::Relaxed));
        let tokens = live.tokens.load(Ordering::Relaxed);
        let mut slot = std::mem::take(&mut self.fresh);
        slot.tokens = tokens.saturating_sub(self.tokens);
        self.tokens = tokens;
        self.slots.push_back(slot);
        if self.slots.len() > NOW {
            self.slots.pop_front();
        }
        let seconds = LOOK.as_secs_f64() * self.slots.len() as f64;
        let sum = |of: fn(&Slot) -> u64| self.slots.iter().map(of).sum::<u64>();
        let first_tokens = sum(|slot| slot.first_tokens);
        let ttft: Duration = self.slots.iter().map(|slot| slot.ttft).sum();
        let prompt = sum(|slot| slot.prompt);
        let tiers = [sum(|slot| slot.device), sum(|slot| slot.host), sum(|slot| slot.storage)];
        let all = tiers.iter().sum::<u64>() + sum(|slot| slot.somewhere);
        let percent = |part: u64| 100.0 * part as f64 / prompt as f64;
        Some(Shown {
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

impl Shown {
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

    /// For a log.
    fn line(&self) -> String {
        format!("{} {}: {} of {} requests; {}", self.label, self.clock(), self.ended, self.requests, self.figures())
    }

    /// For a terminal: two lines.
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
    fn what_is_shown_is_of_the_last_two_seconds() {
        let live = Arc::new(Live::default());
        live.sent.store(30, Ordering::Relaxed);
        let id = PassId { side: 0, side_name: "A".to_owned(), name: "run".to_owned(), block: 0 };
        let mut state = State { pass: Some((id, 100, Arc::clone(&live))), ..State::default() };
        let slot = Slot {
            ended: 1,
            first_tokens: 1,
            ttft: Duration::from_millis(40),
            prompt: 200,
            device: 50,
            storage: 100,
            ..Slot::default()
        };
        for look in 1..=20_u64 {
            live.ended.store(look, Ordering::Relaxed);
            live.tokens.store(look * 25, Ordering::Relaxed);
            state.fresh = slot;
            let shown = state.look(Mono::ZERO + LOOK * look as u32).expect("a pass runs");
            assert_eq!((shown.requests_per_s, shown.tokens_per_s, shown.in_flight), (4.0, 100.0, 30 - look));
        }
        assert_eq!(state.slots.len(), NOW);
        let shown = state.look(Mono::ZERO + Duration::from_secs(65)).expect("a pass runs");
        assert_eq!(
            shown.line(),
            "A run 1:05: 20 of 100 requests; 3.5 requests/s, 88 tokens/s, TTFT 40.0 ms, cached 75 % (L1 25, L2 0, L3 50), 10 in flight"
        );
        assert!(shown.bar().starts_with("A run [########................................] 20/100 1:05\n"));
        state.pass = None;
        assert_eq!(state.look(Mono::ZERO), None);
    }
}
