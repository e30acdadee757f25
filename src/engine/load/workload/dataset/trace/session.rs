//! A conversation while its rows are read.

use crate::workload::dataset::DatasetOptions;
use crate::workload::{Conversation, PlannedTurn, RowError, SpanList, TurnContent};
use crate::{SessionJoin, SessionTurn};

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
        Conversation::new(turns)
    }
}

/// Removes conversations of a session that have no turns, and waits for turns that were cut.
pub(super) fn without_cut_turns(conversations: Vec<Conversation>) -> Vec<Conversation> {
    let lengths: Vec<u32> = conversations.iter().map(|one| number(one.turns.len())).collect();
    let kept: Vec<Option<u32>> = lengths
        .iter()
        .scan(0, |next, length| {
            let index = *next;
            *next += u32::from(*length > 0);
            Some((*length > 0).then_some(index))
        })
        .collect();
    let afters: Vec<Option<SessionTurn>> =
        conversations.iter().map(|one| one.node.as_ref().and_then(|node| node.after)).collect();
    // The last turn that is left of the conversation, or what the conversation itself waits for.
    let existing = |mut after: Option<SessionTurn>| {
        while let Some(turn) = after {
            let conversation = turn.conversation as usize;
            match kept.get(conversation).copied().flatten() {
                Some(index) => {
                    return Some(SessionTurn { conversation: index, turn: turn.turn.min(lengths[conversation] - 1) });
                }
                None => after = afters.get(conversation).copied().flatten(),
            }
        }
        None
    };
    let mut left = Vec::with_capacity(conversations.len());
    for (mut conversation, (length, index)) in conversations.into_iter().zip(lengths.iter().zip(&kept)) {
        let Some(index) = *index else { continue };
        if let Some(node) = &mut conversation.node {
            node.index = index;
            node.after = existing(node.after);
            node.joins.retain(|join| join.turn < *length);
            node.joins = node
                .joins
                .iter()
                .filter_map(|join| {
                    let conversation = kept.get(join.conversation as usize).copied().flatten()?;
                    Some(SessionJoin { conversation, ..*join })
                })
                .collect();
        }
        left.push(conversation);
    }
    left
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
