//! A workload with notes for the report.

use crate::workload::{LoadWorkload, TurnPrompt, TurnRequest};
use crate::{ModelAnswer, Script, Turn};

/// A workload, its notes, and whether its send times come from a trace.
pub struct AnnotatedWorkload {
    workload: Box<dyn LoadWorkload + Send>,
    notes: Vec<String>,
    recorded: bool,
}

impl AnnotatedWorkload {
    /// Adds `notes` to `workload`. `recorded`: whether its send times come from a trace.
    pub fn new(workload: Box<dyn LoadWorkload + Send>, notes: Vec<String>, recorded: bool) -> AnnotatedWorkload {
        AnnotatedWorkload { workload, notes, recorded }
    }

    /// Adds a note to the report.
    pub fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// Returns whether the send times come from a trace.
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }
}

impl LoadWorkload for AnnotatedWorkload {
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

    fn warmups(&self) -> u32 {
        self.workload.warmups()
    }

    fn warmup(&mut self, index: u32) -> Option<TurnRequest> {
        self.workload.warmup(index)
    }

    fn on_conversation_end(&mut self, turn: Turn) {
        self.workload.on_conversation_end(turn);
    }
}
