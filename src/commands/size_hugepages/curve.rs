//! `--trace`: the hit rate of any L2 and L3 on recorded requests, and the smallest sizes that reach a wanted one.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::size_hugepages::{Args, curve_html, curve_svg, question, trace_file};
use crate::engine::base::ByteSize;
use crate::engine::base::text::escaped;
use crate::engine::plan::host_pool::Wish;
use crate::engine::plan::reuse::{Curve, Reuse};
use crate::engine::plan::tiers::{self, FILLED_PERCENT, StoredPage};

/// A point of the curve.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Tokens that the cache holds.
    pub tokens: u64,
    /// Of the blocks asked for, those that it has.
    pub hit_rate: f64,
    /// `--hicache-size` for it, decimal GB per rank, in a server of one group.
    pub hicache_gb: Option<u64>,
    /// Bytes of segments for it, all ranks of the store together, filled to 90 %.
    pub segment_bytes: Option<u64>,
}

/// A wanted hit rate.
#[derive(Clone, Debug, Serialize)]
pub struct Wanted {
    /// From 0 to 1.
    pub hit_rate: f64,
    /// The smallest cache; `null` where none is large enough.
    pub reached: Option<Point>,
}

/// The curve, and what it is of.
#[derive(Debug, Serialize)]
pub struct Document {
    /// The document's kind and version.
    pub schema: &'static str,
    pub trace: String,
    pub requests: u64,
    /// Blocks that they ask for.
    pub blocks: u64,
    /// Of those, different ones.
    pub distinct_blocks: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// The hit rate of a cache that holds all.
    pub best_hit_rate: f64,
    pub curve: Vec<Point>,
    /// For each rate on the command line, the smallest size.
    pub wanted: Vec<Wanted>,
}

/// What a token takes.
struct Scale {
    block_tokens: u64,
    /// Ranks that share the tokens of L2.
    dcp: u64,
    /// The largest token of a pipeline stage: it decides how many fit into `--hicache-size`.
    l2_token_bytes: Option<u64>,
    stored: Option<StoredPage>,
}

/// Points of the curve besides its end: each holds a half more than the one before.
const POINTS_MAX: usize = 64;

/// Answer.
///
/// # Errors
/// What the user has to know.
pub fn run(args: &Args, path: &str) -> Outcome {
    let scale = scale(args)?;
    let (curve, requests) = read(path)?;
    let mut sizes = Vec::new();
    let mut size = 1u64;
    while size < curve.distinct() && sizes.len() < POINTS_MAX {
        sizes.push(size);
        size += size.div_ceil(2);
    }
    sizes.extend((curve.distinct() > 0).then_some(curve.distinct()));
    let point = |blocks: u64| scale.point(&curve, blocks);
    let wanted = |rate: &f64| {
        let millionths = (rate * 1e6).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to a million, as clap saw to"
        )]
        Wanted { hit_rate: *rate, reached: curve.smallest(millionths as u64).map(point) }
    };
    let document = Document {
        schema: "mcctl.hit-rate-curve/1",
        trace: path.to_owned(),
        requests,
        blocks: curve.asked,
        distinct_blocks: curve.distinct(),
        block_tokens: scale.block_tokens,
        best_hit_rate: rate(&curve, curve.distinct()),
        curve: sizes.into_iter().map(point).collect(),
        wanted: args.hit_rate.iter().map(wanted).collect(),
    };
    if let Some(file) = &args.svg {
        write(file, &curve_svg::picture(&document.curve))?;
    }
    if let Some(file) = &args.html {
        write(file, &curve_html::page(&document))?;
    }
    if args.json {
        output::json(&document)?;
    } else {
        output::data(render(&document))?;
    }
    Ok(if document.wanted.iter().all(|wanted| wanted.reached.is_some()) { Exit::Done } else { Exit::No })
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        Failure::host("the picture cannot be written").tried(file.display().to_string()).found(error.to_string())
    })
}

fn rate(curve: &Curve, blocks: u64) -> f64 {
    curve.hits(blocks) as f64 / curve.asked.max(1) as f64
}

fn scale(args: &Args) -> Result<Scale, Failure> {
    // Only what a token takes is asked for; the size does not matter for that.
    let wanted = question::sized(args, Wish::Gb(1))?.wanted;
    let mut scale = Scale { block_tokens: args.trace_block_tokens, dcp: 1, l2_token_bytes: None, stored: None };
    if let Some(geometry) = wanted.geometry.filter(|geometry| geometry.window_layers == 0) {
        let pools = crate::engine::plan::host_pool::pools(wanted.wish, 1, &geometry, &wanted.layout, wanted.cache)?;
        scale.dcp = wanted.layout.dcp();
        scale.l2_token_bytes = pools.iter().map(|pool| pool.token_bytes).max();
        scale.stored = Some(tiers::stored_page(wanted.page_size, &geometry, &wanted.layout, wanted.cache)?);
    }
    Ok(scale)
}

impl Scale {
    fn point(&self, curve: &Curve, blocks: u64) -> Point {
        let tokens = blocks.saturating_mul(self.block_tokens);
        let bytes = |token_bytes: u64| u128::from(tokens) * u128::from(token_bytes);
        let narrow = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        Point {
            tokens,
            hit_rate: rate(curve, blocks),
            hicache_gb: self
                .l2_token_bytes
                .map(|own| narrow(bytes(own).div_ceil(1_000_000_000 * u128::from(self.dcp)))),
            segment_bytes: self
                .stored
                .map(|page| narrow((bytes(page.token_bytes) * 100).div_ceil(u128::from(FILLED_PERCENT)))),
        }
    }
}

fn read(path: &str) -> Result<(Curve, u64), Failure> {
    let (mut reuse, mut requests) = (Reuse::new(), 0u64);
    trace_file::each(path, |_, request| {
        requests += 1;
        if reuse.request(&request.blocks()) { Ok(()) } else { Err("too many different blocks".to_owned()) }
    })?;
    Ok((reuse.curve(), requests))
}

fn render(document: &Document) -> String {
    let mut text = format!(
        "{} requests of {}, {} blocks of {} tokens, {} of them different: at most {:.2} % can be hit.\n\n",
        document.requests,
        escaped(&document.trace),
        document.blocks,
        document.block_tokens,
        document.distinct_blocks,
        document.best_hit_rate * 100.0
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["tokens held", "hit rate", "L2: --hicache-size", "L3: segments"]);
    for point in &document.curve {
        table.add_row(cells(point));
    }
    for column in 0..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.push_str(&format!("{}\n", table.trim_fmt()));
    for wanted in &document.wanted {
        let rate = wanted.hit_rate * 100.0;
        match &wanted.reached {
            Some(point) => {
                let [tokens, reached, l2, l3] = cells(point);
                text.push_str(&format!("\n{rate:.1} %: {tokens} tokens suffice ({reached})"));
                if point.hicache_gb.is_some() {
                    text.push_str(&format!(": L2 of {l2} per rank, or segments of {l3} in all"));
                }
            }
            None => text.push_str(&format!("\n{rate:.1} %: no size reaches that")),
        }
    }
    if document.curve.iter().all(|point| point.hicache_gb.is_none()) {
        text.push_str("\nWith --model the sizes of L2 and L3 are shown, too.");
    }
    text + "\n"
}

/// A point as it is shown: tokens, hit rate, L2, L3.
pub fn cells(point: &Point) -> [String; 4] {
    [
        point.tokens.to_string(),
        format!("{:.2} %", point.hit_rate * 100.0),
        point.hicache_gb.map_or("?".to_owned(), |gb| format!("{gb} GB")),
        point.segment_bytes.map_or("?".to_owned(), |bytes| ByteSize(bytes).to_string()),
    ]
}
