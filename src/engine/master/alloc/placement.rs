//! Chooses the segments for the replicas of a new object.
//!
//! An object's replicas are placed under different segment *names*: a client that contributes
//! several segments uses one name for all of them. They are also placed on different hosts, as long
//! as another host that is tried has space: a second copy on the same host would be lost with the
//! first. Placement is best effort: fewer replicas than requested are accepted, but zero replicas
//! count as a failure. At most [`PROBES_MAX`] names are tried, so the cost does not grow with the
//! store.
//!
//! Randomness comes from a seeded [`Rng`], so that a run can be replayed.

use bytes::Bytes;

pub use mcctl_base::Rng;

/// Maximum number of names tried before an allocation is refused (upstream's limit).
pub const PROBES_MAX: usize = 100;
/// Number of names that `free_ratio_first` compares per requested replica (upstream's factor).
const SAMPLE_PER_REPLICA: usize = 6;

/// How names are chosen. Upstream: `--allocation_strategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// A random name, followed by the names after it.
    #[default]
    Random,
    /// The name with the most free space in a random sample, then the same as `Random`.
    FreeRatioFirst,
    /// The names on the writer's host and on the hosts after it, then the same as `Random`.
    LocalFirst,
}

/// Provides the names to choose from, numbered from 0 without gaps, and allocates memory under each
/// name.
pub trait SegmentPool {
    /// The result of a successful allocation.
    type Allocation;
    /// Returns the number of names.
    fn names(&self) -> usize;
    /// Returns the index of a name, if the name accepts new objects.
    fn find(&self, name: &[u8]) -> Option<usize>;
    /// Returns up to `count` names in host order, starting at the first host that is not before
    /// `host` and wrapping around. `draw` selects the first name within each host. Names without a
    /// host are omitted.
    fn near(&self, host: &[u8], draw: u64, count: usize) -> Vec<usize>;
    /// Returns the host of a name, if it is known.
    fn host(&self, name: usize) -> Option<Bytes>;
    /// Returns free bytes divided by total bytes, across all segments under a name.
    fn free_ratio(&self, name: usize) -> f64;
    /// Allocates `bytes` from one of the segments under a name. `draw` selects the first segment to
    /// try.
    fn allocate(&mut self, name: usize, bytes: u64, draw: u64) -> Option<Self::Allocation>;
}

/// A request to allocate memory for one object.
#[derive(Clone, Copy, Debug)]
pub struct PlacementRequest<'a> {
    pub bytes: u64,
    /// Maximum number of replicas.
    pub replicas: u64,
    /// Names to try first, in order of preference. Unknown and full names are skipped.
    pub preferred: &'a [Bytes],
    /// Host whose names are tried after the preferred ones.
    pub near: Option<&'a [u8]>,
}

/// Allocates memory for one object. The allocations are appended to `out` in order of preference.
pub fn place<P: SegmentPool>(
    strategy: Strategy,
    pool: &mut P,
    rng: &mut Rng,
    request: &PlacementRequest<'_>,
    out: &mut Vec<P::Allocation>,
) {
    let names = pool.names();
    if names == 0 || request.replicas == 0 {
        return;
    }
    let mut search = PlacementSearch {
        pool,
        rng,
        bytes: request.bytes,
        left: request.replicas,
        used: Vec::new(),
        hosts: Vec::new(),
        is_apart: false,
        skipped: false,
        out,
    };
    for name in request.preferred.iter().take(PROBES_MAX) {
        if let Some(name) = search.pool.find(name) {
            search.try_name(name);
        }
    }
    // Names that the writer prefers are used even if they are on one host.
    search.is_apart = request.replicas > 1;
    if let Some(host) = request.near {
        let draw = search.rng.next();
        // The first name usually has space, so the others are only looked up if it has none.
        for (count, done) in [(1, 0), (PROBES_MAX, 1)] {
            if search.left > 0 {
                search.pool.near(host, draw, count).into_iter().skip(done).for_each(|name| search.try_name(name));
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
            search.try_name(name);
        }
    }
    search.try_in_turn(names);
    if search.skipped {
        search.is_apart = false;
        search.try_in_turn(names);
    }
}

struct PlacementSearch<'a, P: SegmentPool> {
    pool: &'a mut P,
    rng: &'a mut Rng,
    bytes: u64,
    left: u64,
    /// Names that already have a replica.
    used: Vec<usize>,
    /// Hosts that already have a replica.
    hosts: Vec<Bytes>,
    /// Whether names on these hosts are skipped.
    is_apart: bool,
    /// Whether a name was skipped because of its host.
    skipped: bool,
    out: &'a mut Vec<P::Allocation>,
}

impl<P: SegmentPool> PlacementSearch<'_, P> {
    fn try_name(&mut self, name: usize) {
        if self.left == 0 || self.used.contains(&name) {
            return;
        }
        if self.is_apart && self.pool.host(name).is_some_and(|host| self.hosts.contains(&host)) {
            self.skipped = true;
            return;
        }
        if let Some(allocation) = self.pool.allocate(name, self.bytes, self.rng.next()) {
            self.out.push(allocation);
            self.left -= 1;
            if self.left > 0 {
                self.used.push(name);
                self.hosts.extend(self.pool.host(name));
            }
        }
    }

    /// Tries a random name and those after it.
    fn try_in_turn(&mut self, names: usize) {
        if self.left == 0 {
            return;
        }
        let start = self.rng.below(names);
        for i in 0..names.min(PROBES_MAX) {
            self.try_name((start + i) % names);
            if self.left == 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts every request that fits, and records the order of the attempts.
    struct FakePool {
        free: Vec<u64>,
        size: u64,
        /// The host of each name; empty for unknown hosts.
        hosts: Vec<&'static str>,
        tried: Vec<usize>,
    }

    impl FakePool {
        fn new(free: &[u64], size: u64) -> FakePool {
            FakePool { free: free.to_vec(), size, hosts: Vec::new(), tried: Vec::new() }
        }

        fn place(&mut self, strategy: Strategy, seed: u64, replicas: u64, preferred: &[&'static [u8]]) -> Vec<usize> {
            let mut out = Vec::new();
            let preferred: Vec<Bytes> = preferred.iter().copied().map(Bytes::from_static).collect();
            let request = PlacementRequest { bytes: 1, replicas, preferred: &preferred, near: None };
            place(strategy, self, &mut Rng::new(seed), &request, &mut out);
            out
        }
    }

    impl SegmentPool for FakePool {
        type Allocation = usize;
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
        fn host(&self, name: usize) -> Option<Bytes> {
            self.hosts.get(name).filter(|host| !host.is_empty()).map(|host| Bytes::from_static(host.as_bytes()))
        }
        fn free_ratio(&self, name: usize) -> f64 {
            self.free[name] as f64 / self.size as f64
        }
        fn allocate(&mut self, name: usize, bytes: u64, _draw: u64) -> Option<usize> {
            self.tried.push(name);
            self.free[name] = self.free[name].checked_sub(bytes)?;
            Some(name)
        }
    }

    #[test]
    fn random_spreads_objects_over_all_names() {
        let mut shelf = FakePool::new(&[u64::MAX; 8], u64::MAX);
        let mut hits = [0; 8];
        for seed in 0..4_000 {
            hits[shelf.place(Strategy::Random, seed, 1, &[])[0]] += 1;
        }
        assert!(hits.iter().all(|&n| (400..600).contains(&n)), "{hits:?}");
    }

    #[test]
    fn replicas_are_on_different_names_and_fewer_are_accepted() {
        for strategy in [Strategy::Random, Strategy::FreeRatioFirst] {
            for seed in 0..50 {
                let mut got = FakePool::new(&[9; 3], 9).place(strategy, seed, 5, &[]);
                got.sort_unstable();
                assert_eq!(got, [0, 1, 2], "{strategy:?}");
            }
        }
    }

    #[test]
    fn replicas_are_on_different_hosts_while_another_host_has_space() {
        for strategy in [Strategy::Random, Strategy::FreeRatioFirst, Strategy::LocalFirst] {
            for seed in 0..50 {
                let place = |free: &[u64], hosts: &[&'static str], replicas| {
                    let mut shelf = FakePool { hosts: hosts.to_vec(), ..FakePool::new(free, 9) };
                    let mut got = shelf.place(strategy, seed, replicas, &[]);
                    got.sort_unstable();
                    got
                };
                let got = place(&[9; 3], &["a", "a", "b"], 2);
                assert!(got.contains(&2) && got.len() == 2, "{strategy:?} {got:?}");
                assert_eq!(place(&[9, 9, 0], &["a", "a", "b"], 2), [0, 1], "the other host is full");
                assert_eq!(place(&[9; 3], &["a", "a", "a"], 3), [0, 1, 2]);
                assert_eq!(place(&[9; 2], &["", ""], 2), [0, 1], "hosts that are not known");
                assert_eq!(place(&[9; 3], &["a", "a", "b"], 3), [0, 1, 2]);
            }
        }
    }

    #[test]
    fn full_names_are_skipped() {
        for seed in 0..50 {
            assert_eq!(FakePool::new(&[0, 0, 5, 0], 9).place(Strategy::Random, seed, 1, &[]), [2]);
            assert_eq!(FakePool::new(&[0; 4], 9).place(Strategy::Random, seed, 1, &[]), [] as [usize; 0]);
        }
    }

    #[test]
    fn preferred_names_come_first_and_unknown_or_full_ones_are_skipped() {
        let preferred: [&'static [u8]; 4] = [b"unknown", b"1", b"3", b"2"];
        let got = FakePool::new(&[9, 0, 9, 9], 9).place(Strategy::Random, 7, 2, &preferred);
        assert_eq!(got, [3, 2]);
    }

    #[test]
    fn the_writers_host_comes_after_preferred_names() {
        let place = |free: &[u64], preferred: &[Bytes], seed| {
            let mut shelf = FakePool::new(free, 9);
            let mut out = Vec::new();
            let request = PlacementRequest { bytes: 1, replicas: 1, preferred, near: Some(b"2") };
            super::place(Strategy::LocalFirst, &mut shelf, &mut Rng::new(seed), &request, &mut out);
            out
        };
        for seed in 0..50 {
            assert_eq!(place(&[9; 4], &[], seed), [2]);
            assert_eq!(place(&[9, 9, 0, 9], &[], seed), [3], "the next host if the preferred one is full");
            assert_eq!(place(&[9, 9, 0, 0], &[], seed), [0], "wraps around");
            assert_eq!(place(&[9; 4], &[Bytes::from_static(b"1")], seed), [1]);
        }
    }

    #[test]
    fn at_most_a_hundred_names_are_tried() {
        for strategy in [Strategy::Random, Strategy::FreeRatioFirst] {
            let mut shelf = FakePool::new(&[0; 4_000], 9);
            assert!(shelf.place(strategy, 3, 1, &[]).is_empty());
            assert!(shelf.tried.len() <= PROBES_MAX + SAMPLE_PER_REPLICA, "{}", shelf.tried.len());
        }
    }

    #[test]
    fn free_ratio_first_chooses_the_emptiest_in_its_sample() {
        for seed in 0..50 {
            assert_eq!(FakePool::new(&[3, 8, 5], 9).place(Strategy::FreeRatioFirst, seed, 1, &[]), [1]);
        }
    }

    #[test]
    fn the_same_seed_generates_the_same_numbers() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next(), rng.next(), rng.next()]
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }

    #[test]
    fn an_empty_pool_allocates_nothing() {
        assert!(FakePool::new(&[], 9).place(Strategy::Random, 0, 1, &[b"0"]).is_empty());
    }
}
