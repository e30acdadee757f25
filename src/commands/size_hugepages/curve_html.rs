//! The hit-rate curve as a standalone HTML page: plot, table and requested rates, without external
//! resources.

use crate::commands::cli::svg::escaped;
use crate::commands::cli::table::ReportTable;
use crate::commands::size_hugepages::curve_document::{CurveDocument, cells, curve_table};
use crate::commands::size_hugepages::curve_svg;

const STYLE: &str = "body{font:14px sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}\
                     td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}";

/// Renders the page as HTML.
pub(super) fn page(document: &CurveDocument) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Hit rate by cache size</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>Hit rate by cache size</h1>\n\
         <p>{} requests from {}, {} blocks of {} tokens, {} distinct: maximum hit rate {:.2} %.</p>\n",
        document.requests,
        escaped(&document.trace),
        document.blocks,
        document.block_tokens,
        document.distinct_blocks,
        document.best_hit_rate * 100.0
    );
    html.push_str(&curve_svg::plot(&document.curve).svg());
    if !document.wanted.is_empty() {
        let head = ["hit rate", "tokens", "reached", "L2: --hicache-size", "or L3: segments"];
        let mut rates = ReportTable::new("", &head);
        for wanted in &document.wanted {
            let rate = format!("{:.1} %", wanted.hit_rate * 100.0);
            match wanted.reached.as_ref().map(cells) {
                Some([tokens, reached, l2, l3]) => rates.row([rate, tokens, reached, l2, l3]),
                None => rates.row([rate, "not reachable with any size".to_owned()]),
            }
        }
        html.push_str(&format!("<h2>Requested rates</h2>\n{}", rates.plain_html()));
    }
    html.push_str(&format!("<h2>Curve</h2>\n{}", curve_table(document).plain_html()));
    html + "</body>\n</html>\n"
}
