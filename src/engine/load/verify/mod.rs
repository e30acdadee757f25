//! Checks whether the cache changes a server's answers: the same prompts are computed, and served
//! from L1, L2, L3, from L1 and L3 together, and from L3 after a restart of the store.
//!
//! A prompt ends with a *forced continuation*: its last tokens, whose log-probabilities the server
//! returns. They depend on all tokens before them, so one wrong page changes them. Then the server
//! generates a few tokens at temperature 0.
//!
//! Every answer is compared with one that was computed in the same number of tokens, if there is
//! one ([`VerifyPass::reference`]), because a server rounds differently if it computes 1,000 tokens
//! in one step or 56. The noise of a server is measured with passes that are repeated.
//!
//! `sample_size` plans the number of prompts, `requests` and `answer` encode and decode,
//! `divergence` compares two answers, `run` sends the prompts, and `verdict` evaluates a tier.

mod answer;
mod divergence;
mod endpoint;
mod openai;
mod plan;
mod prompt_file;
mod requests;
mod result;
mod run;
mod sample_size;
mod speed;
#[cfg(test)]
mod tests;
mod verdict;

use serde::Serialize;

pub use answer::{CachedByTier, UnusableAnswer, VerifyAnswer};
pub use divergence::{Divergence, NextToken, TokenName};
pub use endpoint::{VerifiedEndpoint, VerifyApi};
pub use plan::{PlanError, VerifyPlan};
pub use prompt_file::{PromptFileError, read_prompts};
pub use requests::VerifyRequest;
pub use result::{Differences, FailedRequest, FirstDifference, Noise, NotReached, TierResult, VerifyResult};
pub use run::{RestartError, VerifyObserver, VerifyRequestError, VerifyRun, VerifyServer, VerifyStepError};
pub use sample_size::SampleSize;
pub use speed::{PairedRatio, SLOWER_BELOW};
pub use verdict::{AnswerVerdict, NOISE_FACTOR, VERIFIED_MIN};

/// A state of the caches in which each prompt is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyPass {
    /// Computed: no cache holds the prompt.
    Cold,
    /// Computed again.
    ColdAgain,
    /// Computed again in another batch: with more tokens after it, and two prompts at the same
    /// time.
    ColdPaired,
    /// Sent so that the caches hold the prompt. Not compared.
    Fill,
    /// From L1.
    Device,
    /// From L1 again, to measure the noise of hits.
    DeviceAgain,
    /// From L2, after other requests evicted it from L1.
    Host,
    /// From L3, after a flush of L1 and L2.
    Storage,
    /// The first half from L1, and the rest from L3.
    Mixed,
    /// From L3, after the user's command ended.
    Restarted,
}

impl VerifyPass {
    /// The passes with a verdict.
    pub const TIERS: [VerifyPass; 5] =
        [VerifyPass::Device, VerifyPass::Host, VerifyPass::Storage, VerifyPass::Mixed, VerifyPass::Restarted];

    /// Whether no cache may serve the prompt.
    pub const fn is_cold(self) -> bool {
        matches!(self, VerifyPass::Cold | VerifyPass::ColdAgain | VerifyPass::ColdPaired)
    }

    /// Name in reports and JSON, such as `storage`.
    pub const fn name(self) -> &'static str {
        match self {
            VerifyPass::Cold => "cold",
            VerifyPass::ColdAgain => "cold-again",
            VerifyPass::ColdPaired => "cold-paired",
            VerifyPass::Fill => "fill",
            VerifyPass::Device => "device",
            VerifyPass::DeviceAgain => "device-again",
            VerifyPass::Host => "host",
            VerifyPass::Storage => "storage",
            VerifyPass::Mixed => "mixed",
            VerifyPass::Restarted => "restarted",
        }
    }

    /// Name in sentences, such as `L3 (storage)`.
    pub const fn label(self) -> &'static str {
        match self {
            VerifyPass::Cold => "computing",
            VerifyPass::ColdAgain => "computing again",
            VerifyPass::ColdPaired => "computing in another batch",
            VerifyPass::Fill => "filling the caches",
            VerifyPass::Device => "L1 (device)",
            VerifyPass::DeviceAgain => "L1 (device) again",
            VerifyPass::Host => "L2 (host)",
            VerifyPass::Storage => "L3 (storage)",
            VerifyPass::Mixed => "mixed L1 and L3",
            VerifyPass::Restarted => "L3 after the restart",
        }
    }

    /// The passes whose answers this one is compared with: the first one that was verified for a
    /// prompt. A hit in L2 or L3 leaves as many tokens to compute as a hit in L1.
    pub const fn reference(self) -> &'static [VerifyPass] {
        match self {
            VerifyPass::Cold | VerifyPass::Fill => &[],
            VerifyPass::ColdAgain | VerifyPass::ColdPaired | VerifyPass::Device => &[VerifyPass::Cold],
            VerifyPass::DeviceAgain => &[VerifyPass::Device],
            VerifyPass::Host | VerifyPass::Storage | VerifyPass::Mixed | VerifyPass::Restarted => {
                &[VerifyPass::Device, VerifyPass::Cold]
            }
        }
    }

    /// Whether an answer shows that its prompt came from this pass's tier. `cached`: the number of
    /// tokens from each tier, or from any cache if the server does not report tiers.
    ///
    /// A server that does not report tiers passes if half of the tokens came from any cache. The
    /// flush before a pass then decides which one that was.
    pub fn is_reached(self, cached: CachedPrompt, expected: ExpectedHit) -> bool {
        if self.is_cold() {
            return cached.tokens == 0;
        }
        let ExpectedHit { tokens, half, has_tiers } = expected;
        let Some(CachedByTier { device, host, storage }) = cached.by_tier else {
            return self == VerifyPass::Fill || (!has_tiers && cached.tokens > tokens / 2);
        };
        let is_all = u64::from(device) + u64::from(host) + u64::from(storage) == u64::from(tokens) && tokens > 0;
        match self {
            VerifyPass::Fill | VerifyPass::Cold | VerifyPass::ColdAgain | VerifyPass::ColdPaired => true,
            VerifyPass::Device | VerifyPass::DeviceAgain => is_all && device == tokens,
            VerifyPass::Host => is_all && host == tokens,
            VerifyPass::Storage | VerifyPass::Restarted => is_all && storage == tokens,
            VerifyPass::Mixed => is_all && device == half && storage > 0,
        }
    }
}

/// Where the tokens of a prompt came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPrompt {
    /// Number of tokens from any cache.
    pub tokens: u32,
    pub by_tier: Option<CachedByTier>,
}

/// What a cache can serve of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedHit {
    /// Number of tokens in whole pages before those that are always computed.
    pub tokens: u32,
    /// Number of tokens in the first half of these pages.
    pub half: u32,
    /// Whether the server reports tiers.
    pub has_tiers: bool,
}
