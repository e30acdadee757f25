//! The same load at rising rates, or with rising numbers in flight: where more load brings nothing but waiting, and how much of it still
//! meets the limits.

use std::str::FromStr;

/// Values of a sweep, at most.
pub const VALUES_MAX: usize = 1_000;

/// Rising values above zero: `1,2,4`, or `FROM:TO:STEP` with both ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Values(Vec<f64>);

/// A text is no list of values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no sweep: write numbers above 0 as A,B,C or FROM:TO:STEP, at most {VALUES_MAX} of them")]
pub struct ParseValuesError(pub String);

impl Values {
    /// The values, in rising order, each once.
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
            // The end belongs to it even if the steps do not add up to it exactly.
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

/// What a value brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The load that was asked for.
    pub load: f64,
    /// Tokens per second, in and out.
    pub throughput: f64,
    /// Mean time of a whole answer from its plan.
    pub latency: f64,
    /// Did it meet the limits? `None` without limits.
    pub meets: Option<bool>,
}

/// A load brings its share while the throughput grows at least as this power of it.
const SHARE: f64 = 0.5;

/// The knee of `points` (in rising order of load): the first of them after which no greater load brings half of its share, which is
/// when throughput grows less than with the square root of the load, and answers take longer instead. `None` while the last
/// value still pays.
pub fn knee(points: &[Point]) -> Option<usize> {
    (0..points.len().saturating_sub(1)).find(|at| {
        let (here, after) = (&points[*at], &points[at + 1..]);
        let pays = |there: &Point| there.throughput >= here.throughput * (there.load / here.load).powf(SHARE);
        !after.iter().any(pays) && after.iter().all(|there| there.latency > here.latency)
    })
}

/// The greatest load up to which every one met the limits.
pub fn highest_that_meets(points: &[Point]) -> Option<usize> {
    points.iter().take_while(|point| point.meets == Some(true)).count().checked_sub(1)
}

/// Have two values in a row failed the limits? Then more of them would as well.
pub fn is_settled(points: &[Point]) -> bool {
    points.iter().rev().take(2).filter(|point| point.meets == Some(false)).count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(of: &[(f64, f64, f64)]) -> Vec<Point> {
        of.iter()
            .map(|(load, throughput, latency)| Point {
                load: *load,
                throughput: *throughput,
                latency: *latency,
                meets: None,
            })
            .collect()
    }

    #[test]
    fn the_knee_is_where_more_load_brings_waiting_instead_of_tokens() {
        let saturated =
            points(&[(1.0, 100.0, 1.0), (2.0, 198.0, 1.1), (4.0, 380.0, 1.4), (8.0, 420.0, 4.0), (16.0, 425.0, 30.0)]);
        assert_eq!(knee(&saturated), Some(2));
        assert_eq!(knee(&saturated[..3]), None, "it still pays");
        // A dip in the middle is no knee when more load brings more after all.
        let dip = points(&[(1.0, 100.0, 1.0), (2.0, 120.0, 1.3), (4.0, 390.0, 1.4)]);
        assert_eq!(knee(&dip), None);
        // Throughput that stands still from the first on: the first was enough.
        assert_eq!(knee(&points(&[(1.0, 400.0, 3.0), (2.0, 405.0, 9.0)])), Some(0));
        assert_eq!((knee(&[]), knee(&points(&[(1.0, 1.0, 1.0)]))), (None, None));
    }

    #[test]
    fn the_highest_that_meets_has_no_failure_below_it_and_two_failures_settle_it() {
        let meets = |list: &[bool]| -> Vec<Point> {
            let point = |(i, meets): (usize, &bool)| Point {
                load: i as f64 + 1.0,
                throughput: 1.0,
                latency: 1.0,
                meets: Some(*meets),
            };
            list.iter().enumerate().map(point).collect()
        };
        assert_eq!(highest_that_meets(&meets(&[true, true, false, true])), Some(1));
        assert_eq!(highest_that_meets(&meets(&[false, true])), None);
        assert_eq!(
            [&[true, false, false][..], &[false, true, false], &[false]].map(|list| is_settled(&meets(list))),
            [true, false, false]
        );
        assert_eq!(highest_that_meets(&points(&[(1.0, 1.0, 1.0)])), None, "no limits");
    }

    #[test]
    fn lists_and_ranges_are_read_and_nonsense_is_refused() {
        let read = |text: &str| text.parse::<Values>().map(|values| values.get().to_vec());
        assert_eq!(read("4,1,2,2"), Ok(vec![1.0, 2.0, 4.0]));
        assert_eq!(read("0.1:0.3:0.1").expect("a range").len(), 3);
        assert_eq!(read("1:6:2"), Ok(vec![1.0, 3.0, 5.0]));
        for bad in ["", "0", "1,,2", "1:2", "2:1:1", "1:2:0", "1:1e9:1e-9", "-1", "inf", "NaN", "a"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
