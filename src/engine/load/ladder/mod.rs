//! Tier ladder: measures TTFT for the same prompts when they are computed and when they are served
//! from L1, L2 or L3. It also finds the prompt length above which loading from L3 is faster than
//! computing the tokens.
//!
//! `prompts` and `rounds` plan what is sent, `figures` evaluates the requests, `verdict` compares a
//! tier with computing at one length, and `lines` finds where a tier becomes faster. `result` finds
//! what was not verified.
//!
//! A request counts toward a tier only if the server reports that the tokens came from that tier.

mod cell;
mod figures;
mod lines;
mod median;
mod not_verified;
mod prompts;
mod result;
mod rounds;
mod verdict;

use serde::Serialize;

pub use cell::{LadderCell, MedianTtft};
pub use figures::Ladder;
pub use lines::{BreakEven, LinearFit};
pub(crate) use median::{median_interval, middle};
pub use not_verified::TierNotVerified;
pub use prompts::{LENGTHS, LadderPrompts, PromptTooLong};
pub use result::{AbsentTier, LadderRefusal, LadderResult, server_info};
pub use rounds::{LadderEnd, LadderLimits, LadderRounds};
pub use verdict::{COMPARISON_LEVEL, EQUAL_SHARE, TierVerdict, TimeSaved, Undecided};

/// Source of a prompt's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LadderTier {
    /// Nothing is cached; all tokens are computed.
    Cold,
    /// L1, the device memory.
    Device,
    /// L2, the host memory.
    Host,
    /// L3, the Mooncake store.
    Storage,
}

impl LadderTier {
    /// All tiers, from no cache to L3.
    pub const ALL: [LadderTier; 4] = [LadderTier::Cold, LadderTier::Device, LadderTier::Host, LadderTier::Storage];

    /// Returns the name used for this tier's passes.
    pub const fn name(self) -> &'static str {
        match self {
            LadderTier::Cold => "cold",
            LadderTier::Device => "device",
            LadderTier::Host => "host",
            LadderTier::Storage => "storage",
        }
    }

    /// Returns the name used in sentences.
    pub const fn label(self) -> &'static str {
        match self {
            LadderTier::Cold => "computing",
            LadderTier::Device => "L1 (device)",
            LadderTier::Host => "L2 (host)",
            LadderTier::Storage => "L3 (storage)",
        }
    }
}
