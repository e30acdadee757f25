//! Load sweep: the same workload at increasing rates or concurrency levels. It finds the point
//! beyond which more load only adds queueing, and the highest load that still meets the limits.

mod result;

use std::str::FromStr;

pub use result::{LoadFigures, SweepResult, SweepTerms};

/// Maximum number of values in a sweep.
pub const VALUES_MAX: usize = 1_000;

/// Increasing values above zero: either `1,2,4` or `FROM:TO:STEP`, with both ends included.
#[derive(Clone, Debug, PartialEq)]
pub struct Values(Vec<f64>);

/// The swept parameter and its values.
#[derive(Clone, Debug, PartialEq)]
pub enum Sweep {
    /// Loads in requests per second.
    Rate(Vec<f64>),
    /// Conversations at a time.
    Concurrency(Vec<f64>),
}

impl Sweep {
    /// Returns the name of the swept parameter.
    pub const fn name(&self) -> &'static str {
        match self {
            Sweep::Rate(_) => "rate",
            Sweep::Concurrency(_) => "concurrency",
        }
    }

    /// Returns the values, in the order in which they run.
    pub fn loads(&self) -> &[f64] {
        let (Sweep::Rate(loads) | Sweep::Concurrency(loads)) = self;
        loads
    }
}

/// The string is not a valid list of sweep values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid sweep '{0}': expected up to {VALUES_MAX} numbers above 0, as A,B,C or FROM:TO:STEP")]
pub struct ParseValuesError(pub String);

impl Values {
    /// Returns the values in increasing order, without duplicates.
    pub fn get(&self) -> &[f64] {
        &self.0
    }
}

impl FromStr for Values {
    type Err = ParseValuesError;

    fn from_str(text: &str) -> Result<Values, ParseValuesError> {
        let wrong = || ParseValuesError(text.to_owned());
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 1e9);
        let parts = |at: char| text.split(at).map(number).collect::<Option<Vec<f64>>>().ok_or_else(wrong);
        let mut values = if text.contains(':') {
            let [from, to, step] = parts(':')?[..] else { return Err(wrong()) };
            // Include the end even if rounding leaves the last step slightly off.
            let steps = ((to - from) / step + 1e-9).floor();
            if !(0.0..VALUES_MAX as f64).contains(&steps) {
                return Err(wrong());
            }
            (0..=steps as u32).map(|i| from + step * f64::from(i)).collect()
        } else {
            parts(',')?
        };
        values.sort_by(f64::total_cmp);
        values.dedup();
        if values.len() > VALUES_MAX { Err(wrong()) } else { Ok(Values(values)) }
    }
}

/// The result for one value in a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepPoint {
    /// Offered load: request rate or concurrency.
    pub load: f64,
    /// Input plus output tokens per second.
    pub throughput: f64,
    /// Mean E2E latency from the scheduled send time.
    pub latency: f64,
    /// Whether all limits were met. `None` if there are no limits.
    pub meets: Option<bool>,
}

/// More load pays off as long as throughput grows at least as fast as this power of the load.
const SHARE: f64 = 0.5;

/// Returns the index of the knee in `points`, which are sorted by increasing load. The knee is the
/// first point beyond which more load no longer pays off: throughput grows more slowly than the
/// square root of the load while latency increases. `None` if more load still pays off at the last
/// value.
pub fn knee(points: &[SweepPoint]) -> Option<usize> {
    (0..points.len().saturating_sub(1)).find(|at| {
        let here = &points[*at];
        let after = &points[at + 1..];
        let pays = |there: &SweepPoint| there.throughput >= here.throughput * (there.load / here.load).powf(SHARE);
        !after.iter().any(pays) && after.iter().all(|there| there.latency > here.latency)
    })
}

/// Returns the index of the highest load that met the limits, provided that all lower loads met
/// them too.
pub fn highest_that_meets(points: &[SweepPoint]) -> Option<usize> {
    points.iter().take_while(|point| point.meets == Some(true)).count().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: &[(f64, f64, f64)]) -> Vec<SweepPoint> {
        of.iter()
            .map(|(load, throughput, latency)| SweepPoint {
                load: *load,
                throughput: *throughput,
                latency: *latency,
                meets: None,
            })
            .collect()
    }

    #[test]
    fn knee_is_where_more_load_only_adds_waiting() {
        let saturated =
            points(&[(1.0, 100.0, 1.0), (2.0, 198.0, 1.1), (4.0, 380.0, 1.4), (8.0, 420.0, 4.0), (16.0, 425.0, 30.0)]);
        assert_eq!(knee(&saturated), Some(2));
        assert_eq!(knee(&saturated[..3]), None, "more load still pays off");
        // A dip in the middle is not a knee if throughput recovers at a higher load.
        let dip = points(&[(1.0, 100.0, 1.0), (2.0, 120.0, 1.3), (4.0, 390.0, 1.4)]);
        assert_eq!(knee(&dip), None);
        // Throughput is flat from the first value on, so the first value is the knee.
        assert_eq!(knee(&points(&[(1.0, 400.0, 3.0), (2.0, 405.0, 9.0)])), Some(0));
        assert_eq!((knee(&[]), knee(&points(&[(1.0, 1.0, 1.0)]))), (None, None));
    }

    #[test]
    fn highest_that_meets_stops_at_the_first_failure() {
        let meets = |list: &[bool]| -> Vec<SweepPoint> {
            let point = |(i, meets): (usize, &bool)| SweepPoint {
                load: i as f64 + 1.0,
                throughput: 1.0,
                latency: 1.0,
                meets: Some(*meets),
            };
            list.iter().enumerate().map(point).collect()
        };
        assert_eq!(highest_that_meets(&meets(&[true, true, false, true])), Some(1));
        assert_eq!(highest_that_meets(&meets(&[false, true])), None);
        assert_eq!(highest_that_meets(&points(&[(1.0, 1.0, 1.0)])), None, "no limits");
    }

    #[test]
    fn lists_and_ranges_parse_and_invalid_texts_are_refused() {
        let read = |text: &str| text.parse::<Values>().map(|values| values.get().to_vec());
        assert_eq!(read("4,1,2,2"), Ok(vec![1.0, 2.0, 4.0]));
        assert_eq!(read("0.1:0.3:0.1").expect("a range").len(), 3);
        assert_eq!(read("1:6:2"), Ok(vec![1.0, 3.0, 5.0]));
        for bad in ["", "0", "1,,2", "1:2", "2:1:1", "1:2:0", "1:1e9:1e-9", "-1", "inf", "NaN", "a"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
