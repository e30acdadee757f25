//! Explains why a request had fewer cached tokens than expected, based on how the server's counters
//! changed between the last use of its prefix and the end of its response. No I/O. A shortfall that
//! no counter explains is reported as unexplained, without guessing.

use serde::Serialize;

use crate::Turn;
use crate::server::{CounterHistory, CounterSample, ServerInfo};
use mcctl_base::Mono;

/// A request with fewer cached tokens than expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    pub turn: Turn,
    pub prompt: u32,
    pub answer: u32,
    pub expected: u32,
    /// Cached tokens from L1.
    pub device: u32,
    /// Cached tokens from L2.
    pub host: u32,
    /// Cached tokens from L3.
    pub storage: u32,
    /// End of the conversation's previous response. For a first turn: the end of the previous pass,
    /// or the start of the current pass if there was no previous one.
    pub since: Mono,
    /// When the last byte of the request was sent.
    pub came: Mono,
    /// When the response ended.
    pub until: Mono,
}

impl Shortfall {
    /// Returns the cached tokens over all tiers.
    pub fn actual(&self) -> u32 {
        self.device.saturating_add(self.host).saturating_add(self.storage)
    }

    /// Returns the tokens that the request itself may have added to L2: computed prompt tokens and
    /// output tokens.
    fn own(&self) -> u64 {
        u64::from(self.prompt.saturating_sub(self.actual())) + u64::from(self.answer)
    }
}

/// An event shown by the server's counters that may explain a shortfall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum ShortfallReason {
    /// L3 held the tokens, but they were not used.
    Unfulfilled {
        /// The server's reason label.
        why: String,
        tokens: u64,
    },
    /// The prefetch from L3 was deferred.
    Deferred {
        /// The server's reason label.
        why: String,
        tokens: u64,
    },
    Dropped {
        /// The server's reason label.
        why: String,
        tokens: u64,
    },
    /// L1 evicted tokens. If the server has an L2 or L3, another reason explains why the tokens
    /// were not loaded from that tier.
    Evicted {
        tokens: u64,
    },
    /// L1 and L2 missed fewer tokens than the threshold for an L3 lookup.
    BelowThreshold {
        /// Number of tokens in the missing whole pages.
        missing: u32,
        /// Minimum number of tokens for an L3 lookup.
        threshold: u32,
    },
    /// The master evicted objects from L3.
    StoreEvicted {
        keys: u64,
    },
    /// The master had no space for new objects.
    StoreFull {
        failures: u64,
    },
    /// When the request arrived, L2 held tokens that had not yet been written to L3. The request's
    /// own tokens are excluded. It is unknown which requests the other tokens belong to.
    NotStored {
        tokens: u64,
    },
    Restarted,
}

impl ShortfallReason {
    /// Returns the label under which the reason is counted.
    pub fn kind(&self) -> String {
        match self {
            ShortfallReason::Unfulfilled { why, .. } => format!("L3 unfulfilled: {why}"),
            ShortfallReason::Deferred { why, .. } => format!("L3 deferred: {why}"),
            ShortfallReason::Dropped { why, .. } => format!("L2 dropped: {why}"),
            ShortfallReason::Evicted { .. } => "evicted from L1".to_owned(),
            ShortfallReason::BelowThreshold { .. } => "below the L3 prefetch threshold".to_owned(),
            ShortfallReason::StoreEvicted { .. } => "evicted from L3".to_owned(),
            ShortfallReason::StoreFull { .. } => "no space in L3".to_owned(),
            ShortfallReason::NotStored { .. } => "not in L3 yet".to_owned(),
            ShortfallReason::Restarted => "the server restarted".to_owned(),
        }
    }
}

/// Returns the reasons that the counters show for `short`, or an empty list if there are none.
pub fn explain(short: &Shortfall, ring: &CounterHistory, info: Option<&ServerInfo>) -> Vec<ShortfallReason> {
    let (Some(from), Some(to)) = (ring.before(short.since), ring.after(short.until)) else { return Vec::new() };
    let mut reasons = Vec::new();
    let has_storage = info.is_some_and(|info| info.storage.is_some());
    let grown = match (&from.server, &to.server) {
        (Some(before), Some(after)) if after.restarted_since(before) => return vec![ShortfallReason::Restarted],
        (Some(before), Some(after)) => after.clone().since(before),
        _ => return reasons,
    };
    let grew = |reasons: &crate::server::Reasons| {
        let grew: Vec<(String, u64)> =
            reasons.iter().filter(|(_, n)| **n > 0).map(|(why, n)| (why.clone(), *n)).collect();
        grew
    };
    reasons
        .extend(grew(&grown.unfulfilled).into_iter().map(|(why, tokens)| ShortfallReason::Unfulfilled { why, tokens }));
    reasons.extend(grew(&grown.deferred).into_iter().map(|(why, tokens)| ShortfallReason::Deferred { why, tokens }));
    reasons.extend(grew(&grown.dropped).into_iter().map(|(why, tokens)| ShortfallReason::Dropped { why, tokens }));
    if let Some(info) = info.filter(|_| has_storage) {
        // L3 is queried for the whole pages missing from L1 and L2. The last token is always
        // computed.
        let page = info.page_size.unwrap_or(1).max(1);
        let whole = short.prompt.saturating_sub(1) / page * page;
        let missing = whole.saturating_sub(short.device.saturating_add(short.host));
        if missing > 0 && missing < info.prefetch_threshold {
            reasons.push(ShortfallReason::BelowThreshold { missing, threshold: info.prefetch_threshold });
        }
        reasons.extend(store(short, from, to, ring));
    }
    if grown.evicted > 0 && (!reasons.is_empty() || !has_storage) {
        // With an L3, an eviction from L1 alone explains nothing, because the tokens should have
        // been loaded from L3.
        reasons.push(ShortfallReason::Evicted { tokens: grown.evicted });
    }
    reasons
}

/// Returns the reasons found in the store (L3).
fn store(short: &Shortfall, from: &CounterSample, to: &CounterSample, ring: &CounterHistory) -> Vec<ShortfallReason> {
    let mut reasons = Vec::new();
    if let (Some(before), Some(after)) = (&from.master, &to.master) {
        let grown = after.since(before);
        if grown.evicted_keys > 0 {
            reasons.push(ShortfallReason::StoreEvicted { keys: grown.evicted_keys });
        }
        if grown.allocation_failures > 0 {
            reasons.push(ShortfallReason::StoreFull { failures: grown.allocation_failures });
        }
    }
    // Tokens that were unwritten when the request arrived could not be fetched. The tokens that the
    // request itself computed were added only later.
    let unwritten = ring.unwritten_at(short.since, short.came, short.own());
    if unwritten > 0 {
        reasons.push(ShortfallReason::NotStored { tokens: unwritten });
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{ServerCounters, StoreCounters};

    fn short(device: u32, expected: u32) -> Shortfall {
        Shortfall {
            turn: Turn { conversation: 1, index: 1 },
            prompt: 1_001,
            answer: 9,
            expected,
            device,
            host: 0,
            storage: 0,
            since: Mono::from_ms(10),
            came: Mono::from_ms(12),
            until: Mono::from_ms(20),
        }
    }

    fn ring(before: ServerCounters, after: ServerCounters) -> CounterHistory {
        let mut ring = CounterHistory::default();
        let master = Some(StoreCounters::default());
        ring.push(CounterSample { at: Mono::from_ms(5), server: Some(before), master }, false);
        ring.push(
            CounterSample {
                at: Mono::from_ms(21),
                server: Some(after),
                master: Some(StoreCounters { evicted_keys: 0, ..StoreCounters::default() }),
            },
            true,
        );
        ring
    }

    fn info(storage: bool) -> ServerInfo {
        let document = serde_json::json!({
            "page_size": 16, "enable_hierarchical_cache": storage,
            "hicache_storage_backend": if storage { "mooncake" } else { "" },
        });
        ServerInfo::read(&document).expect("SGLang's")
    }

    #[test]
    fn eviction_explains_a_shortfall_without_l3() {
        let after = ServerCounters { evicted: 640, ..ServerCounters::default() };
        let ring = ring(ServerCounters::default(), after);
        assert_eq!(explain(&short(0, 640), &ring, Some(&info(false))), [ShortfallReason::Evicted { tokens: 640 }]);
        assert_eq!(explain(&short(0, 640), &ring, Some(&info(true))), [], "L3 should have served the tokens");
    }

    #[test]
    fn fewer_tokens_than_the_threshold_are_not_looked_up_in_l3() {
        let ring = ring(ServerCounters::default(), ServerCounters { evicted: 160, ..ServerCounters::default() });
        let reasons = explain(&short(832, 992), &ring, Some(&info(true)));
        assert_eq!(
            reasons,
            [
                ShortfallReason::BelowThreshold { missing: 160, threshold: 256 },
                ShortfallReason::Evicted { tokens: 160 }
            ]
        );
    }

    #[test]
    fn reason_labels_count_only_if_they_increased() {
        let mut before = ServerCounters::default();
        before.unfulfilled.insert("deadline".to_owned(), 5);
        let mut after = before.clone();
        after.unfulfilled.insert("host_capacity".to_owned(), 64);
        let reasons = explain(&short(0, 992), &ring(before, after), Some(&info(true)));
        assert_eq!(reasons, [ShortfallReason::Unfulfilled { why: "host_capacity".to_owned(), tokens: 64 }]);
    }

    #[test]
    fn tokens_not_yet_written_to_l3_explain_a_shortfall() {
        let before = ServerCounters { backed_up: 100, stored: 70, ..ServerCounters::default() };
        let after = ServerCounters { backed_up: 2_500, stored: 100, ..ServerCounters::default() };
        let reasons = explain(&short(0, 992), &ring(before, after), Some(&info(true)));
        assert_eq!(
            reasons,
            [ShortfallReason::NotStored { tokens: 2_370 - 1_010 }],
            "30 tokens are never written, and the request itself may have added 1,010 to L2"
        );
    }

    #[test]
    fn tokens_that_the_request_itself_wrote_to_l2_are_excluded() {
        let at = |ms: u64, backed_up: u64, stored: u64| {
            let counters = ServerCounters { backed_up, stored, ..ServerCounters::default() };
            CounterSample { at: Mono::from_ms(ms), server: Some(counters), master: Some(StoreCounters::default()) }
        };
        let reasons = |points: &[(u64, u64, u64)]| {
            let mut ring = CounterHistory::default();
            points.iter().for_each(|(ms, backed_up, stored)| ring.push(at(*ms, *backed_up, *stored), false));
            explain(&short(0, 992), &ring, Some(&info(true)))
        };
        // When the request ended, everything had been written except what it computed itself.
        assert_eq!(reasons(&[(5, 1_000, 1_000), (21, 2_010, 1_000)]), []);
        // L3 lagged when the previous turn ended, but no longer when this request arrived. Later
        // events do not matter.
        assert_eq!(reasons(&[(5, 500, 500), (9, 1_000, 500), (11, 1_000, 1_000), (21, 9_000, 1_000)]), []);
        // L3 still lagged just before the request arrived.
        assert_eq!(
            reasons(&[(5, 500, 500), (11, 1_000, 900), (21, 2_010, 2_010)]),
            [ShortfallReason::NotStored { tokens: 100 }]
        );
    }

    #[test]
    fn missing_counters_explain_nothing_and_a_restart_everything() {
        assert_eq!(explain(&short(0, 16), &CounterHistory::default(), None), []);
        let began = ring(ServerCounters { requests: 9, ..ServerCounters::default() }, ServerCounters::default());
        assert_eq!(explain(&short(0, 16), &began, None), [ShortfallReason::Restarted]);
    }
}
