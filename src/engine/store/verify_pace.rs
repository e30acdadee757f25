//! How fast objects are verified, and how many at a time. No I/O.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::{ObjectStat, StoreError};
use mcctl_base::Mono;

/// Maximum number of bytes in memory at a time. A larger object is read alone.
const BATCH_BYTES_MAX: u64 = 64 << 20;
/// The first batch, and the smallest one.
const BATCH_BYTES_MIN: u64 = 1 << 20;
/// Maximum number of objects that are looked up at a time.
const BATCH_KEYS_MAX: usize = 128;
/// A batch that takes longer is followed by a smaller one, so that objects are read soon after
/// their lease has begun.
const BATCH_TIME_MAX: Duration = Duration::from_secs(1);
/// A batch that takes less is followed by a larger one.
const BATCH_TIME_MIN: Duration = Duration::from_millis(250);

/// How fast a verification may read, and how many objects are next.
#[derive(Clone, Debug)]
pub struct VerifyPace {
    /// Maximum rate in bytes per second.
    rate: Option<NonZeroU64>,
    /// When the next batch may begin.
    next: Mono,
    bytes: u64,
    keys: usize,
}

/// A batch of objects that was verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerifyBatch {
    pub began: Mono,
    pub ended: Mono,
    /// Number of bytes that were read.
    pub bytes: u64,
    /// Number of objects that were looked up, and of those that were verified.
    pub keys: usize,
    pub verified: usize,
}

impl VerifyPace {
    /// Returns the pace of a verification that reads at most `rate` bytes per second.
    pub fn new(rate: Option<NonZeroU64>) -> VerifyPace {
        VerifyPace { rate, next: Mono::ZERO, bytes: BATCH_BYTES_MIN, keys: BATCH_KEYS_MAX }
    }

    /// Returns how long to wait at `now` before the next batch.
    pub(crate) fn wait(&self, now: Mono) -> Duration {
        self.next.since(now)
    }

    /// Returns how many objects to look up.
    pub(crate) fn keys(&self) -> usize {
        self.keys
    }

    /// Returns how many of the objects to read now, from the first one: at least one, and no more
    /// bytes than the batch may have.
    pub(crate) fn fitting(&self, stats: &[Result<ObjectStat, StoreError>]) -> usize {
        // At a low rate, a batch has the bytes of a second.
        let most = self.rate.map_or(self.bytes, |rate| rate.get().min(self.bytes));
        let mut total: u64 = 0;
        let fits = |stat: &&Result<ObjectStat, StoreError>| {
            total = total.saturating_add(stat.as_ref().map_or(0, |stat| stat.size));
            total <= most
        };
        stats.iter().take_while(fits).count().max(1).min(stats.len())
    }

    /// Adapts the pace to a batch.
    pub(crate) fn add(&mut self, batch: &VerifyBatch) {
        let took = batch.ended.since(batch.began);
        if let Some(rate) = self.rate {
            let nanos = u128::from(batch.bytes) * 1_000_000_000 / u128::from(rate.get());
            self.next = batch.began + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        }
        self.keys = match batch.verified < batch.keys {
            true => batch.verified,
            false => (batch.keys * 2).clamp(1, BATCH_KEYS_MAX),
        };
        if took > BATCH_TIME_MAX {
            self.bytes = (self.bytes / 2).max(BATCH_BYTES_MIN);
        } else if took < BATCH_TIME_MIN {
            self.bytes = (self.bytes * 2).min(BATCH_BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_wire::types::GetReplicaListResponse;

    fn pace(rate: u64) -> VerifyPace {
        VerifyPace::new(NonZeroU64::new(rate))
    }

    fn batch(began: u64, ended: u64, bytes: u64) -> VerifyBatch {
        VerifyBatch { began: Mono::from_ms(began), ended: Mono::from_ms(ended), bytes, keys: 8, verified: 8 }
    }

    fn stats(sizes: &[u64]) -> Vec<Result<ObjectStat, StoreError>> {
        let found = || GetReplicaListResponse { replicas: Vec::new(), lease_ttl_ms: 0, object_checksum: None };
        sizes.iter().map(|size| Ok(ObjectStat { size: *size, found: found() })).collect()
    }

    #[test]
    fn a_batch_is_followed_by_the_time_that_its_bytes_take_at_the_rate() {
        let mut pace = pace(1000);
        assert_eq!(pace.wait(Mono::ZERO), Duration::ZERO);
        pace.add(&batch(5000, 5100, 2500));
        assert_eq!(pace.wait(Mono::from_ms(5100)), Duration::from_millis(2400));
        assert_eq!(pace.wait(Mono::from_ms(9000)), Duration::ZERO);
        // Time that was lost is not made up for.
        pace.add(&batch(9000, 9900, 500));
        assert_eq!(pace.wait(Mono::from_ms(9900)), Duration::ZERO);
        pace.add(&batch(9900, 9901, 500));
        assert_eq!(pace.wait(Mono::from_ms(9901)), Duration::from_millis(499));
        pace.add(&batch(0, 1, u64::MAX));
        assert!(pace.wait(Mono::ZERO) > Duration::from_secs(1_000_000));
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pace = pace(0);
        pace.add(&batch(0, 1, u64::MAX));
        assert_eq!(pace.wait(Mono::ZERO), Duration::ZERO);
    }

    #[test]
    fn batches_grow_while_they_are_fast_and_shrink_when_they_are_slow() {
        let mut pace = pace(0);
        let mib = |pace: &VerifyPace| pace.fitting(&stats(&[1 << 20; 100]));
        assert_eq!(mib(&pace), 1);
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            pace.add(&batch(0, 1, 1));
            assert_eq!(mib(&pace), expected);
        }
        pace.add(&batch(0, 500, 1));
        assert_eq!(mib(&pace), 64);
        for expected in [32, 16, 8, 4, 2, 1, 1] {
            pace.add(&batch(0, 1001, 1));
            assert_eq!(mib(&pace), expected);
        }
    }

    #[test]
    fn a_batch_has_at_least_one_object_and_at_most_the_bytes_of_a_second() {
        let mut slow = pace(1000);
        assert_eq!(slow.fitting(&stats(&[5000, 1])), 1);
        assert_eq!(slow.fitting(&stats(&[500, 500, 1])), 2);
        let mut gone = stats(&[500]);
        gone.insert(0, Err(StoreError::BatchLength { requested: 1, found: 0 }));
        assert_eq!(slow.fitting(&gone), 2);
        assert_eq!(slow.fitting(&[]), 0);
        assert_eq!(slow.keys(), BATCH_KEYS_MAX);
        slow.add(&VerifyBatch { verified: 3, ..batch(0, 1, 1) });
        assert_eq!(slow.keys(), 3);
        slow.add(&VerifyBatch { keys: 3, verified: 3, ..batch(0, 1, 1) });
        assert_eq!(slow.keys(), 6);
    }
}
