//! The hit-rate curve as a standalone HTML page: plots, requested rates, prices and a table. It has
//! no external resources.

use crate::commands::cli::svg::escaped;
use crate::commands::cli::table::ReportTable;
use crate::commands::size_hugepages::trace::document::CurveDocument;
use crate::commands::size_hugepages::trace::{picture, text};

const STYLE: &str = "body{font:14px sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}\
                     td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}\
                     .plots{display:flex;flex-wrap:wrap;gap:1em}";

/// Renders the page as HTML.
pub(super) fn page(document: &CurveDocument) -> String {
    let headline = text::headline(document, &escaped(&document.trace)).replace('\n', "<br>\n");
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Hit rate by cache size</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>Hit rate by cache size</h1>\n<p>{headline}</p>\n<div class=\"plots\">\n",
    );
    html.push_str(&picture::curve(document).svg());
    if let Some(net) = picture::net(document) {
        html.push_str(&net.svg());
    }
    html.push_str("</div>\n");
    if let Some(price) = &document.price {
        html.push_str(&format!(
            "<h2>Price</h2>\n<p>Amounts are per month, as if all hours were like the {:.2} hours of the trace. The hits of \
             L1 and L2 ({:.2} %) are not counted, because they need no L3.</p>\n<ul>\n",
            price.trace_hours,
            price.free_hit_rate * 100.0
        ));
        for best in &price.best {
            html.push_str(&format!("<li>{}</li>\n", escaped(&text::best_text(best))));
        }
        html.push_str("</ul>\n");
    }
    if !document.wanted.is_empty() {
        let head = ["hit rate", "tokens", "reached", "L2: --hicache-size", "or L3: segments"];
        let mut rates = ReportTable::new("", &head);
        for wanted in &document.wanted {
            let rate = format!("{:.1} %", wanted.hit_rate * 100.0);
            match wanted.reached.as_ref().map(text::cells) {
                Some([tokens, reached, l2, l3]) => rates.row([rate, tokens, reached, l2, l3]),
                None => rates.row([rate, "not reachable with any size".to_owned()]),
            }
        }
        html.push_str(&format!("<h2>Requested rates</h2>\n{}", rates.plain_html()));
    }
    if !document.caveats.is_empty() {
        html.push_str("<h2>Caveats</h2>\n<ul>\n");
        for caveat in &document.caveats {
            html.push_str(&format!("<li>{}</li>\n", escaped(caveat)));
        }
        html.push_str("</ul>\n");
    }
    html.push_str(&format!("<h2>Curve</h2>\n{}", text::curve_table(document).plain_html()));
    html + "</body>\n</html>\n"
}
