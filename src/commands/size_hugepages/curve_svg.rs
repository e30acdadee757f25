//! The hit-rate curve as a picture: hit rate over tokens held, the tokens on a logarithmic axis.

use crate::commands::size_hugepages::curve::Point;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 50.0;

/// The picture, as a document of its own.
pub fn picture(curve: &[Point]) -> String {
    let logs: Vec<f64> = curve.iter().map(|point| (point.tokens.max(1) as f64).log10()).collect();
    let first = logs.first().copied().unwrap_or(0.0).floor();
    let last = logs.last().copied().unwrap_or(1.0).ceil().max(first + 1.0);
    let x = |log: f64| LEFT + (log - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    let y = |rate: f64| TOP + (1.0 - rate) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for step in 0..=5 {
        let rate = f64::from(step) / 5.0;
        svg.push_str(&format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} %</text>\n",
            WIDTH - RIGHT,
            y(rate),
            y(rate),
            LEFT - 6.0,
            y(rate) + 4.0,
            rate * 100.0
        ));
    }
    let mut decade = first;
    while decade <= last {
        svg.push_str(&format!(
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            x(decade),
            x(decade),
            HEIGHT - BOTTOM,
            x(decade),
            HEIGHT - BOTTOM + 18.0,
            10f64.powf(decade)
        ));
        decade += 1.0;
    }
    let points: Vec<String> =
        curve.iter().zip(&logs).map(|(point, log)| format!("{:.1},{:.1}", x(*log), y(point.hit_rate))).collect();
    svg.push_str(&format!(
        "<polyline fill=\"none\" stroke=\"#0060c0\" stroke-width=\"2\" points=\"{}\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">tokens held</text>\n</svg>\n",
        points.join(" "),
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0
    ));
    svg
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
