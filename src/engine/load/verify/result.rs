//! The result of a run: what differs in each tier, and the noise.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::ladder::middle;
use crate::verify::run::{PromptOutcome, PromptRecord};
use crate::verify::verdict::is_shifted;
use crate::verify::{
    AnswerVerdict, CachedByTier, Divergence, NOISE_FACTOR, PairedRatio, SampleSize, TokenName, VerifyPass, VerifyPlan,
};

/// Differences between prompts of one pass and their references.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Differences {
    /// Number of compared prompts.
    pub prompts: u32,
    /// Number of prompts that are equal in every bit.
    pub identical: u32,
    /// Number of prompts with a different generated token.
    pub tokens_differ: u32,
    /// Median and maximum of the prompts' mean divergence, in nats per token. Absent without
    /// prompts, and if infinite.
    pub kl_median: Option<f64>,
    pub kl_max: Option<f64>,
    /// Number of prompts with an infinite divergence: a log-probability that is not a number, a
    /// generated token that the reference does not list, or an answer that is shorter.
    pub infinite: u32,
    /// The prompts' mean divergence, in ascending order.
    #[serde(skip)]
    pub sorted: Vec<f64>,
}

impl Differences {
    fn of<'a>(divergences: impl Iterator<Item = &'a Divergence>) -> Differences {
        let mut found = Differences::default();
        for divergence in divergences {
            found.prompts += 1;
            found.identical += u32::from(divergence.identical);
            found.tokens_differ += u32::from(divergence.first_token.is_some());
            found.infinite += u32::from(divergence.max().is_infinite());
            found.sorted.push(divergence.mean());
        }
        found.sorted.sort_by(f64::total_cmp);
        found.kl_median = middle(&found.sorted).filter(|kl| kl.is_finite());
        found.kl_max = found.sorted.last().copied().filter(|kl| kl.is_finite());
        found
    }

    /// The largest mean divergence, even if it is infinite.
    fn largest(&self) -> f64 {
        self.sorted.last().copied().unwrap_or(0.0)
    }
}

/// The noise of answers that were computed the same way.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Noise {
    /// Computed twice.
    pub cold: Differences,
    /// Computed alone, and in another batch.
    pub cold_paired: Differences,
    /// Served from L1 twice.
    pub device: Differences,
    /// Decode rate of computing twice.
    pub decode: Option<PairedRatio>,
}

impl Noise {
    /// The divergence above which a prompt differs from this reference. `None` if no pair was
    /// measured, or if it is infinite.
    fn limit(&self, reference: VerifyPass) -> Option<f64> {
        let parts = match reference {
            VerifyPass::Device => vec![&self.device],
            _ => vec![&self.cold, &self.cold_paired],
        };
        let pairs: u32 = parts.iter().map(|part| part.prompts).sum();
        let largest = parts.iter().map(|part| part.largest()).fold(0.0, f64::max);
        (pairs > 0 && largest.is_finite()).then_some(largest * NOISE_FACTOR)
    }
}

/// The first prompt that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstDifference {
    /// Index of the prompt, from 0.
    pub prompt: u32,
    /// The first token after the cached ones whose divergence is above the limit, from 0.
    pub position: Option<u32>,
    /// Its mean divergence, in nats per token. Absent if infinite.
    pub kl: Option<f64>,
    /// Index of the first generated token that differs, from 0.
    pub token_index: Option<u32>,
    pub expected_token: Option<TokenName>,
    pub found_token: Option<TokenName>,
}

/// A tier's verdict and the figures behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierResult {
    pub tier: VerifyPass,
    pub verdict: AnswerVerdict,
    /// Number of prompts planned, served from the tier, served from elsewhere, and failed.
    pub planned: u32,
    pub verified: u32,
    pub not_reached: u32,
    pub failed: u32,
    /// Number of prompts from the tier without a computed answer to compare with.
    pub no_reference: u32,
    /// The pass that most prompts were compared with.
    pub compared_with: Option<VerifyPass>,
    /// Number of prompts above the limit.
    pub differing: u32,
    /// Whether many prompts differ slightly: more than repeated passes do.
    pub shifted: bool,
    /// Divergence above which a prompt differs, in nats per token.
    pub limit: Option<f64>,
    pub first: Option<FirstDifference>,
    #[serde(flatten)]
    pub differences: Differences,
    /// The same, compared with computing. After a restart, only prompts whose reference is the
    /// computed answer: the computed answers of other prompts are not kept.
    pub from_computing: Differences,
    /// Largest share of wrong answers that is compatible, at 95 % confidence, with none found.
    pub wrong_share_max: Option<f64>,
    /// Where a prompt came from that was not served from the tier: the first one.
    pub first_not_reached: Option<NotReached>,
    /// Decode rate divided by that of computing.
    pub decode: Option<PairedRatio>,
    /// Accepted draft length divided by that of computing.
    pub accept_length: Option<PairedRatio>,
    /// Whether decoding is slower, or fewer drafted tokens are accepted.
    pub slower: bool,
}

/// A prompt that was not served from the tier of its pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NotReached {
    pub prompt: u32,
    pub expected_tokens: u32,
    pub cached_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<CachedByTier>,
}

/// A request without a usable answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedRequest {
    pub pass: VerifyPass,
    pub prompt: u32,
    pub error: String,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerifyResult {
    pub noise: Noise,
    pub tiers: Vec<TierResult>,
    /// Number of prompts that a cache served in a pass that computes, although no request shares
    /// their cache.
    pub cold_not_reached: u32,
    pub failed: Vec<FailedRequest>,
}

impl VerifyResult {
    pub(super) fn of(plan: &VerifyPlan, records: &[PromptRecord]) -> VerifyResult {
        let compared = |pass: VerifyPass| {
            let of_pass = records.iter().filter(move |record| record.pass == pass);
            of_pass.filter_map(|record| match &record.outcome {
                PromptOutcome::Reached { compared: Some((_, divergence)), .. } => Some(divergence),
                _ => None,
            })
        };
        let noise = Noise {
            cold: Differences::of(compared(VerifyPass::ColdAgain)),
            cold_paired: Differences::of(compared(VerifyPass::ColdPaired)),
            device: Differences::of(compared(VerifyPass::DeviceAgain)),
            decode: ratio(records, VerifyPass::ColdAgain, decode_rate),
        };
        let tiers = plan.tiers.iter().map(|tier| TierResult::of(plan, *tier, records, &noise)).collect();
        let is_not_reached =
            |record: &&PromptRecord| record.pass.is_cold() && matches!(record.outcome, PromptOutcome::NotReached(_));
        let failed = records.iter().filter_map(|record| match &record.outcome {
            PromptOutcome::Failed(error) => {
                Some(FailedRequest { pass: record.pass, prompt: record.prompt, error: error.clone() })
            }
            _ => None,
        });
        let cold_not_reached: BTreeSet<u32> =
            records.iter().filter(is_not_reached).map(|record| record.prompt).collect();
        VerifyResult { noise, tiers, cold_not_reached: cold_not_reached.len() as u32, failed: failed.collect() }
    }

    /// Whether every tier was verified, and none differs or is slower.
    pub fn is_clean(&self) -> bool {
        self.failed.is_empty() && self.tiers.iter().all(|tier| tier.verdict == AnswerVerdict::Same && !tier.slower)
    }
}

/// A prompt of a tier that was compared.
struct ComparedPrompt<'a> {
    prompt: u32,
    reference: VerifyPass,
    divergence: &'a Divergence,
}

impl TierResult {
    fn of(plan: &VerifyPlan, tier: VerifyPass, records: &[PromptRecord], noise: &Noise) -> TierResult {
        let (mut failed, mut no_reference) = (0, 0);
        let (mut not_reached, mut compared, mut from_cold) = (Vec::new(), Vec::new(), Vec::new());
        for PromptRecord { prompt, outcome, .. } in records.iter().filter(|record| record.pass == tier) {
            match outcome {
                PromptOutcome::Failed(_) => failed += 1,
                PromptOutcome::NotReached(cached) => not_reached.push(NotReached {
                    prompt: *prompt,
                    expected_tokens: plan.cached_tokens(*prompt),
                    cached_tokens: cached.tokens,
                    cached: cached.by_tier,
                }),
                PromptOutcome::Reached { compared: None, .. } => no_reference += 1,
                PromptOutcome::Reached { compared: Some((reference, divergence)), from_cold: cold, .. } => {
                    compared.push(ComparedPrompt { prompt: *prompt, reference: *reference, divergence });
                    from_cold.extend(cold);
                }
            }
        }
        let limit_of = |one: &ComparedPrompt<'_>| noise.limit(one.reference);
        let differs = |one: &&ComparedPrompt<'_>| limit_of(one).is_some_and(|limit| one.divergence.mean() > limit);
        let differing = compared.iter().filter(differs).count() as u32;
        let first = compared.iter().find(differs);
        let first = first.map(|one| FirstDifference::of(one, limit_of(one).unwrap_or(0.0)));
        let with_device = compared.iter().filter(|one| one.reference == VerifyPass::Device).count();
        let is_mostly_device = with_device * 2 > compared.len();
        let mostly = if is_mostly_device { VerifyPass::Device } else { VerifyPass::Cold };
        let compared_with = compared.first().map(|_| mostly);
        let shifted = tier != VerifyPass::Device && is_shifted(shifts(records, tier).into_iter());
        let judged = compared.iter().filter(|one| limit_of(one).is_some()).count() as u32;
        let verdict = AnswerVerdict::of(differing, shifted, plan.prompts, judged);
        let decode = ratio(records, tier, decode_rate);
        let accept_length = ratio(records, tier, accept_length);
        let is_noisy = noise.decode.is_some_and(|noise| noise.is_slower());
        let slower = decode.is_some_and(|decode| decode.is_slower() && !is_noisy)
            || accept_length.is_some_and(|accepted| accepted.is_slower());
        TierResult {
            tier,
            verdict,
            planned: plan.prompts,
            verified: compared.len() as u32,
            not_reached: not_reached.len() as u32,
            failed,
            no_reference,
            compared_with,
            differing,
            shifted,
            limit: compared_with.and_then(|reference| noise.limit(reference)),
            first,
            differences: Differences::of(compared.iter().map(|one| one.divergence)),
            from_computing: Differences::of(from_cold.into_iter()),
            wrong_share_max: (verdict == AnswerVerdict::Same).then(|| SampleSize::share_max(judged)),
            first_not_reached: not_reached.first().copied(),
            decode,
            accept_length,
            slower,
        }
    }
}

impl FirstDifference {
    fn of(one: &ComparedPrompt<'_>, limit: f64) -> FirstDifference {
        let divergence = one.divergence;
        let (expected_token, found_token) = divergence.tokens.clone().unzip();
        FirstDifference {
            prompt: one.prompt,
            position: divergence.first_above(limit),
            kl: Some(divergence.mean()).filter(|kl| kl.is_finite()),
            token_index: divergence.first_token,
            expected_token,
            found_token,
        }
    }
}

/// The mean divergence of a prompt in `tier` and in the repeated pass, both from L1.
fn shifts(records: &[PromptRecord], tier: VerifyPass) -> Vec<(f64, f64)> {
    let from_device = |pass: VerifyPass| {
        records.iter().filter(move |record| record.pass == pass).filter_map(|record| match &record.outcome {
            PromptOutcome::Reached { compared: Some((VerifyPass::Device, divergence)), .. } => {
                Some((record.prompt, divergence.mean()))
            }
            _ => None,
        })
    };
    let repeated: BTreeMap<u32, f64> = from_device(VerifyPass::DeviceAgain).collect();
    from_device(tier).filter_map(|(prompt, kl)| Some((kl, *repeated.get(&prompt)?))).collect()
}

fn decode_rate(outcome: &PromptOutcome) -> Option<f64> {
    match outcome {
        PromptOutcome::Reached { decode_rate, .. } => *decode_rate,
        _ => None,
    }
}

fn accept_length(outcome: &PromptOutcome) -> Option<f64> {
    match outcome {
        PromptOutcome::Reached { accept_length, .. } => *accept_length,
        _ => None,
    }
}

/// The ratio of a figure in `pass` to that of the same prompt computed.
fn ratio(records: &[PromptRecord], pass: VerifyPass, figure: fn(&PromptOutcome) -> Option<f64>) -> Option<PairedRatio> {
    let of = |pass: VerifyPass| {
        records
            .iter()
            .filter(move |record| record.pass == pass)
            .filter_map(move |record| Some((record.prompt, figure(&record.outcome)?)))
    };
    let computed: BTreeMap<u32, f64> = of(VerifyPass::Cold).collect();
    PairedRatio::of(of(pass).filter_map(|(prompt, value)| Some((value, *computed.get(&prompt)?))))
}
