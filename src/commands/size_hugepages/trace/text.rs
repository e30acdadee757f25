//! The curve as text.

use crate::commands::cli::output;
use crate::commands::cli::table::{self, ReportTable};
use crate::commands::size_hugepages::trace::document::{BestSize, ChosenNeeds, ChosenSize, CurveDocument, CurvePoint};
use crate::commands::size_hugepages::trace::price;
use crate::engine::base::ByteSize;
use crate::engine::base::text::escaped;

/// The curve as text.
pub(super) fn render(document: &CurveDocument) -> String {
    let mut text = format!(
        "{}\n\n{}",
        headline(document, &escaped(&document.trace)),
        curve_table(document).render(table::width())
    );
    if document.curve.iter().any(|point| point.hicache_gb.is_some()) {
        text.push_str(LEGEND);
    }
    for wanted in &document.wanted {
        let rate = wanted.hit_rate * 100.0;
        match &wanted.reached {
            Some(point) => text.push_str(&format!("\n{rate:.1} %: {}", size(point))),
            None => text.push_str(&format!("\n{rate:.1} %: not reachable with any size")),
        }
    }
    if let Some(price) = &document.price {
        for best in &price.best {
            text.push_str(&format!("\n{}", best_text(best)));
        }
    }
    // The knee is in the headline already.
    let is_new = |chosen: &&ChosenSize| chosen.by != "knee" || chosen.tiers.is_some() || chosen.needs.is_some();
    if let Some(chosen) = document.chosen.as_ref().filter(is_new) {
        text.push_str(&format!("\n\n{}", chosen_text(chosen)));
    }
    if !document.curve.is_empty() && document.curve.iter().all(|point| point.hicache_gb.is_none()) {
        text.push_str("\nL2 and L3 sizes are shown with --model, if the memory of its tokens is constant.");
    }
    text.trim_end().to_owned() + "\n"
}

/// The figures before the table. `trace` is the escaped name of the trace.
pub(super) fn headline(document: &CurveDocument, trace: &str) -> String {
    let hours = document.trace_hours.map_or(String::new(), |hours| format!(" in {hours:.2} hours"));
    let blocks = match document.blocks {
        0 => String::new(),
        _ => format!(", blocks of {} tokens", document.block_tokens),
    };
    let mut text = format!(
        "{} requests{hours} from {trace} ({}{blocks}): {} prompt tokens.\nCeiling: {:.2} % with an infinite cache.",
        document.requests,
        document.format,
        document.prompt_tokens,
        document.best_hit_rate * 100.0
    );
    if let Some(knee) = &document.knee {
        text.push_str(&format!("\nKnee: {}. Beyond it, memory brings fewer hits than on average.", size(knee)));
    }
    if document.sampled_share < 1.0 {
        text.push_str(&format!(
            "\nComputed from {} % of the {} block IDs; the error of the knee is {:.2} points (95 % interval).",
            document.sampled_share * 100.0,
            document.blocks,
            document.knee.as_ref().and_then(|knee| knee.hit_rate_error).unwrap_or_default() * 100.0
        ));
    }
    text
}

/// A size with its hit rate and, if the model is known, its bytes.
pub(super) fn size(point: &CurvePoint) -> String {
    let [tokens, reached, l2, l3] = cells(point);
    match point.hicache_gb {
        Some(_) => format!("{tokens} tokens ({reached}): {l2} of L2 per rank, or {l3} of segments in total"),
        None => format!("{tokens} tokens ({reached})"),
    }
}

/// Tokens, hit rate, L2 and L3 of a point.
pub(super) fn cells(point: &CurvePoint) -> [String; 4] {
    [
        point.tokens.to_string(),
        percent(point.hit_rate),
        point.hicache_gb.map_or("?".to_owned(), |gb| format!("{gb} GB")),
        point.segment_bytes.map_or("?".to_owned(), |bytes| ByteSize(bytes).to_string()),
    ]
}

fn percent(rate: f64) -> String {
    format!("{:.2} %", rate * 100.0)
}

/// What the columns of a table with a model are.
const LEGEND: &str = "L2: --hicache-size per rank; L3: segments in total; hits/GiB: hit tokens in the whole trace per GiB \
                      of L3, from the row before; net: saved price minus cost.\n";

/// Rows with a smaller share of the ceiling are left out of the table.
const SHOWN_FROM: f64 = 0.01;

/// The points with more than a few hits.
pub(super) fn shown(document: &CurveDocument) -> impl Iterator<Item = &CurvePoint> {
    document.curve.iter().filter(|point| point.hit_rate > SHOWN_FROM * document.best_hit_rate)
}

/// The table of all points, without those at the start that have few hits.
pub(super) fn curve_table(document: &CurveDocument) -> ReportTable {
    let mut head = vec!["tokens", "hit rate", "L2", "L3"];
    let rows = &document.curve;
    let has = |value: fn(&CurvePoint) -> bool| rows.iter().any(value);
    let (with_bytes, with_tiers) = (has(|row| row.hit_tokens_per_gib.is_some()), has(|row| row.l2_hit_rate.is_some()));
    if with_tiers {
        head.extend(["L1+L2", "L1+L2+L3"]);
    }
    if with_bytes {
        head.push("hits/GiB");
    }
    let with_price = has(|row| !row.worth.is_empty());
    if with_price {
        head.extend(["net/month", "net/GiB"]);
    }
    let mut table = ReportTable::new("", &head);
    for point in shown(document) {
        let mut row: Vec<String> = cells(point).into();
        if with_tiers {
            row.extend([point.l2_hit_rate, point.l3_hit_rate].map(|rate| percent(rate.unwrap_or_default())));
        }
        if with_bytes {
            row.push(point.hit_tokens_per_gib.map_or(String::new(), |tokens| format!("{tokens:.0}")));
        }
        if with_price {
            let worth = point.worth.first();
            row.push(worth.map_or(String::new(), |worth| price::range(worth.net)));
            row.push(worth.map_or(String::new(), |worth| price::range(worth.net_per_gib)));
        }
        table.row(row);
    }
    table
}

/// The best size at the middle of each range, and at both ends.
pub(super) fn best_text(best: &BestSize) -> String {
    let name = if best.memory == "dram" { "DRAM" } else { "SSD" };
    let Some(middle) = &best.middle else {
        let high = best.high.as_ref().map_or_else(
            || "not even at the best ends of the ranges".to_owned(),
            |point| format!("only at the best ends of the ranges, up to {}", bytes(point)),
        );
        return format!("{name}: no size of L3 pays at the middle of the prices; {high}");
    };
    let ends = [&best.low, &best.high].map(|end| end.as_ref().map_or("none".to_owned(), bytes));
    let range =
        if ends[0] == ends[1] { String::new() } else { format!(", {} to {} with the ranges", ends[0], ends[1]) };
    let worth = price::worth_text(middle, best.memory).unwrap_or_default();
    format!("{name}: L3 pays up to {}{range} ({} hits). It {worth}", bytes(middle), percent(middle.hit_rate))
}

fn bytes(point: &CurvePoint) -> String {
    point.segment_bytes.map_or("?".to_owned(), |bytes| ByteSize(bytes).to_string())
}

/// The chosen size, its tiers, and the summary of its memory.
fn chosen_text(chosen: &ChosenSize) -> String {
    let why = match chosen.by {
        "price" => "pays most",
        "hit-rate" => "the requested hit rate",
        _ => "the knee",
    };
    let mut text = output::labelled("chosen", &format!("{} ({why})", size(&chosen.point)));
    if let Some(tiers) = &chosen.tiers {
        text.push_str(&output::labelled(
            "by tier",
            &format!(
                "{} from L1, {} from L2, {} from L3 ({}); {} missed, {} new",
                percent(tiers.l1_hit_rate),
                percent(tiers.l2_hit_rate),
                percent(tiers.l3_hit_rate),
                tiers.write_policy,
                percent(tiers.missed_rate),
                percent(tiers.new_rate)
            ),
        ));
    }
    if let Some(segment) = chosen.group_segment_bytes {
        text.push_str(&output::labelled(
            "segment",
            &format!("--global-segment-size {}gb for each group", segment / ByteSize::GIB),
        ));
    }
    if let Some(ChosenNeeds { summary, .. }) = &chosen.needs {
        text.push_str(&output::labelled("needs", &summary.needs));
        text.push_str(&output::labelled("available", &summary.available));
        text.push_str(&output::labelled("next", &summary.next));
    }
    text
}
