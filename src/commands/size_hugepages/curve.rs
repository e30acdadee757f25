//! `--trace`: the hit rate for any L2 and L3 size on recorded requests, and the smallest sizes that
//! reach a requested rate.

use std::path::Path;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::table;
use crate::commands::size_hugepages::curve_document::{CurveDocument, CurvePoint, RequestedRate, cells, curve_table};
use crate::commands::size_hugepages::trace_file::LineError;
use crate::commands::size_hugepages::{Args, curve_html, curve_svg, request, trace_file};
use crate::engine::base::text::escaped;
use crate::engine::plan::host_pool::{self, L2Size};
use crate::engine::plan::reuse::{HitCurve, ReuseDistances};
use crate::engine::plan::tiers::{self, FILLED_PERCENT, StoredPage};

/// The size of a token in each tier.
struct TokenScale {
    block_tokens: u64,
    /// Number of ranks that share the L2 tokens.
    dcp: u64,
    /// The largest token size of any pipeline stage, which determines how many tokens fit into
    /// `--hicache-size`.
    l2_token_bytes: Option<u64>,
    stored: Option<StoredPage>,
}

/// Maximum number of points, excluding the last; each is 1.5 times the previous point.
const POINTS_MAX: usize = 64;

/// Computes and prints the curve.
///
/// # Errors
/// The trace or the model cannot be read, an argument is invalid, or an output cannot be written.
pub(super) fn run(args: &Args, path: &str) -> Outcome {
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
            reason = "from 0 to a million, as verified by clap"
        )]
        RequestedRate { hit_rate: *rate, reached: curve.smallest(millionths as u64).map(point) }
    };
    let document = CurveDocument {
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
        Failure::host("cannot write the curve").tried(file.display().to_string()).found(error.to_string())
    })
}

fn rate(curve: &HitCurve, blocks: u64) -> f64 {
    curve.hits(blocks) as f64 / curve.asked.max(1) as f64
}

fn scale(args: &Args) -> Result<TokenScale, Failure> {
    // Only the token size is needed, and it does not depend on the L2 size.
    let wanted = request::sized(args, L2Size::Gb(1))?.wanted;
    let mut scale = TokenScale { block_tokens: args.trace_block_tokens, dcp: 1, l2_token_bytes: None, stored: None };
    if let Some(geometry) = wanted.geometry.as_ref().filter(|geometry| geometry.check_per_token().is_ok()) {
        let ranks = host_pool::pools(&wanted, geometry)?;
        scale.dcp = wanted.layout.dcp();
        scale.l2_token_bytes = ranks.iter().filter_map(|rank| Some(rank.pools.first()?.unit_bytes)).max();
        scale.stored = tiers::stored_page(wanted.page_size, geometry, &wanted.layout, wanted.cache)?;
    }
    Ok(scale)
}

impl TokenScale {
    fn point(&self, curve: &HitCurve, blocks: u64) -> CurvePoint {
        let tokens = blocks.saturating_mul(self.block_tokens);
        let bytes = |token_bytes: u64| u128::from(tokens) * u128::from(token_bytes);
        let narrow = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        CurvePoint {
            tokens,
            hit_rate: rate(curve, blocks),
            hicache_gb: self
                .l2_token_bytes
                .map(|own| narrow(bytes(own).div_ceil(u128::from(host_pool::GB) * u128::from(self.dcp)))),
            segment_bytes: self
                .stored
                .map(|page| narrow((bytes(page.token_bytes) * 100).div_ceil(u128::from(FILLED_PERCENT)))),
        }
    }
}

fn read(path: &str) -> Result<(HitCurve, u64), Failure> {
    let mut reuse = ReuseDistances::new();
    let mut requests = 0u64;
    trace_file::each(path, |_, request| {
        requests += 1;
        if reuse.request(&request.blocks()) { Ok(()) } else { Err(LineError::TooManyBlocks) }
    })?;
    Ok((reuse.curve(), requests))
}

fn render(document: &CurveDocument) -> String {
    let mut text = format!(
        "{} requests from {}, {} blocks of {} tokens, {} distinct: maximum hit rate {:.2} %.\n\n",
        document.requests,
        escaped(&document.trace),
        document.blocks,
        document.block_tokens,
        document.distinct_blocks,
        document.best_hit_rate * 100.0
    );
    text.push_str(&curve_table(document).render(table::width()));
    for wanted in &document.wanted {
        let rate = wanted.hit_rate * 100.0;
        match &wanted.reached {
            Some(point) => {
                let [tokens, reached, l2, l3] = cells(point);
                text.push_str(&format!("\n{rate:.1} %: {tokens} tokens ({reached})"));
                if point.hicache_gb.is_some() {
                    text.push_str(&format!(": {l2} of L2 per rank, or {l3} of segments in total"));
                }
            }
            None => text.push_str(&format!("\n{rate:.1} %: not reachable with any size")),
        }
    }
    if document.curve.iter().all(|point| point.hicache_gb.is_none()) {
        text.push_str("\nSet --model to see the L2 and L3 sizes.");
    }
    text + "\n"
}
