//! Progress of a run on stderr.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::cli::output;
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit, is_on_terminal};
use crate::engine::load::verify::VerifyObserver;

/// Number of prompts between two lines if stderr is not a terminal.
const INTERVAL: u64 = 200;

/// Shows the number of answers in all passes.
pub(super) struct VerifyProgress {
    answers: Arc<AtomicU64>,
    _bar: WorkProgress,
}

impl VerifyProgress {
    /// Starts a progress bar if stderr is a terminal.
    pub(super) fn start() -> VerifyProgress {
        let answers = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&answers);
        let bar =
            WorkProgress::start("verify", WorkUnit::Items("answers", None), move || counter.load(Ordering::Relaxed));
        VerifyProgress { answers, _bar: bar }
    }
}

impl VerifyObserver for VerifyProgress {
    fn answered(&mut self) {
        let answers = self.answers.fetch_add(1, Ordering::Relaxed) + 1;
        if answers.is_multiple_of(INTERVAL) && !is_on_terminal() {
            output::say(format!("{answers} answers received"));
        }
    }

    fn restarting(&mut self) {
        output::say("running the restart command");
    }
}
