//! The hit-rate curve as a standalone HTML page: plot, table and requested rates, without external resources.

use crate::commands::size_hugepages::curve_document::{CurveDocument, cells};
use crate::commands::size_hugepages::curve_svg;
use crate::commands::svg::escaped;

const STYLE: &str = "body{font:14px sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}\
                     td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}";

/// Renders the page as HTML.
pub fn page(document: &CurveDocument) -> String {
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
    html.push_str(&curve_svg::picture(&document.curve));
    if !document.wanted.is_empty() {
        html.push_str("<h2>Requested rates</h2>\n<table>\n<tr><th>hit rate</th><th>tokens</th><th>reached</th>");
        html.push_str("<th>L2: --hicache-size</th><th>or L3: segments</th></tr>\n");
        for wanted in &document.wanted {
            let reached = match &wanted.reached {
                Some(point) => cells(point).map(|cell| format!("<td>{}</td>", escaped(&cell))).concat(),
                None => "<td colspan=\"4\">not reachable with any size</td>".to_owned(),
            };
            html.push_str(&format!("<tr><td>{:.1} %</td>{reached}</tr>\n", wanted.hit_rate * 100.0));
        }
        html.push_str("</table>\n");
    }
    html.push_str("<h2>Curve</h2>\n<table>\n<tr><th>tokens</th><th>hit rate</th>");
    html.push_str("<th>L2: --hicache-size</th><th>L3: segments</th></tr>\n");
    for point in &document.curve {
        let row = cells(point).map(|cell| format!("<td>{}</td>", escaped(&cell))).concat();
        html.push_str(&format!("<tr>{row}</tr>\n"));
    }
    html + "</table>\n</body>\n</html>\n"
}
