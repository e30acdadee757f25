//! Why a request got less from the caches than it should have: the server's own counters between the last use of its prefix and its
//! answer, put into words. Pure. What no counter explains is said to be unexplained, never guessed.

use serde::Serialize;

use crate::engine::base::Mono;
use crate::engine::load::Turn;
use crate::engine::load::server::{Info, Point, Ring};

/// A request that got less than it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// Which.
    pub turn: Turn,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens of its answer.
    pub answer: u32,
    /// Those that should have been cached.
    pub expected: u32,
    /// Those that came from L1.
    pub device: u32,
    /// From L2.
    pub host: u32,
    /// From L3.
    pub storage: u32,
    /// When the answer before it in its conversation ended; the end of the pass before (the start of its own, if
    /// there is none) for a first turn.
    pub since: Mono,
    /// When its own last byte was sent.
    pub came: Mono,
    /// When its own answer ended.
    pub until: Mono,
}

impl Short {
    /// What it got.
    pub fn actual(&self) -> u32 {
        self.device.saturating_add(self.host).saturating_add(self.storage)
    }

    /// Tokens that it can itself have given to L2: what was computed of its prompt, and its answer.
    fn own(&self) -> u64 {
        u64::from(self.prompt.saturating_sub(self.actual())) + u64::from(self.answer)
    }
}

/// Something that the server says it did meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// L3 had it, and it was not used.
    Unfulfilled {
        /// The server's word for why.
        why: String,
        /// So many tokens.
        tokens: u64,
    },
    /// The fetch from L3 was put off.
    Deferred {
        /// The server's word for why.
        why: String,
        /// So many tokens.
        tokens: u64,
    },
    /// L2 lost tokens.
    Dropped {
        /// The server's word for why.
        why: String,
        /// So many tokens.
        tokens: u64,
    },
    /// L1 evicted tokens; what kept them from coming back from L2 and L3 is among the other reasons, or there is neither.
    Evicted {
        /// So many tokens.
        tokens: u64,
    },
    /// What L1 and L2 lacked is less than L3 is asked for.
    BelowThreshold {
        /// Whole pages that they lacked, in tokens.
        missing: u32,
        /// L3 is asked for so many at least.
        threshold: u32,
    },
    /// The master of L3 evicted objects.
    StoreEvicted {
        /// So many.
        keys: u64,
    },
    /// The master of L3 found no room for objects.
    StoreFull {
        /// How often.
        failures: u64,
    },
    /// When the request came, L2 had been given tokens that were not in L3 yet. Its own are not among them; nobody tells of whom the
    /// others are.
    NotStored {
        /// So many.
        tokens: u64,
    },
    /// The server began anew.
    Restarted,
}

impl Reason {
    /// The kind, under which reasons are counted.
    pub fn kind(&self) -> String {
        match self {
            Reason::Unfulfilled { why, .. } => format!("L3 unfulfilled: {why}"),
            Reason::Deferred { why, .. } => format!("L3 deferred: {why}"),
            Reason::Dropped { why, .. } => format!("L2 dropped: {why}"),
            Reason::Evicted { .. } => "evicted from L1".to_owned(),
            Reason::BelowThreshold { .. } => "below the threshold of L3".to_owned(),
            Reason::StoreEvicted { .. } => "evicted from L3".to_owned(),
            Reason::StoreFull { .. } => "no room in L3".to_owned(),
            Reason::NotStored { .. } => "not in L3 yet".to_owned(),
            Reason::Restarted => "the server restarted".to_owned(),
        }
    }
}

/// What the counters say about `short`. Empty: nothing.
pub fn explain(short: &Short, ring: &Ring, info: Option<&Info>) -> Vec<Reason> {
    let (Some(from), Some(to)) = (ring.before(short.since), ring.after(short.until)) else { return Vec::new() };
    let mut reasons = Vec::new();
    let has_storage = info.is_some_and(|info| info.storage.is_some());
    let grown = match (&from.server, &to.server) {
        (Some(before), Some(after)) if after.restarted_since(before) => return vec![Reason::Restarted],
        (Some(before), Some(after)) => after.clone().since(before),
        _ => return reasons,
    };
    let grew = |reasons: &crate::engine::load::server::Reasons| {
        let grew: Vec<(String, u64)> =
            reasons.iter().filter(|(_, n)| **n > 0).map(|(why, n)| (why.clone(), *n)).collect();
        grew
    };
    reasons.extend(grew(&grown.unfulfilled).into_iter().map(|(why, tokens)| Reason::Unfulfilled { why, tokens }));
    reasons.extend(grew(&grown.deferred).into_iter().map(|(why, tokens)| Reason::Deferred { why, tokens }));
    reasons.extend(grew(&grown.dropped).into_iter().map(|(why, tokens)| Reason::Dropped { why, tokens }));
    if let Some(info) = info.filter(|_| has_storage) {
        // L3 is asked once L1 and L2 have been looked up, for what whole pages they lack; the last token is always computed.
        let page = info.page_size.unwrap_or(1).max(1);
        let whole = short.prompt.saturating_sub(1) / page * page;
        let missing = whole.saturating_sub(short.device.saturating_add(short.host));
        if missing > 0 && missing < info.prefetch_threshold {
            reasons.push(Reason::BelowThreshold { missing, threshold: info.prefetch_threshold });
        }
        reasons.extend(store(short, from, to, ring));
    }
    if grown.evicted > 0 && (!reasons.is_empty() || !has_storage) {
        // With an L3 it is no reason of its own: what L1 loses should come back from there.
        reasons.push(Reason::Evicted { tokens: grown.evicted });
    }
    reasons
}

/// What the store of L3 did meanwhile.
fn store(short: &Short, from: &Point, to: &Point, ring: &Ring) -> Vec<Reason> {
    let mut reasons = Vec::new();
    if let (Some(before), Some(after)) = (&from.master, &to.master) {
        let grown = after.since(before);
        if grown.evicted_keys > 0 {
            reasons.push(Reason::StoreEvicted { keys: grown.evicted_keys });
        }
        if grown.allocation_failures > 0 {
            reasons.push(Reason::StoreFull { failures: grown.allocation_failures });
        }
    }
    // What was behind when the request came could not be fetched for it; what it computed itself came later.
    let unwritten = ring.unwritten_at(short.since, short.came, short.own());
    if unwritten > 0 {
        reasons.push(Reason::NotStored { tokens: unwritten });
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::server::{Counters, Master};

    fn short(device: u32, expected: u32) -> Short {
        Short {
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

    fn ring(before: Counters, after: Counters) -> Ring {
        let mut ring = Ring::default();
        let master = Some(Master::default());
        ring.push(Point { at: Mono::from_ms(5), server: Some(before), master }, false);
        ring.push(
            Point {
                at: Mono::from_ms(21),
                server: Some(after),
                master: Some(Master { evicted_keys: 0, ..Master::default() }),
            },
            true,
        );
        ring
    }

    fn info(storage: bool) -> Info {
        let told = serde_json::json!({
            "page_size": 16, "enable_hierarchical_cache": storage,
            "hicache_storage_backend": if storage { "mooncake" } else { "" },
        });
        Info::read(&told).expect("SGLang's")
    }

    #[test]
    fn without_an_l3_an_eviction_is_reason_enough() {
        let after = Counters { evicted: 640, ..Counters::default() };
        let ring = ring(Counters::default(), after);
        assert_eq!(explain(&short(0, 640), &ring, Some(&info(false))), [Reason::Evicted { tokens: 640 }]);
        assert_eq!(explain(&short(0, 640), &ring, Some(&info(true))), [], "it should have come back from L3");
    }

    #[test]
    fn less_than_the_threshold_is_not_looked_for_in_l3() {
        let ring = ring(Counters::default(), Counters { evicted: 160, ..Counters::default() });
        let reasons = explain(&short(832, 992), &ring, Some(&info(true)));
        assert_eq!(reasons, [Reason::BelowThreshold { missing: 160, threshold: 256 }, Reason::Evicted { tokens: 160 }]);
    }

    #[test]
    fn the_servers_own_words_come_first_and_only_what_grew_counts() {
        let mut before = Counters::default();
        before.unfulfilled.insert("deadline".to_owned(), 5);
        let mut after = before.clone();
        after.unfulfilled.insert("host_capacity".to_owned(), 64);
        let reasons = explain(&short(0, 992), &ring(before, after), Some(&info(true)));
        assert_eq!(reasons, [Reason::Unfulfilled { why: "host_capacity".to_owned(), tokens: 64 }]);
    }

    #[test]
    fn what_was_not_yet_written_to_l3_cannot_come_from_there() {
        let before = Counters { backed_up: 100, stored: 70, ..Counters::default() };
        let after = Counters { backed_up: 2_500, stored: 100, ..Counters::default() };
        let reasons = explain(&short(0, 992), &ring(before, after), Some(&info(true)));
        assert_eq!(
            reasons,
            [Reason::NotStored { tokens: 2_370 - 1_010 }],
            "30 of them will never be written, and 1,010 it can have given to L2 itself"
        );
    }

    #[test]
    fn what_a_request_gave_to_l2_itself_is_no_reason_for_what_it_lacked() {
        let at = |ms: u64, backed_up: u64, stored: u64| {
            let counters = Counters { backed_up, stored, ..Counters::default() };
            Point { at: Mono::from_ms(ms), server: Some(counters), master: Some(Master::default()) }
        };
        let reasons = |points: &[(u64, u64, u64)]| {
            let mut ring = Ring::default();
            points.iter().for_each(|(ms, backed_up, stored)| ring.push(at(*ms, *backed_up, *stored), false));
            explain(&short(0, 992), &ring, Some(&info(true)))
        };
        // All was written when it ended but what it had itself computed.
        assert_eq!(reasons(&[(5, 1_000, 1_000), (21, 2_010, 1_000)]), []);
        // It was behind when the turn before ended, and no longer when this one came, whatever came after.
        assert_eq!(reasons(&[(5, 500, 500), (9, 1_000, 500), (11, 1_000, 1_000), (21, 9_000, 1_000)]), []);
        // It was still behind just before it came.
        assert_eq!(
            reasons(&[(5, 500, 500), (11, 1_000, 900), (21, 2_010, 2_010)]),
            [Reason::NotStored { tokens: 100 }]
        );
    }

    #[test]
    fn nothing_is_said_without_counters_and_a_restart_says_all() {
        assert_eq!(explain(&short(0, 16), &Ring::default(), None), []);
        let began = ring(Counters { requests: 9, ..Counters::default() }, Counters::default());
        assert_eq!(explain(&short(0, 16), &began, None), [Reason::Restarted]);
    }
}
