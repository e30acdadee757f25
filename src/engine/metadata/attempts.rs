//! Which of several metadata services get a request: pure decisions for the proxy and the client.

use std::sync::atomic::{AtomicUsize, Ordering};

use mcctl_net::http::Method;

/// The result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    /// The target responded, and the client gets the response.
    Served,
    /// The target has not received the request, or returned 503 (or 508, if it is a proxy): it did
    /// not change anything.
    Unserved,
    /// The target may have served the request: the response is missing, or its status is 504.
    Unknown,
}

/// The attempts to serve one request: one target after the other, each at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetAttempts {
    targets: usize,
    target: usize,
    /// Targets that have not been tried, without the current one.
    left: usize,
    is_repeatable: bool,
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Try the target with this index.
    Try(usize),
    /// Return the target's response.
    Respond,
    /// No target has served the request.
    Fail,
    /// A target may have made the change, and another attempt could undo what happened since.
    FailUnknown,
}

impl TargetAttempts {
    /// Starts the attempts for a request with the method `method` at the target with the index
    /// `first`, of `targets`.
    pub(crate) fn new(targets: usize, first: usize, method: &Method) -> TargetAttempts {
        // A second DELETE could remove what another client has written after the first one.
        let is_repeatable = *method != Method::DELETE;
        TargetAttempts { targets, target: first, left: targets.saturating_sub(1), is_repeatable }
    }

    /// The target of the current attempt.
    pub(crate) fn target(&self) -> usize {
        self.target
    }

    /// What follows the current attempt.
    pub(crate) fn after(&mut self, outcome: AttemptOutcome) -> NextStep {
        match outcome {
            AttemptOutcome::Served => return NextStep::Respond,
            AttemptOutcome::Unknown if !self.is_repeatable => return NextStep::FailUnknown,
            AttemptOutcome::Unserved | AttemptOutcome::Unknown => {}
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.target = following(self.target, self.targets);
                NextStep::Try(self.target)
            }
            None => NextStep::Fail,
        }
    }
}

/// The target that gets the next request first: the one that responded last.
#[derive(Debug, Default)]
pub(crate) struct PreferredTarget(AtomicUsize);

impl PreferredTarget {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes that `target` has responded.
    pub(crate) fn note_served(&self, target: usize) {
        self.0.store(target, Ordering::Relaxed);
    }

    /// Notes that `target`, of `targets`, has failed. Requests that start now go to the next one,
    /// unless another request has already changed the preference.
    pub(crate) fn note_failed(&self, target: usize, targets: usize) {
        let _ = self.0.compare_exchange(target, following(target, targets), Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The target after `target`, of `targets`.
fn following(target: usize, targets: usize) -> usize {
    if target + 1 < targets { target + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The targets that are tried, and the last step, if the attempts end with `outcomes`.
    fn tried(first: usize, method: &Method, outcomes: &[AttemptOutcome]) -> (Vec<usize>, NextStep) {
        let mut attempts = TargetAttempts::new(3, first, method);
        let mut tried = vec![attempts.target()];
        for outcome in outcomes {
            match attempts.after(*outcome) {
                NextStep::Try(target) => tried.push(target),
                last => return (tried, last),
            }
        }
        panic!("more attempts than outcomes: {tried:?}")
    }

    #[test]
    fn each_target_is_tried_once_starting_with_the_first() {
        use AttemptOutcome::{Served, Unserved};
        let get = Method::GET;
        assert_eq!(tried(0, &get, &[Served]), (vec![0], NextStep::Respond));
        assert_eq!(tried(2, &get, &[Unserved, Served]), (vec![2, 0], NextStep::Respond));
        assert_eq!(tried(1, &get, &[Unserved, Unserved, Unserved]), (vec![1, 2, 0], NextStep::Fail));
        let mut one = TargetAttempts::new(1, 0, &get);
        assert_eq!((one.target(), one.after(Unserved)), (0, NextStep::Fail));
    }

    #[test]
    fn a_delete_with_an_unknown_outcome_is_not_repeated() {
        use AttemptOutcome::{Served, Unknown, Unserved};
        for method in [Method::GET, Method::PUT, Method::HEAD] {
            assert_eq!(tried(0, &method, &[Unknown, Served]), (vec![0, 1], NextStep::Respond), "{method}");
            assert_eq!(tried(0, &method, &[Unknown, Unknown, Unserved]), (vec![0, 1, 2], NextStep::Fail), "{method}");
        }
        assert_eq!(tried(0, &Method::DELETE, &[Unknown]), (vec![0], NextStep::FailUnknown));
        assert_eq!(tried(0, &Method::DELETE, &[Unserved, Unknown]), (vec![0, 1], NextStep::FailUnknown));
        assert_eq!(tried(0, &Method::DELETE, &[Unserved, Served]), (vec![0, 1], NextStep::Respond));
    }

    #[test]
    fn a_late_failure_does_not_change_a_newer_preference() {
        let preferred = PreferredTarget::default();
        preferred.note_failed(0, 2);
        assert_eq!(preferred.get(), 1);
        preferred.note_failed(0, 2);
        assert_eq!(preferred.get(), 1);
        preferred.note_failed(1, 2);
        assert_eq!(preferred.get(), 0);
        preferred.note_served(1);
        assert_eq!(preferred.get(), 1);
    }
}
