//! The workload selected by the flags, with notes for the report.

use crate::engine::load::workload::{LoadWorkload, TurnPrompt, TurnRequest};
use crate::engine::load::{ModelAnswer, Pace, Script, Turn};

/// A workload, its notes, and whether its send times come from a trace.
pub struct ConfiguredWorkload {
    workload: Box<dyn LoadWorkload + Send>,
    notes: Vec<String>,
    recorded: bool,
}

impl ConfiguredWorkload {
    pub(super) fn new(
        workload: Box<dyn LoadWorkload + Send>,
        notes: Vec<String>,
        recorded: bool,
    ) -> ConfiguredWorkload {
        ConfiguredWorkload { workload, notes, recorded }
    }

    /// Adds a note to the report.
    pub(super) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// Returns whether the send times come from a trace.
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Returns the recorded pace if the workload has one, else `other`.
    pub fn pace(&self, other: Pace) -> Pace {
        if self.recorded { Pace::Recorded } else { other }
    }
}

impl LoadWorkload for ConfiguredWorkload {
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn scripts(&self) -> Vec<Script> {
        self.workload.scripts()
    }

    fn request(&mut self, turn: Turn) -> TurnRequest {
        self.workload.request(turn)
    }

    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        self.workload.on_response(turn, answer);
    }

    fn fingerprint(&self, to: &mut dyn std::fmt::Write) -> std::fmt::Result {
        self.workload.fingerprint(to)
    }

    fn shared(&self) -> Vec<TurnPrompt> {
        self.workload.shared()
    }

    fn on_conversation_end(&mut self, turn: Turn) {
        self.workload.on_conversation_end(turn);
    }
}
