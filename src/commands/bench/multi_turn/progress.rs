//! Progress on stderr: a progress bar if stderr is a terminal, otherwise a line every few seconds. Never writes to stdout.
//!
//! A separate thread samples the run's counters four times a second, so the overhead for the run is small.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use indicatif::ProgressBar;

use crate::commands::bench::env;
use crate::commands::output;
use crate::commands::progress_bar::{is_on_terminal, terminal_bar};
use crate::engine::env::RealEnv;
use crate::engine::load::progress::{Progress, ProgressSnapshot, SAMPLE_INTERVAL};
use crate::engine::load::session::{AfterPass, Observer, PassId, PassResult};
use crate::engine::load::{LiveCounters, TimedRequest};

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

/// Observer that shows progress.
pub(in crate::commands::bench) struct ProgressView {
    progress: Arc<Mutex<Progress<RealEnv>>>,
    screen: Screen,
    /// Dropping this sender ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressView {
    /// Starts the progress thread, unless `hidden`. Shows nothing if the thread cannot be started.
    pub fn new(screen: Screen, hidden: bool) -> ProgressView {
        let progress = Arc::new(Mutex::new(Progress::new(env())));
        let (stop, stopped) = channel::<()>();
        let mut view =
            ProgressView { progress: Arc::clone(&progress), screen: screen.clone(), stop: None, thread: None };
        if !screen.quiet && !hidden {
            let sample = move || {
                let mut samples = 0_u32;
                while stopped.recv_timeout(SAMPLE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    samples = samples.wrapping_add(1);
                    let shown = progress.lock().unwrap_or_else(PoisonError::into_inner).sample();
                    let Some(shown) = shown else { continue };
                    match &screen.bar {
                        Some(bar) => bar.set_message(bar_lines(&shown)),
                        None if samples.is_multiple_of(LINE_SAMPLES) => screen.print(&line(&shown)),
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

    fn progress(&self) -> std::sync::MutexGuard<'_, Progress<RealEnv>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn pass_started(&mut self, pass: &PassId, conversations: u64, requests: u64, live: &Arc<LiveCounters>) {
        self.progress().pass_started(pass, conversations, requests, live);
    }

    fn record(&mut self, pass: &PassId, record: &TimedRequest) {
        self.progress().record(pass, record);
    }

    fn resumed(&mut self, pass: &PassId, record: &TimedRequest) {
        self.progress().resumed(pass, record);
    }

    fn pass_ended(&mut self, pass: &PassResult) -> AfterPass {
        self.progress().pass_ended(pass)
    }

    fn note(&mut self, text: &str) {
        self.screen.print(text);
    }
}

fn figures(shown: &ProgressSnapshot) -> String {
    let mut text = format!("{:.1} requests/s, {:.0} tokens/s", shown.requests_per_s, shown.tokens_per_s);
    if let Some(ttft) = shown.ttft {
        text.push_str(&format!(", TTFT {:.1} ms", ttft.as_secs_f64() * 1e3));
    }
    if let Some([all, device, host, storage]) = shown.cached {
        text.push_str(&format!(", cached {all:.0} %"));
        if device + host + storage > 0.0 {
            text.push_str(&format!(" (L1 {device:.0}, L2 {host:.0}, L3 {storage:.0})"));
        }
    }
    text.push_str(&format!(", {} in flight", shown.in_flight));
    if shown.failed > 0 {
        text.push_str(&format!(", {} failed", shown.failed));
    }
    text
}

fn clock(seconds: u64) -> String {
    let (minutes, seconds) = (seconds / 60, seconds % 60);
    format!("{minutes}:{seconds:02}")
}

/// Formats the figures as one log line.
fn line(shown: &ProgressSnapshot) -> String {
    format!(
        "{} {}: {} of {} requests; {}",
        shown.label,
        clock(shown.seconds),
        shown.ended,
        shown.requests,
        figures(shown)
    )
}

/// Formats the figures as two terminal lines.
fn bar_lines(shown: &ProgressSnapshot) -> String {
    const WIDTH: u64 = 40;
    let done = (shown.ended.min(shown.requests) * WIDTH).checked_div(shown.requests).unwrap_or(0);
    let bar = format!("{}{}", "#".repeat(done as usize), ".".repeat((WIDTH - done) as usize));
    format!("{} [{bar}] {}/{} {}\n  {}", shown.label, shown.ended, shown.requests, clock(shown.seconds), figures(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_the_share_of_finished_requests_and_the_time() {
        let shown = ProgressSnapshot {
            label: "A run".to_owned(),
            seconds: 65,
            ended: 20,
            requests: 100,
            failed: 0,
            in_flight: 10,
            requests_per_s: 3.5,
            tokens_per_s: 100.0,
            ttft: Some(std::time::Duration::from_millis(40)),
            cached: Some([75.0, 25.0, 0.0, 50.0]),
        };
        let lines = bar_lines(&shown);
        assert!(lines.starts_with("A run [########................................] 20/100 1:05\n"), "{lines}");
        assert!(line(&shown).starts_with("A run 1:05: 20 of 100 requests; 3.5 requests/s"));
    }
}
