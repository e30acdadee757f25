//! The hit-rate curve as a picture: hit rate over tokens held, the tokens on a logarithmic axis.

use crate::commands::size_hugepages::curve::Point;
use crate::commands::svg::{Axis, Plot, PlotSeries};

/// The picture, as a document of its own.
pub fn picture(curve: &[Point]) -> String {
    let points = curve.iter().map(|point| (point.tokens.max(1) as f64, point.hit_rate * 100.0)).collect();
    let plot = Plot::new("Hit rate over tokens held", Axis::log("tokens held"), Axis::even("hit rate, %"));
    plot.with(PlotSeries::line("hit rate", 0, points)).document()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_place_for_every_point_and_an_empty_curve_is_one_too() {
        let point = |tokens, hit_rate| Point { tokens, hit_rate, hicache_gb: None, segment_bytes: None };
        let svg = picture(&[point(512, 0.0), point(51_200, 0.5)]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap().split(' ').count(), 2);
        assert!(!picture(&[]).contains("NaN"));
    }
}
