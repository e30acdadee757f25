//! A conversation while its rows are read.

use crate::workload::dataset::DatasetOptions;
use crate::workload::{Conversation, PlannedTurn, RowError, SpanList, TurnContent};

/// A recorded turn. Times are in the unit of the trace.
#[derive(Debug)]
pub(super) struct RecordedTurn {
    /// The turn without times.
    pub(super) turn: PlannedTurn,
    /// Prompt length in tokens; 0 if it is not known.
    pub(super) prompt: u32,
    pub(super) at: Option<f64>,
    /// Time after the end of the turn before.
    pub(super) delay: f64,
}

/// A conversation that gets its turns in order.
#[derive(Debug)]
pub(super) struct TraceSession {
    line: u64,
    turns: Vec<RecordedTurn>,
    /// Whether rows with messages contain only new messages.
    delta: Option<bool>,
    /// Tools from the last row that had any.
    tools: Option<String>,
    /// Whether the conversation has reached its maximum length. Further turns are dropped.
    closed: bool,
}

impl TraceSession {
    /// Creates a conversation that starts at `line`.
    pub(super) fn new(line: u64) -> TraceSession {
        TraceSession { line, turns: Vec::new(), delta: None, tools: None, closed: false }
    }

    /// The turns so far.
    pub(super) fn turns(&self) -> &[RecordedTurn] {
        &self.turns
    }

    /// Adds the next turn, unless the conversation has reached its maximum length.
    pub(super) fn push(&mut self, turn: RecordedTurn, options: &DatasetOptions) {
        let length = turn.prompt.saturating_add(turn.turn.max_tokens);
        self.closed |= options.context.is_some_and(|most| length > most)
            || options.max_turns.is_some_and(|most| self.turns.len() >= most as usize);
        if !self.closed {
            self.turns.push(turn);
        }
    }

    /// Checks that all turns with messages have the same mode.
    pub(super) fn check_mode(&mut self, delta: bool) -> Result<(), RowError> {
        match *self.delta.get_or_insert(delta) == delta {
            true => Ok(()),
            false => Err(RowError::MixedMessageModes { line: self.line }),
        }
    }

    /// Returns the tools of the next turn, given those of its row. The tools of a delta row stay in
    /// effect until another row sets new ones.
    pub(super) fn tools(&mut self, row: Option<String>, delta: bool) -> Option<String> {
        if row.is_some() {
            self.tools = row;
        }
        if delta { self.tools.clone() } else { self.tools.take() }
    }

    /// Returns the conversation, with times converted by `scale` (seconds per unit).
    pub(super) fn finish(self, scale: f64) -> Conversation {
        let turns = self.turns.into_iter().map(|recorded| PlannedTurn {
            at: recorded.at.map(|at| super::duration(at * scale)),
            delay: super::duration(recorded.delay * scale),
            ..recorded.turn
        });
        let mut turns: Vec<PlannedTurn> = turns.collect();
        turns.shrink_to_fit();
        SpanList::share(turns.iter_mut().filter_map(|turn| match &mut turn.content {
            TurnContent::Made(spans) => Some(spans),
            _ => None,
        }));
        Conversation { turns, routing_key: None }
    }
}
