//! The ceiling of the requests of a pass, and why hits were missed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ceiling::{AllowedHits, StorageReach, TierReach};
use crate::plan::UnknownSizes;

/// The prompt of one request, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct RequestHits {
    /// Length of the prompt, as counted by the server.
    pub prompt: u32,
    /// Tokens that a cache of unlimited size can hit.
    pub possible: u32,
    /// `possible` without the tokens that were still being computed for other requests.
    pub expected: u32,
    /// `None` if the sizes of the caches are unknown.
    pub allowed: Option<AllowedHits>,
    /// Actual hits: L1, L2, L3 and without a tier.
    pub measured: [u32; 4],
}

/// The hits that were possible in a request when it was sent, in prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PossibleHits {
    /// In a cache of unlimited size, with the tokens that were still being computed for other
    /// requests.
    pub ceiling: u32,
    /// `ceiling` without the tokens that were still being computed.
    pub expected: u32,
    /// In caches of the server's sizes; `None` if the sizes are unknown.
    pub allowed: Option<u32>,
}

/// Sums over the requests of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CeilingCounts {
    requests: u64,
    prompt: u64,
    ceiling: u64,
    allowed: AllowedHits,
    measured: MeasuredHits,
    missed: u64,
    beyond_sizes: u64,
    in_flight: u64,
    excess: u64,
}

impl CeilingCounts {
    /// Adds a request.
    pub fn add(&mut self, request: &RequestHits) {
        let [device, host, storage, unknown_tier] = request.measured.map(u64::from);
        let measured =
            MeasuredHits { device, host, storage, unknown_tier, all: device + host + storage + unknown_tier };
        let ceiling = u64::from(request.possible);
        let missed = ceiling.saturating_sub(measured.all);
        let beyond = request.allowed.map_or(0, |allowed| missed.min(ceiling.saturating_sub(allowed.all)));
        let unfinished = u64::from(request.possible.saturating_sub(request.expected));
        self.requests += 1;
        self.prompt += u64::from(request.prompt);
        self.ceiling += ceiling;
        self.allowed.plus(request.allowed.unwrap_or_default());
        self.measured.plus(measured);
        self.missed += missed;
        self.beyond_sizes += beyond;
        self.in_flight += (missed - beyond).min(unfinished);
        self.excess += measured.all.saturating_sub(ceiling);
    }
}

/// Actual hits by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MeasuredHits {
    pub device: u64,
    pub host: u64,
    pub storage: u64,
    /// Cached, but the server reports no tier.
    pub unknown_tier: u64,
    /// The sum of all tiers.
    pub all: u64,
}

impl MeasuredHits {
    fn plus(&mut self, other: MeasuredHits) {
        self.device += other.device;
        self.host += other.host;
        self.storage += other.storage;
        self.unknown_tier += other.unknown_tier;
        self.all += other.all;
    }
}

/// Why the actual hits are below the ceiling, in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MissedHits {
    /// The sum of the other counts. The hits of a request beyond its ceiling are
    /// not subtracted from the misses of others.
    pub tokens: u64,
    /// Caches of the server's sizes hold less; `None` if the sizes are unknown.
    pub beyond_sizes: Option<u64>,
    /// The tokens were still being computed for another request when the request was sent.
    pub in_flight: u64,
    pub other: u64,
    /// Requests with fewer hits than expected, by the reason that the server's counters show. A
    /// request may have several reasons.
    pub reasons: BTreeMap<String, u64>,
    /// Requests with fewer hits than expected for which the counters show no reason.
    pub unexplained: u64,
}

impl MissedHits {
    fn plus(&mut self, other: &MissedHits) {
        self.tokens += other.tokens;
        self.in_flight += other.in_flight;
        self.other += other.other;
        let beyond = self.beyond_sizes.zip(other.beyond_sizes).map(|(a, b)| a + b);
        if beyond.is_none() {
            // Without all sizes, these are misses for an unknown reason.
            self.other += self.beyond_sizes.unwrap_or(0) + other.beyond_sizes.unwrap_or(0);
        }
        self.beyond_sizes = beyond;
        for (reason, requests) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += requests;
        }
        self.unexplained += other.unexplained;
    }
}

/// Shares of all prompt tokens, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HitShares {
    pub ceiling: f64,
    pub allowed: Option<f64>,
    pub measured: f64,
}

/// The ceiling of a pass, in prompt tokens of its successful requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HitCeiling {
    pub requests: u64,
    pub prompt: u64,
    /// What a cache of unlimited size would hit in the requests that were sent.
    pub ceiling: u64,
    /// What the sizes of the caches allow, cumulative by tier; `None` if the sizes are unknown.
    pub allowed: Option<AllowedHits>,
    /// The sizes of the caches.
    pub sizes: Option<TierReach>,
    /// Why the sizes are unknown.
    pub sizes_unknown: Option<String>,
    pub measured: MeasuredHits,
    pub missed: MissedHits,
    /// Hits beyond the ceiling: the caches were warm, or the prompts share more than is known.
    pub excess: u64,
    pub shares: HitShares,
    /// Whether some prompts were text, so that their lengths are known and not their tokens.
    pub approximate: bool,
    /// Whether the requests used more pages than are tracked, so that the ceiling is too low.
    pub incomplete: bool,
}

impl HitCeiling {
    /// Returns the ceiling of the requests in `counts`; `None` if there are none. `sizes`: those of
    /// the server's caches, or why they are unknown.
    pub fn of(counts: &CeilingCounts, sizes: Result<TierReach, UnknownSizes>) -> Option<HitCeiling> {
        if counts.requests == 0 {
            return None;
        }
        let reach = sizes.as_ref().ok().copied();
        let found = HitCeiling {
            requests: counts.requests,
            prompt: counts.prompt,
            ceiling: counts.ceiling,
            allowed: reach.map(|_| counts.allowed),
            sizes: reach,
            sizes_unknown: sizes.err().map(|why| why.to_string()),
            measured: counts.measured,
            missed: MissedHits {
                tokens: counts.missed,
                beyond_sizes: reach.map(|_| counts.beyond_sizes),
                in_flight: counts.in_flight,
                other: counts.missed - counts.beyond_sizes - counts.in_flight,
                ..MissedHits::default()
            },
            excess: counts.excess,
            shares: HitShares::default(),
            approximate: false,
            incomplete: false,
        };
        Some(found.with_shares())
    }

    /// Returns the sum over several passes; `None` without passes.
    pub fn sum<'a>(passes: impl IntoIterator<Item = &'a HitCeiling>) -> Option<HitCeiling> {
        let mut passes = passes.into_iter();
        let mut sum = passes.next()?.clone();
        for pass in passes {
            sum.requests += pass.requests;
            sum.prompt += pass.prompt;
            sum.ceiling += pass.ceiling;
            sum.allowed = sum.allowed.zip(pass.allowed).map(|(mut sum, allowed)| {
                sum.plus(allowed);
                sum
            });
            sum.sizes_unknown = sum.sizes_unknown.or_else(|| pass.sizes_unknown.clone());
            sum.sizes = sum.sizes.filter(|_| pass.sizes.is_some());
            sum.measured.plus(pass.measured);
            sum.missed.plus(&pass.missed);
            sum.excess += pass.excess;
            sum.approximate |= pass.approximate;
            sum.incomplete |= pass.incomplete;
        }
        Some(sum.with_shares())
    }

    fn with_shares(mut self) -> HitCeiling {
        let share = |tokens: u64| (1e4 * tokens as f64 / self.prompt.max(1) as f64).round() / 1e4;
        self.shares = HitShares {
            ceiling: share(self.ceiling),
            allowed: self.allowed.map(|allowed| share(allowed.all)),
            measured: share(self.measured.all),
        };
        self
    }

    /// Returns whether the size of L3 is unknown, so that it counts as unlimited.
    pub fn has_unknown_storage(&self) -> bool {
        self.sizes.is_some_and(|sizes| sizes.storage == StorageReach::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_tokens_are_beyond_the_sizes_in_flight_or_other() {
        let reach = TierReach { device: 64, memory: 64, storage: StorageReach::Absent };
        let mut counts = CeilingCounts::default();
        let request = |possible, expected, all, device| RequestHits {
            prompt: 200,
            possible,
            expected,
            allowed: Some(AllowedHits { device: all, memory: all, all }),
            measured: [device, 0, 0, 0],
        };
        counts.add(&request(128, 128, 64, 48));
        counts.add(&request(128, 96, 128, 64));
        // More hits than the sizes allow, and more than the ceiling.
        counts.add(&request(128, 128, 64, 112));
        counts.add(&request(0, 0, 0, 16));
        let found = HitCeiling::of(&counts, Ok(reach)).expect("requests");
        let missed = &found.missed;
        assert_eq!((missed.tokens, missed.beyond_sizes), (80 + 64 + 16, Some(64 + 16)));
        assert_eq!((missed.in_flight, missed.other, found.excess), (32, 16 + 32, 16));
        assert_eq!(found.ceiling - found.measured.all, missed.tokens - found.excess);
        assert_eq!((found.shares.ceiling, found.shares.allowed), (0.48, Some(0.32)));
        let twice = HitCeiling::sum([&found, &found]).expect("passes");
        assert_eq!((twice.ceiling, twice.missed.other, twice.shares), (2 * found.ceiling, 96, found.shares));
    }

    #[test]
    fn unknown_sizes_state_neither_allowed_hits_nor_misses_beyond_them() {
        let mut counts = CeilingCounts::default();
        let request = RequestHits { prompt: 100, possible: 64, expected: 64, allowed: None, measured: [0; 4] };
        counts.add(&request);
        let found = HitCeiling::of(&counts, Err(UnknownSizes::NoDevice)).expect("requests");
        assert_eq!((found.allowed, found.missed.beyond_sizes, found.missed.other), (None, None, 64));
        let reach = TierReach { device: 32, memory: 32, storage: StorageReach::Absent };
        let mut known = CeilingCounts::default();
        let allowed = AllowedHits { device: 32, memory: 32, all: 32 };
        known.add(&RequestHits { allowed: Some(allowed), ..request });
        let known = HitCeiling::of(&known, Ok(reach)).expect("requests");
        let both = HitCeiling::sum([&known, &found]).expect("passes");
        assert_eq!((both.allowed, both.sizes, both.missed.beyond_sizes), (None, None, None));
        assert_eq!((both.missed.tokens, both.missed.other), (128, 128));
        assert_eq!(
            HitCeiling::of(
                &CeilingCounts::default(),
                Ok(TierReach { device: 0, memory: 0, storage: StorageReach::Absent })
            ),
            None
        );
    }
}
