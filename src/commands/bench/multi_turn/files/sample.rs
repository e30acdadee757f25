//! Values kept one by one, for the percentiles that other programs compute from a sorted list.

/// So many are kept: 8 MiB. Of a longer run, every n-th.
const KEPT_MAX: usize = 1 << 20;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    values: Vec<f64>,
    /// One of so many is kept; zero is one.
    every: u64,
    seen: u64,
    sum: f64,
    squares: f64,
    max: f64,
}

impl Sample {
    pub(super) fn add(&mut self, value: f64) {
        let every = self.every.max(1);
        if self.seen.is_multiple_of(every) {
            if self.values.len() == KEPT_MAX {
                let mut place = 0;
                self.values.retain(|_| {
                    place += 1;
                    place % 2 == 1
                });
                self.every = every * 2;
            }
            if self.seen.is_multiple_of(self.every.max(1)) {
                self.values.push(value);
            }
        }
        self.seen += 1;
        self.sum += value;
        self.squares += value * value;
        self.max = self.max.max(value);
    }

    pub(super) fn mean(&self) -> f64 {
        if self.seen == 0 { 0.0 } else { self.sum / self.seen as f64 }
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    pub(super) fn max(&self) -> f64 {
        self.max
    }

    /// The deviation of the values, not of their mean.
    pub(super) fn deviation(&self) -> f64 {
        if self.seen == 0 { 0.0 } else { (self.squares / self.seen as f64 - self.mean().powi(2)).max(0.0).sqrt() }
    }

    pub(super) fn sorted(&self) -> Sorted {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        Sorted(values)
    }
}

/// In order.
pub(super) struct Sorted(Vec<f64>);

impl Sorted {
    /// As NumPy's: between the two nearest values, in a straight line.
    pub(super) fn between(&self, q: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return 0.0 };
        let at = q * last as f64;
        let (low, part) = (at.floor() as usize, at.fract());
        let high = (low + 1).min(last);
        self.0[low.min(last)] * (1.0 - part) + self.0[high] * part
    }

    /// As `bench_multiturn.py`'s: the value at place q n, rounded down.
    pub(super) fn nearest(&self, q: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return 0.0 };
        self.0[((q * self.0.len() as f64) as usize).min(last)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_programs_that_are_matched() {
        let mut sample = Sample::default();
        assert_eq!((sample.mean(), sample.deviation(), sample.sorted().between(0.5)), (0.0, 0.0, 0.0));
        (1..=10).rev().for_each(|value| sample.add(f64::from(value)));
        let sorted = sample.sorted();
        assert!((sorted.between(0.9) - 9.1).abs() < 1e-12 && (sorted.between(0.5) - 5.5).abs() < 1e-12);
        assert_eq!((sorted.nearest(0.9), sorted.nearest(0.5), sorted.nearest(1.0)), (10.0, 6.0, 10.0));
        assert!((sample.deviation() - 8.25_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_long_run_keeps_a_bounded_part_of_its_values_from_all_over_it() {
        let mut sample = Sample::default();
        let n = 5 * KEPT_MAX as u64;
        (0..n).for_each(|value| sample.add(value as f64));
        assert!(sample.values.len() <= KEPT_MAX && sample.values.len() > KEPT_MAX / 4);
        let median = sample.sorted().between(0.5);
        assert!((median / (n as f64 / 2.0) - 1.0).abs() < 1e-3, "{median}");
        assert_eq!(sample.mean(), (n - 1) as f64 / 2.0);
    }
}
