//! The hit rate for any cache size on recorded requests, with the sizes that are worth a look.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::progress_bar::{WorkProgress, WorkUnit};
use crate::commands::cli::{output, whole_file};
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::trace::choice::{self, Choice, KnownTiers};
use crate::commands::size_hugepages::trace::document::{
    BestSize, CurveDocument, CurvePoint, PriceDocument, RequestedRate, WorthRow,
};
use crate::commands::size_hugepages::trace::price::{self, MemoryPrice};
use crate::commands::size_hugepages::trace::scale::TokenScale;
use crate::commands::size_hugepages::trace::{deployment, file, html, picture, text};
use crate::engine::plan::worth::PriceCase;
use crate::engine::trace::Trace;
use crate::engine::trace::reuse::{self, TierCurves, TierSizes, WritePolicy};

/// Maximum number of points; each is about 1.5 times the previous point.
const POINTS_MAX: usize = 64;
/// Prices from a shorter trace have a caveat.
const TRACE_HOURS_MIN: f64 = 1.0;

/// Everything that a point is computed from.
pub(super) struct CurveInputs {
    pub scale: TokenScale,
    pub curves: TierCurves,
    pub tiers: Option<KnownTiers>,
    pub prices: Vec<MemoryPrice>,
}

/// Computes and prints the curve.
///
/// # Errors
/// The trace or the model cannot be read, an argument is invalid, or an output cannot be written.
pub(super) fn run(args: &Args, path: &str) -> Outcome {
    check(args)?;
    deployment::check_file(args)?;
    // A wrong argument is reported before a long trace is read.
    let scale = TokenScale::new(args)?;
    let tiers = choice::known_tiers(args)?;
    let trace = file::read(path, &args.trace)?;
    if trace.sample_shift > 0 && args.trace.hicache_write_policy == WritePolicy::WriteThroughSelective {
        return Err(Failure::usage("write_through_selective cannot be computed from a sample")
            .found(format!("{} block IDs, more than --sample-blocks", trace.block_ids))
            .next("raise --sample-blocks, or use another --hicache-write-policy"));
    }
    let hours = trace.duration().map(|seconds| seconds / 3600.0);
    let prices = price::prices(args, hours)?;
    let curves = curves(args, &trace, tiers.map(|tiers| tiers.l1))?;
    let inputs = CurveInputs { scale, curves, tiers, prices };
    let document = document(args, path, &trace, hours, &inputs)?;
    for caveat in &document.caveats {
        output::say(format!("caveat: {caveat}"));
    }
    if let Some(file) = &args.trace.svg {
        write(file, &picture::image(&document))?;
    }
    if let Some(file) = &args.trace.html {
        write(file, &html::page(&document))?;
    }
    if args.json {
        output::json(&document)?;
    } else {
        output::data(text::render(&document))?;
    }
    if args.trace.out.is_some() && document.chosen.is_none() {
        output::say(deployment::nothing_to_write(!inputs.prices.is_empty()));
        return Ok(Exit::No);
    }
    Ok(if document.wanted.iter().all(|wanted| wanted.reached.is_some()) { Exit::Done } else { Exit::No })
}

/// Refuses flags that would have no effect or a wrong one.
///
/// # Errors
/// A flag excludes the curve, or the memory of a token is not constant.
fn check(args: &Args) -> Result<(), Failure> {
    if args.global_segment_size.is_some() {
        return Err(Failure::usage("--global-segment-size does not apply to --trace, which computes the segments")
            .next("omit it, or use --hit-rate to choose a size"));
    }
    let needs_bytes = args.trace.out.is_some() || args.trace.gpu_hour.is_some();
    if needs_bytes && args.model.is_some() && TokenScale::new(args)?.segment_bytes(1).is_none() {
        return Err(Failure::usage("--out and prices require a model whose tokens all need the same memory")
            .found("a part of this model's cache does not grow with the number of tokens")
            .next("omit --out and the prices, and see the curve in tokens"));
    }
    let files = [args.trace.trace.as_deref().map(Path::new), args.trace.svg.as_deref(), args.trace.html.as_deref()];
    let files: Vec<&Path> = files.into_iter().flatten().collect();
    if let Some(twice) = files.iter().enumerate().find_map(|(at, file)| files[..at].contains(file).then_some(file)) {
        return Err(Failure::usage("two of --trace, --svg and --html are the same file")
            .found(twice.display().to_string())
            .next("use a file of its own for each"));
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    whole_file::write(file, text.as_bytes(), whole_file::IfExists::Replace).map_err(|error| {
        Failure::host("cannot write the curve").tried(file.display().to_string()).found(error.to_string())
    })
}

/// A smaller sample is refused.
const SAMPLED_BLOCKS_MIN: usize = 100;

fn curves(args: &Args, trace: &Trace, l1: Option<u64>) -> Result<TierCurves, Failure> {
    let done = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&done);
    let unit = WorkUnit::Items("requests", Some(trace.requests.len() as u64));
    let _progress = WorkProgress::start("replaying the trace", unit, move || counter.load(Ordering::Relaxed));
    let policy = l1.map(|l1| (args.trace.hicache_write_policy, l1));
    let reuse = reuse::distances(trace, policy, |requests| done.store(requests, Ordering::Relaxed));
    if let Some(blocks) = reuse.sampled_blocks().filter(|blocks| *blocks < SAMPLED_BLOCKS_MIN) {
        return Err(Failure::usage("the sample of the trace is too small")
            .found(format!("{blocks} different blocks, of which at least {SAMPLED_BLOCKS_MIN} are needed"))
            .next("raise --sample-blocks"));
    }
    Ok(reuse.tier_curves())
}

impl CurveInputs {
    fn rate(&self, hits: u64) -> f64 {
        self.curves.all.rate(hits)
    }

    /// The hit tokens of L1, L2 and an L3 of `l3` tokens.
    pub(super) fn hits_with_l3(&self, l3: u64) -> u64 {
        match self.tiers {
            Some(KnownTiers { l1, l2 }) => self.curves.hits(TierSizes { l1, l2, l3 }).total(),
            None => self.curves.all.hits(l3),
        }
    }

    /// The point for a size in tokens. `before` is the size of the point before, with its row.
    pub(super) fn point(&self, tokens: u64, before: Option<(u64, &CurvePoint)>) -> CurvePoint {
        let curve = &self.curves.all;
        let added = |l3: u64| self.hits_with_l3(l3).saturating_sub(self.hits_with_l3(0));
        let bytes = self.scale.segment_bytes(tokens);
        let size_before = before.map_or(0, |(tokens, _)| tokens);
        let gained = curve.hits(tokens).saturating_sub(curve.hits(size_before)) as f64;
        let per_token = gained / tokens.saturating_sub(size_before).max(1) as f64;
        let worth = |(at, price): (usize, &MemoryPrice)| {
            let before = before.and_then(|(_, point)| Some((point.worth.get(at)?, point.segment_bytes?)));
            Some(price::row(price, added(tokens), bytes?, before))
        };
        let l2_hits = self.tiers.map(|tiers| self.curves.hits(TierSizes { l1: tiers.l1, l2: tokens, l3: 0 }).total());
        CurvePoint {
            tokens,
            hit_rate: self.rate(curve.hits(tokens)),
            hit_rate_error: curve.error(tokens),
            hit_tokens_per_gib: self.scale.tokens_per_gib().map(|tokens| per_token * tokens),
            l2_hit_rate: l2_hits.map(|hits| self.rate(hits)),
            l3_hit_rate: self.tiers.map(|_| self.rate(self.hits_with_l3(tokens))),
            hicache_gb: self.scale.hicache_gb(tokens),
            segment_bytes: bytes,
            worth: self.prices.iter().enumerate().filter_map(worth).collect::<Vec<WorthRow>>(),
        }
    }

    /// The size of L3 in tokens that pays most.
    pub(super) fn best_size(&self, price: &MemoryPrice, case: PriceCase) -> Option<u64> {
        let free = self.hits_with_l3(0);
        let points = self.curves.all.points().iter();
        let points = points.map(|(size, _)| (*size, self.hits_with_l3(*size).saturating_sub(free)));
        price.prices.best_size(points, |tokens| self.scale.segment_bytes(tokens).unwrap_or(u64::MAX), case)
    }

    /// The sizes of the table: each about 1.5 times the one before, from the smallest with hits to
    /// the smallest that reaches the ceiling.
    fn sizes(&self) -> Vec<u64> {
        let curve = &self.curves.all;
        let last = curve.points().last().map(|(size, _)| *size);
        let smaller = |size: &u64| Some(size / 3 * 2 + size % 3 * 2 / 3).filter(|size| curve.hits(*size) > 0);
        let mut sizes: Vec<u64> = std::iter::successors(last, smaller).take(POINTS_MAX).collect();
        sizes.reverse();
        sizes
    }

    fn rows(&self) -> Vec<CurvePoint> {
        let mut rows: Vec<CurvePoint> = Vec::new();
        let mut before = None;
        for size in self.sizes() {
            let row = self.point(size, before.zip(rows.last()));
            before = Some(size);
            rows.push(row);
        }
        rows
    }

    fn price_document(&self) -> Option<PriceDocument> {
        let first = self.prices.first()?;
        let best = |price: &MemoryPrice| {
            let at = |case| self.best_size(price, case).map(|size| self.point(size, None));
            BestSize {
                memory: price.memory,
                low: at(PriceCase::Low),
                middle: at(PriceCase::Middle),
                high: at(PriceCase::High),
            }
        };
        Some(PriceDocument {
            gpus: first.prices.gpus,
            trace_hours: first.prices.trace_hours,
            free_hit_rate: self.rate(self.hits_with_l3(0)),
            best: self.prices.iter().map(best).collect(),
        })
    }
}

fn document(
    args: &Args,
    path: &str,
    trace: &Trace,
    hours: Option<f64>,
    inputs: &CurveInputs,
) -> Result<CurveDocument, Failure> {
    let curve = &inputs.curves.all;
    let size_of = |rate: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to a million, as verified by clap"
        )]
        let millionths = (rate * 1e6).round() as u64;
        curve.smallest(millionths)
    };
    let wanted = |rate: &f64| RequestedRate {
        hit_rate: *rate,
        reached: size_of(*rate).map(|tokens| inputs.point(tokens, None)),
    };
    let choice = Choice::new(args, inputs, size_of)?;
    let chosen = choice.map(|choice| deployment::chosen(args, inputs, choice)).transpose()?;
    let mut caveats = caveats(trace, hours, inputs);
    if chosen.as_ref().is_some_and(|chosen| chosen.tiers.as_ref().is_some_and(|tiers| tiers.l3_hit_rate == 0.0)) {
        caveats.push("L3 of the chosen size contains no hits beyond those of L1 and L2".to_owned());
    }
    Ok(CurveDocument {
        schema: "mcctl.hit-rate-curve/2",
        trace: path.to_owned(),
        format: trace.format.to_string(),
        requests: trace.requests.len() as u64,
        skipped_rows: trace.skipped,
        prompt_tokens: curve.asked,
        trace_hours: hours,
        blocks: trace.block_ids,
        distinct_tokens: curve.distinct,
        block_tokens: trace.block_tokens,
        sampled_share: 0.5f64.powi(i32::try_from(trace.sample_shift).unwrap_or(0)),
        best_hit_rate: curve.rate(curve.ceiling()),
        knee: curve.knee().map(|tokens| inputs.point(tokens, None)),
        curve: inputs.rows(),
        wanted: args.trace.hit_rate.iter().map(wanted).collect(),
        price: inputs.price_document(),
        chosen,
        caveats,
    })
}

fn caveats(trace: &Trace, hours: Option<f64>, inputs: &CurveInputs) -> Vec<String> {
    let mut caveats: Vec<String> = trace.caveats.iter().map(file::caveat).collect();
    if inputs.curves.all.ceiling() == 0 {
        caveats.push("no prompt repeats the start of an earlier one, so no cache of any size has a hit".to_owned());
    }
    if !inputs.prices.is_empty() {
        if inputs.tiers.is_none() {
            caveats.push(
                "the saved price includes hits that L1 would serve without an L3; set --device-pool-tokens to exclude \
                 them"
                    .to_owned(),
            );
        }
        if let Some(hours) = hours.filter(|hours| *hours < TRACE_HOURS_MIN) {
            caveats.push(format!(
                "the trace covers {:.1} minutes, and the amounts per month assume that all other hours are like these",
                hours * 60.0
            ));
        }
    }
    caveats
}
