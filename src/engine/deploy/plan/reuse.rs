//! Computes the hit rate for every cache size in one pass over the requests, from exact reuse
//! distances.
//!
//! The reuse distance of a page is the number of other pages used since its last use. An LRU cache
//! of `n` pages contains the page if and only if the distance is less than `n`. A Fenwick tree
//! ordered by last use counts these pages in O(log n) per page.
//!
//! A request looks up all its pages before using any of them, and uses the last page first. The
//! beginning of a prompt therefore outlives its end, as in SGLang's tree, which evicts leaves
//! first.

use std::collections::HashMap;

/// Hit rates for all cache sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitCurve {
    /// Hits with a cache of `i + 1` pages.
    hits: Vec<u64>,
    /// The total number of page lookups.
    pub asked: u64,
}

impl HitCurve {
    /// Hits with a cache of `pages` pages.
    pub fn hits(&self, pages: u64) -> u64 {
        match usize::try_from(pages).unwrap_or(usize::MAX).min(self.hits.len()) {
            0 => 0,
            size => self.hits[size - 1],
        }
    }

    /// Number of distinct pages. A larger cache provides no additional hits.
    pub fn distinct(&self) -> u64 {
        self.hits.len() as u64
    }

    /// The smallest cache, in pages, that reaches `wanted_millionths` hits per million lookups;
    /// `None` if no size does.
    pub fn smallest(&self, wanted_millionths: u64) -> Option<u64> {
        let enough = u128::from(wanted_millionths) * u128::from(self.asked);
        if enough == 0 {
            return Some(0);
        }
        let below = self.hits.partition_point(|hits| u128::from(*hits) * 1_000_000 < enough);
        (below < self.hits.len()).then_some(below as u64 + 1)
    }
}

/// Accumulates the reuse distances of requests.
#[derive(Debug, Default)]
pub struct ReuseDistances {
    /// Page -> slot of its last use.
    last: HashMap<u64, u32>,
    /// Contains 1 for each slot that is the last use of a page.
    tree: Fenwick,
    next: u32,
    /// Number of uses at each distance.
    seen: Vec<u64>,
    asked: u64,
}

/// Initial number of slots.
const PLACES_MIN: u32 = 1 << 12;
/// Maximum number of distinct pages in a trace. Twice this number of slots still fits in 32 bits.
pub const DISTINCT_MAX: usize = 1 << 29;

impl ReuseDistances {
    /// Creates an empty accumulator.
    pub fn new() -> ReuseDistances {
        ReuseDistances::default()
    }

    /// Adds a request for `pages`, in prompt order. Returns `false` if there are too many distinct
    /// pages; the request is then not counted.
    pub fn request(&mut self, pages: &[u64]) -> bool {
        if self.last.len() + pages.len() > DISTINCT_MAX {
            return false;
        }
        self.asked += pages.len() as u64;
        let live = self.last.len() as u64;
        for page in pages {
            if let Some(&place) = self.last.get(page) {
                let distance = live - self.tree.up_to(place);
                // The distance is below the number of distinct pages, which is far below 2^32.
                let at = usize::try_from(distance).unwrap_or(usize::MAX);
                if self.seen.len() <= at {
                    self.seen.resize(at + 1, 0);
                }
                self.seen[at] += 1;
            }
        }
        for page in pages.iter().rev() {
            if self.next >= self.tree.places() {
                self.renumber(pages.len());
            }
            if let Some(before) = self.last.insert(*page, self.next) {
                self.tree.remove(before);
            }
            self.tree.add(self.next);
            self.next += 1;
        }
        true
    }

    /// Returns the hit curve for all requests so far.
    pub fn curve(&self) -> HitCurve {
        let mut sum = 0;
        let hits = (0..self.last.len()).map(|distance| {
            sum += self.seen.get(distance).copied().unwrap_or(0);
            sum
        });
        HitCurve { hits: hits.collect(), asked: self.asked }
    }

    /// Renumbers the slots without gaps, in the old order, and adds at least as many free slots as
    /// are in use.
    fn renumber(&mut self, coming: usize) {
        let mut order: Vec<(u32, u64)> = self.last.iter().map(|(page, place)| (*place, *page)).collect();
        order.sort_unstable();
        let live = u32::try_from(order.len()).unwrap_or(u32::MAX);
        let coming = u32::try_from(coming).unwrap_or(u32::MAX);
        self.tree = Fenwick::full(live, live.saturating_mul(2).saturating_add(coming).max(PLACES_MIN));
        for ((_, page), place) in order.into_iter().zip(0..) {
            self.last.insert(page, place);
        }
        self.next = live;
    }
}

/// A Fenwick tree: counts per slot with prefix sums in O(log n).
#[derive(Debug, Default)]
struct Fenwick {
    sums: Vec<u32>,
}

impl Fenwick {
    /// Creates a tree of `places` slots, of which the first `used` have the value 1.
    fn full(used: u32, places: u32) -> Fenwick {
        let sum = |i: u32| {
            // Node `i` sums the slots (i - lowbit(i), i].
            let from = i - (i & i.wrapping_neg());
            used.min(i).saturating_sub(used.min(from))
        };
        Fenwick { sums: (1..=places).map(sum).collect() }
    }

    fn places(&self) -> u32 {
        u32::try_from(self.sums.len()).unwrap_or(u32::MAX)
    }

    fn add(&mut self, place: u32) {
        self.change(place, |sum| sum + 1);
    }

    fn remove(&mut self, place: u32) {
        self.change(place, |sum| sum - 1);
    }

    fn change(&mut self, place: u32, change: impl Fn(u32) -> u32) {
        let mut node = place as usize + 1;
        while node <= self.sums.len() {
            self.sums[node - 1] = change(self.sums[node - 1]);
            node += node & node.wrapping_neg();
        }
    }

    /// The sum of the slots up to and including `place`.
    fn up_to(&self, place: u32) -> u64 {
        let mut node = place as usize + 1;
        let mut sum = 0;
        while node > 0 {
            sum += u64::from(self.sums[node - 1]);
            node -= node & node.wrapping_neg();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn curve(requests: &[Vec<u64>]) -> HitCurve {
        let mut reuse = ReuseDistances::new();
        assert!(requests.iter().all(|pages| reuse.request(pages)));
        reuse.curve()
    }

    /// Simulates a cache of `size` pages as a list with the most recently used page at the end.
    fn simulate(requests: &[Vec<u64>], size: usize) -> u64 {
        let mut cache = Vec::new();
        let mut hits = 0;
        for pages in requests {
            hits += pages.iter().filter(|page| cache.contains(*page)).count() as u64;
            for page in pages.iter().rev() {
                cache.retain(|other| other != page);
                cache.push(*page);
            }
            let over = cache.len().saturating_sub(size);
            cache.drain(..over);
        }
        hits
    }

    #[test]
    fn a_repeated_prompt_hits_if_the_cache_holds_what_came_between() {
        let curve = curve(&[vec![1, 2], vec![3], vec![1, 2]]);
        // The first page of the prompt was used after the second, so a cache of two pages keeps it.
        assert_eq!([0, 1, 2, 3, 9].map(|size| curve.hits(size)), [0, 0, 1, 2, 2]);
        assert_eq!((curve.asked, curve.distinct()), (5, 3));
        assert_eq!(
            [0, 200_000, 200_001, 400_000, 400_001].map(|rate| curve.smallest(rate)),
            [Some(0), Some(2), Some(3), Some(3), None]
        );
    }

    #[test]
    fn an_empty_trace_has_no_hits() {
        let empty = curve(&[]);
        assert_eq!((empty.hits(5), empty.smallest(500), empty.distinct()), (0, Some(0), 0));
    }

    proptest! {
        #[test]
        fn the_curve_matches_a_simulated_cache_of_every_size(
            requests in prop::collection::vec(prop::collection::vec(0u64..60, 0..12), 0..120),
            sizes in prop::collection::vec(1usize..70, 10)
        ) {
            // A request contains a page only once: a page's hash includes all pages before it.
            let requests: Vec<Vec<u64>> = requests.into_iter().map(|pages| {
                let mut seen = std::collections::HashSet::new();
                pages.into_iter().filter(|page| seen.insert(*page)).collect()
            }).collect();
            let curve = curve(&requests);
            for size in sizes {
                prop_assert_eq!(curve.hits(size as u64), simulate(&requests, size), "{} pages", size);
            }
        }
    }

    #[test]
    fn the_curve_stays_exact_after_renumbering() {
        // Prompts with a shared prefix and different ends, with far more uses than the first tree
        // has slots.
        let request = |i: u64| (0..4).chain((0..8).map(|j| 1_000 + (i * i * 7 % 97) * 8 + j)).collect::<Vec<u64>>();
        let requests: Vec<Vec<u64>> = (0..2_000).map(request).collect();
        let curve = curve(&requests);
        for size in [1, 4, 12, 50, 100, 200, 400, 500, 600, 1_000] {
            assert_eq!(curve.hits(size as u64), simulate(&requests, size), "{size} pages");
        }
    }
}
