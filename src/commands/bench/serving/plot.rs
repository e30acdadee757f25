//! The run over time as text bars (`--plot-throughput`).

use crate::commands::bench::multi_turn::SeriesReport;

/// Maximum number of bars in a plot.
const BARS: usize = 24;
/// Length of the longest bar in characters, so that a line has at most 60 columns.
const LONGEST: usize = 34;

/// Renders output tokens per second and requests in flight.
pub(in crate::commands::bench) fn text(series: &SeriesReport) -> String {
    let step = series.buckets.len().div_ceil(BARS).max(1);
    let width = series.width_s * step as f64;
    let per_bar = |of: fn(&SeriesReport, usize) -> f64| -> Vec<f64> {
        let sum = |from: usize| (from..(from + step).min(series.buckets.len())).map(|at| of(series, at)).sum::<f64>();
        (0..series.buckets.len()).step_by(step).map(|from| sum(from) / width).collect()
    };
    let tokens = per_bar(|series, at| series.buckets[at].output_tokens);
    let in_flight = per_bar(|series, at| series.buckets[at].busy_s);
    bars("Output tokens per second", width, &tokens) + "\n" + &bars("Concurrent requests", width, &in_flight)
}

fn bars(title: &str, width: f64, values: &[f64]) -> String {
    let most = values.iter().copied().fold(0.0, f64::max);
    let mut text = format!("{title}\n");
    for (at, value) in values.iter().enumerate() {
        let length = if most > 0.0 { (value / most * LONGEST as f64).round() as usize } else { 0 };
        text += format!("{:>9.1} s {:>10.1} {}", at as f64 * width, value, "#".repeat(length)).trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_scaled_to_the_maximum_and_bounded() {
        let text = bars("t", 2.0, &[0.0, 5.0, 10.0]);
        let lengths: Vec<usize> = text.lines().skip(1).map(|line| line.matches('#').count()).collect();
        assert_eq!(lengths, [0, 17, 34]);
        let buckets = vec![Default::default(); 1_000];
        assert!(super::text(&SeriesReport { width_s: 0.5, buckets }).lines().count() <= 2 * (BARS + 1) + 1);
    }
}
