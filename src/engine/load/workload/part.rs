//! A part of a workload's conversations, as a workload of its own.

use std::ops::Range;

use crate::engine::load::workload::{Ask, Workload};
use crate::engine::load::{Answer, Script, Turn};

/// The conversations of `of`, cut to `range`. They keep their own indexes outside and count from zero inside.
pub struct Part<'a> {
    of: &'a mut (dyn Workload + Send),
    range: Range<u32>,
}

impl<'a> Part<'a> {
    /// Those conversations of `of` that are in `range`.
    pub fn new(of: &'a mut (dyn Workload + Send), range: Range<u32>) -> Part<'a> {
        Part { of, range }
    }

    /// The turn as the whole knows it.
    pub fn whole(&self, turn: Turn) -> Turn {
        Turn { conversation: turn.conversation + self.range.start, ..turn }
    }
}

impl Workload for Part<'_> {
    fn scripts(&self) -> Vec<Script> {
        let all = self.of.scripts();
        let end = all.len().min(self.range.end as usize);
        let mut own = all.get(self.range.start as usize..end).unwrap_or_default().to_vec();
        // Recorded times count from the start of the part.
        let begins = |script: &Script| script.at.first().copied();
        if self.range.start > 0
            && let Some(first) = own.iter().filter_map(begins).min()
        {
            own.iter_mut().flat_map(|script| &mut script.at).for_each(|at| *at = at.saturating_sub(first));
        }
        own
    }

    fn ask(&mut self, turn: Turn) -> Ask {
        self.of.ask(self.whole(turn))
    }

    fn heard(&mut self, turn: Turn, answer: &Answer) {
        self.of.heard(self.whole(turn), answer);
    }

    fn over(&mut self, turn: Turn) {
        self.of.over(self.whole(turn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::workload::Synthetic;
    use crate::engine::load::{Distribution, Seed};

    #[test]
    fn a_part_asks_what_the_whole_asks_at_the_same_place() {
        let one = Distribution::Constant(1.0);
        let whole = || Synthetic::new(5, one, Distribution::Constant(9.0), one, Seed(2));
        let (mut made, turn) = (whole(), |conversation| Turn { conversation, index: 0 });
        let mut part = Part::new(&mut made, 3..9);
        assert_eq!((part.scripts().len(), part.whole(turn(1))), (2, turn(4)));
        assert_eq!(part.ask(turn(1)), whole().ask(turn(4)));
        assert!(Part::new(&mut made, 7..9).scripts().is_empty());
    }
}
