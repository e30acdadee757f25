//! The hit-rate curve as a document, printed with `--json` or rendered as a table, a page or a
//! plot.

use serde::Serialize;

use crate::commands::cli::table::ReportTable;
use crate::engine::base::ByteSize;

/// A point on the curve.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CurvePoint {
    /// Cache capacity in tokens.
    pub tokens: u64,
    /// Hits per block lookup, 0 to 1.
    pub hit_rate: f64,
    /// The matching `--hicache-size` in decimal GB per rank, for a server with one group.
    pub hicache_gb: Option<u64>,
    /// The matching total size of all segments, at 90 % usage.
    pub segment_bytes: Option<u64>,
}

/// A requested hit rate.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RequestedRate {
    /// Hit rate, from 0 to 1.
    pub hit_rate: f64,
    /// The smallest cache that reaches the rate; `null` if none does.
    pub reached: Option<CurvePoint>,
}

#[derive(Debug, Serialize)]
pub(super) struct CurveDocument {
    pub schema: &'static str,
    pub trace: String,
    pub requests: u64,
    pub blocks: u64,
    pub distinct_blocks: u64,
    pub block_tokens: u64,
    /// The hit rate with an unlimited cache.
    pub best_hit_rate: f64,
    pub curve: Vec<CurvePoint>,
    /// One entry per requested rate.
    pub wanted: Vec<RequestedRate>,
}

/// The table cells for a point: tokens, hit rate, L2, L3.
pub(super) fn cells(point: &CurvePoint) -> [String; 4] {
    [
        point.tokens.to_string(),
        format!("{:.2} %", point.hit_rate * 100.0),
        point.hicache_gb.map_or("?".to_owned(), |gb| format!("{gb} GB")),
        point.segment_bytes.map_or("?".to_owned(), |bytes| ByteSize(bytes).to_string()),
    ]
}

/// The table of all points.
pub(super) fn curve_table(document: &CurveDocument) -> ReportTable {
    let mut table = ReportTable::new("", &["tokens", "hit rate", "L2: --hicache-size", "L3: segments"]);
    for point in &document.curve {
        table.row(cells(point));
    }
    table
}
