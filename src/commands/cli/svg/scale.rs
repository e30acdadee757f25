//! An axis scale: value positions and ticks.

/// The range of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AxisScale {
    low: f64,
    high: f64,
    log: bool,
}

impl AxisScale {
    /// Returns a scale that contains all finite `values`; a logarithmic scale ignores values that
    /// are not positive.
    pub(super) fn of(values: impl Iterator<Item = f64>, log: bool, from_zero: bool) -> AxisScale {
        let usable = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (mut low, mut high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = if log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if log {
            // Cover at least half a decade, so that two ticks fit.
            if high / low < 3.2 {
                low /= 1.8;
                high *= 1.8;
            }
            return AxisScale { low, high, log };
        }
        if from_zero {
            low = low.min(0.0);
            high = high.max(0.0);
        }
        if high - low <= f64::EPSILON * high.abs().max(low.abs()) {
            let margin = if high == 0.0 { 1.0 } else { high.abs() * 0.5 };
            (low, high) = if from_zero && low >= 0.0 { (0.0, high + margin) } else { (low - margin, high + margin) };
        }
        AxisScale { low, high, log }
    }

    /// Extends a linear scale to the next tick at both ends, and a logarithmic one a little, so
    /// that no line lies on the frame.
    pub(super) fn rounded(mut self) -> AxisScale {
        if self.log {
            let margin = (self.high / self.low).powf(0.05);
            (self.low, self.high) = (self.low / margin, self.high * margin);
        } else {
            let step = step((self.high - self.low) / 5.0);
            self.low = (self.low / step + 1e-9).floor() * step;
            self.high = (self.high / step - 1e-9).ceil() * step;
        }
        self
    }

    /// Returns the position of `value`: 0 at the low end, 1 at the high end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let at = match self.log {
            true => (value.max(self.low).log10() - self.low.log10()) / (self.high.log10() - self.low.log10()),
            false => (value - self.low) / (self.high - self.low),
        };
        if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns the tick values.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step = step((self.high - self.low) / 5.0);
            let first = (self.low / step - 1e-9).ceil() as i64;
            let last = (self.high / step + 1e-9).floor() as i64;
            return (first..=last.min(first + 20)).map(|n| n as f64 * step).collect();
        }
        let decades = self.high.log10() - self.low.log10();
        let within: &[f64] = if decades > 4.0 {
            &[1.0]
        } else if decades > 1.7 {
            &[1.0, 3.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let all = (first..=last).flat_map(|decade| within.iter().map(move |digit| digit * 10f64.powi(decade)));
        all.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick)).collect()
    }
}

/// Returns the smallest number in the series 1, 2, 5, 10, 20 ... that is at least `least`.
fn step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let decade = 10f64.powf(least.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * decade >= least * (1.0 - 1e-9)).unwrap_or(10.0);
    digit * decade
}

/// Formats a number as an axis label.
pub(super) fn label(value: f64) -> String {
    let size = value.abs();
    let (value, unit) = match size {
        1e12.. => return format!("{value:.0e}"),
        1e9.. => (value / 1e9, "G"),
        1e6.. => (value / 1e6, "M"),
        1e4.. => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        0.0 => 0,
        size if size < 0.01 => 4,
        size if size < 0.1 => 3,
        size if size < 1.0 => 2,
        size if size < 10.0 => 1,
        _ => 0,
    };
    let mut text = format!("{value:.digits$}");
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    if text == "-0" { "0".to_owned() } else { text + unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_scale() {
        let scale = AxisScale::of([3.0, 47.0].into_iter(), false, true).rounded();
        assert_eq!(scale.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        let log = AxisScale::of([2.0, 800.0, 0.0, f64::NAN].into_iter(), true, false);
        assert_eq!(log.ticks(), [3.0, 10.0, 30.0, 100.0, 300.0]);
        assert_eq!((log.place(2.0), log.place(0.0), log.place(1e9)), (0.0, 0.0, 1.0));
    }

    #[test]
    fn empty_and_constant_input_has_a_scale() {
        for values in [vec![], vec![0.0], vec![5.0], vec![f64::NAN], vec![-3.0, -3.0]] {
            for (log, from_zero) in [(false, false), (false, true), (true, false)] {
                let scale = AxisScale::of(values.iter().copied(), log, from_zero).rounded();
                assert!(!scale.ticks().is_empty() && scale.high > scale.low, "{values:?} {log}: {scale:?}");
                assert!((0.0..=1.0).contains(&scale.place(f64::NAN)));
            }
        }
    }

    #[test]
    fn labels_are_short() {
        let shown = [0.0, 0.25, 2.5, 10.0, 1500.0, 25_000.0, 3e6, -0.0].map(label);
        assert_eq!(shown, ["0", "0.25", "2.5", "10", "1500", "25k", "3M", "0"]);
    }
}
