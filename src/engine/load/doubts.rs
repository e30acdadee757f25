//! Why the generator's own figures may be doubted: it says when it could not keep up.

use std::fmt;
use std::time::Duration;

use crate::engine::load::Ran;

/// A share of the processor beyond which the generator had no room for bursts.
const SHARE_MAX: f64 = 0.9;
/// Bytes that lay unread for longer say that the generator had fallen behind.
const DELAY_MAX: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doubt {
    /// It used so much of its processor in its busiest second.
    Saturated(f64),
    /// One of a hundred reads came so long after its bytes.
    Behind(Duration),
    /// So many requests had to be sent again, since the server had closed their idle connections.
    Resent(u64),
    /// So many answers of a busy server made their requests wait and come again.
    Retried(u64),
    /// So many requests were broken off by a panic here.
    Bugs(u64),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Saturated(share) => write!(
                f,
                "the generator used {:.0} % of its processor in its busiest second: it may be what was measured",
                share * 100.0
            ),
            Doubt::Behind(delay) => write!(
                f,
                "one of a hundred reads came {:.1} ms or more after its bytes: this machine is too slow for the load, or busy",
                delay.as_secs_f64() * 1e3
            ),
            Doubt::Resent(count) => {
                write!(f, "{count} requests were sent twice: the server closes connections that are kept")
            }
            Doubt::Retried(count) => {
                write!(f, "{count} requests were sent again, as a busy server asked: its load was lower than planned")
            }
            Doubt::Bugs(count) => write!(f, "{count} requests were broken off by a bug in mcctl, not by the server"),
        }
    }
}

impl Ran {
    /// What the run says against its own figures.
    pub fn doubts(&self) -> Vec<Doubt> {
        let behind = self.delays.summary().map(|delays| delays.p99.unwrap_or(delays.max));
        let all = [
            self.share.filter(|share| *share > SHARE_MAX).map(Doubt::Saturated),
            behind.filter(|delay| *delay > DELAY_MAX).map(Doubt::Behind),
            Some(self.resent).filter(|count| *count > 0).map(Doubt::Resent),
            Some(self.retried).filter(|count| *count > 0).map(Doubt::Retried),
            Some(self.bugs).filter(|count| *count > 0).map(Doubt::Bugs),
        ];
        all.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_kept_up_is_not_doubted_and_one_that_did_not_is() {
        let mut ran = Ran { share: Some(0.4), ..Ran::default() };
        ran.delays.record(Duration::from_micros(90), 1000);
        assert_eq!(ran.doubts(), []);
        ran.delays.record(Duration::from_millis(50), 20);
        (ran.share, ran.resent) = (Some(0.97), 3);
        let doubts = ran.doubts();
        assert!(matches!(doubts[..], [Doubt::Saturated(_), Doubt::Behind(_), Doubt::Resent(3)]), "{doubts:?}");
        assert!(doubts[0].to_string().contains("97 %"), "{}", doubts[0]);
    }
}
