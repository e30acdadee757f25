//! The plan for a store benchmark: objects, sizes and read order.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution as _;

use mcctl_base::{ByteSize, ObjectKey};
use mcctl_load::Seed;

/// The plan for a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreBenchPlan {
    /// Prefix shared by all keys.
    pub prefix: String,
    /// Object sizes in bytes, used in rotation.
    pub sizes: Vec<u64>,
    /// Number of objects put in the first pass and read afterwards.
    pub objects: u32,
    pub batch: u32,
    /// Share of read batches in the second pass, from 0 to 1. All other batches put new objects.
    pub read_ratio: f64,
    /// Exponent of a Zipf distribution for reads; `None`: objects are read sequentially.
    pub zipf: Option<f64>,
    /// Compare every byte read.
    pub verify: bool,
    /// Number of replicas per object.
    pub replicas: u64,
    pub seed: Seed,
}

/// Reasons why a plan is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StoreBenchPlanError {
    /// A count or size is 0.
    #[error("{0} must be at least 1")]
    Nothing(&'static str),
    #[error("a batch of {batch} objects can be up to {}; the limit is {}", ByteSize(*.bytes), ByteSize(*.max))]
    TooLarge { batch: u32, bytes: u64, max: u64 },
    #[error("{0:?} is not a valid Zipf exponent: use a number above 0 and at most 10")]
    Zipf(f64),
    #[error("{0:?} is not a valid share: use a number from 0 to 1")]
    Ratio(f64),
}

/// Maximum size of a batch in bytes. Also applies to each memory buffer of a client.
const BATCH_BYTES_MAX: u64 = 4 << 30;

impl StoreBenchPlan {
    /// Validates the plan.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<(), StoreBenchPlanError> {
        if self.objects == 0 {
            return Err(StoreBenchPlanError::Nothing("the number of objects"));
        }
        if self.batch == 0 {
            return Err(StoreBenchPlanError::Nothing("the batch size"));
        }
        if self.sizes.is_empty() || self.sizes.contains(&0) {
            return Err(StoreBenchPlanError::Nothing("the object size"));
        }
        let bytes = self.batch_bytes();
        if bytes > BATCH_BYTES_MAX {
            return Err(StoreBenchPlanError::TooLarge { batch: self.batch, bytes, max: BATCH_BYTES_MAX });
        }
        if let Some(alpha) = self.zipf.filter(|alpha| !(*alpha > 0.0 && *alpha <= 10.0)) {
            return Err(StoreBenchPlanError::Zipf(alpha));
        }
        if !(0.0..=1.0).contains(&self.read_ratio) {
            return Err(StoreBenchPlanError::Ratio(self.read_ratio));
        }
        Ok(())
    }

    /// Returns the size of the largest batch in bytes.
    pub fn batch_bytes(&self) -> u64 {
        self.sizes.iter().max().copied().unwrap_or(0).saturating_mul(u64::from(self.batch))
    }

    /// Returns the size of all replicas of all objects of one process, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        let count = self.sizes.len().max(1) as u64;
        let rounds = u64::from(self.objects) / count;
        let rest = u64::from(self.objects) % count;
        let all: u64 = self.sizes.iter().fold(0, |sum, size| sum.saturating_add(*size));
        let last: u64 = self.sizes.iter().take(rest as usize).fold(0, |sum, size| sum.saturating_add(*size));
        all.saturating_mul(rounds).saturating_add(last).saturating_mul(self.replicas)
    }

    /// Returns the size of object `index` in bytes.
    pub fn size(&self, index: u32) -> u64 {
        self.sizes[index as usize % self.sizes.len()]
    }

    /// Returns the key for object `index`.
    pub fn key(&self, index: u32) -> ObjectKey {
        ObjectKey::from(format!("{}{index:08x}", self.prefix).as_str())
    }

    /// Returns a regular expression that matches only the keys of this run.
    pub fn every_key(&self) -> String {
        format!("^{}[0-9a-f]{{8}}$", self.prefix)
    }

    /// Returns the index of the object for the `turn`-th read, which is less than `stored`.
    pub(super) fn read_index(&self, turn: u32, stored: u32, rng: &mut ChaCha8Rng) -> u32 {
        let stored = stored.max(1);
        match self.zipf.map(|alpha| rand_distr::Zipf::new(f64::from(stored), alpha)) {
            // Ranks begin at 1. `check` has validated the arguments.
            Some(Ok(zipf)) => (zipf.sample(rng) as u32).clamp(1, stored) - 1,
            Some(Err(_)) | None => turn % stored,
        }
    }

    /// Returns whether the next batch is a read.
    pub(super) fn reads(&self, rng: &mut ChaCha8Rng) -> bool {
        rng.random_range(0.0..1.0) < self.read_ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> StoreBenchPlan {
        StoreBenchPlan {
            prefix: "p-".to_owned(),
            sizes: vec![10, 20],
            objects: 100,
            batch: 4,
            read_ratio: 1.0,
            zipf: None,
            verify: false,
            replicas: 1,
            seed: Seed(1),
        }
    }

    #[test]
    fn sizes_are_used_in_turn_and_the_regex_matches_every_key() {
        let plan = plan();
        assert_eq!((plan.size(0), plan.size(1), plan.size(2), plan.batch_bytes()), (10, 20, 10, 80));
        assert_eq!(plan.stored_bytes(), 1_500);
        assert_eq!(StoreBenchPlan { objects: 3, replicas: 2, ..plan.clone() }.stored_bytes(), 80);
        let regex = fancy_regex::Regex::new(&plan.every_key()).unwrap();
        let key = |index| String::from_utf8_lossy(plan.key(index).as_bytes()).into_owned();
        assert!(regex.is_match(&key(0)).unwrap() && regex.is_match(&key(u32::MAX)).unwrap());
        assert!(!regex.is_match("p-x").unwrap());
    }

    #[test]
    fn reads_go_in_turn_or_follow_zipf() {
        let mut rng = Seed(3).generator("reads", 0);
        assert_eq!([0, 99, 100, 101].map(|turn| plan().read_index(turn, 100, &mut rng)), [0, 99, 0, 1]);
        let plan = StoreBenchPlan { zipf: Some(1.0), ..plan() };
        let mut counts = [0_u32; 100];
        for turn in 0..100_000 {
            counts[plan.read_index(turn, 100, &mut rng) as usize] += 1;
        }
        // Shares of ranks 1, 2 and 3: 1 / H(100) = 0.1928, half of it, a third of it.
        for (rank, share) in [(0, 0.192_8), (1, 0.096_4), (2, 0.064_3)] {
            assert!((f64::from(counts[rank]) / 1e5 - share).abs() < 0.006, "{rank}: {}", counts[rank]);
        }
        assert!(counts.iter().all(|count| *count > 0));
    }

    #[test]
    fn invalid_plans_are_rejected() {
        let bad = |change: fn(&mut StoreBenchPlan)| {
            let mut plan = plan();
            change(&mut plan);
            plan.check().unwrap_err()
        };
        assert_eq!(plan().check(), Ok(()));
        assert_eq!(bad(|plan| plan.sizes = vec![1, 0]), StoreBenchPlanError::Nothing("the object size"));
        assert_eq!(bad(|plan| plan.zipf = Some(0.0)), StoreBenchPlanError::Zipf(0.0));
        assert_eq!(bad(|plan| plan.read_ratio = 1.5), StoreBenchPlanError::Ratio(1.5));
        assert!(matches!(bad(|plan| plan.sizes = vec![u64::MAX]), StoreBenchPlanError::TooLarge { .. }));
        assert!(matches!(bad(|plan| plan.zipf = Some(f64::NAN)), StoreBenchPlanError::Zipf(_)));
        assert_eq!(bad(|plan| plan.zipf = Some(1e300)), StoreBenchPlanError::Zipf(1e300));
    }
}
