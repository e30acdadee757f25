//! The report as text.

use crate::commands::cli::table::{self, ReportTable};
use crate::commands::size_hugepages::pools_table::{objects, pools, states};
use crate::commands::size_hugepages::report::{RangeRow, RankRow, RegularRow, SizingReport, SizingSummary};
use crate::commands::size_hugepages::summary::gib_up;
use crate::engine::base::ByteSize;
use crate::engine::base::text::escaped;
use crate::engine::plan::master_disk;

fn range(range: RangeRow, show: impl Fn(u64) -> String) -> String {
    if range.least == range.most { show(range.most) } else { format!("{} to {}", show(range.least), show(range.most)) }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

/// Renders the report: details, commands to paste, caveats, and the three-line summary.
pub(super) fn render(report: &SizingReport) -> String {
    let mut text = String::from("MiB and GiB are powers of 1024. SGLang's --hicache-size is in GB (10^9 bytes).\n\n");
    let ranks = ranks(&report.ranks, report.regular.is_none());
    for table in [
        deployment(report),
        ranks,
        pools(report),
        states(report),
        host(report),
        nodes(report),
        tiers(report),
        objects(report),
    ] {
        if !table.rows.is_empty() {
            text.push_str(&format!("{}\n", table.render(table::width())));
        }
    }
    text.push_str(&master(report));
    text.push_str(&beside(report));
    match report.pasteable {
        true => text.push_str("Commands:\n"),
        false => text.push_str(&format!(
            "Commands for a host with at least {} GiB of memory. They are comments because this host cannot run them.\n",
            gib_up(report.host_bytes_min)
        )),
    }
    for line in &report.commands {
        text.push_str(&format!("  {line}\n"));
    }
    text.push('\n');
    if !report.reasons.is_empty() {
        text.push_str("Caveats:\n");
        for reason in &report.reasons {
            text.push_str(&format!("  {reason}\n"));
        }
        text.push('\n');
    }
    if let Some(sizes) = largest(report) {
        text.push_str(&format!("largest    {sizes}\n"));
    }
    let SizingSummary { needs, available, next } = &report.summary;
    text.push_str(&format!("needs      {needs}\navailable  {available}\nnext       {next}\n"));
    text
}

/// The flags for the sizes that `--max-fit` has found.
fn largest(report: &SizingReport) -> Option<String> {
    let found = report.max_fit.as_ref()?;
    let setting = |flag: &str| {
        let size = report.sizes.iter().find(|size| size.flag == flag)?;
        Some(format!("{flag} {}", size.setting))
    };
    let l2 = setting("--hicache-size").filter(|_| found.searched != "segment");
    let segment = setting("--global-segment-size").filter(|_| found.searched != "l2");
    Some(l2.into_iter().chain(segment).collect::<Vec<_>>().join(" "))
}

fn deployment(report: &SizingReport) -> ReportTable {
    let mut rows = ReportTable::new("", &["deployment", "value"]).text_column(1);
    match (&report.model, &report.model_source) {
        (Some(model), Some(source)) => rows.row(["model".to_owned(), format!("{} (from {source})", escaped(model))]),
        _ => rows.row(["model", "not specified: bounds for all known models"]),
    };
    if let Some(bytes) = report.hicache_bytes {
        let setting = report.sizes.iter().find(|size| size.flag == "--hicache-size").map(|size| &size.setting);
        let setting = setting.map_or(String::new(), |setting| format!(" (--hicache-size {setting})"));
        rows.row(["L2 requested".to_owned(), format!("{} per rank{setting}", size(bytes))]);
    }
    if let Some(ratio) = report.selected_ratio {
        rows.row(["L2 ratio that SGLang selects".to_owned(), format!("{ratio:.3}")]);
    }
    let mounted = match report.regular {
        None => format!(", {} in whole huge pages", size(report.rank_mounted_bytes)),
        Some(_) => String::new(),
    };
    rows.row([
        "segment".to_owned(),
        format!(
            "{} per TP x PP group, {} per rank{mounted}",
            size(report.group_segment_bytes),
            size(report.rank_segment_bytes)
        ),
    ]);
    rows.row(["arena (MC_MMAP_ARENA_POOL_SIZE)".to_owned(), report.arena.clone()]);
    rows
}

/// What SGLang's check of the free memory counts for each rank: one pool at a time.
fn checked(report: &SizingReport) -> &'static str {
    if report.ranks.iter().any(|rank| rank.pools.len() > 1) { "largest L2 pool" } else { "L2" }
}

fn host(report: &SizingReport) -> ReportTable {
    let page = report.hugepage_bytes;
    let count = |n: u64| n.to_string();
    let bytes = |n: u64| size(n.saturating_mul(page));
    let mut rows = ReportTable::new("", &["host", "value"]).text_column(1);
    let most = report.host_hugepages;
    let ranks = match report.ranks_on_host {
        1 => "1 rank needs".to_owned(),
        n => format!("{n} ranks need"),
    };
    let memlock = report.ranks.iter().map(|rank| rank.memlock_bytes.most).max().unwrap_or(0);
    let memlock = format!("memlock limit of {} per process, or unlimited (ulimit -l)", size(memlock));
    if let Some(regular) = &report.regular {
        rows.row([
            "highest usage per host".to_owned(),
            format!("{ranks} {} of regular memory at startup", range(regular.needed_bytes, size)),
        ]);
        rows.row(["of this, L2".to_owned(), range(regular.l2_bytes, size)]);
        rows.row(["of this, segments and local buffers".to_owned(), size(regular.clients_bytes)]);
        if regular.services_bytes > 0 {
            rows.row(["of this, store services".to_owned(), size(regular.services_bytes)]);
        }
        rows.row(["of this, kept free by SGLang's check".to_owned(), size(kept_free(regular))]);
        let guard = &report.guard;
        rows.row([
            "SGLang's check alone".to_owned(),
            format!(
                "{} available at startup ({} x {} plus 10 GiB)",
                size(guard.needed_bytes),
                checked(report),
                guard.ranks
            ),
        ]);
        rows.row(["available".to_owned(), regular.available_bytes.map_or("unknown".to_owned(), size)]);
        if regular.nic_node_bytes > 0 {
            let bytes = size(regular.nic_node_bytes);
            rows.row(["on each NUMA node with NICs".to_owned(), format!("{bytes} of segments")]);
        }
        rows.row(["with RDMA".to_owned(), memlock]);
        return rows;
    }
    rows.row([
        "highest usage per host".to_owned(),
        format!("{ranks} {} huge pages ({})", range(most, count), range(most, bytes)),
    ]);
    if report.service_hugepages > 0 {
        rows.row(["of these, store services".to_owned(), format!("{} huge pages", report.service_hugepages)]);
    }
    if report.host_other_hugepages > 0 {
        let other = format!("{} huge pages of the system default size", report.host_other_hugepages);
        rows.row(["in addition, arenas".to_owned(), other]);
    }
    let available = report.available_hugepages;
    rows.row([
        "available".to_owned(),
        available.map_or("unknown".to_owned(), |n| format!("{n} huge pages ({})", bytes(n))),
    ]);
    let guard = &report.guard;
    let needed = format!(
        "{} available at startup (SGLang's check: {} x {} plus 10 GiB)",
        size(guard.needed_bytes),
        checked(report),
        guard.ranks
    );
    rows.row(["regular memory needed".to_owned(), needed]);
    rows.row([
        "regular memory left".to_owned(),
        guard
            .available_bytes
            .map_or("unknown".to_owned(), |n| format!("{} after the huge pages are reserved", size(n))),
    ]);
    rows.row(["with RDMA".to_owned(), memlock]);
    rows
}

/// The rest of the needed memory: 10 GiB, or more if the check requires the size of the largest
/// rank for every rank.
fn kept_free(regular: &RegularRow) -> u64 {
    let used = regular.l2_bytes.most.saturating_add(regular.clients_bytes).saturating_add(regular.services_bytes);
    regular.needed_bytes.most.saturating_sub(used)
}

/// One column per pipeline stage.
fn ranks(ranks: &[RankRow], uses_hugepages: bool) -> ReportTable {
    type Cell = Box<dyn Fn(&RankRow) -> String>;
    let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
    let rows: [(&str, Cell); 9] = [
        ("pipeline stage", Box::new(|rank| rank.stage.to_string())),
        ("bytes per token", Box::new(move |rank| number(rank.token_bytes))),
        ("index bytes per token (sparse attention)", Box::new(move |rank| number(rank.index_token_bytes))),
        ("L2 tokens", Box::new(move |rank| number(rank.l2_tokens))),
        ("L2 token pages", Box::new(move |rank| number(rank.l2_pages))),
        ("L2 memory", Box::new(|rank| range(rank.l2_bytes, size))),
        ("huge pages for L2", Box::new(|rank| range(rank.l2_hugepages, |n| n.to_string()))),
        ("huge pages for segment, local buffer, arena", Box::new(|rank| rank.client_hugepages.to_string())),
        ("RDMA memory regions per NIC", Box::new(|rank| rank.memory_regions_per_nic.to_string())),
    ];
    // Models without a pool of single tokens have none of the figures about tokens.
    let has_model = ranks.iter().any(|rank| !rank.pools.is_empty());
    let is_known = |cell: &Cell| !has_model || ranks.iter().any(|rank| cell(rank) != "?");
    let rows =
        rows.into_iter().filter(|(name, cell)| (uses_hugepages || !name.starts_with("huge pages")) && is_known(cell));
    let mut rows = rows.map(|(name, cell)| -> Vec<String> {
        std::iter::once(name.to_owned()).chain(ranks.iter().map(cell)).collect()
    });
    let head = rows.next().unwrap_or_default();
    let mut table = ReportTable::new("", &head.iter().map(String::as_str).collect::<Vec<_>>());
    rows.for_each(|row| table.row(row));
    table
}

fn nodes(report: &SizingReport) -> ReportTable {
    let mut table = ReportTable::new("", &["NUMA node", "pages needed", "pool size", "free", "set pool to"]);
    for node in &report.nodes {
        let cells = [u64::from(node.node), node.needed, node.total, node.free, node.target];
        table.row(cells.map(|n| n.to_string()));
    }
    table
}

fn tiers(report: &SizingReport) -> ReportTable {
    let mut table = ReportTable::new("", &["tier", "memory", "tokens", "pages", "keys", "conversations"]);
    for tier in &report.tiers {
        let keys = if tier.keys == 0 { String::new() } else { tier.keys.to_string() };
        table.row([
            tier.tier.to_owned(),
            size(tier.bytes),
            tier.tokens.to_string(),
            tier.pages.to_string(),
            keys,
            tier.conversations.to_string(),
        ]);
    }
    table
}

/// What the master needs for the keys in L3. It is not part of the calculation, because it usually
/// runs on another host.
fn master(report: &SizingReport) -> String {
    let keys = report.tiers.iter().map(|tier| tier.keys).max().unwrap_or(0);
    if keys == 0 {
        return String::new();
    }
    format!(
        "The master is not included. For the keys in L3, it needs about {} of memory, and {} of disk space with --data-dir.\n\n",
        size(master_disk::memory_bytes(keys)),
        size(master_disk::disk_bytes(keys))
    )
}

/// Comparisons with other sources.
fn beside(report: &SizingReport) -> String {
    let mut text = String::new();
    if let Some(upstream) = &report.upstream {
        text.push_str(&format!(
            "Upstream's script reports {} for L2 and segments, {} with arenas. mcctl computes {} for the host with the highest usage. Reasons for the difference:\n",
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
            "KEP-74 reports {} GiB for {} keys in this configuration. Their computed size is {:.2} GiB. The cause of the remaining {} % is unknown.\n\n",
            kep.shown_gib,
            kep.keys,
            kep.bytes as f64 / (1u64 << 30) as f64,
            kep.unexplained_percent
        ));
    }
    text
}
