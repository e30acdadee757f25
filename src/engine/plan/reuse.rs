//! How often a cache of any size would have hit, from one pass over what was asked for: exact reuse distances.
//!
//! The distance of a page is how many other pages were used since it was used last; a cache of `n` pages that drops the least recently
//! used one has it exactly when the distance is below `n`. A Fenwick tree over the order of last uses counts them, in O(log n) a page.
//!
//! A request asks for all its pages before it uses any, and uses the last one first, so that the beginning of a prompt outlives its
//! end, as in SGLang's tree, where leaves go first.

use std::collections::HashMap;

/// The hit rates of all sizes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    /// Hits of a cache of `i + 1` pages.
    hits: Vec<u64>,
    /// Pages asked for.
    pub asked: u64,
}

impl Curve {
    /// Hits of a cache of `pages` pages.
    pub fn hits(&self, pages: u64) -> u64 {
        match usize::try_from(pages).unwrap_or(usize::MAX).min(self.hits.len()) {
            0 => 0,
            size => self.hits[size - 1],
        }
    }

    /// Different pages: a larger cache hits no more often.
    pub fn distinct(&self) -> u64 {
        self.hits.len() as u64
    }

    /// The smallest number of pages that gives at least `wanted_millionths` hits in a million pages asked for; `None` where no size does.
    pub fn smallest(&self, wanted_millionths: u64) -> Option<u64> {
        let enough = u128::from(wanted_millionths) * u128::from(self.asked);
        if enough == 0 {
            return Some(0);
        }
        let below = self.hits.partition_point(|hits| u128::from(*hits) * 1_000_000 < enough);
        (below < self.hits.len()).then_some(below as u64 + 1)
    }
}

/// Takes requests, one after the other.
#[derive(Debug, Default)]
pub struct Reuse {
    /// Page -> the place of its last use.
    last: HashMap<u64, u32>,
    /// Counts of the places in use: 1 where a page was used last.
    tree: Fenwick,
    next: u32,
    /// Times that each distance was seen.
    seen: Vec<u64>,
    asked: u64,
}

/// Places of the first tree.
const PLACES_MIN: u32 = 1 << 12;
/// Different pages of one trace; their places, doubled, still fit in 32 bits.
pub const DISTINCT_MAX: usize = 1 << 29;

impl Reuse {
    /// Nothing yet.
    pub fn new() -> Reuse {
        Reuse::default()
    }

    /// A request for `pages`, the beginning of the prompt first. `false`: there are too many different pages, and it was not counted.
    pub fn request(&mut self, pages: &[u64]) -> bool {
        if self.last.len() + pages.len() > DISTINCT_MAX {
            return false;
        }
        self.asked += pages.len() as u64;
        let live = self.last.len() as u64;
        for page in pages {
            if let Some(&place) = self.last.get(page) {
                let distance = live - self.tree.up_to(place);
                // Below the number of different pages, which is far below 2^32.
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

    /// The curve of all requests so far.
    pub fn curve(&self) -> Curve {
        let mut sum = 0;
        let hits = (0..self.last.len()).map(|distance| {
            sum += self.seen.get(distance).copied().unwrap_or(0);
            sum
        });
        Curve { hits: hits.collect(), asked: self.asked }
    }

    /// Give the pages new places without gaps, in the old order, and as many free ones.
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

/// Counts over places, whose sums from the beginning are found in O(log n).
#[derive(Debug, Default)]
struct Fenwick {
    sums: Vec<u32>,
}

impl Fenwick {
    /// `places` places of which the first `used` count 1.
    fn full(used: u32, places: u32) -> Fenwick {
        let sum = |i: u32| {
            // The node `i` sums the places (i - lowbit(i), i].
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

    /// The sum of the places up to `place`, itself included.
    fn up_to(&self, place: u32) -> u64 {
        let (mut node, mut sum) = (place as usize + 1, 0);
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

    fn curve(requests: &[Vec<u64>]) -> Curve {
        let mut reuse = Reuse::new();
        assert!(requests.iter().all(|pages| reuse.request(pages)));
        reuse.curve()
    }

    /// A cache of `size` pages, as a list with the page used last at its end.
    fn simulate(requests: &[Vec<u64>], size: usize) -> u64 {
        let (mut cache, mut hits) = (Vec::new(), 0);
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
    fn a_prompt_that_comes_again_hits_in_a_cache_that_holds_what_came_between() {
        let curve = curve(&[vec![1, 2], vec![3], vec![1, 2]]);
        // The beginning was used after the end, so two pages suffice for it.
        assert_eq!([0, 1, 2, 3, 9].map(|size| curve.hits(size)), [0, 0, 1, 2, 2]);
        assert_eq!((curve.asked, curve.distinct()), (5, 3));
        assert_eq!(
            [0, 200_000, 200_001, 400_000, 400_001].map(|rate| curve.smallest(rate)),
            [Some(0), Some(2), Some(3), Some(3), None]
        );
    }

    #[test]
    fn nothing_asked_for_is_no_hit() {
        let empty = curve(&[]);
        assert_eq!((empty.hits(5), empty.smallest(500), empty.distinct()), (0, Some(0), 0));
    }

    proptest! {
        #[test]
        fn the_curve_is_that_of_a_simulated_cache_of_every_size(
            requests in prop::collection::vec(prop::collection::vec(0u64..60, 0..12), 0..120),
            sizes in prop::collection::vec(1usize..70, 10)
        ) {
            // A request names a page once: its hash stands for all before it.
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
    fn the_curve_stays_exact_when_places_are_given_anew() {
        // Prompts of a shared beginning and an own end, far more uses than the first tree has places.
        let request = |i: u64| (0..4).chain((0..8).map(|j| 1_000 + (i * i * 7 % 97) * 8 + j)).collect::<Vec<u64>>();
        let requests: Vec<Vec<u64>> = (0..2_000).map(request).collect();
        let curve = curve(&requests);
        for size in [1, 4, 12, 50, 100, 200, 400, 500, 600, 1_000] {
            assert_eq!(curve.hits(size as u64), simulate(&requests, size), "{size} pages");
        }
    }
}
