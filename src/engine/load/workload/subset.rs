//! A workload that consists of selected conversations of another workload.

use std::ops::Range;
use std::time::Duration;

use crate::workload::{LoadWorkload, TurnRequest};
use crate::{ModelAnswer, Script, Turn};

/// The selected conversations of a workload, renumbered from zero.
pub struct WorkloadSubset<'a> {
    of: &'a mut (dyn LoadWorkload + Send),
    conversations: Vec<u32>,
    /// Recorded times are relative to this one.
    origin: Duration,
}

impl<'a> WorkloadSubset<'a> {
    /// Selects the conversations in `of` that are within `range`. Unless the range starts with the
    /// first conversation, recorded times become relative to the first one in the range.
    pub fn new(of: &'a mut (dyn LoadWorkload + Send), range: Range<u32>) -> WorkloadSubset<'a> {
        let all = of.scripts();
        let conversations: Vec<u32> = (range.start..range.end.min(all.len() as u32)).collect();
        let first = conversations.iter().filter_map(|at| all[*at as usize].at.first().copied()).min();
        let origin = first.filter(|_| range.start > 0).unwrap_or_default();
        WorkloadSubset { of, conversations, origin }
    }

    /// Keeps only the conversations at these `places`, and renumbers them from zero.
    #[must_use]
    pub fn keep(mut self, places: &[u32]) -> WorkloadSubset<'a> {
        self.conversations = places.iter().filter_map(|at| self.conversations.get(*at as usize).copied()).collect();
        self
    }

    /// Returns the number of each conversation in the complete workload.
    pub fn conversations(&self) -> &[u32] {
        &self.conversations
    }

    /// Maps a turn to its number in the complete workload.
    pub fn whole(&self, turn: Turn) -> Turn {
        let conversation = self.conversations.get(turn.conversation as usize).copied().unwrap_or(turn.conversation);
        Turn { conversation, ..turn }
    }
}

impl LoadWorkload for WorkloadSubset<'_> {
    fn scripts(&self) -> Vec<Script> {
        let all = self.of.scripts();
        let mut own: Vec<Script> = self.conversations.iter().filter_map(|at| all.get(*at as usize).cloned()).collect();
        own.iter_mut().flat_map(|script| &mut script.at).for_each(|at| *at = at.saturating_sub(self.origin));
        own
    }

    fn request(&mut self, turn: Turn) -> TurnRequest {
        self.of.request(self.whole(turn))
    }

    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        self.of.on_response(self.whole(turn), answer);
    }

    fn on_conversation_end(&mut self, turn: Turn) {
        self.of.on_conversation_end(self.whole(turn));
    }

    fn on_failure(&mut self, turn: Turn) {
        self.of.on_failure(self.whole(turn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Synthetic;
    use crate::{Distribution, Seed};

    #[test]
    fn range_requests_what_the_whole_requests_at_the_same_index() {
        let one = Distribution::Constant(1.0);
        let whole = || Synthetic::new(5, one, Distribution::Constant(9.0), one, Seed(2));
        let (mut made, turn) = (whole(), |conversation| Turn { conversation, index: 0 });
        let mut part = WorkloadSubset::new(&mut made, 3..9);
        assert_eq!((part.scripts().len(), part.whole(turn(1))), (2, turn(4)));
        assert_eq!(part.request(turn(1)), whole().request(turn(4)));
        let rest = part.keep(&[1]);
        assert_eq!((rest.scripts().len(), rest.conversations(), rest.whole(turn(0))), (1, &[4][..], turn(4)));
        assert!(WorkloadSubset::new(&mut made, 7..9).scripts().is_empty());
    }

    /// Conversations with one recorded time each.
    struct Recorded(Vec<u64>);

    impl LoadWorkload for Recorded {
        fn scripts(&self) -> Vec<Script> {
            let script = |at: &u64| Script { turns: 1, at: vec![Duration::from_secs(*at)], ..Script::default() };
            self.0.iter().map(script).collect()
        }
        fn request(&mut self, _: Turn) -> TurnRequest {
            unreachable!("no turn is requested")
        }
        fn on_response(&mut self, _: Turn, _: &ModelAnswer) {}
        fn on_conversation_end(&mut self, _: Turn) {}
    }

    #[test]
    fn recorded_times_are_relative_to_the_start_of_the_range() {
        let mut recorded = Recorded(vec![1, 5, 7, 9]);
        let seconds = |subset: &WorkloadSubset<'_>| -> Vec<u64> {
            subset.scripts().iter().map(|script| script.at[0].as_secs()).collect()
        };
        assert_eq!(seconds(&WorkloadSubset::new(&mut recorded, 0..2)), [1, 5]);
        let part = WorkloadSubset::new(&mut recorded, 1..4);
        assert_eq!(seconds(&part), [0, 2, 4]);
        assert_eq!(seconds(&part.keep(&[2])), [4], "a subset keeps the times of its range");
    }
}
