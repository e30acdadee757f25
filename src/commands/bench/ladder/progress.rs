//! Progress of a tier ladder on stderr. The ladder repeats a few steps many times: each kind of
//! message is printed once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit, is_on_terminal};
use crate::engine::load::TimedRequest;
use crate::engine::load::session::{AfterPass, Observer, PassId, PassResult};

/// Number of requests between two lines if stderr is not a terminal.
const INTERVAL: u64 = 50;

/// Observer that shows progress.
pub(super) struct LadderProgress {
    /// Messages that were printed, without their numbers.
    printed: BTreeSet<String>,
    requests: Arc<AtomicU64>,
    /// The number of requests in the last line.
    last_line: u64,
    _bar: WorkProgress,
}

impl LadderProgress {
    /// Starts a progress bar if stderr is a terminal.
    pub(super) fn start() -> LadderProgress {
        let requests = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&requests);
        let bar = WorkProgress::start("tier ladder", WorkUnit::Items("requests", None), move || {
            counter.load(Ordering::Relaxed)
        });
        LadderProgress { printed: BTreeSet::new(), requests, last_line: 0, _bar: bar }
    }

    /// Whether no message of this kind was printed yet.
    fn is_new(&mut self, text: &str) -> bool {
        self.printed.insert(text.split(|c: char| c.is_ascii_digit()).collect())
    }
}

impl Observer for LadderProgress {
    fn record(&mut self, _: &PassId, _: &TimedRequest) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn pass_ended(&mut self, _: &PassResult) -> AfterPass {
        let requests = self.requests.load(Ordering::Relaxed);
        if requests >= self.last_line + INTERVAL && !is_on_terminal() {
            self.last_line = requests;
            output::say(format!("{requests} requests sent"));
        }
        AfterPass::Continue
    }

    fn note(&mut self, text: &str) {
        if text.starts_with("round ") || self.is_new(text) {
            output::say(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_differ_only_in_numbers_are_printed_once() {
        let mut progress = LadderProgress::start();
        let new = ["A: flush", "A: 9 requests of 18 tokens", "A: flush", "A: 10 requests of 20480 tokens", "A: settle"]
            .map(|text| progress.is_new(text));
        assert_eq!(new, [true, true, false, false, true]);
    }
}
