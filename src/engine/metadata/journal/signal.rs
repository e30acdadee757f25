//! Requests to the worker's thread.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What the worker has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkerRequests {
    /// Changes were appended to the log.
    pub changed: bool,
    pub stop: Option<WorkerStop>,
}

/// How the worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerStop {
    /// At once. What has not been stored is lost, as after a crash.
    Abandon,
    /// After it has stored everything and written a snapshot.
    Complete,
}

/// Passes requests to the worker.
#[derive(Debug, Default)]
pub(super) struct WorkerSignal {
    requests: Mutex<WorkerRequests>,
    wake: Condvar,
}

impl WorkerSignal {
    /// Changes the requests, and wakes the worker if there is something new.
    pub(super) fn request(&self, change: impl FnOnce(&mut WorkerRequests)) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *requests;
        change(&mut requests);
        if *requests != before {
            self.wake.notify_all();
        }
    }

    /// Waits for a request, or until `limit` has passed. A request to stop remains.
    pub(super) fn next(&self, limit: Option<Duration>) -> WorkerRequests {
        let is_idle = |requests: &mut WorkerRequests| !requests.changed && requests.stop.is_none();
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut requests = match limit {
            None => self.wake.wait_while(requests, is_idle).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                self.wake.wait_timeout_while(requests, limit, is_idle).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        let work = *requests;
        requests.changed = false;
        work
    }
}
