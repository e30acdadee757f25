//! Stores individual values, to compute exact percentiles with the formulas of other tools. In a
//! long run, only every n-th value is kept.

/// Maximum number of stored values (8 MiB).
const KEPT_MAX: usize = 1 << 20;

/// Values from a run, thinned so that their number is bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct ThinnedSample {
    values: Vec<f64>,
    /// Every n-th value is stored; 0 is treated as 1.
    every: u64,
    count: u64,
    sum: f64,
    squares: f64,
    max: f64,
}

impl ThinnedSample {
    pub(super) fn add(&mut self, value: f64) {
        let every = self.every.max(1);
        if self.count.is_multiple_of(every) {
            if self.values.len() == KEPT_MAX {
                let mut index = 0;
                self.values.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.every = every * 2;
            }
            if self.count.is_multiple_of(self.every.max(1)) {
                self.values.push(value);
            }
        }
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
        self.max = self.max.max(value);
    }

    pub(super) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    pub(super) fn max(&self) -> f64 {
        self.max
    }

    /// Returns the standard deviation.
    pub(super) fn deviation(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.squares / self.count as f64 - self.mean().powi(2)).max(0.0).sqrt() }
    }

    pub(super) fn sorted(&self) -> SortedSample {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        SortedSample(values)
    }
}

pub(super) struct SortedSample(Vec<f64>);

impl SortedSample {
    /// Returns a quantile with linear interpolation, like NumPy.
    pub(super) fn between(&self, q: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return 0.0 };
        let at = q * last as f64;
        let low = at.floor() as usize;
        let part = at.fract();
        let high = (low + 1).min(last);
        self.0[low.min(last)] * (1.0 - part) + self.0[high] * part
    }

    /// Returns the value at index `q * n`, rounded down, as `bench_multiturn.py` does.
    pub(super) fn nearest(&self, q: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return 0.0 };
        self.0[((q * self.0.len() as f64) as usize).min(last)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_match_numpy_and_bench_multiturn() {
        let mut sample = ThinnedSample::default();
        assert_eq!((sample.mean(), sample.deviation(), sample.sorted().between(0.5)), (0.0, 0.0, 0.0));
        (1..=10).rev().for_each(|value| sample.add(f64::from(value)));
        let sorted = sample.sorted();
        assert!((sorted.between(0.9) - 9.1).abs() < 1e-12 && (sorted.between(0.5) - 5.5).abs() < 1e-12);
        assert_eq!((sorted.nearest(0.9), sorted.nearest(0.5), sorted.nearest(1.0)), (10.0, 6.0, 10.0));
        assert!((sample.deviation() - 8.25_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_long_run_keeps_a_bounded_uniform_sample() {
        let mut sample = ThinnedSample::default();
        let n = 5 * KEPT_MAX as u64;
        (0..n).for_each(|value| sample.add(value as f64));
        assert!(sample.values.len() <= KEPT_MAX && sample.values.len() > KEPT_MAX / 4);
        let median = sample.sorted().between(0.5);
        assert!((median / (n as f64 / 2.0) - 1.0).abs() < 1e-3, "{median}");
        assert_eq!(sample.mean(), (n - 1) as f64 / 2.0);
    }
}
