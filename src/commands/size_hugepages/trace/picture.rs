//! The hit-rate curve and the price as plots, with a logarithmic axis of sizes.

use crate::commands::cli::svg::{Axis, Plot, PlotSeries};
use crate::commands::size_hugepages::trace::document::{CurveDocument, CurvePoint};
use crate::commands::size_hugepages::trace::text;
use crate::engine::base::ByteSize;

/// Renders the curve as a standalone image.
pub(super) fn image(document: &CurveDocument) -> String {
    curve(document).document()
}

/// The position of a size on the axis: GiB of segments if the model is known, otherwise tokens.
fn x(point: &CurvePoint) -> f64 {
    match point.segment_bytes {
        Some(bytes) => (bytes as f64 / ByteSize::GIB as f64).max(1e-6),
        None => point.tokens.max(1) as f64,
    }
}

fn axis(rows: &[&CurvePoint]) -> Axis {
    let has_bytes = rows.iter().any(|row| row.segment_bytes.is_some());
    Axis::log(if has_bytes { "cache size, GiB of segments" } else { "cache size, tokens" })
}

/// A vertical line up to the hit rate of a point.
fn mark(name: &str, colour: usize, point: &CurvePoint) -> PlotSeries {
    PlotSeries::line(name, colour, vec![(x(point), 0.0), (x(point), point.hit_rate * 100.0)]).dashed()
}

/// The hit rate by size, with the ceiling, the knee and the size that pays most.
pub(super) fn curve(document: &CurveDocument) -> Plot {
    let rows: Vec<&CurvePoint> = text::shown(document).collect();
    let points = |rate: fn(&CurvePoint) -> f64| rows.iter().map(|point| (x(point), rate(point) * 100.0)).collect();
    let mut plot = Plot::new("Hit rate by cache size", axis(&rows), Axis::even("hit rate, %"));
    if rows.iter().any(|row| row.hit_rate_error.is_some()) {
        let band = |row: &&CurvePoint| {
            let error = row.hit_rate_error.unwrap_or_default();
            (x(row), (row.hit_rate - error) * 100.0, (row.hit_rate + error) * 100.0)
        };
        plot = plot.with(PlotSeries::band("95 % interval", 0, rows.iter().map(band).collect()));
    }
    plot = plot.with(PlotSeries::line("hit rate", 0, points(|row| row.hit_rate)));
    if let [first, .., last] = rows[..] {
        let best = document.best_hit_rate * 100.0;
        plot = plot.with(PlotSeries::line("ceiling", 5, vec![(x(first), best), (x(last), best)]).dashed());
    }
    if rows.iter().any(|row| row.l2_hit_rate.is_some()) {
        plot = plot.with(
            PlotSeries::line("L1 + L2 of this size", 2, points(|row| row.l2_hit_rate.unwrap_or(f64::NAN))).dashed(),
        );
    }
    if let Some(knee) = &document.knee {
        plot = plot.with(mark("knee", 3, knee));
    }
    for best in document.price.iter().flat_map(|price| &price.best) {
        if let Some(point) = &best.middle {
            let (name, colour) = if best.memory == "dram" { ("pays most, DRAM", 1) } else { ("pays most, SSD", 4) };
            plot = plot.with(mark(name, colour, point));
        }
    }
    plot
}

/// The saved price minus the cost by size, for each kind of memory; `None` without prices.
pub(super) fn net(document: &CurveDocument) -> Option<Plot> {
    let price = document.price.as_ref()?;
    let rows: Vec<&CurvePoint> = text::shown(document).collect();
    let mut plot = Plot::new("Saved price minus cost, per month", axis(&rows), Axis::even("price per month"));
    for (at, best) in price.best.iter().enumerate() {
        let (name, colour) = if best.memory == "dram" { ("DRAM", 1) } else { ("SSD", 4) };
        let nets = || rows.iter().filter_map(move |row| Some((x(row), row.worth.get(at)?.net)));
        if nets().any(|(_, [low, high])| low < high) {
            plot = plot.with(PlotSeries::band("", colour, nets().map(|(x, [low, high])| (x, low, high)).collect()));
        }
        let middle = nets().map(|(x, [low, high])| (x, f64::midpoint(low, high))).collect();
        plot = plot.with(PlotSeries::line(name, colour, middle));
    }
    Some(plot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(curve: Vec<CurvePoint>) -> CurveDocument {
        CurveDocument {
            schema: "",
            trace: String::new(),
            format: String::new(),
            requests: 0,
            skipped_rows: 0,
            prompt_tokens: 0,
            trace_hours: None,
            blocks: 0,
            distinct_tokens: 0,
            block_tokens: 512,
            sampled_share: 1.0,
            best_hit_rate: 0.6,
            knee: curve.last().cloned(),
            curve,
            wanted: Vec::new(),
            price: None,
            chosen: None,
            caveats: Vec::new(),
        }
    }

    #[test]
    fn a_plot_contains_every_point_and_may_be_empty() {
        let point = |tokens, hit_rate| CurvePoint {
            tokens,
            hit_rate,
            hit_rate_error: None,
            hit_tokens_per_gib: None,
            l2_hit_rate: None,
            l3_hit_rate: None,
            hicache_gb: None,
            segment_bytes: None,
            worth: Vec::new(),
        };
        let svg = image(&document(vec![point(512, 0.0), point(1_024, 0.1), point(51_200, 0.5)]));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        // The curve, the ceiling and the knee have two points each.
        let lines: Vec<&str> = svg.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line.split(' ').count()).collect::<Vec<_>>(), [2, 2, 2]);
        assert!(!image(&document(Vec::new())).contains("NaN"));
    }
}
