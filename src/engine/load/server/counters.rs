//! Parses the counters on the metrics pages of SGLang servers and Mooncake masters. No I/O.
//!
//! Names match SGLang 0.5.23. All ranks of a model report the same token counts, so only one rank
//! is counted. Each rank reports byte counts for its own part of the data, so they are summed. A
//! series appears with its first event, so on an SGLang page a missing series means zero.

use std::collections::BTreeMap;

use serde::Serialize;

use mcctl_base::text::one_line;
use mcctl_net::http::Samples;

/// Maximum number of label values to keep per reason counter.
const REASONS_MAX: usize = 64;

/// Token counts by reason label.
pub type Reasons = BTreeMap<String, u64>;

/// An SGLang server's counters since its start, and its current gauges. The unit is tokens unless
/// stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerCounters {
    pub requests: u64,
    pub prompt: u64,
    pub completion: u64,
    /// Prompt tokens served from L1.
    pub device: u64,
    /// Prompt tokens served from L2.
    pub host: u64,
    /// Prompt tokens served from L3.
    pub storage: u64,
    /// Cached prompt tokens without a reported tier.
    pub cached_somewhere: u64,
    /// Prompt tokens computed, as counted by the scheduler. Tokens of retracted requests are
    /// counted again.
    pub computed: u64,
    pub evicted: u64,
    /// Tokens copied from L1 to L2.
    pub backed_up: u64,
    /// Bytes copied from L1 to L2.
    pub backed_up_bytes: u64,
    /// Tokens loaded from L2 to L1.
    pub loaded_back: u64,
    /// Bytes loaded from L2 to L1.
    pub loaded_back_bytes: u64,
    pub stored: u64,
    /// Tokens that were scheduled to be written to L3 but were not written.
    pub store_dropped: u64,
    /// Tokens found in L3 by a lookup.
    pub found_in_storage: u64,
    pub prefetched: u64,
    /// Tokens dropped from L2, by reason.
    pub dropped: Reasons,
    /// Tokens found in L3 but not used, by reason.
    pub unfulfilled: Reasons,
    /// Tokens whose prefetch from L3 was deferred, by reason.
    pub deferred: Reasons,
    /// Bandwidth of prefetches from L3: sum over operations (GB/s each), and the number of
    /// operations.
    #[serde(skip)]
    pub prefetch_rate: BandwidthSum,
    /// Bandwidth of writes to L3, in the same format.
    #[serde(skip)]
    pub backup_rate: BandwidthSum,
    pub now: ServerGauges,
}

/// Sum of the bandwidths of operations, and the number of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BandwidthSum {
    /// Sum over operations, in GB/s.
    pub sum: f64,
    pub count: f64,
}

impl BandwidthSum {
    /// Returns the mean bandwidth per operation in GB/s.
    pub fn mean(&self) -> Option<f64> {
        (self.count >= 1.0).then(|| self.sum / self.count)
    }
}

/// Current load and cache usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ServerGauges {
    pub running: u64,
    pub queued: u64,
    /// L1 tokens used by running requests.
    pub used: u64,
    /// L1 tokens that are only cached and can be evicted.
    pub evictable: u64,
    /// Tokens currently cached in L2.
    pub host_used: u64,
    /// L2 capacity in tokens.
    pub host_total: u64,
}

/// Which ranks' samples to sum.
#[derive(Clone, Copy)]
enum RankScope {
    /// One rank only, for logical token counts.
    OneRank,
    /// All ranks, for byte counts.
    All,
}

impl ServerCounters {
    /// Parses a metrics page. Returns `None` if it contains no SGLang metric.
    pub fn read(page: &Samples) -> Option<ServerCounters> {
        page.names().any(|name| name.starts_with("sglang:")).then(|| ServerCounters::of(page))
    }

    fn of(page: &Samples) -> ServerCounters {
        let sum = |name: &str, take: RankScope, label: Option<(&str, &str)>| {
            let mut total = 0.0;
            for (labels, value) in page.samples(&format!("sglang:{name}")) {
                let get =
                    |wanted: &str| labels.iter().find(|(known, _)| known == wanted).map(|(_, value)| value.as_str());
                let counts = match take {
                    RankScope::All => true,
                    RankScope::OneRank => ["tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank"]
                        .iter()
                        .all(|rank| get(rank).is_none_or(|rank| rank == "0" || rank.is_empty())),
                };
                if counts && label.is_none_or(|(name, wanted)| get(name) == Some(wanted)) && value.is_finite() {
                    total += value;
                }
            }
            total
        };
        let tokens = |name: &str| count(sum(name, RankScope::OneRank, None));
        let cached = |tier: &str| count(sum("cached_tokens_total", RankScope::OneRank, Some(("cache_source", tier))));
        let bytes = |name: &str| count(sum(name, RankScope::All, None));
        let pool = |name: &str| count(sum(name, RankScope::OneRank, Some(("pool", "kv"))));
        let reasons = |name: &str| {
            let mut found = Reasons::new();
            for (reason, _) in page.by(&format!("sglang:{name}"), "reason") {
                if found.len() < REASONS_MAX {
                    let reason_tokens = count(sum(name, RankScope::OneRank, Some(("reason", reason))));
                    found.insert(one_line(reason, 64), reason_tokens);
                }
            }
            found
        };
        let rates = |name: &str| BandwidthSum {
            sum: sum(&format!("{name}_sum"), RankScope::All, None),
            count: sum(&format!("{name}_count"), RankScope::All, None),
        };
        ServerCounters {
            requests: tokens("num_requests_total"),
            prompt: tokens("prompt_tokens_total"),
            completion: tokens("generation_tokens_total"),
            device: cached("device"),
            host: cached("host"),
            storage: cached("storage"),
            cached_somewhere: cached("total"),
            computed: count(sum("realtime_tokens_total", RankScope::OneRank, Some(("mode", "prefill_compute")))),
            evicted: tokens("evicted_tokens_total"),
            backed_up: pool("hicache_backup_tokens_total"),
            backed_up_bytes: bytes("hicache_backup_bytes_total"),
            loaded_back: pool("load_back_tokens_total"),
            loaded_back_bytes: bytes("load_back_bytes_total"),
            stored: tokens("backuped_tokens_total"),
            store_dropped: tokens("hicache_backup_dropped_tokens_total"),
            found_in_storage: tokens("storage_prefetch_hit_tokens_total"),
            prefetched: tokens("prefetched_tokens_total"),
            dropped: reasons("hicache_dropped_tokens_total"),
            unfulfilled: reasons("storage_prefetch_unfulfilled_tokens_total"),
            deferred: reasons("storage_prefetch_deferred_tokens_total"),
            prefetch_rate: rates("prefetch_bandwidth"),
            backup_rate: rates("backup_bandwidth"),
            now: ServerGauges {
                running: tokens("num_running_reqs"),
                queued: tokens("num_queue_reqs"),
                used: tokens("kv_used_tokens"),
                evictable: tokens("kv_evictable_tokens"),
                host_used: tokens("hicache_host_used_tokens"),
                host_total: tokens("hicache_host_total_tokens"),
            },
        }
    }

    /// Returns the cached prompt tokens over all tiers.
    pub fn cached(&self) -> u64 {
        let tiers = [self.device, self.host, self.storage, self.cached_somewhere];
        tiers.into_iter().fold(0, u64::saturating_add)
    }

    /// Adds the counters of another server behind the same router.
    #[must_use]
    pub fn plus(mut self, other: &ServerCounters) -> ServerCounters {
        self.each(other, |mine, theirs| mine.saturating_add(theirs));
        let rates = [(&mut self.prefetch_rate, other.prefetch_rate), (&mut self.backup_rate, other.backup_rate)];
        for (mine, theirs) in rates {
            *mine = BandwidthSum { sum: mine.sum + theirs.sum, count: mine.count + theirs.count };
        }
        let mine = &mut self.now;
        let theirs = other.now;
        *mine = ServerGauges {
            running: mine.running.saturating_add(theirs.running),
            queued: mine.queued.saturating_add(theirs.queued),
            used: mine.used.saturating_add(theirs.used),
            evictable: mine.evictable.saturating_add(theirs.evictable),
            host_used: mine.host_used.saturating_add(theirs.host_used),
            host_total: mine.host_total.saturating_add(theirs.host_total),
        };
        self
    }

    /// Returns the increase since `before`, with the current gauges. If the server restarted in the
    /// meantime, the increase is counted from zero.
    #[must_use]
    pub fn since(mut self, before: &ServerCounters) -> ServerCounters {
        self.each(before, |now, then| if now >= then { now - then } else { now });
        let rates = [(&mut self.prefetch_rate, before.prefetch_rate), (&mut self.backup_rate, before.backup_rate)];
        for (now, then) in rates {
            if now.count >= then.count {
                *now = BandwidthSum { sum: now.sum - then.sum, count: now.count - then.count };
            }
        }
        self
    }

    /// Returns whether the server restarted between `before` and this reading.
    pub fn restarted_since(&self, before: &ServerCounters) -> bool {
        self.requests < before.requests || self.prompt < before.prompt
    }

    fn each(&mut self, other: &ServerCounters, combine: impl Fn(u64, u64) -> u64) {
        let pairs = [
            (&mut self.requests, other.requests),
            (&mut self.prompt, other.prompt),
            (&mut self.completion, other.completion),
            (&mut self.device, other.device),
            (&mut self.host, other.host),
            (&mut self.storage, other.storage),
            (&mut self.cached_somewhere, other.cached_somewhere),
            (&mut self.computed, other.computed),
            (&mut self.evicted, other.evicted),
            (&mut self.backed_up, other.backed_up),
            (&mut self.backed_up_bytes, other.backed_up_bytes),
            (&mut self.loaded_back, other.loaded_back),
            (&mut self.loaded_back_bytes, other.loaded_back_bytes),
            (&mut self.stored, other.stored),
            (&mut self.store_dropped, other.store_dropped),
            (&mut self.found_in_storage, other.found_in_storage),
            (&mut self.prefetched, other.prefetched),
        ];
        for (mine, theirs) in pairs {
            *mine = combine(*mine, theirs);
        }
        let reasons = [
            (&mut self.dropped, &other.dropped),
            (&mut self.unfulfilled, &other.unfulfilled),
            (&mut self.deferred, &other.deferred),
        ];
        for (mine, theirs) in reasons {
            for (reason, theirs) in theirs {
                let mine = mine.entry(reason.clone()).or_default();
                *mine = combine(*mine, *theirs);
            }
        }
    }
}

/// Counters and gauges of a Mooncake master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreCounters {
    pub keys: u64,
    /// Total size of all objects in bytes.
    pub allocated_bytes: u64,
    /// Total capacity of all segments in bytes.
    pub capacity_bytes: u64,
    pub evicted_keys: u64,
    pub evicted_bytes: u64,
    /// Number of allocations that failed for lack of space.
    pub allocation_failures: u64,
    /// Number of get requests that found the object.
    pub hits: u64,
    /// Total number of get requests.
    pub gets: u64,
}

impl StoreCounters {
    /// Parses a metrics page. Returns `None` if it is not a master's page.
    pub fn read(page: &Samples) -> Option<StoreCounters> {
        let value = |name: &str| count(page.sum(name).unwrap_or(0.0));
        page.sum("master_key_count")?;
        Some(StoreCounters {
            keys: value("master_key_count"),
            allocated_bytes: value("master_allocated_bytes"),
            capacity_bytes: value("master_total_capacity_bytes"),
            evicted_keys: value("master_evicted_key_count"),
            evicted_bytes: value("master_evicted_size_bytes"),
            allocation_failures: value("master_put_start_alloc_failures_total"),
            hits: value("valid_get_nums_"),
            gets: value("total_get_nums_"),
        })
    }

    /// Returns the increase since `before`, with the current gauges.
    #[must_use]
    pub fn since(self, before: &StoreCounters) -> StoreCounters {
        let grown = |now: u64, then: u64| if now >= then { now - then } else { now };
        StoreCounters {
            evicted_keys: grown(self.evicted_keys, before.evicted_keys),
            evicted_bytes: grown(self.evicted_bytes, before.evicted_bytes),
            allocation_failures: grown(self.allocation_failures, before.allocation_failures),
            hits: grown(self.hits, before.hits),
            gets: grown(self.gets, before.gets),
            ..self
        }
    }
}

/// Converts a sample to a count. Negative values become zero.
fn count(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"
sglang:prompt_tokens_total{is_streaming="true"} 100.0
sglang:prompt_tokens_total{is_streaming="false"} 20.0
sglang:cached_tokens_total{cache_source="host"} 32.0
sglang:cached_tokens_total{cache_source="storage"} 16
sglang:evicted_tokens_total{tp_rank="0"} 64
sglang:evicted_tokens_total{tp_rank="1"} 64
sglang:load_back_bytes_total{tp_rank="0"} 1.5e3
sglang:load_back_bytes_total{tp_rank="1"} 500
sglang:load_back_tokens_total{pool="kv",tp_rank="0"} 48
sglang:load_back_tokens_total{pool="mamba",tp_rank="0"} 7
sglang:storage_prefetch_unfulfilled_tokens_total{reason="deadline",tp_rank="0"} 8
sglang:storage_prefetch_unfulfilled_tokens_total{reason="deadline",tp_rank="1"} 8
sglang:prefetch_bandwidth_sum 0.5
sglang:prefetch_bandwidth_count 2
sglang:kv_used_tokens{tp_rank="0"} NaN
"#;

    fn read(page: &str) -> ServerCounters {
        ServerCounters::read(&Samples::parse(page)).expect("a page of SGLang")
    }

    #[test]
    fn token_counts_use_one_rank_and_byte_counts_all_ranks() {
        let counted = read(PAGE);
        assert_eq!((counted.prompt, counted.device, counted.host, counted.storage), (120, 0, 32, 16));
        assert_eq!((counted.evicted, counted.loaded_back, counted.loaded_back_bytes), (64, 48, 2000));
        assert_eq!(counted.unfulfilled["deadline"], 8);
        assert_eq!((counted.prefetch_rate.mean(), counted.now.used), (Some(0.25), 0));
    }

    #[test]
    fn increases_are_differences_and_servers_add_up() {
        let before = read(PAGE);
        let after = read(
            &PAGE.replace("} 100.0", "} 150").replace("\"deadline\",tp_rank=\"0\"} 8", "\"deadline\",tp_rank=\"0\"} 9"),
        );
        let since = after.clone().since(&before);
        assert_eq!((since.prompt, since.host, since.unfulfilled["deadline"]), (50, 0, 1));
        assert_eq!(before.clone().plus(&after).prompt, 290);
        assert!(before.restarted_since(&after) && !after.restarted_since(&before));
        assert_eq!(before.since(&after).prompt, 120, "the server restarted");
    }

    #[test]
    fn pages_of_other_servers_are_rejected() {
        assert_eq!(ServerCounters::read(&Samples::parse("vllm:prompt_tokens_total 5\n")), None);
        assert_eq!(StoreCounters::read(&Samples::parse("sglang:x 5\n")), None);
    }

    #[test]
    fn master_gauges_are_current_and_counters_are_differences() {
        let page = |keys: u64, evicted: u64| {
            let page =
                format!("master_key_count {keys}\nmaster_evicted_key_count {evicted}\nmaster_allocated_bytes 9\n");
            StoreCounters::read(&Samples::parse(&page)).expect("a master page")
        };
        let since = page(7, 5).since(&page(9, 2));
        assert_eq!((since.keys, since.evicted_keys, since.allocated_bytes), (7, 3, 9));
    }
}
