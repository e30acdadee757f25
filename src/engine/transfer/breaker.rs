//! When to stop asking a peer that does not answer, and when to ask again. Pure: `now` comes in.
//!
//! The first failure opens the breaker: callers fail at once. After a pause one probe may go out (whoever sends it, callers do not
//! wait for it); each probe that fails doubles the pause, up to a bound; one that succeeds closes the breaker.

use std::time::Duration;

use crate::engine::base::Mono;

/// The pause after the first failure.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause: how late a peer that came back may be noticed.
pub const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Whether a peer may be asked.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Closed,
    Open {
        again: Mono,
        pause: Duration,
        probing: bool,
    },
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ask.
    Ask,
    /// Fail; but first send a probe, and say how it went. Given to one caller at a time.
    Probe,
    /// A probe is under way; its outcome may be near.
    Probing,
    /// Fail; there will be no probe before this time is over.
    Wait(Duration),
}

impl Breaker {
    /// May the peer be asked at `now`?
    pub fn verdict(&mut self, now: Mono) -> Verdict {
        match &mut self.state {
            State::Closed => Verdict::Ask,
            State::Open { probing: true, .. } => Verdict::Probing,
            State::Open { again, .. } if now < *again => Verdict::Wait(again.since(now)),
            State::Open { probing, .. } => {
                *probing = true;
                Verdict::Probe
            }
        }
    }

    /// The peer failed at `now`: an operation, or the probe.
    pub fn failed(&mut self, now: Mono) {
        let pause = match self.state {
            State::Closed => PAUSE_MIN,
            State::Open { pause, probing: true, .. } => (pause * 2).min(PAUSE_MAX),
            // Operations that were under way when it opened say nothing new.
            State::Open { .. } => return,
        };
        self.state = State::Open { again: now + pause, pause, probing: false };
    }

    /// The peer answered.
    pub fn succeeded(&mut self) {
        self.state = State::Closed;
    }

    /// Is the peer taken for dead?
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// The pause between probes; zero when the peer is well.
    pub fn pause(&self) -> Duration {
        match self.state {
            State::Closed => Duration::ZERO,
            State::Open { pause, .. } => pause,
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
        assert_eq!(breaker.verdict(at(0)), Verdict::Ask);
        breaker.failed(at(10));
        assert_eq!(breaker.verdict(at(20)), Verdict::Wait(Duration::from_millis(90)));
        assert_eq!(breaker.verdict(at(110)), Verdict::Probe);
        assert_eq!(breaker.verdict(at(110)), Verdict::Probing, "one probe at a time");
        breaker.succeeded();
        assert_eq!(breaker.verdict(at(111)), Verdict::Ask);
    }

    #[test]
    fn each_failed_probe_doubles_the_pause_up_to_the_bound() {
        let mut breaker = Breaker::default();
        let mut now = at(0);
        breaker.failed(now);
        let mut pauses = vec![breaker.pause()];
        for _ in 0..8 {
            now = now + breaker.pause();
            assert_eq!(breaker.verdict(now), Verdict::Probe);
            breaker.failed(now);
            pauses.push(breaker.pause());
        }
        assert_eq!(
            pauses.iter().map(|p| p.as_millis()).collect::<Vec<_>>(),
            [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]
        );
    }

    #[test]
    fn operations_that_were_under_way_do_not_lengthen_the_pause() {
        let mut breaker = Breaker::default();
        breaker.failed(at(0));
        breaker.failed(at(50));
        assert_eq!(breaker.verdict(at(100)), Verdict::Probe);
    }

    proptest! {
        #[test]
        fn a_dead_peer_is_probed_at_least_every_bound_and_never_by_two_at_once(steps in proptest::collection::vec(1u64..3000, 1..60)) {
            let mut breaker = Breaker::default();
            let (mut now, mut last) = (at(0), at(0));
            breaker.failed(now);
            for step in steps {
                now = now + Duration::from_millis(step);
                match breaker.verdict(now) {
                    Verdict::Probe => {
                        prop_assert_eq!(breaker.verdict(now), Verdict::Probing);
                        breaker.failed(now);
                        last = now;
                    }
                    Verdict::Wait(left) => prop_assert!(left <= PAUSE_MAX && now.since(last) <= PAUSE_MAX),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }
}
