//! The clients that have not called since their segments were restored, and when they are logged.

use std::time::Duration;

use mcctl_base::Mono;
use mcctl_wire::TextBuf;

/// The missing clients are logged this long after the start of the wait. A client that is alive
/// calls within about a second.
const REPORT_AFTER: Duration = Duration::from_secs(3);
/// Time between two checks whether clients are still missing.
const CHECK_PAUSE: Duration = Duration::from_secs(1);

/// The clients that have not called since their segments were restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingClients {
    /// Names of their segments. A longer list is cut.
    pub names: Vec<TextBuf>,
    pub segments: u64,
    /// Number of replicas in these segments.
    pub replicas: u64,
    /// Time until the segments are dropped with their replicas.
    pub dropped_in: Duration,
}

/// Whether missing clients were logged.
#[derive(Debug, Default)]
pub(super) struct MissingReport {
    /// The next check. `None`: no client is missing.
    due: Option<Mono>,
    is_logged: bool,
}

impl MissingReport {
    /// A report about the clients that are still missing a little after `now`.
    pub(crate) fn starting(now: Mono) -> MissingReport {
        MissingReport { due: Some(now + REPORT_AFTER), is_logged: false }
    }

    /// Whether it is time to check for missing clients.
    pub(crate) fn is_due(&self, now: Mono) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Keeps the result of a check. Returns whether it is to be logged: that clients are missing,
    /// or that none is any longer.
    pub(crate) fn keep(&mut self, now: Mono, is_missing: bool) -> bool {
        self.due = is_missing.then_some(now + CHECK_PAUSE);
        std::mem::replace(&mut self.is_logged, is_missing) != is_missing
    }
}
