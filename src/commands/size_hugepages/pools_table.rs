//! The tables for models with several pools, states, and objects in the store.

use crate::commands::cli::table::ReportTable;
use crate::commands::size_hugepages::report::SizingReport;
use crate::engine::base::ByteSize;

/// The L2 pools of each stage's rank; empty unless a rank has several.
pub(super) fn pools(report: &SizingReport) -> ReportTable {
    let head = ["pipeline stage", "L2 pool", "layers", "bytes per unit", "capacity", "memory"];
    let mut table = ReportTable::new("", &head).text_column(1).text_column(4);
    for rank in report.ranks.iter().filter(|rank| rank.pools.len() > 1) {
        let about = if rank.pools_are_estimates { "about " } else { "" };
        for pool in &rank.pools {
            let plural = if pool.units == 1 { "" } else { "s" };
            table.row([
                rank.stage.to_string(),
                pool.pool.to_owned(),
                pool.layers.to_string(),
                format!("{} per {}", pool.unit_bytes, pool.unit),
                format!("{about}{} {}{plural}", pool.units, pool.unit),
                format!("{about}{}", ByteSize(pool.bytes)),
            ]);
        }
    }
    table
}

/// The state slots of a rank; empty for models without states.
pub(super) fn states(report: &SizingReport) -> ReportTable {
    let mut table = ReportTable::new("", &["states (linear attention, Mamba, convolutions)", "value"]).text_column(1);
    let Some(states) = &report.states else { return table };
    let about = if report.ranks.iter().any(|rank| rank.pools_are_estimates) { "about " } else { "" };
    table.row(["bytes per slot and rank".to_owned(), states.slot_bytes.to_string()]);
    table.row(["slots in L2".to_owned(), format!("{about}{}", states.slots)]);
    table.row([
        "prefixes whose states fit".to_owned(),
        format!("{about}{}, with {} slots each", states.prefixes, states.slots_per_prefix),
    ]);
    if let Some(live) = states.live_prefixes {
        let size = match states.live_prefixes_gb {
            Some(gb) => format!("--hicache-size {gb} or more"),
            None => "no size is sufficient".to_owned(),
        };
        table.row([format!("L2 for {live} live prefixes"), size]);
    }
    table
}

/// The objects of the model in the store; empty without a model.
pub(super) fn objects(report: &SizingReport) -> ReportTable {
    let head = ["objects in L3", "stored for", "objects", "bytes each"];
    let mut table = ReportTable::new("", &head).text_column(1);
    for object in &report.objects {
        let stored_for = match object.stored_for {
            "page" => "each page",
            "window-page" => "each page in a window",
            _ => "each prefix",
        };
        let name = format!("{} ({})", object.suffix, object.pool);
        table.row([name, stored_for.to_owned(), object.objects.to_string(), object.bytes.to_string()]);
    }
    table
}
