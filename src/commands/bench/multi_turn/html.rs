//! The report as an HTML page: a single file without scripts or external resources.

use crate::commands::bench::multi_turn::report::{Identity, RunReport};
use crate::commands::svg::escaped;
use crate::commands::table::ReportSection;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2126;--soft:#5b6570;--ground:#fff;--line:#dfe3e8;--grid:#e6e9ed;--axis:#8a939d;--warn:#fff4d6;--warnline:#d9a400}\
@media (prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa4af;--ground:#15181c;--line:#323a43;--grid:#2a3038;--axis:#7b8590;\
--warn:#3a3010;--warnline:#c99a1a;--s1:#5aa6ff;--s2:#ff9d4d;--s3:#4fcf93;--s4:#d584dd;--s5:#d0bc3e;--s6:#ff7a8c}}\
body{font:14px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.5em;max-width:84em;color:var(--ink);background:var(--ground)}\
h1{font-size:1.5em;margin:0 0 .3em;overflow-wrap:anywhere}h2{font-size:1.15em;margin:2em 0 .5em;border-bottom:1px solid var(--line);padding-bottom:.2em;overflow-wrap:anywhere}\
p{margin:.3em 0}code{font:12px ui-monospace,monospace;overflow-wrap:anywhere;color:var(--soft)}\
.caveats{background:var(--warn);border-left:4px solid var(--warnline);padding:.6em 1em;margin:1em 0}.caveats ul{margin:.2em 0;padding-left:1.2em}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30em),1fr));gap:1em;margin:1em 0}\
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:.5em}svg{width:100%;height:auto;display:block}\
.table{overflow-x:auto;margin:1em 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
caption{text-align:left;font-weight:600;padding:.2em .8em}th,td{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th{color:var(--soft);font-weight:600}td.t,th.t{text-align:left}.note{color:var(--soft)}\
@media print{body{max-width:none;padding:0}figure,table{break-inside:avoid}.plots{grid-template-columns:1fr 1fr}}";

/// Renders `report` as a page.
pub(super) fn page(report: &RunReport) -> String {
    document(&report.title(), &report.run, &report.answer(), &report.all_caveats(), &report.sections())
}

/// Renders a page with a title, the identity of the run, the conclusion, the caveats and the sections.
pub(in crate::commands::bench) fn document(
    title: &str,
    run: &Identity,
    answer: &[String],
    caveats: &[String],
    sections: &[ReportSection],
) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}, {started}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n\
         <p>{started}, mcctl {version}, seed {seed}, {processors} processors for the load generator</p>\n<p><code>{line}</code></p>\n",
        title = escaped(title),
        started = escaped(&run.started),
        version = escaped(&run.version),
        seed = run.seed,
        processors = run.processors,
        line = escaped(&run.line()),
    );
    for line in answer {
        html.push_str(&format!("<p><strong>{}</strong></p>\n", escaped(line)));
    }
    if !caveats.is_empty() {
        html.push_str("<div class=\"caveats\"><strong>Caveats</strong><ul>\n");
        for caveat in caveats {
            html.push_str(&format!("<li>{}</li>\n", escaped(caveat)));
        }
        html.push_str("</ul></div>\n");
    }
    for section in sections {
        html.push_str(&section.html());
    }
    html + "</body>\n</html>\n"
}
