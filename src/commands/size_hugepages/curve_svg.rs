//! The hit-rate curve as an SVG plot, with a logarithmic token axis.

use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::size_hugepages::curve_document::CurvePoint;

/// Renders a standalone image.
pub(super) fn picture(curve: &[CurvePoint]) -> String {
    plot(curve).document()
}

/// Returns the plot of the curve.
pub(super) fn plot(curve: &[CurvePoint]) -> Plot {
    let points = curve.iter().map(|point| (point.tokens.max(1) as f64, point.hit_rate * 100.0)).collect();
    let plot = Plot::new("Hit rate by cache size", Axis::log("cache size, tokens"), Axis::even("hit rate, %"));
    plot.with(PlotSeries::line("hit rate", 0, points))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_contains_every_point_and_may_be_empty() {
        let point = |tokens, hit_rate| CurvePoint { tokens, hit_rate, hicache_gb: None, segment_bytes: None };
        let svg = picture(&[point(512, 0.0), point(51_200, 0.5)]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap().split(' ').count(), 2);
        assert!(!picture(&[]).contains("NaN"));
    }
}
