//! What a cache is worth per month: the GPU time that its hits save, and the price of its memory.
//!
//! A hit token is a prompt token that no GPU computes. A server with `gpus` GPUs computes
//! `prefill_tokens_per_second` prompt tokens per second, so that a hit token saves `gpus /
//! prefill_tokens_per_second` GPU seconds. Whether saved time is saved money depends on the
//! operator: it is, if there are fewer servers, or more traffic on the same servers.

mod range;

pub use range::{NumberRange, ParseRangeError};

/// Hours per month: a twelfth of 365.25 days.
pub const MONTH_HOURS: f64 = 730.5;
/// Bytes per GB, the unit of prices.
const GB: f64 = 1e9;

/// Prices, in any currency, and the speed of the servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachePrices {
    /// Price of a GPU for an hour.
    pub gpu_hour: NumberRange,
    /// Price of a GB (10^9 bytes) of the cache's memory for a month.
    pub gb_month: NumberRange,
    /// Prompt tokens that one server computes per second.
    pub prefill_tokens_per_second: NumberRange,
    /// Number of GPUs of each server.
    pub gpus: u64,
    /// Duration of the trace, in hours.
    pub trace_hours: f64,
}

/// Which end of each range to compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceCase {
    /// Cheap GPUs that are fast, and expensive memory: the least that a cache is worth.
    Low,
    /// The middle of each range.
    Middle,
    /// Expensive GPUs that are slow, and cheap memory.
    High,
}

/// What a cache of one size saves and costs per month.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheWorth {
    pub gpu_hours: f64,
    /// Price of these GPU hours.
    pub saved: f64,
    /// Price of the memory.
    pub cost: f64,
}

impl CacheWorth {
    /// What remains of the saved price.
    pub fn net(&self) -> f64 {
        self.saved - self.cost
    }
}

impl CachePrices {
    /// Computes what `hits` hit tokens of the trace save, and what `bytes` of memory cost, per
    /// month.
    pub fn worth(&self, hits: u64, bytes: u64, case: PriceCase) -> CacheWorth {
        let (gpu_hour, gb_month, speed) = match case {
            PriceCase::Low => (self.gpu_hour.low, self.gb_month.high, self.prefill_tokens_per_second.high),
            PriceCase::Middle => {
                (self.gpu_hour.middle(), self.gb_month.middle(), self.prefill_tokens_per_second.middle())
            }
            PriceCase::High => (self.gpu_hour.high, self.gb_month.low, self.prefill_tokens_per_second.low),
        };
        let per_month = hits as f64 * MONTH_HOURS / self.trace_hours;
        let gpu_hours = per_month / speed / 3600.0 * self.gpus as f64;
        CacheWorth { gpu_hours, saved: gpu_hours * gpu_hour, cost: bytes as f64 / GB * gb_month }
    }

    /// Returns the size in tokens with the largest difference between saved price and cost: beyond
    /// it, more memory does not pay. `points` are sizes with their hit tokens, and `bytes` converts
    /// a size to bytes. `None` if no size pays.
    pub fn best_size(
        &self,
        points: impl Iterator<Item = (u64, u64)>,
        bytes: impl Fn(u64) -> u64,
        case: PriceCase,
    ) -> Option<u64> {
        let nets = points.map(|(size, hits)| (size, self.worth(hits, bytes(size), case).net()));
        nets.filter(|(_, net)| *net > 0.0).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).map(|best| best.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(number: f64) -> NumberRange {
        NumberRange { low: number, high: number }
    }

    fn prices() -> CachePrices {
        CachePrices {
            gpu_hour: exact(2.0),
            gb_month: exact(3.0),
            prefill_tokens_per_second: exact(1_000.0),
            gpus: 8,
            trace_hours: 1.0,
        }
    }

    #[test]
    fn a_hit_saves_the_time_of_all_gpus_of_a_server() {
        // 3.6 million tokens per hour take 3600 seconds on 8 GPUs.
        let worth = prices().worth(3_600_000, 100_000_000_000, PriceCase::Middle);
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-6 * expected;
        assert!(near(worth.gpu_hours, 8.0 * MONTH_HOURS), "{worth:?}");
        assert!(near(worth.saved, 16.0 * MONTH_HOURS) && near(worth.cost, 300.0), "{worth:?}");
    }

    #[test]
    fn the_bounds_of_each_range_are_combined_for_the_least_and_the_most() {
        let range = |low, high| NumberRange { low, high };
        let prices = CachePrices {
            gpu_hour: range(1.0, 2.0),
            gb_month: range(3.0, 6.0),
            prefill_tokens_per_second: range(500.0, 1_000.0),
            ..prices()
        };
        let of = |case| prices.worth(3_600_000, 1_000_000_000, case);
        let (low, middle, high) = (of(PriceCase::Low), of(PriceCase::Middle), of(PriceCase::High));
        assert!((high.saved / low.saved - 4.0).abs() < 1e-9 && (low.cost / high.cost - 2.0).abs() < 1e-9);
        assert!(low.net() < middle.net() && middle.net() < high.net());
    }

    #[test]
    fn more_memory_pays_until_it_costs_more_than_it_saves() {
        let points = [(11, 10), (1_010, 30)];
        let bytes = |blocks: u64| blocks * 1_000_000_000;
        let best = |gb_month: f64, free: u64| {
            // One hit token saves 1 per month.
            let prices = CachePrices {
                gpu_hour: exact(3600.0),
                gb_month: exact(gb_month),
                prefill_tokens_per_second: exact(MONTH_HOURS),
                gpus: 1,
                trace_hours: 1.0,
            };
            let points = points.iter().map(|(size, hits)| (*size, hits - free.min(*hits)));
            prices.best_size(points, bytes, PriceCase::Middle)
        };
        assert_eq!(best(0.5, 0), Some(11), "10 tokens for 5.5");
        assert_eq!(best(0.01, 0), Some(1_010), "30 tokens for 10.1 are better than 10 for 0.11");
        assert_eq!(best(0.01, 25), None, "5 tokens for 10.1");
        assert_eq!(best(1.0, 0), None);
    }
}
