//! Progress on stderr: a progress bar if stderr is a terminal, otherwise a line every few seconds.
//! Never writes to stdout.
//!
//! A separate thread samples the run's counters four times a second, so the overhead for the run is
//! small.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use indicatif::ProgressBar;

use crate::commands::bench::env;
use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{is_on_terminal, terminal_bar};
use crate::engine::env::RealEnv;
use crate::engine::load::progress::{Progress, ProgressSnapshot, SAMPLE_INTERVAL};
use crate::engine::load::session::{AfterPass, Observer, PassId, PassResult};
use crate::engine::load::{LiveCounters, TimedRequest};
use crate::engine::sys::terminal;

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
    pub(crate) fn new(quiet: bool) -> Screen {
        let bar = (!quiet && is_on_terminal()).then(|| terminal_bar("{msg}", None));
        Screen { bar, quiet }
    }

    /// Returns a screen that shows only warnings.
    #[cfg(test)]
    pub(crate) fn quiet() -> Screen {
        Screen { bar: None, quiet: true }
    }

    /// Prints `text`, unless the screen is quiet.
    pub(crate) fn print(&self, text: &str) {
        if !self.quiet {
            self.warn(text);
        }
    }

    /// Prints `text`, even if the screen is quiet.
    pub(crate) fn warn(&self, text: &str) {
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
    pub(crate) fn new(screen: Screen, hidden: bool) -> ProgressView {
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
                        Some(bar) => bar.set_message(bar_lines(&shown, columns())),
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

/// Returns the figures as phrases that are not broken across lines.
fn figures(shown: &ProgressSnapshot) -> Vec<String> {
    let mut phrases =
        vec![format!("{:.1} requests/s", shown.requests_per_s), format!("{:.0} tokens/s", shown.tokens_per_s)];
    phrases.extend(shown.ttft.map(|ttft| format!("TTFT {:.1} ms", ttft.as_secs_f64() * 1e3)));
    if let Some([all, device, host, storage]) = shown.cached {
        let tiers = if device + host + storage > 0.0 {
            format!(" (L1 {device:.0}, L2 {host:.0}, L3 {storage:.0})")
        } else {
            String::new()
        };
        phrases.push(format!("cached {all:.0} %{tiers}"));
    }
    phrases.push(format!("{} in flight", shown.in_flight));
    if shown.failed > 0 {
        phrases.push(format!("{} failed", shown.failed));
    }
    phrases
}

/// Joins `phrases` with commas into lines of at most `width` columns, each with an indent of two.
fn folded(phrases: &[String], width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for phrase in phrases {
        match lines.last_mut() {
            // A comma follows unless the phrase is the last one.
            Some(line) if line.chars().count() + phrase.chars().count() + 3 <= width => {
                line.push_str(", ");
                line.push_str(phrase);
            }
            last => {
                if let Some(line) = last {
                    line.push(',');
                }
                lines.push(format!("  {phrase}"));
            }
        }
    }
    lines.join("\n")
}

/// Returns the width of the terminal on stderr, in columns.
fn columns() -> usize {
    terminal::width(std::io::stderr()).unwrap_or(80)
}

/// Returns the estimated remaining time as a phrase with a leading comma, or an empty string.
fn remaining(shown: &ProgressSnapshot) -> String {
    shown.remaining.map_or(String::new(), |time| format!(", about {} left", clock(time.as_secs())))
}

fn clock(seconds: u64) -> String {
    let minutes = seconds / 60;
    let seconds = seconds % 60;
    format!("{minutes}:{seconds:02}")
}

/// Formats the figures as one log line.
fn line(shown: &ProgressSnapshot) -> String {
    format!(
        "{} {}: {} of {} requests{}; {}",
        shown.label,
        clock(shown.seconds),
        shown.ended,
        shown.requests,
        remaining(shown),
        figures(shown).join(", ")
    )
}

/// Formats the figures as terminal lines of at most `width` columns: the bar, then the figures.
fn bar_lines(shown: &ProgressSnapshot, width: usize) -> String {
    const BAR: usize = 40;
    let ends = [
        shown.label.clone(),
        format!("{}/{} {}{}", shown.ended, shown.requests, clock(shown.seconds), remaining(shown)),
    ];
    let taken: usize = ends.iter().map(|end| end.chars().count()).sum();
    // Two spaces and two brackets; the last column stays free, because some terminals wrap after
    // it.
    let length = width.saturating_sub(taken + 5).min(BAR) as u64;
    let done = (shown.ended.min(shown.requests) * length).checked_div(shown.requests).unwrap_or(0);
    let bar = format!("{}{}", "#".repeat(done as usize), ".".repeat((length - done) as usize));
    format!("{} [{bar}] {}\n{}", ends[0], ends[1], folded(&figures(shown), width))
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
            remaining: Some(std::time::Duration::from_secs(260)),
            failed: 0,
            in_flight: 10,
            requests_per_s: 3.5,
            tokens_per_s: 100.0,
            ttft: Some(std::time::Duration::from_millis(40)),
            cached: Some([75.0, 25.0, 0.0, 50.0]),
        };
        let lines = bar_lines(&shown, 100);
        assert!(
            lines.starts_with("A run [########................................] 20/100 1:05, about 4:20 left\n"),
            "{lines}"
        );
        assert!(line(&shown).starts_with("A run 1:05: 20 of 100 requests, about 4:20 left; 3.5 requests/s, "));
        for width in [40, 50, 80, 120] {
            let lines = bar_lines(&shown, width);
            assert!(lines.lines().all(|line| line.chars().count() <= width), "{width}: {lines}");
            assert!(lines.contains("cached 75 % (L1 25, L2 0, L3 50)"), "{lines}");
        }
    }
}
