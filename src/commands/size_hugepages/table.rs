//! The answer for people.

use comfy_table::{CellAlignment, Table, presets};

use crate::commands::size_hugepages::report::{Range, RankRow, Report};
use crate::commands::size_hugepages::summary::{Summary, gib_up};
use crate::engine::base::ByteSize;
use crate::engine::base::text::escaped;

fn range(range: Range, show: impl Fn(u64) -> String) -> String {
    if range.least == range.most { show(range.most) } else { format!("{} to {}", show(range.least), show(range.most)) }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// The report as text: the answer in three lines, the lines to paste, the details.
pub fn render(report: &Report) -> String {
    let Summary { needs, available, next } = &report.summary;
    let mut text = format!("needs      {needs}\navailable  {available}\nnext       {next}\n\n");
    match report.pasteable {
        true => text.push_str("To paste:\n"),
        false => text.push_str(&format!(
            "Not for this host: for a host with at least {} GiB of memory. Every line is a comment.\n",
            gib_up(report.host_bytes_min)
        )),
    }
    for line in &report.commands {
        text.push_str(&format!("  {line}\n"));
    }
    text.push_str("\nDetails\n");
    text.push_str("  MiB and GiB are powers of 1024. SGLang's --hicache-size counts GB of 10^9 bytes.\n");
    for reason in &report.reasons {
        text.push_str(&format!("  {reason}\n"));
    }
    text.push('\n');
    text.push_str(&format!("{}\n\n{}\n\n", deployment(report).trim_fmt(), ranks(&report.ranks).trim_fmt()));
    text.push_str(&format!("{}\n\n", host(report).trim_fmt()));
    if !report.nodes.is_empty() {
        text.push_str(&format!("{}\n\n", nodes(report).trim_fmt()));
    }
    if !report.tiers.is_empty() {
        text.push_str(&format!("{}\n\n", tiers(report).trim_fmt()));
    }
    text.push_str(&beside(report));
    text.trim_end().to_owned() + "\n"
}

fn deployment(report: &Report) -> Table {
    let mut rows = plain();
    match (&report.model, &report.model_source) {
        (Some(model), Some(source)) => {
            rows.add_row(["model".to_owned(), format!("{} (from {source})", escaped(model))])
        }
        _ => rows.add_row(["model", "not given: bounds over all known models"]),
    };
    if let Some(bytes) = report.hicache_bytes {
        let setting = report.sizes.iter().find(|size| size.flag == "--hicache-size").map(|size| &size.setting);
        let setting = setting.map_or(String::new(), |setting| format!(" (--hicache-size {setting})"));
        rows.add_row(["L2 asked for".to_owned(), format!("{} per rank{setting}", size(bytes))]);
    }
    rows.add_row([
        "segment".to_owned(),
        format!(
            "{} per TP x PP group, {} per rank, {} in whole huge pages",
            size(report.group_segment_bytes),
            size(report.rank_segment_bytes),
            size(report.rank_mounted_bytes)
        ),
    ]);
    rows.add_row(["arena (MC_MMAP_ARENA_POOL_SIZE)".to_owned(), report.arena.clone()]);
    rows
}

fn host(report: &Report) -> Table {
    let page = report.hugepage_bytes;
    let count = |n: u64| n.to_string();
    let bytes = |n: u64| size(n.saturating_mul(page));
    let mut rows = plain();
    let most = report.host_hugepages;
    let ranks = match report.ranks_on_host {
        1 => "1 rank needs".to_owned(),
        n => format!("{n} ranks need"),
    };
    rows.add_row([
        "fullest host".to_owned(),
        format!("{ranks} {} huge pages ({})", range(most, count), range(most, bytes)),
    ]);
    if report.service_hugepages > 0 {
        rows.add_row(["of these, store services".to_owned(), format!("{} huge pages", report.service_hugepages)]);
    }
    if report.host_other_hugepages > 0 {
        let other = format!("{} huge pages of the system's default size", report.host_other_hugepages);
        rows.add_row(["in addition, arenas".to_owned(), other]);
    }
    let available = report.available_hugepages;
    rows.add_row([
        "available".to_owned(),
        available.map_or("unknown".to_owned(), |n| format!("{n} huge pages ({})", bytes(n))),
    ]);
    let guard = &report.guard;
    let needed =
        format!("{} available at start (SGLang checks: L2 x {} and 10 GiB)", size(guard.needed_bytes), guard.ranks);
    rows.add_row(["ordinary memory needed".to_owned(), needed]);
    rows.add_row([
        "ordinary memory left".to_owned(),
        guard
            .available_bytes
            .map_or("unknown".to_owned(), |n| format!("{} after the huge pages are reserved", size(n))),
    ]);
    let memlock = report.ranks.iter().map(|rank| rank.memlock_bytes.most).max().unwrap_or(0);
    rows.add_row([
        "with RDMA".to_owned(),
        format!("memlock limit of {} per process, or unlimited (ulimit -l)", size(memlock)),
    ]);
    rows
}

/// A rank of each pipeline stage, a column each.
fn ranks(ranks: &[RankRow]) -> Table {
    type Cell = Box<dyn Fn(&RankRow) -> String>;
    let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
    let rows: [(&str, Cell); 9] = [
        ("each rank of pipeline stage", Box::new(|rank| rank.stage.to_string())),
        ("bytes per token", Box::new(move |rank| number(rank.token_bytes))),
        ("index bytes per token (sparse attention)", Box::new(move |rank| number(rank.index_token_bytes))),
        ("L2 tokens", Box::new(move |rank| number(rank.l2_tokens))),
        ("L2 pages of tokens", Box::new(move |rank| number(rank.l2_pages))),
        ("L2 memory", Box::new(|rank| range(rank.l2_bytes, size))),
        ("huge pages for L2", Box::new(|rank| range(rank.l2_hugepages, |n| n.to_string()))),
        ("huge pages for segment, local buffer, arena", Box::new(|rank| rank.client_hugepages.to_string())),
        ("RDMA memory regions per NIC", Box::new(|rank| rank.memory_regions_per_nic.to_string())),
    ];
    let mut table = plain();
    for (name, cell) in rows {
        table.add_row(std::iter::once(name.to_owned()).chain(ranks.iter().map(cell)));
    }
    align(&mut table, ranks.len() + 1);
    table
}

fn nodes(report: &Report) -> Table {
    let mut table = plain();
    table.set_header(["NUMA node", "pages needed", "in its pool", "free", "set pool to"]);
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
            size(tier.bytes),
            tier.tokens.to_string(),
            tier.pages.to_string(),
            keys,
            tier.conversations.to_string(),
        ]);
    }
    align(&mut table, 6);
    table
}

/// Figures of others for the same deployment.
fn beside(report: &Report) -> String {
    let mut text = String::new();
    if let Some(upstream) = &report.upstream {
        text.push_str(&format!(
            "Upstream's script reports {} for L2 and segments, {} with arenas. mcctl counts {} for the fullest host. The script differs:\n",
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
            "KEP-74 shows {} GiB for {} keys of this configuration. That number of keys needs {:.2} GiB. No source explains the remaining {} %.\n\n",
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
