//! The report for people.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::commands::bench::multi_turn::report::{PassReport, Report};
use crate::engine::load::Summary;

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn ms(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    for pass in &report.passes {
        text.push_str(&one(pass, report.seed));
    }
    for doubt in &report.doubts {
        text.push_str(&format!("doubt: {doubt}\n"));
    }
    text
}

fn one(report: &PassReport, seed: u64) -> String {
    let mut text = format!(
        "{} at {}: {} sent, {} ok, {} failed, {} unfinished in {:.1} s (seed {})\n{:.2} requests/s, {:.0} tokens/s in, {:.0} tokens/s out\n\n",
        report.name,
        report.target,
        report.sent,
        report.completed,
        report.failed,
        report.unfinished,
        report.seconds,
        seed,
        report.requests_per_s,
        report.input_tokens_per_s,
        report.output_tokens_per_s,
    );
    let mut latencies = table(&["milliseconds", "mean", "p50", "p90", "p99", "max"]);
    let rows: [(&str, &Option<Summary>); 9] = [
        ("first token (from plan)", &report.ttft),
        ("first token (from send)", &report.ttft_from_send),
        ("between tokens", &report.itl),
        ("per token (TPOT)", &report.tpot),
        ("whole answer (from plan)", &report.e2e),
        ("wait for a free place", &report.wait),
        ("our own lag", &report.lag),
        ("server: queue", &report.queue),
        ("server: wait for L3", &report.storage_wait),
    ];
    for (name, summary) in rows {
        let Some(summary) = summary else { continue };
        let maybe = |value: Option<Duration>| value.map_or("too few".to_owned(), ms);
        latencies.add_row([
            name.to_owned(),
            ms(summary.mean),
            ms(summary.p50),
            maybe(summary.p90),
            maybe(summary.p99),
            ms(summary.max),
        ]);
    }
    text.push_str(&format!("{latencies}\n\n"));
    let mut turns = table(&["turn", "requests", "prompt tokens", "device", "host", "storage", "computed", "TTFT ms"]);
    for row in report.turns.iter().filter(|row| row.requests > 0) {
        let tokens = row.tokens;
        turns.add_row([
            row.turn.to_string(),
            row.requests.to_string(),
            tokens.prompt.to_string(),
            share(tokens.device, tokens.prompt),
            share(tokens.host, tokens.prompt),
            share(tokens.storage, tokens.prompt),
            share(tokens.prompt.saturating_sub(tokens.cached()), tokens.prompt),
            row.ttft.map_or("-".to_owned(), |ttft| ms(ttft.mean)),
        ]);
    }
    text.push_str(&format!("{turns}\n"));
    for (kind, failed) in &report.failures {
        text.push_str(&format!("\nfailed: {} x {kind}: {}", failed.count, failed.first));
    }
    for doubt in &report.doubts {
        text.push_str(&format!("\ndoubt: {doubt}"));
    }
    if !report.failures.is_empty() || !report.doubts.is_empty() {
        text.push('\n');
    }
    text
}
