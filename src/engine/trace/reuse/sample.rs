//! Hit rates from a sample of the blocks, with their error.
//!
//! A sample has one block in 2^`shift`, chosen by its prefix key. Each of its distances is counted
//! as 2^`shift` times as long (Waldspurger et al., "Efficient MRC construction with SHARDS", FAST
//! 2015). The misses are scaled, not the hits: a block that all prompts share is a miss only once,
//! so that it matters little whether it belongs to the sample.

use crate::reuse::BlockTokens;
use crate::reuse::curve::HitCurve;
use crate::reuse::histogram::DistanceHistogram;

/// Number of groups that the blocks of a sample are divided into, to estimate the error.
const GROUPS: usize = 16;
/// Half of a 95 % interval of a mean of [`GROUPS`] values, in standard errors (Student's t with 15
/// degrees of freedom).
const T95: f64 = 2.131;

/// A sixteenth of the blocks of a sample.
#[derive(Clone, Debug, Default)]
pub(super) struct SampleGroup {
    hits: DistanceHistogram,
    tokens: u64,
}

/// Empty groups; none if all blocks have been read.
pub(super) fn groups(shift: u32) -> Vec<SampleGroup> {
    vec![SampleGroup::default(); if shift == 0 { 0 } else { GROUPS }]
}

/// The group of a sampled block: four bits of its key that the choice of the sample does not use.
fn group(key: u64) -> usize {
    (key & (GROUPS as u64 - 1)) as usize
}

/// Counts the hits of sampled blocks, whose distances begin with `from` sampled tokens.
pub(super) fn hits(groups: &mut [SampleGroup], blocks: &BlockTokens<'_>, from: u64, shift: u32) {
    for (key, at, tokens) in blocks.each() {
        let distance = (from + at) << shift;
        if let Some(group) = groups.get_mut(group(key)) {
            group.hits.add(distance, distance + 1, i64::try_from(tokens).unwrap_or(i64::MAX));
        }
    }
}

/// Counts the sampled blocks of a prompt, hits or not.
pub(super) fn asked(groups: &mut [SampleGroup], blocks: &BlockTokens<'_>) {
    for (key, _, tokens) in blocks.each() {
        if let Some(group) = groups.get_mut(group(key)) {
            group.tokens = group.tokens.saturating_add(tokens);
        }
    }
}

/// Adds the hits of the sampled blocks to `curve`, which has those of all other blocks. Sizes below
/// that of one sampled block are left out, because the sample has no information about them.
/// `keyed_tokens` is the number of tokens in all blocks with keys, sampled or not, and
/// `block_tokens` that of a block.
pub(super) fn add(curve: &mut HitCurve, groups: &[SampleGroup], shift: u32, keyed_tokens: u64, block_tokens: u64) {
    let sums: Vec<HitCurve> = groups.iter().map(|group| HitCurve::new(group.hits.sums(), 0, 0)).collect();
    let mut sizes: Vec<u64> = sums.iter().chain([&*curve]).flat_map(HitCurve::points).map(|(size, _)| *size).collect();
    let sampled_block = block_tokens.saturating_mul(1 << shift);
    sizes.retain(|size| *size >= sampled_block);
    sizes.push(sampled_block);
    sizes.sort_unstable();
    sizes.dedup();
    let mut points: Vec<(u64, u64)> = Vec::with_capacity(sizes.len());
    let mut spreads = Vec::with_capacity(sizes.len());
    for size in sizes {
        let misses: Vec<u64> =
            sums.iter().zip(groups).map(|(sum, group)| group.tokens.saturating_sub(sum.hits(size))).collect();
        let all: u64 = misses.iter().sum();
        let hits = curve.hits(size) + keyed_tokens.saturating_sub(all << shift);
        let mean = all as f64 / GROUPS as f64;
        let variance = misses.iter().map(|misses| (*misses as f64 - mean).powi(2)).sum::<f64>() / (GROUPS - 1) as f64;
        spreads.push(T95 * (variance * GROUPS as f64).sqrt() * (1u64 << shift) as f64);
        // Sums of rounded distances may decrease by a few tokens.
        let before = points.last().map_or(0, |(_, hits)| *hits);
        points.push((size, hits.max(before)));
    }
    curve.set_points(points);
    let error = |(point, spread): (&(u64, u64), f64)| {
        let (size, hits) = *point;
        // The size itself is uncertain, because a distance is the sum of sampled blocks.
        let part = T95 * (sampled_block as f64 / size.max(1) as f64).sqrt().min(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 64 bits; not negative")]
        let moved = |by: f64| curve.hits((size as f64 * by).max(0.0) as u64).abs_diff(hits) as f64;
        let uncertain = moved(1.0 - part).max(moved(1.0 + part));
        spread.hypot(uncertain) / curve.asked.max(1) as f64
    };
    let errors = curve.points().iter().zip(spreads).map(error).collect();
    curve.set_errors(errors);
}
