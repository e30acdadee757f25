//! What is stored and read.

use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution as _;

use crate::engine::base::ObjectKey;
use crate::engine::load::Seed;

/// The work of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What every key begins with.
    pub prefix: String,
    /// Bytes of objects: the first object has the first size, and so on in turn.
    pub sizes: Vec<u64>,
    /// Objects that are put first, and read from then on.
    pub objects: u32,
    /// Objects of a batch.
    pub batch: u32,
    /// How long to read for; none: as many objects as were put.
    pub duration: Option<Duration>,
    /// Share of batches that are reads, once all is put; the others put new objects.
    pub read_ratio: f64,
    /// Popularity falls with the rank to the power of this; none: all are read in turn.
    pub zipf: Option<f64>,
    /// Compare every byte that is read.
    pub verify: bool,
    /// Copies of each object.
    pub replicas: u64,
    /// Where all choices come from.
    pub seed: Seed,
}

/// Why a plan is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// There is nothing to do.
    #[error("{0} is to be at least 1")]
    Nothing(&'static str),
    /// An object or a batch is too large.
    #[error("a batch of {batch} objects has up to {bytes} bytes, more than {max}")]
    TooLarge {
        /// Objects of a batch.
        batch: u32,
        /// Their bytes.
        bytes: u64,
        /// What is allowed.
        max: u64,
    },
    /// The exponent is none.
    #[error("{0:?} is no exponent of a Zipf distribution: give one above 0 and up to 10")]
    Zipf(f64),
    /// The ratio is none.
    #[error("{0:?} is no share: give one from 0 to 1")]
    Ratio(f64),
}

/// Bytes of the memory of one client at most.
const BATCH_BYTES_MAX: u64 = 4 << 30;

impl Plan {
    /// Check it.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        if self.objects == 0 {
            return Err(PlanError::Nothing("the number of objects"));
        }
        if self.batch == 0 {
            return Err(PlanError::Nothing("the objects of a batch"));
        }
        if self.sizes.is_empty() || self.sizes.contains(&0) {
            return Err(PlanError::Nothing("the size of an object"));
        }
        let bytes = self.batch_bytes();
        if bytes > BATCH_BYTES_MAX {
            return Err(PlanError::TooLarge { batch: self.batch, bytes, max: BATCH_BYTES_MAX });
        }
        if let Some(alpha) = self.zipf.filter(|alpha| !(*alpha > 0.0 && *alpha <= 10.0)) {
            return Err(PlanError::Zipf(alpha));
        }
        if !(0.0..=1.0).contains(&self.read_ratio) {
            return Err(PlanError::Ratio(self.read_ratio));
        }
        Ok(())
    }

    /// Bytes of the largest batch.
    pub fn batch_bytes(&self) -> u64 {
        self.sizes.iter().max().copied().unwrap_or(0).saturating_mul(u64::from(self.batch))
    }

    /// Bytes of object number `index`.
    pub fn size(&self, index: u32) -> u64 {
        self.sizes[index as usize % self.sizes.len()]
    }

    /// Its key.
    pub fn key(&self, index: u32) -> ObjectKey {
        ObjectKey::from(format!("{}{index:08x}", self.prefix).as_str())
    }

    /// An expression that is found in every key of the run and in no other.
    pub fn every_key(&self) -> String {
        format!("^{}[0-9a-f]{{8}}$", self.prefix)
    }

    /// Which of `stored` objects is read: the `turn`th of all reads.
    pub(super) fn chosen(&self, turn: u32, stored: u32, rng: &mut ChaCha8Rng) -> u32 {
        let stored = stored.max(1);
        match self.zipf.map(|alpha| rand_distr::Zipf::new(f64::from(stored), alpha)) {
            // Ranks begin at 1. The arguments were checked.
            Some(Ok(zipf)) => (zipf.sample(rng) as u32).clamp(1, stored) - 1,
            Some(Err(_)) | None => turn % stored,
        }
    }

    /// Is the next batch a read?
    pub(super) fn reads(&self, rng: &mut ChaCha8Rng) -> bool {
        rng.random_range(0.0..1.0) < self.read_ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            prefix: "p-".to_owned(),
            sizes: vec![10, 20],
            objects: 100,
            batch: 4,
            duration: None,
            read_ratio: 1.0,
            zipf: None,
            verify: false,
            replicas: 1,
            seed: Seed(1),
        }
    }

    #[test]
    fn objects_have_their_sizes_in_turn_and_keys_that_the_expression_finds() {
        let plan = plan();
        assert_eq!((plan.size(0), plan.size(1), plan.size(2), plan.batch_bytes()), (10, 20, 10, 80));
        let regex = fancy_regex::Regex::new(&plan.every_key()).unwrap();
        let key = |index| String::from_utf8_lossy(plan.key(index).as_bytes()).into_owned();
        assert!(regex.is_match(&key(0)).unwrap() && regex.is_match(&key(u32::MAX)).unwrap());
        assert!(!regex.is_match("p-x").unwrap());
    }

    #[test]
    fn reads_go_in_turn_or_to_the_popular_ones_more_often() {
        let mut rng = Seed(3).generator("reads", 0);
        assert_eq!([0, 99, 100, 101].map(|turn| plan().chosen(turn, 100, &mut rng)), [0, 99, 0, 1]);
        let plan = Plan { zipf: Some(1.0), ..plan() };
        let mut counts = [0_u32; 100];
        for turn in 0..100_000 {
            counts[plan.chosen(turn, 100, &mut rng) as usize] += 1;
        }
        // 1 / H(100) = 0.1928 of all, and half of that, and a third.
        for (rank, share) in [(0, 0.192_8), (1, 0.096_4), (2, 0.064_3)] {
            assert!((f64::from(counts[rank]) / 1e5 - share).abs() < 0.006, "{rank}: {}", counts[rank]);
        }
        assert!(counts.iter().all(|count| *count > 0));
    }

    #[test]
    fn a_plan_that_is_none_says_why() {
        let bad = |change: fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            plan.check().unwrap_err()
        };
        assert_eq!(plan().check(), Ok(()));
        assert_eq!(bad(|plan| plan.sizes = vec![1, 0]), PlanError::Nothing("the size of an object"));
        assert_eq!(bad(|plan| plan.zipf = Some(0.0)), PlanError::Zipf(0.0));
        assert_eq!(bad(|plan| plan.read_ratio = 1.5), PlanError::Ratio(1.5));
        assert!(matches!(bad(|plan| plan.sizes = vec![u64::MAX]), PlanError::TooLarge { .. }));
        assert!(matches!(bad(|plan| plan.zipf = Some(f64::NAN)), PlanError::Zipf(_)));
        let words = bad(|plan| plan.zipf = Some(1e300)).to_string();
        assert!(words.starts_with("1e300 is no exponent"), "{words}");
    }
}
