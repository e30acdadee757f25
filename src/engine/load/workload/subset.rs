//! A workload that consists of selected conversations of another workload.

use crate::engine::load::workload::{LoadWorkload, TurnRequest};
use crate::engine::load::{ModelAnswer, Script, Turn};

/// The selected conversations of a workload, renumbered from zero.
pub struct WorkloadSubset<'a> {
    of: &'a mut (dyn LoadWorkload + Send),
    conversations: Vec<u32>,
}

impl<'a> WorkloadSubset<'a> {
    /// Selects `conversations` from `of`.
    pub fn new(of: &'a mut (dyn LoadWorkload + Send), conversations: Vec<u32>) -> WorkloadSubset<'a> {
        WorkloadSubset { of, conversations }
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
        self.conversations.iter().filter_map(|at| all.get(*at as usize).cloned()).collect()
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
