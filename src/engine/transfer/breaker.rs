//! Circuit breaker for a peer: decides when to stop sending requests and when to try again. Pure:
//! `now` is an argument.
//!
//! The first failure opens the breaker, and callers then fail immediately. After a pause, one
//! caller may send a probe. No caller waits long for the probe. Each failed probe doubles the
//! pause, up to [`PAUSE_MAX`]. A successful probe closes the breaker.

use std::time::Duration;

use mcctl_base::Mono;

/// The pause after the first failure.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause. This is also the longest time until a recovered peer is detected.
pub const PAUSE_MAX: Duration = Duration::from_secs(5);

/// One peer's circuit breaker.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    state: BreakerState,
}

#[derive(Clone, Copy, Debug, Default)]
enum BreakerState {
    #[default]
    Closed,
    Open {
        again: Mono,
        pause: Duration,
        probing: bool,
    },
}

/// What a caller may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerDecision {
    Ask,
    /// Fail the call, but send a probe first and report its result. Returned to one caller at a
    /// time.
    Probe,
    /// A probe is in flight. Its result may arrive soon.
    Probing,
    /// Fail the call. No probe is sent before this duration has passed.
    Wait(Duration),
}

impl Breaker {
    /// Decides whether a request to the peer may be sent at `now`.
    pub fn verdict(&mut self, now: Mono) -> BreakerDecision {
        match &mut self.state {
            BreakerState::Closed => BreakerDecision::Ask,
            BreakerState::Open { probing: true, .. } => BreakerDecision::Probing,
            BreakerState::Open { again, .. } if now < *again => BreakerDecision::Wait(again.since(now)),
            BreakerState::Open { probing, .. } => {
                *probing = true;
                BreakerDecision::Probe
            }
        }
    }

    /// Records that an operation or the probe failed at `now`.
    pub fn failed(&mut self, now: Mono) {
        let pause = match self.state {
            BreakerState::Closed => PAUSE_MIN,
            BreakerState::Open { pause, probing: true, .. } => (pause * 2).min(PAUSE_MAX),
            // The failure of an operation that started before the breaker opened provides no new
            // information.
            BreakerState::Open { .. } => return,
        };
        self.state = BreakerState::Open { again: now + pause, pause, probing: false };
    }

    /// Records a successful response from the peer.
    pub fn succeeded(&mut self) {
        self.state = BreakerState::Closed;
    }

    /// Whether the peer is considered down.
    pub fn is_open(&self) -> bool {
        matches!(self.state, BreakerState::Open { .. })
    }

    /// The pause between probes. Zero while the breaker is closed.
    pub fn pause(&self) -> Duration {
        match self.state {
            BreakerState::Closed => Duration::ZERO,
            BreakerState::Open { pause, .. } => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Mono {
        Mono::from_ms(ms)
    }

    #[test]
    fn after_the_first_failure_callers_fail_at_once_until_a_probe_is_due() {
        let mut breaker = Breaker::default();
        assert_eq!(breaker.verdict(at(0)), BreakerDecision::Ask);
        breaker.failed(at(10));
        assert_eq!(breaker.verdict(at(20)), BreakerDecision::Wait(Duration::from_millis(90)));
        assert_eq!(breaker.verdict(at(110)), BreakerDecision::Probe);
        assert_eq!(breaker.verdict(at(110)), BreakerDecision::Probing, "one probe at a time");
        breaker.succeeded();
        assert_eq!(breaker.verdict(at(111)), BreakerDecision::Ask);
    }

    #[test]
    fn each_failed_probe_doubles_the_pause_up_to_the_bound() {
        let mut breaker = Breaker::default();
        let mut now = at(0);
        breaker.failed(now);
        let mut pauses = vec![breaker.pause()];
        for _ in 0..8 {
            now = now + breaker.pause();
            assert_eq!(breaker.verdict(now), BreakerDecision::Probe);
            breaker.failed(now);
            pauses.push(breaker.pause());
        }
        assert_eq!(
            pauses.iter().map(|p| p.as_millis()).collect::<Vec<_>>(),
            [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]
        );
    }

    #[test]
    fn failures_of_older_operations_do_not_extend_the_pause() {
        let mut breaker = Breaker::default();
        breaker.failed(at(0));
        breaker.failed(at(50));
        assert_eq!(breaker.verdict(at(100)), BreakerDecision::Probe);
    }

    proptest! {
        #[test]
        fn a_dead_peer_is_probed_by_one_caller_at_least_every_pause_max(steps in proptest::collection::vec(1u64..3000, 1..60)) {
            let mut breaker = Breaker::default();
            let mut now = at(0);
            let mut last = at(0);
            breaker.failed(now);
            for step in steps {
                now = now + Duration::from_millis(step);
                match breaker.verdict(now) {
                    BreakerDecision::Probe => {
                        prop_assert_eq!(breaker.verdict(now), BreakerDecision::Probing);
                        breaker.failed(now);
                        last = now;
                    }
                    BreakerDecision::Wait(left) => prop_assert!(left <= PAUSE_MAX && now.since(last) <= PAUSE_MAX),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }
}
