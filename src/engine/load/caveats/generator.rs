//! Caveats about the measurements, raised when the load generator could not keep up.

use std::fmt;
use std::time::Duration;

use crate::RunStats;

/// Above this CPU usage, the generator has no headroom for bursts.
const SHARE_MAX: f64 = 0.9;
/// If bytes stay unread longer than this, the generator has fallen behind.
const DELAY_MAX: Duration = Duration::from_millis(20);

/// A reason why a run's measurements may not be valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GeneratorCaveat {
    /// The generator's CPU usage in its busiest second.
    Saturated(f64),
    /// 99th percentile of the client read delay: the time from the arrival of bytes until they are
    /// read.
    Behind(Duration),
    /// Requests that were resent because the server had closed their idle connections.
    Resent(u64),
    /// Busy responses (429 or 503) that were followed by a retry.
    Retried(u64),
    /// Requests that were aborted by a panic in mcctl.
    Bugs(u64),
}

impl fmt::Display for GeneratorCaveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeneratorCaveat::Saturated(share) => write!(
                f,
                "CPU usage of the load generator peaked at {:.0} %: the results may reflect the generator, not the server",
                share * 100.0
            ),
            GeneratorCaveat::Behind(delay) => write!(
                f,
                "the client read delay was {:.1} ms or more for 1 % of reads: this machine is busy or too slow for the load",
                delay.as_secs_f64() * 1e3
            ),
            GeneratorCaveat::Resent(count) => {
                write!(f, "{count} requests were sent twice because the server closes idle keep-alive connections")
            }
            GeneratorCaveat::Retried(count) => {
                write!(f, "{count} retries after busy responses (429 or 503): the load was lower than planned")
            }
            GeneratorCaveat::Bugs(count) => {
                write!(f, "{count} requests were aborted by a bug in mcctl, not by the server")
            }
        }
    }
}

impl RunStats {
    /// Returns the caveats about this run's measurements.
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
        ran.share = Some(0.97);
        ran.resent = 3;
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
