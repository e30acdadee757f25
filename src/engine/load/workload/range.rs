//! A workload that consists of a range of another workload's conversations.

use std::ops::Range;

use crate::engine::load::workload::{LoadWorkload, TurnRequest};
use crate::engine::load::{ModelAnswer, Script, Turn};

/// The conversations of a workload that are within a range, renumbered from zero.
pub struct WorkloadRange<'a> {
    of: &'a mut (dyn LoadWorkload + Send),
    range: Range<u32>,
}

impl<'a> WorkloadRange<'a> {
    /// Selects the conversations in `of` that are within `range`.
    pub fn new(of: &'a mut (dyn LoadWorkload + Send), range: Range<u32>) -> WorkloadRange<'a> {
        WorkloadRange { of, range }
    }

    /// Maps a turn to its number in the complete workload.
    pub fn whole(&self, turn: Turn) -> Turn {
        Turn { conversation: turn.conversation + self.range.start, ..turn }
    }
}

impl LoadWorkload for WorkloadRange<'_> {
    fn scripts(&self) -> Vec<Script> {
        let all = self.of.scripts();
        let end = all.len().min(self.range.end as usize);
        let mut own = all.get(self.range.start as usize..end).unwrap_or_default().to_vec();
        // Recorded times are relative to the start of the range.
        let begins = |script: &Script| script.at.first().copied();
        if self.range.start > 0
            && let Some(first) = own.iter().filter_map(begins).min()
        {
            own.iter_mut().flat_map(|script| &mut script.at).for_each(|at| *at = at.saturating_sub(first));
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::workload::Synthetic;
    use crate::engine::load::{Distribution, Seed};

    #[test]
    fn range_requests_what_the_whole_requests_at_the_same_index() {
        let one = Distribution::Constant(1.0);
        let whole = || Synthetic::new(5, one, Distribution::Constant(9.0), one, Seed(2));
        let (mut made, turn) = (whole(), |conversation| Turn { conversation, index: 0 });
        let mut part = WorkloadRange::new(&mut made, 3..9);
        assert_eq!((part.scripts().len(), part.whole(turn(1))), (2, turn(4)));
        assert_eq!(part.request(turn(1)), whole().request(turn(4)));
        assert!(WorkloadRange::new(&mut made, 7..9).scripts().is_empty());
    }
}
