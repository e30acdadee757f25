//! Progress of long work on stderr. Shown only on a terminal, after two seconds, and removed when
//! the work ends.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that takes less time than this shows no progress.
const DELAY: Duration = Duration::from_secs(2);
/// Interval between two updates.
const INTERVAL: Duration = Duration::from_millis(250);

/// A terminal that has not accepted the bar for this long has stalled. The command does not wait
/// for it any longer.
const STALL_MAX: Duration = Duration::from_millis(500);

/// The bar that is on the terminal.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);
/// Whether the bar is being drawn. It stays true if the terminal has stalled.
static DRAWING: AtomicBool = AtomicBool::new(false);

/// The unit in which work is counted, and its total; `None` if the total is unknown.
#[derive(Clone, Copy, Debug)]
pub enum WorkUnit {
    /// Only the elapsed time is known.
    Time,
    Bytes(Option<u64>),
    /// Items with this name.
    Items(&'static str, Option<u64>),
    /// Work that takes this long, in whole seconds. The bar counts them itself.
    Seconds(Duration),
}

/// Progress of long work. Dropping it removes the bar.
#[must_use]
#[derive(Debug)]
pub struct WorkProgress {
    /// Dropping this sender ends the thread.
    stop: Option<Sender<()>>,
    /// Disconnected when the thread has ended.
    ended: Option<Receiver<()>>,
}

impl WorkProgress {
    /// Starts a bar labelled `what`. `done` returns the amount of work done so far; it is called
    /// four times a second. Shows nothing if stderr is not a terminal or the variable `NO_COLOR` is
    /// set.
    pub fn start(what: &'static str, unit: WorkUnit, done: impl Fn() -> u64 + Send + 'static) -> WorkProgress {
        let mut progress = WorkProgress { stop: None, ended: None };
        if std::env::var_os("NO_COLOR").is_some() || !is_on_terminal() {
            return progress;
        }
        let (stop, stopped) = channel::<()>();
        let (running, ended) = channel::<()>();
        let show = move || {
            let _running = running;
            if stopped.recv_timeout(DELAY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = terminal_bar(unit.template(), unit.total());
            let bar = bar.with_message(what).with_prefix(unit.name()).with_elapsed(DELAY);
            *shown() = Some(bar.clone());
            loop {
                DRAWING.store(true, Ordering::Relaxed);
                bar.set_position(if matches!(unit, WorkUnit::Seconds(_)) { bar.elapsed().as_secs() } else { done() });
                bar.tick();
                DRAWING.store(false, Ordering::Relaxed);
                if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            *shown() = None;
            bar.finish_and_clear();
        };
        // Without a thread, the work proceeds without a bar.
        if std::thread::Builder::new().name("progress".to_owned()).spawn(show).is_ok() {
            progress.stop = Some(stop);
            progress.ended = Some(ended);
        }
        progress
    }
}

impl Drop for WorkProgress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(ended) = self.ended.take() {
            // The thread sends nothing: the call returns when the thread has ended, or after the
            // limit.
            let _ = ended.recv_timeout(STALL_MAX);
        }
    }
}

impl WorkUnit {
    fn template(self) -> &'static str {
        match self {
            WorkUnit::Time => "{msg}, {elapsed}",
            WorkUnit::Bytes(None) => "{msg}: {bytes}, {elapsed}",
            WorkUnit::Bytes(Some(_)) => "{msg} [{bar:20}] {bytes} of {total_bytes}, {elapsed}",
            WorkUnit::Items(_, None) => "{msg}: {pos} {prefix}, {elapsed}",
            WorkUnit::Items(_, Some(_)) | WorkUnit::Seconds(_) => "{msg} [{bar:20}] {pos} of {len} {prefix}, {elapsed}",
        }
    }

    fn name(self) -> &'static str {
        match self {
            WorkUnit::Time | WorkUnit::Bytes(_) => "",
            WorkUnit::Items(name, _) => name,
            WorkUnit::Seconds(_) => "s",
        }
    }

    fn total(self) -> Option<u64> {
        match self {
            WorkUnit::Time => None,
            WorkUnit::Bytes(total) | WorkUnit::Items(_, total) => total,
            WorkUnit::Seconds(total) => Some(total.as_secs()),
        }
    }
}

/// Whether stderr is a terminal that can redraw a line.
pub fn is_on_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term != "dumb") && std::io::stderr().is_terminal()
}

/// A bar on stderr in the format `template`.
pub fn terminal_bar(template: &str, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(4));
    bar.set_style(ProgressStyle::with_template(template).expect("a valid template").progress_chars("##."));
    bar
}

/// Calls `write`, which writes to stderr, while the bar is off the terminal.
pub fn suspended<T>(write: impl FnOnce() -> T) -> T {
    match &*shown() {
        // A bar that cannot be drawn would block the caller, too.
        Some(bar) if !DRAWING.load(Ordering::Relaxed) => bar.suspend(write),
        _ => write(),
    }
}

fn shown() -> MutexGuard<'static, Option<ProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_a_valid_template() {
        for unit in [
            WorkUnit::Time,
            WorkUnit::Bytes(None),
            WorkUnit::Bytes(Some(1)),
            WorkUnit::Items("checks", None),
            WorkUnit::Items("checks", Some(1)),
            WorkUnit::Seconds(Duration::from_secs(1)),
        ] {
            let bar = terminal_bar(unit.template(), unit.total());
            assert_eq!(bar.length(), unit.total(), "{unit:?}");
        }
    }
}
