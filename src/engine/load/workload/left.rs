//! Some of a workload's conversations, as a workload of its own.

use crate::engine::load::workload::{Ask, Workload};
use crate::engine::load::{Answer, Script, Turn};

/// Those conversations of `of` that are named, in their order. They count from zero inside.
pub struct Left<'a> {
    of: &'a mut (dyn Workload + Send),
    conversations: Vec<u32>,
}

impl<'a> Left<'a> {
    /// The `conversations` of `of`.
    pub fn new(of: &'a mut (dyn Workload + Send), conversations: Vec<u32>) -> Left<'a> {
        Left { of, conversations }
    }

    /// The turn as the whole knows it.
    pub fn whole(&self, turn: Turn) -> Turn {
        let conversation = self.conversations.get(turn.conversation as usize).copied().unwrap_or(turn.conversation);
        Turn { conversation, ..turn }
    }
}

impl Workload for Left<'_> {
    fn scripts(&self) -> Vec<Script> {
        let all = self.of.scripts();
        self.conversations.iter().filter_map(|at| all.get(*at as usize).cloned()).collect()
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
