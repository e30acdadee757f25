//! The answer for people.

use comfy_table::{CellAlignment, Table, presets};

use crate::commands::size_hugepages::report::{Range, RankRow, Report};
use crate::commands::size_hugepages::verdict::Verdict;
use crate::engine::base::ByteSize;
use crate::engine::base::text::escaped;

/// Bytes with a decimal and a binary unit, so that nobody takes one for the other.
fn both(bytes: u64) -> String {
    if bytes < 1_000_000 {
        return format!("{bytes} B");
    }
    if bytes < 1_000_000_000 {
        return format!("{:.2} MB ({:.2} MiB)", bytes as f64 / 1e6, bytes as f64 / (1u64 << 20) as f64);
    }
    format!("{:.2} GB ({:.2} GiB)", bytes as f64 / 1e9, bytes as f64 / (1u64 << 30) as f64)
}

fn range(range: Range, show: impl Fn(u64) -> String) -> String {
    if range.least == range.most { show(range.most) } else { format!("{} to {}", show(range.least), show(range.most)) }
}

/// The report as text.
pub fn render(report: &Report) -> String {
    let mut text = format!("{}\n", headline(report));
    for reason in &report.reasons {
        text.push_str(&format!("  {reason}\n"));
    }
    text.push('\n');
    let mut rows = plain();
    match (&report.model, &report.model_source) {
        (Some(model), Some(source)) => {
            rows.add_row(["model".to_owned(), format!("{} (from {source})", escaped(model))])
        }
        _ => rows.add_row(["model", "not given: bounds over all known models"]),
    };
    rows.add_row(["huge page".to_owned(), ByteSize(report.hugepage_bytes).to_string()]);
    if let Some(bytes) = report.hicache_bytes {
        rows.add_row(["L2 asked for".to_owned(), format!("{} per rank", both(bytes))]);
    }
    rows.add_row([
        "segment".to_owned(),
        format!(
            "{} per group, {} per rank, {} of whole huge pages",
            ByteSize(report.group_segment_bytes),
            ByteSize(report.rank_segment_bytes),
            ByteSize(report.rank_mounted_bytes)
        ),
    ]);
    rows.add_row(["arena".to_owned(), report.arena.clone()]);
    text.push_str(&format!("{}\n\n{}\n\n", rows.trim_fmt(), ranks(&report.ranks).trim_fmt()));
    text.push_str(&host(report));
    if !report.nodes.is_empty() {
        text.push_str(&format!("{}\n\n", nodes(report).trim_fmt()));
    }
    if !report.tiers.is_empty() {
        text.push_str(&format!("{}\n\n", tiers(report).trim_fmt()));
    }
    text.push_str(&beside(report));
    text.push_str("To paste:\n");
    for line in &report.commands {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

fn headline(report: &Report) -> &'static str {
    match report.verdict {
        Verdict::Fits => "It fits.",
        Verdict::HugepagesShort => "It does not fit as it is: huge pages are missing.",
        Verdict::MemoryShort => "It does not fit: SGLang will refuse to start.",
        Verdict::NotCertain => "It may not fit: that depends on the model.",
        Verdict::Unknown => "Planned; whether it fits is not known.",
    }
}

fn host(report: &Report) -> String {
    let page = report.hugepage_bytes;
    let count = |n: u64| n.to_string();
    let bytes = |n: u64| ByteSize(n.saturating_mul(page)).to_string();
    let mut rows = plain();
    let most = report.host_hugepages;
    let who = match report.ranks_on_host {
        1 => "1 rank takes".to_owned(),
        n => format!("{n} ranks take"),
    };
    rows.add_row(["host".to_owned(), format!("{who} {} huge pages ({})", range(most, count), range(most, bytes))]);
    if report.service_hugepages > 0 {
        let services = format!("{} huge pages of these", report.service_hugepages);
        rows.add_row(["store services".to_owned(), services]);
    }
    if report.host_other_hugepages > 0 {
        let other = format!("{} huge pages of the system's default size, for the arenas", report.host_other_hugepages);
        rows.add_row(["beside".to_owned(), other]);
    }
    let available = report.available_hugepages;
    rows.add_row([
        "can be had".to_owned(),
        available.map_or("not known".to_owned(), |n| format!("{n} huge pages ({})", bytes(n))),
    ]);
    let guard = &report.guard;
    rows.add_row([
        "ordinary memory".to_owned(),
        format!(
            "{} must be available beside the huge pages (SGLang's guard: L2 x {} and 10 GiB); {}",
            both(guard.needed_bytes),
            guard.ranks,
            guard
                .available_bytes
                .map_or("what there will be is not known".to_owned(), |n| format!("{} will be", both(n)))
        ),
    ]);
    let memlock = report.ranks.iter().map(|rank| rank.memlock_bytes.most).max().unwrap_or(0);
    rows.add_row([
        "with RDMA".to_owned(),
        format!("memlock of {} per process, or unlimited (ulimit -l)", both(memlock)),
    ]);
    format!("{}\n\n", rows.trim_fmt())
}

fn ranks(ranks: &[RankRow]) -> Table {
    let mut table = plain();
    let mut right =
        vec!["stage", "B/token", "index B/token", "tokens", "pages", "L2", "L2 pages", "client pages", "MRs per NIC"];
    table.set_header(right.clone());
    let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
    for rank in ranks {
        table.add_row([
            rank.stage.to_string(),
            number(rank.token_bytes),
            number(rank.index_token_bytes),
            number(rank.l2_tokens),
            number(rank.l2_pages),
            range(rank.l2_bytes, both),
            range(rank.l2_hugepages, |n| n.to_string()),
            rank.client_hugepages.to_string(),
            rank.memory_regions_per_nic.to_string(),
        ]);
    }
    align(&mut table, right.drain(..).len());
    table
}

fn nodes(report: &Report) -> Table {
    let mut table = plain();
    table.set_header(["NUMA node", "pages wanted", "in its pool", "free", "set to"]);
    for node in &report.nodes {
        let cells = [u64::from(node.node), node.needed, node.total, node.free, node.target];
        table.add_row(cells.map(|n| n.to_string()));
    }
    align(&mut table, 5);
    table
}

fn tiers(report: &Report) -> Table {
    let mut table = plain();
    table.set_header(["tier", "memory", "tokens", "pages", "keys", "conversations"]);
    for tier in &report.tiers {
        let keys = if tier.keys == 0 { String::new() } else { tier.keys.to_string() };
        table.add_row([
            tier.tier.to_owned(),
            both(tier.bytes),
            tier.tokens.to_string(),
            tier.pages.to_string(),
            keys,
            tier.conversations.to_string(),
        ]);
    }
    align(&mut table, 6);
    table
}

/// What others say of the same.
fn beside(report: &Report) -> String {
    let mut text = String::new();
    if let Some(upstream) = &report.upstream {
        text.push_str(&format!(
            "Upstream's script says {} for L2 and segments, {} with arenas; on the fullest host the code takes {}:\n",
            ByteSize(upstream.baseline_bytes),
            ByteSize(upstream.clean_bytes),
            ByteSize(upstream.counted_bytes)
        ));
        for why in &upstream.why {
            text.push_str(&format!("  {why}\n"));
        }
        text.push('\n');
    }
    if let Some(kep) = &report.kep74 {
        text.push_str(&format!(
            "KEP-74 shows {} GiB for {} keys of this configuration; so many keys take {:.2} GiB. The other {} % no source explains.\n\n",
            kep.shown_gib,
            kep.keys,
            kep.bytes as f64 / (1u64 << 30) as f64,
            kep.unexplained_percent
        ));
    }
    text
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn align(table: &mut Table, columns: usize) {
    for column in 1..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
