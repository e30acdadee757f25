//! The conversations that the flags mean, and what has to be known about them.

use crate::engine::load::workload::{Ask, Prompt, Workload};
use crate::engine::load::{Answer, Pace, Script, Turn};

/// A workload of any kind.
pub struct Chosen {
    workload: Box<dyn Workload + Send>,
    notes: Vec<String>,
    recorded: bool,
}

impl Chosen {
    pub(super) fn new(workload: Box<dyn Workload + Send>, notes: Vec<String>, recorded: bool) -> Chosen {
        Chosen { workload, notes, recorded }
    }

    /// Another thing to be known about it.
    pub(super) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// Do its requests have times of their own?
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// The pace at which it is played: its own where it has one, else `other`.
    pub fn pace(&self, other: Pace) -> Pace {
        if self.recorded { Pace::Recorded } else { other }
    }
}

impl Workload for Chosen {
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn scripts(&self) -> Vec<Script> {
        self.workload.scripts()
    }

    fn ask(&mut self, turn: Turn) -> Ask {
        self.workload.ask(turn)
    }

    fn heard(&mut self, turn: Turn, answer: &Answer) {
        self.workload.heard(turn, answer);
    }

    fn fingerprint(&self, to: &mut dyn std::fmt::Write) -> std::fmt::Result {
        self.workload.fingerprint(to)
    }

    fn shared(&self) -> Vec<Prompt> {
        self.workload.shared()
    }

    fn over(&mut self, turn: Turn) {
        self.workload.over(turn);
    }
}
