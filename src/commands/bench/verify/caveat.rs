//! Caveats of `bench verify`.

use crate::engine::load::verify::{NOISE_FACTOR, VerifyPass, VerifyResult};

/// Limit of a difference, in nats per token, above which real faults may be hidden.
const NOISE_NOTABLE: f64 = 1e-3;

/// Why the verdicts cover less than they could.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VerifyCaveat {
    #[error("the run ended early: {error}")]
    Stopped { error: String },
    #[error("the server does not report tiers: hits right after a prompt count as L1, and hits after a flush as L3")]
    NoTiers,
    #[error(
        "the completions API cannot force a continuation: only generated tokens are compared, up to the first difference"
    )]
    GeneratedOnly,
    #[error(
        "{prompts} prompts that should be computed came from a cache: the server does not support extra_key or cache_salt, so noise is not known"
    )]
    NotComputed { prompts: u32 },
    #[error("the server reports no token rate, so decoding was not compared: --enable-metrics of SGLang reports it")]
    NoSpeed,
    #[error(
        "{prompts} repeated answers have an infinite divergence (log-probabilities that are not numbers, or other tokens): noise is not known"
    )]
    InfiniteNoise { prompts: u32 },
    #[error("{requests} requests failed, the first one in the pass {}: {error}", .pass.name())]
    Failed { requests: u32, pass: VerifyPass, error: String },
    #[error(
        "repeated passes differ (up to {kl_max:.1e} nats per token): smaller faults are hidden by this noise. --enable-deterministic-inference of SGLang removes it"
    )]
    Noise { kl_max: f64 },
}

impl VerifyCaveat {
    /// Identifier, which does not depend on the message.
    pub const fn id(&self) -> &'static str {
        match self {
            VerifyCaveat::Stopped { .. } => "verify-stopped",
            VerifyCaveat::NoTiers => "verify-no-tiers",
            VerifyCaveat::GeneratedOnly => "verify-generated-only",
            VerifyCaveat::NotComputed { .. } => "verify-not-computed",
            VerifyCaveat::Failed { .. } => "verify-failed-requests",
            VerifyCaveat::NoSpeed => "verify-no-speed",
            VerifyCaveat::InfiniteNoise { .. } => "verify-infinite-noise",
            VerifyCaveat::Noise { .. } => "verify-noise",
        }
    }

    /// Returns the caveats about a result.
    pub(super) fn of(result: &VerifyResult) -> Vec<VerifyCaveat> {
        let mut found = Vec::new();
        if result.cold_not_reached > 0 {
            found.push(VerifyCaveat::NotComputed { prompts: result.cold_not_reached });
        }
        if let Some(first) = result.failed.first() {
            let requests = result.failed.len() as u32;
            found.push(VerifyCaveat::Failed { requests, pass: first.pass, error: first.error.clone() });
        }
        let noise = &result.noise;
        let parts = [&noise.cold, &noise.cold_paired, &noise.device];
        let infinite: u32 = parts.iter().map(|part| part.infinite).sum();
        if infinite > 0 {
            found.push(VerifyCaveat::InfiniteNoise { prompts: infinite });
        }
        if !result.tiers.iter().any(|tier| tier.decode.is_some_and(|decode| decode.low.is_some())) {
            found.push(VerifyCaveat::NoSpeed);
        }
        let kl_max = parts.into_iter().filter_map(|part| part.kl_max).fold(0.0, f64::max);
        // Ten times that is the limit of a difference.
        if kl_max * NOISE_FACTOR > NOISE_NOTABLE {
            found.push(VerifyCaveat::Noise { kl_max });
        }
        found
    }
}
