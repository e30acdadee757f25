//! Hit tokens by tier, for each of SGLang's write policies.
//!
//! Which tokens a tier holds follows from their reuse distance. Source: SGLang 0.5.23,
//! `mem_cache/unified_radix_cache.py` and `mem_cache/unified_cache/unified_tree_core.py`.

use crate::reuse::HitCurve;

/// When SGLang copies a page from the device (L1) to the host (L2), and from there to storage (L3):
/// `--hicache-write-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// After its first use. L2 also holds what L1 holds.
    #[default]
    WriteThrough,
    /// After its second use. A page that leaves L1 before that is lost.
    WriteThroughSelective,
    /// When it leaves L1. If L2 is full, SGLang removes the pages that L1 holds, too.
    WriteBack,
}

impl WritePolicy {
    pub const ALL: [WritePolicy; 3] =
        [WritePolicy::WriteThrough, WritePolicy::WriteThroughSelective, WritePolicy::WriteBack];

    /// The value of `--hicache-write-policy`.
    pub const fn name(self) -> &'static str {
        match self {
            WritePolicy::WriteThrough => "write_through",
            WritePolicy::WriteThroughSelective => "write_through_selective",
            WritePolicy::WriteBack => "write_back",
        }
    }
}

/// Sizes of the tiers in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierSizes {
    pub l1: u64,
    pub l2: u64,
    pub l3: u64,
}

/// Hit tokens that each tier serves. A token that several tiers hold comes from the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierHits {
    pub l1: u64,
    pub l2: u64,
    pub l3: u64,
}

impl TierHits {
    /// Hit tokens of all tiers.
    pub fn total(&self) -> u64 {
        self.l1 + self.l2 + self.l3
    }
}

/// The hit curve of a trace, and that of the tokens which a policy has written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierCurves {
    policy: WritePolicy,
    /// The curve of all tokens.
    pub all: HitCurve,
    /// Tokens that had a second use in L1, with [`WritePolicy::WriteThroughSelective`].
    written: HitCurve,
}

impl TierCurves {
    pub(super) fn new(policy: WritePolicy, all: HitCurve, written: HitCurve) -> TierCurves {
        TierCurves { policy, all, written }
    }

    /// Divides the hit tokens between tiers of these sizes. `l1` must be that of the accumulator.
    pub fn hits(&self, tiers: TierSizes) -> TierHits {
        let TierSizes { l1, l2, l3 } = tiers;
        // The greatest distance of a token that the tiers up to this one hold.
        let (l2_reach, l3_reach) = match self.policy {
            WritePolicy::WriteThrough | WritePolicy::WriteThroughSelective => (l2, l3),
            WritePolicy::WriteBack if l3 > 0 => (l1.saturating_add(l2), l1.saturating_add(l3)),
            WritePolicy::WriteBack => (l1.saturating_add(l2), 0),
        };
        let first = self.all.hits(l1);
        let later = match self.policy {
            WritePolicy::WriteThroughSelective => &self.written,
            WritePolicy::WriteThrough | WritePolicy::WriteBack => &self.all,
        };
        let beyond = |reach: u64| later.hits(reach).saturating_sub(later.hits(l1));
        let (l2_hits, l3_hits) = (beyond(l2_reach.max(l1)), beyond(l3_reach.max(l2_reach).max(l1)));
        TierHits { l1: first, l2: l2_hits, l3: l3_hits - l2_hits }
    }
}
