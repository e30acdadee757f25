//! Hit tokens for every cache size.

/// Hit tokens of one LRU cache over a whole trace, by its size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HitCurve {
    /// Cache size in tokens, and the hit tokens with a cache of this size; both increase.
    points: Vec<(u64, u64)>,
    /// Prompt tokens of all requests.
    pub asked: u64,
    /// Prompt tokens without those that repeat an earlier prefix.
    pub distinct: u64,
    /// Half of the 95 % interval of the hit rate at each point; empty unless the trace was sampled.
    errors: Vec<f64>,
}

impl HitCurve {
    pub(super) fn new(points: Vec<(u64, u64)>, asked: u64, distinct: u64) -> HitCurve {
        HitCurve { points, asked, distinct, errors: Vec::new() }
    }

    pub(super) fn set_points(&mut self, points: Vec<(u64, u64)>) {
        self.points = points;
    }

    pub(super) fn set_errors(&mut self, errors: Vec<f64>) {
        self.errors = errors;
    }

    /// The sizes at which the hit tokens change, in tokens, with these hit tokens. Exact up to 4096
    /// tokens, and in steps of 1/2048 above.
    pub fn points(&self) -> &[(u64, u64)] {
        &self.points
    }

    /// Hit tokens with a cache of `size` tokens.
    pub fn hits(&self, size: u64) -> u64 {
        self.at(size).map_or(0, |at| self.points[at].1)
    }

    /// Half of the 95 % interval of the hit rate with a cache of `size` tokens, 0 to 1; `None` if
    /// the rate is exact. A cache that is smaller than the first point has at most its hits.
    pub fn error(&self, size: u64) -> Option<f64> {
        let first = self.errors.first()?;
        let (_, hits) = self.points.first()?;
        Some(self.at(size).and_then(|at| self.errors.get(at)).copied().unwrap_or(self.rate(*hits) + first))
    }

    fn at(&self, size: u64) -> Option<usize> {
        self.points.partition_point(|(at, _)| *at <= size).checked_sub(1)
    }

    /// Hit tokens with an infinite cache: the ceiling.
    pub fn ceiling(&self) -> u64 {
        self.points.last().map_or(0, |(_, hits)| *hits)
    }

    /// `hits` as a share of all prompt tokens, 0 to 1.
    pub fn rate(&self, hits: u64) -> f64 {
        hits as f64 / self.asked.max(1) as f64
    }

    /// The smallest cache, in tokens, that reaches a hit rate; `None` if no size does. The rate is
    /// in millionths, so that a rate and its reading in text are the same number.
    pub fn smallest(&self, millionths: u64) -> Option<u64> {
        let enough = u128::from(millionths) * u128::from(self.asked);
        if enough == 0 {
            return Some(0);
        }
        let below = self.points.partition_point(|(_, hits)| u128::from(*hits) * 1_000_000 < enough);
        self.points.get(below).map(|(size, _)| *size)
    }

    /// The knee: the size beyond which a token of memory brings fewer hit tokens than the average
    /// one of a cache that reaches the ceiling. It is the point farthest above the line from the
    /// origin to the smallest such cache. `None` without hits.
    pub fn knee(&self) -> Option<u64> {
        let (size_max, hits_max) = *self.points.last()?;
        let above = |(size, hits): &(u64, u64)| {
            let (size, hits) = (i128::from(*size), i128::from(*hits));
            hits * i128::from(size_max) - size * i128::from(hits_max)
        };
        // The largest of equal points: on a straight line, each token of memory brings the same.
        self.points.iter().max_by_key(|point| above(point)).map(|(size, _)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_memory_brings_less_than_the_average() {
        let curve = HitCurve::new(vec![(10, 500), (20, 800), (40, 900), (100, 1000)], 2000, 120);
        assert_eq!(curve.knee(), Some(20));
        assert_eq!((curve.hits(9), curve.hits(10), curve.hits(39), curve.ceiling()), (0, 500, 800, 1000));
        assert_eq!(
            (curve.smallest(400_000), curve.smallest(400_001), curve.smallest(500_001)),
            (Some(20), Some(40), None)
        );
        assert_eq!(HitCurve::new(vec![(10, 100), (20, 200), (40, 400)], 500, 40).knee(), Some(40));
        assert_eq!(HitCurve::default().knee(), None);
    }
}
