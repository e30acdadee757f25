//! Why no request verified a tier.

use crate::ladder::{Ladder, LadderTier};
use crate::server::ServerInfo;

/// The reason why no ladder request verified a tier at a prompt length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierNotVerified {
    #[error("no {length}-token prompt was served from {tier} alone: no request succeeded")]
    NoRequest { length: u32, tier: &'static str },
    /// The token counts are totals over all requests, by source. `threshold`: the minimum number of
    /// tokens for which the server queries L3.
    #[error(
        "no {length}-token prompt was served from {tier} alone: {requests} requests loaded {device} tokens from L1, {host} from L2, \
         {storage} from L3, and computed {computed}{}",
        .threshold.map_or(String::new(), |tokens| format!(" (the server queries L3 only for {tokens} tokens or more)"))
    )]
    OtherSource {
        length: u32,
        tier: &'static str,
        requests: u64,
        device: u64,
        host: u64,
        storage: u64,
        computed: u64,
        threshold: Option<u32>,
    },
}

impl TierNotVerified {
    /// Returns the reason why no request verified `tier` at `length`.
    pub fn of(length: u32, tier: LadderTier, ladder: &Ladder, info: &ServerInfo) -> TierNotVerified {
        let rung = ladder.rungs.iter().find(|rung| (rung.length, rung.tier) == (length, tier));
        let Some(rung) = rung else { return TierNotVerified::NoRequest { length, tier: tier.name() } };
        let below_threshold = tier == LadderTier::Storage && length <= info.prefetch_threshold;
        TierNotVerified::OtherSource {
            length,
            tier: tier.name(),
            requests: rung.requests.into(),
            device: rung.device,
            host: rung.host,
            storage: rung.storage,
            computed: rung.computed,
            threshold: below_threshold.then_some(info.prefetch_threshold),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::{LadderCell, LadderTier};

    #[test]
    fn tier_without_a_verified_request_names_the_sources() {
        let settings = serde_json::json!({"page_size": 16, "max_total_num_tokens": 4096});
        let info = ServerInfo::read(&settings).expect("SGLang's");
        let rung = LadderCell {
            requests: 5,
            verified: 0,
            device: 5 * 496,
            computed: 5 * 16,
            ..LadderCell::new(512, LadderTier::Device)
        };
        let ladder = Ladder { rungs: vec![rung], ..Ladder::default() };
        let none = TierNotVerified::of(512, LadderTier::Host, &ladder, &info);
        assert_eq!(none, TierNotVerified::NoRequest { length: 512, tier: "host" });
        let other = TierNotVerified::of(512, LadderTier::Device, &ladder, &info);
        assert!(matches!(other, TierNotVerified::OtherSource { requests: 5, device: 2480, .. }), "{other}");
    }
}
