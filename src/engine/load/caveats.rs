//! Caveats about the generator's own figures, raised when it could not keep up.

use std::fmt;
use std::time::Duration;

use crate::engine::load::RunStats;

/// Above this share of its CPU the generator had no headroom for bursts.
const SHARE_MAX: f64 = 0.9;
/// Bytes that stayed unread for longer show that the generator had fallen behind.
const DELAY_MAX: Duration = Duration::from_millis(20);

/// A reason why the figures of a run may not be valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GeneratorCaveat {
    /// CPU share that the generator used in its busiest second.
    Saturated(f64),
    /// 99th percentile of the time between the arrival of bytes and their read.
    Behind(Duration),
    /// Requests that were sent again because the server had closed their idle connections.
    Resent(u64),
    /// Busy responses (429, 503) after which the request was sent again.
    Retried(u64),
    /// Requests that a panic in mcctl aborted.
    Bugs(u64),
}

impl fmt::Display for GeneratorCaveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeneratorCaveat::Saturated(share) => write!(
                f,
                "the generator used {:.0} % of its CPU in its busiest second: the figures may reflect the generator, not the server",
                share * 100.0
            ),
            GeneratorCaveat::Behind(delay) => write!(
                f,
                "1 % of reads came {:.1} ms or more after their bytes arrived: this machine is too slow for the load, or busy",
                delay.as_secs_f64() * 1e3
            ),
            GeneratorCaveat::Resent(count) => {
                write!(f, "{count} requests were sent twice: the server closes idle keep-alive connections")
            }
            GeneratorCaveat::Retried(count) => {
                write!(
                    f,
                    "{count} requests were retried after a busy response (429 or 503): the load was lower than planned"
                )
            }
            GeneratorCaveat::Bugs(count) => {
                write!(f, "{count} requests were aborted by a bug in mcctl, not by the server")
            }
        }
    }
}

impl RunStats {
    /// Returns the caveats about the figures of this run.
    pub fn caveats(&self) -> Vec<GeneratorCaveat> {
        let behind = self.delays.summary().map(|delays| delays.p99.unwrap_or(delays.max));
        let all = [
            self.share.filter(|share| *share > SHARE_MAX).map(GeneratorCaveat::Saturated),
            behind.filter(|delay| *delay > DELAY_MAX).map(GeneratorCaveat::Behind),
            Some(self.resent).filter(|count| *count > 0).map(GeneratorCaveat::Resent),
            Some(self.retried).filter(|count| *count > 0).map(GeneratorCaveat::Retried),
            Some(self.bugs).filter(|count| *count > 0).map(GeneratorCaveat::Bugs),
        ];
        all.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caveats_are_raised_only_when_the_generator_fell_behind() {
        let mut ran = RunStats { share: Some(0.4), ..RunStats::default() };
        ran.delays.record(Duration::from_micros(90), 1000);
        assert_eq!(ran.caveats(), []);
        ran.delays.record(Duration::from_millis(50), 20);
        (ran.share, ran.resent) = (Some(0.97), 3);
        let caveats = ran.caveats();
        assert!(
            matches!(
                caveats[..],
                [GeneratorCaveat::Saturated(_), GeneratorCaveat::Behind(_), GeneratorCaveat::Resent(3)]
            ),
            "{caveats:?}"
        );
    }
}
