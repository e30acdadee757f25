//! What a SGLang counts of itself, as numbers. Pure.

use std::time::Duration;

/// Upper bounds of the histogram of times to the first token and of whole requests, seconds.
pub const LATENCY: &[f64] =
    &[0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0];
/// Of gaps between tokens.
pub const GAPS: &[f64] = &[
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
];
/// Of waits in the queue.
pub const QUEUE: &[f64] =
    &[0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 60.0, 200.0, 1000.0];
/// Of pages in a batch.
pub const PAGES: &[f64] = &[1.0, 5.0, 10.0, 50.0, 100.0];
/// Of bandwidths, GB/s.
pub const BANDWIDTH: &[f64] = &[0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0];

/// A histogram of Prometheus.
#[derive(Clone, Debug)]
pub struct Buckets {
    /// Upper bounds.
    pub bounds: &'static [f64],
    /// How many fell below each bound and above the one before; the last is above all.
    pub counts: Vec<u64>,
    /// Their sum.
    pub sum: f64,
}

impl Buckets {
    /// Empty.
    pub fn new(bounds: &'static [f64]) -> Buckets {
        Buckets { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Count `value`.
    pub fn record(&mut self, value: f64) {
        self.record_times(value, 1);
    }

    /// Count `value` so often.
    pub fn record_times(&mut self, value: f64, times: u64) {
        let at = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[at] += times;
        self.sum += value * times as f64;
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Tokens by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByTier {
    /// From the device.
    pub device: u64,
    /// From the host.
    pub host: u64,
    /// From storage.
    pub storage: u64,
    /// Computed.
    pub computed: u64,
}

/// Why storage gave less than was found there: SGLang's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfulfilled {
    /// Too few to be worth it.
    pub below_threshold: u64,
    /// The host has no room.
    pub host_capacity: u64,
    /// Another request brought them meanwhile.
    pub device_overlap: u64,
    /// The store did not give what it has listed, or other bytes.
    pub storage_transfer: u64,
    /// What they were to follow is gone.
    pub anchor_lost: u64,
    /// They came, but the device had no room.
    pub cache_admission_shortfall: u64,
}

/// Counts of requests of one kind: streamed, or not.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Requests.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt: u64,
    /// Tokens of their answers.
    pub generation: u64,
    /// From arrival to the first token, seconds.
    pub first_token: Buckets,
    /// From arrival to the end.
    pub whole: Buckets,
    /// Between tokens.
    pub gaps: Buckets,
}

impl Default for Finished {
    fn default() -> Finished {
        Finished {
            requests: 0,
            prompt: 0,
            generation: 0,
            first_token: Buckets::new(LATENCY),
            whole: Buckets::new(LATENCY),
            gaps: Buckets::new(GAPS),
        }
    }
}

/// Everything that is counted, since the start.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Requests that ended well: not streamed, streamed.
    pub finished: [Finished; 2],
    /// Cached tokens of requests that ended well.
    pub cached: ByTier,
    /// Tokens of prompts that were started.
    pub prefill: ByTier,
    /// Tokens made by decode steps.
    pub decoded: u64,
    /// Requests that ended otherwise.
    pub aborted: u64,
    /// From arrival to the start.
    pub queue: Buckets,
    /// Tokens evicted from the device.
    pub evicted: u64,
    /// Tokens copied to the host.
    pub host_backup: u64,
    /// Tokens brought back from the host.
    pub load_back: u64,
    /// Tokens that storage took.
    pub storage_backup: u64,
    /// Tokens that storage was not given, or did not take.
    pub storage_backup_dropped: u64,
    /// Tokens that storage was found to have.
    pub storage_hit: u64,
    /// Tokens that came from storage.
    pub prefetched: u64,
    /// Those that did not, by reason.
    pub unfulfilled: Unfulfilled,
    /// Pages of a batch to storage.
    pub backup_pages: Buckets,
    /// How fast it went.
    pub backup_bandwidth: Buckets,
    /// Pages of a batch from storage.
    pub prefetch_pages: Buckets,
    /// How fast it went.
    pub prefetch_bandwidth: Buckets,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            finished: Default::default(),
            cached: ByTier::default(),
            prefill: ByTier::default(),
            decoded: 0,
            aborted: 0,
            queue: Buckets::new(QUEUE),
            evicted: 0,
            host_backup: 0,
            load_back: 0,
            storage_backup: 0,
            storage_backup_dropped: 0,
            storage_hit: 0,
            prefetched: 0,
            unfulfilled: Unfulfilled::default(),
            backup_pages: Buckets::new(PAGES),
            backup_bandwidth: Buckets::new(BANDWIDTH),
            prefetch_pages: Buckets::new(PAGES),
            prefetch_bandwidth: Buckets::new(BANDWIDTH),
        }
    }
}

/// 1e9 bytes a second.
pub fn gb_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1e9 / took.as_secs_f64().max(1e-9)
}
