//! The report as an HTML page: a single file without scripts or external resources.

use crate::commands::bench::multi_turn::report::{Identity, RunReport};
use crate::commands::bench::{glossary, measured};
use crate::commands::cli::svg::escaped;
use crate::commands::cli::table::ReportSection;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2126;--soft:#5b6570;--ground:#fff;--line:#dfe3e8;--grid:#e6e9ed;--axis:#8a939d;--warn:#fff4d6;--warnline:#d9a400}\
@media (prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa4af;--ground:#15181c;--line:#323a43;--grid:#2a3038;--axis:#7b8590;\
--warn:#3a3010;--warnline:#c99a1a;--s1:#5aa6ff;--s2:#ff9d4d;--s3:#4fcf93;--s4:#d584dd;--s5:#d0bc3e;--s6:#ff7a8c}}\
body{font:14px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.5em;max-width:88em;color:var(--ink);background:var(--ground)}\
p.verdict{font-size:1.12em;font-weight:600;margin-top:.6em;margin-bottom:.6em}h1{font-size:1.5em;margin:0 0 .3em;overflow-wrap:anywhere}h2{font-size:1.15em;margin:2em 0 .5em;border-bottom:1px solid var(--line);padding-bottom:.2em;overflow-wrap:anywhere}\
p{margin:.3em 0}code{font:12px ui-monospace,monospace;overflow-wrap:anywhere;color:var(--soft)}\
.caveats{background:var(--warn);border-left:4px solid var(--warnline);padding:.6em 1em;margin:1em 0}.caveats ul{margin:.2em 0;padding-left:1.2em}\
.plots{display:flex;flex-wrap:wrap;align-items:flex-start;gap:12px;margin:1em 0}\
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:8px;max-width:100%;box-sizing:border-box;overflow-x:auto}svg{display:block;max-width:none}\
.table{overflow-x:auto;margin:1em 0}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
caption{text-align:left;font-weight:600;padding:.2em .8em}th,td{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th{color:var(--soft);font-weight:600}td.t,th.t{text-align:left}tbody td.t+td.t,tbody td.t:only-child{white-space:normal;overflow-wrap:anywhere;min-width:11em}.note{color:var(--soft)}\
@media (max-width:480px){body{padding:10px 0}h1,h2,p,.caveats,.table,.plots{margin-left:8px;margin-right:8px}th,td,caption{padding:.2em .4em}\
th,td{font-size:13px}td.t:first-child,th{white-space:normal}figure{border:0;padding:0}}\
@media print{body{max-width:none;padding:0}figure,table{break-inside:avoid}}";

/// Renders `report` as a page.
pub(super) fn page(report: &RunReport) -> String {
    document(&report.title(), &report.run, &report.answer(), &report.all_caveats(), &report.sections())
}

/// Renders a page with a title, the conclusion (the verdict first), the caveats and the sections.
/// The terms of the reports follow. `run` is shown at the top, unless the first section is
/// [`measured::MeasuredSystem::section`], which contains it.
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
         <h1>{title}</h1>\n",
        title = escaped(title),
        started = escaped(&run.started),
    );
    if sections.first().is_none_or(|first| first.title != measured::TITLE) {
        html.push_str(&format!(
            "<p>{}, mcctl {}, seed {}</p>\n<p><code>{}</code></p>\n",
            escaped(&run.started),
            escaped(&run.version),
            run.seed,
            escaped(&run.line())
        ));
    }
    for (at, line) in answer.iter().enumerate() {
        let class = if at == 0 { " class=\"verdict\"" } else { "" };
        html.push_str(&format!("<p{class}>{}</p>\n", escaped(line)));
    }
    if !caveats.is_empty() {
        html.push_str("<div class=\"caveats\"><strong>Caveats</strong><ul>\n");
        for caveat in caveats {
            html.push_str(&format!("<li>{}</li>\n", escaped(caveat)));
        }
        html.push_str("</ul></div>\n");
    }
    let has_terms = sections.iter().any(|section| section.title == glossary::TITLE);
    let terms = (!has_terms).then(glossary::section);
    for section in sections.iter().chain(&terms) {
        html.push_str(&section.html());
    }
    html + "</body>\n</html>\n"
}
