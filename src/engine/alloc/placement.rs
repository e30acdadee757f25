//! Which segments the replicas of a new object go to.
//!
//! Replicas of one object lie on different segment *names* (a client that lends several stretches of memory gives them one
//! name, and a copy on the same host is no second copy). The choice is best effort: fewer replicas than asked for are fine,
//! none is a refusal. Neither strategy looks at more than [`PROBES_MAX`] names, so the cost does not grow with the pool.
//!
//! Randomness is handed in as [`Rng`], so a seed replays.

use bytes::Bytes;

/// Names that are tried before an allocation is refused (upstream's bound).
pub const PROBES_MAX: usize = 100;
/// `free_ratio_first` compares this many names for each replica that is wanted (upstream's factor).
const SAMPLE_PER_REPLICA: usize = 6;

/// How names are chosen; upstream's `--allocation_strategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// A random name, then its successors.
    #[default]
    Random,
    /// The emptiest of a random sample, then as `Random`.
    FreeRatioFirst,
    /// The names of the writer's host and of the hosts after it, then as `Random`.
    LocalFirst,
}

/// The names to choose from, numbered from 0 without gaps, and the means to try one.
pub trait Pool {
    /// What a successful try yields.
    type Taken;
    /// How many names there are.
    fn names(&self) -> usize;
    /// The number of a name, if it takes new objects.
    fn find(&self, name: &[u8]) -> Option<usize>;
    /// Up to `count` names in the order of their hosts, from the first host that is not before `host` on and around; `draw` chooses
    /// where to begin among the names of a host. Names without a host are left out.
    fn near(&self, host: &[u8], draw: u64, count: usize) -> Vec<usize>;
    /// Bytes free over bytes in all, of everything under a name.
    fn free_ratio(&self, name: usize) -> f64;
    /// Take `bytes` from one of the segments under a name; `draw` chooses where to begin among them.
    fn take(&mut self, name: usize, bytes: u64, draw: u64) -> Option<Self::Taken>;
}

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Bytes per replica.
    pub bytes: u64,
    /// Replicas, at most.
    pub replicas: u64,
    /// Names to try first, best first; unknown and full ones are passed over.
    pub preferred: &'a [Bytes],
    /// The host whose names come next, if any.
    pub near: Option<&'a [u8]>,
}

/// Take memory for one object; what was taken goes to `out`, first choice first.
pub fn place<P: Pool>(strategy: Strategy, pool: &mut P, rng: &mut Rng, wanted: &Request<'_>, out: &mut Vec<P::Taken>) {
    let names = pool.names();
    if names == 0 || wanted.replicas == 0 {
        return;
    }
    let mut search = Search { pool, rng, bytes: wanted.bytes, left: wanted.replicas, used: Vec::new(), out };
    for name in wanted.preferred.iter().take(PROBES_MAX) {
        if let Some(name) = search.pool.find(name) {
            search.attempt(name);
        }
    }
    if let Some(host) = wanted.near {
        let draw = search.rng.next();
        // The first one mostly has room, so the rest is looked up only when it has none.
        for (count, done) in [(1, 0), (PROBES_MAX, 1)] {
            if search.left > 0 {
                search.pool.near(host, draw, count).into_iter().skip(done).for_each(|name| search.attempt(name));
            }
        }
    }
    if strategy == Strategy::FreeRatioFirst && search.left > 0 && names > 1 {
        let count = usize::try_from(search.left).unwrap_or(names).saturating_mul(SAMPLE_PER_REPLICA);
        let count = count.min(names).min(PROBES_MAX * SAMPLE_PER_REPLICA);
        let start = search.rng.below(names);
        let mut sample: Vec<(f64, usize)> =
            (0..count).map(|i| (start + i) % names).map(|name| (search.pool.free_ratio(name), name)).collect();
        sample.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, name) in sample {
            search.attempt(name);
        }
    }
    if search.left > 0 {
        let start = search.rng.below(names);
        for i in 0..names.min(PROBES_MAX) {
            search.attempt((start + i) % names);
            if search.left == 0 {
                break;
            }
        }
    }
}

struct Search<'a, P: Pool> {
    pool: &'a mut P,
    rng: &'a mut Rng,
    bytes: u64,
    left: u64,
    /// Names that hold a replica already.
    used: Vec<usize>,
    out: &'a mut Vec<P::Taken>,
}

impl<P: Pool> Search<'_, P> {
    fn attempt(&mut self, name: usize) {
        if self.left == 0 || self.used.contains(&name) {
            return;
        }
        if let Some(taken) = self.pool.take(name, self.bytes, self.rng.next()) {
            self.out.push(taken);
            self.left -= 1;
            if self.left > 0 {
                self.used.push(name);
            }
        }
    }
}

/// A small generator of pseudo-random numbers (splitmix64): the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "an endless source, not an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number, scaled to below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the product's upper half is below bound")]
        let scaled = ((u128::from(self.next()) * bound as u128) >> 64) as usize;
        scaled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool that takes anything that fits and remembers the order in which it was asked.
    struct Shelf {
        free: Vec<u64>,
        size: u64,
        asked: Vec<usize>,
    }

    impl Shelf {
        fn new(free: &[u64], size: u64) -> Shelf {
            Shelf { free: free.to_vec(), size, asked: Vec::new() }
        }

        fn place(&mut self, strategy: Strategy, seed: u64, replicas: u64, preferred: &[&'static [u8]]) -> Vec<usize> {
            let mut out = Vec::new();
            let preferred: Vec<Bytes> = preferred.iter().copied().map(Bytes::from_static).collect();
            let wanted = Request { bytes: 1, replicas, preferred: &preferred, near: None };
            place(strategy, self, &mut Rng::new(seed), &wanted, &mut out);
            out
        }
    }

    impl Pool for Shelf {
        type Taken = usize;
        fn names(&self) -> usize {
            self.free.len()
        }
        fn find(&self, name: &[u8]) -> Option<usize> {
            let nth = std::str::from_utf8(name).ok()?.parse().ok()?;
            (nth < self.free.len()).then_some(nth)
        }
        fn near(&self, host: &[u8], _draw: u64, count: usize) -> Vec<usize> {
            let first = self.find(host).unwrap_or(0);
            (0..self.free.len()).map(|n| (first + n) % self.free.len()).take(count).collect()
        }
        fn free_ratio(&self, name: usize) -> f64 {
            self.free[name] as f64 / self.size as f64
        }
        fn take(&mut self, name: usize, bytes: u64, _draw: u64) -> Option<usize> {
            self.asked.push(name);
            self.free[name] = self.free[name].checked_sub(bytes)?;
            Some(name)
        }
    }

    #[test]
    fn random_spreads_objects_over_all_names() {
        let mut shelf = Shelf::new(&[u64::MAX; 8], u64::MAX);
        let mut hits = [0; 8];
        for seed in 0..4_000 {
            hits[shelf.place(Strategy::Random, seed, 1, &[])[0]] += 1;
        }
        assert!(hits.iter().all(|&n| (400..600).contains(&n)), "{hits:?}");
    }

    #[test]
    fn replicas_lie_on_different_names_and_fewer_are_better_than_none() {
        for strategy in [Strategy::Random, Strategy::FreeRatioFirst] {
            for seed in 0..50 {
                let mut got = Shelf::new(&[9; 3], 9).place(strategy, seed, 5, &[]);
                got.sort_unstable();
                assert_eq!(got, [0, 1, 2], "{strategy:?}");
            }
        }
    }

    #[test]
    fn full_names_are_passed_over() {
        for seed in 0..50 {
            assert_eq!(Shelf::new(&[0, 0, 5, 0], 9).place(Strategy::Random, seed, 1, &[]), [2]);
            assert_eq!(Shelf::new(&[0; 4], 9).place(Strategy::Random, seed, 1, &[]), [] as [usize; 0]);
        }
    }

    #[test]
    fn preferred_names_come_first_in_their_order_and_unknown_or_full_ones_are_skipped() {
        let preferred: [&'static [u8]; 4] = [b"nobody", b"1", b"3", b"2"];
        let got = Shelf::new(&[9, 0, 9, 9], 9).place(Strategy::Random, 7, 2, &preferred);
        assert_eq!(got, [3, 2]);
    }

    #[test]
    fn the_writers_host_comes_after_preferred_names_and_before_all_others() {
        let place = |free: &[u64], preferred: &[Bytes], seed| {
            let (mut shelf, mut out) = (Shelf::new(free, 9), Vec::new());
            let wanted = Request { bytes: 1, replicas: 1, preferred, near: Some(b"2") };
            super::place(Strategy::LocalFirst, &mut shelf, &mut Rng::new(seed), &wanted, &mut out);
            out
        };
        for seed in 0..50 {
            assert_eq!(place(&[9; 4], &[], seed), [2]);
            assert_eq!(place(&[9, 9, 0, 9], &[], seed), [3], "the next host when the own one is full");
            assert_eq!(place(&[9, 9, 0, 0], &[], seed), [0], "and around");
            assert_eq!(place(&[9; 4], &[Bytes::from_static(b"1")], seed), [1]);
        }
    }

    #[test]
    fn no_more_than_a_hundred_names_are_tried() {
        for strategy in [Strategy::Random, Strategy::FreeRatioFirst] {
            let mut shelf = Shelf::new(&[0; 4_000], 9);
            assert!(shelf.place(strategy, 3, 1, &[]).is_empty());
            assert!(shelf.asked.len() <= PROBES_MAX + SAMPLE_PER_REPLICA, "{}", shelf.asked.len());
        }
    }

    #[test]
    fn free_ratio_first_takes_the_emptiest_of_its_sample() {
        for seed in 0..50 {
            assert_eq!(Shelf::new(&[3, 8, 5], 9).place(Strategy::FreeRatioFirst, seed, 1, &[]), [1]);
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_numbers() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }

    #[test]
    fn an_empty_pool_takes_nothing() {
        assert!(Shelf::new(&[], 9).place(Strategy::Random, 0, 1, &[b"0"]).is_empty());
    }
}
