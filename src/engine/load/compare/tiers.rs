//! The cache tiers of two servers, and the load from which each of them matters for a comparison.
//!
//! A server keeps what its conversations use most recently. A tier is used only if the
//! conversations of a block exceed all tiers above it. A larger tier can show only if they exceed
//! the smaller one.

use std::fmt;

use serde::Serialize;

/// Sizes of a server's caches, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheSizes {
    /// L1, the device memory.
    pub device_tokens: u64,
    /// L2; zero if there is none.
    pub host_tokens: u64,
    /// Whether the server has an L3. Its size is unknown.
    pub has_storage: bool,
}

impl CacheSizes {
    /// Returns the most tokens that L1 and L2 can hold together.
    fn memory_max(&self) -> u64 {
        self.device_tokens.saturating_add(self.host_tokens)
    }

    /// Returns the tokens that certainly fit: with write-through, L2 also contains what L1 holds.
    /// `None` if L3 holds the rest.
    fn fits(&self) -> Option<u64> {
        (!self.has_storage).then(|| self.device_tokens.max(self.host_tokens))
    }
}

impl fmt::Display for CacheSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L1 {} tokens", self.device_tokens)?;
        match self.host_tokens {
            0 => {}
            tokens => write!(f, ", L2 {tokens} tokens")?,
        }
        f.write_str(if self.has_storage { ", L3" } else { "" })
    }
}

/// A cache tier of an SGLang server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ComparedTier {
    #[serde(rename = "L1")]
    Device,
    #[serde(rename = "L2")]
    Host,
    #[serde(rename = "L3")]
    Storage,
}

impl fmt::Display for ComparedTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ComparedTier::Device => "L1",
            ComparedTier::Host => "L2",
            ComparedTier::Storage => "L3",
        })
    }
}

/// A tier in question: a load above `above` tokens per block can show what it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TierQuestion {
    pub tier: ComparedTier,
    /// Tokens that fit without this tier, or with the smaller one.
    pub above: u64,
}

/// Sizes closer than this share of the larger one count as equal. Servers with the same settings
/// differ a little in the tokens that fit.
const SAME_SIZE: f64 = 0.05;

/// Returns the tiers in question when servers with these `sizes` are compared: those that differ
/// between them. If none differs, they are all tiers below L1 that both have. Both lists are in the
/// order of the tiers.
pub fn questions(sizes: &[CacheSizes; 2]) -> Vec<TierQuestion> {
    let [a, b] = sizes;
    let differ = |a: u64, b: u64| a.abs_diff(b) as f64 > SAME_SIZE * a.max(b) as f64;
    let mut found = Vec::new();
    let mut ask = |tier, above| found.push(TierQuestion { tier, above });
    let device = a.device_tokens.max(b.device_tokens);
    let memory = a.memory_max().max(b.memory_max());
    let l1 = differ(a.device_tokens, b.device_tokens);
    let l2 = differ(a.host_tokens, b.host_tokens);
    let l3 = a.has_storage != b.has_storage;
    if l1 {
        ask(ComparedTier::Device, a.device_tokens.min(b.device_tokens));
    }
    if l2 {
        ask(ComparedTier::Host, a.memory_max().min(b.memory_max()));
    }
    if l3 {
        ask(ComparedTier::Storage, memory);
    }
    if l1 || l2 || l3 {
        return found;
    }
    if a.host_tokens > 0 {
        ask(ComparedTier::Host, device);
    }
    if a.has_storage {
        ask(ComparedTier::Storage, memory);
    }
    found
}

/// Returns the tokens that fit into the server with the larger caches. `None` if it has an L3.
pub(super) fn larger(sizes: &[CacheSizes; 2]) -> Option<u64> {
    Some(sizes[0].fits()?.max(sizes[1].fits()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(device_tokens: u64, host_tokens: u64, has_storage: bool) -> CacheSizes {
        CacheSizes { device_tokens, host_tokens, has_storage }
    }

    fn asked(a: CacheSizes, b: CacheSizes) -> Vec<(ComparedTier, u64)> {
        let of = |sizes| questions(&sizes).iter().map(|one| (one.tier, one.above)).collect::<Vec<_>>();
        assert_eq!(of([a, b]), of([b, a]), "the order of the servers does not matter");
        of([a, b])
    }

    #[test]
    fn tiers_that_differ_are_in_question() {
        use ComparedTier::{Device, Host, Storage};
        let small = sizes(16, 0, false);
        assert_eq!(asked(small, sizes(16, 32, true)), [(Host, 16), (Storage, 48)]);
        assert_eq!(asked(small, sizes(16, 32, false)), [(Host, 16)]);
        assert_eq!(asked(sizes(16, 32, false), sizes(16, 32, true)), [(Storage, 48)]);
        assert_eq!(asked(small, sizes(64, 0, false)), [(Device, 16)]);
        assert_eq!(asked(sizes(16, 32, true), sizes(16, 64, true)), [(Host, 48)]);
        assert_eq!(asked(sizes(1_000, 2_000, true), sizes(1_010, 2_000, true)), [(Host, 1_010), (Storage, 3_010)]);
    }

    #[test]
    fn equal_servers_are_compared_in_all_their_tiers() {
        use ComparedTier::{Host, Storage};
        let both = |one| asked(one, one);
        assert_eq!(both(sizes(16, 0, false)), []);
        assert_eq!(both(sizes(16, 32, false)), [(Host, 16)]);
        assert_eq!(both(sizes(16, 32, true)), [(Host, 16), (Storage, 48)]);
        assert_eq!(larger(&[sizes(16, 0, false), sizes(16, 32, false)]), Some(32));
        assert_eq!(larger(&[sizes(16, 0, false), sizes(16, 32, true)]), None);
    }
}
