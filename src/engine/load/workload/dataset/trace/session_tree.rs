//! Finds the conversations of a recorded session, and what each turn waited for.
//!
//! The requests of an agent, or of one of its subagents, form a stream. Those that were never in
//! flight at the same time are one conversation. A request that starts beside another one continues
//! the idle conversation with the longest common prefix, or else starts a new conversation.
//!
//! The recorded times show what waited for what:
//! - a conversation starts after the turn of its stream, or of the stream in which its subagent
//!   started, that had ended last;
//! - the first turn that started after a conversation had ended waits for it, in the same stream
//!   and, for a subagent, in the stream in which it started.

use crate::{SessionJoin, SessionNode, SessionTurn};

/// Tolerance in the comparison of times, in seconds.
const EPSILON: f64 = 1e-6;

/// A recorded request. Times are in seconds after the start of the session.
#[derive(Clone, Debug)]
pub(super) struct StreamRequest<'a> {
    pub(super) stream: u32,
    pub(super) at: f64,
    pub(super) end: f64,
    /// IDs of the blocks of the prompt.
    pub(super) ids: &'a [u64],
}

/// A conversation of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TreeConversation {
    /// The stream of the conversation.
    pub(super) stream: u32,
    /// Indices of the requests, in order.
    pub(super) requests: Vec<usize>,
    /// For each request, the time since the end of what it waited for, in seconds. For the first
    /// one, the delay of the conversation.
    pub(super) delays: Vec<f64>,
    pub(super) after: Option<SessionTurn>,
    pub(super) joins: Vec<SessionJoin>,
}

/// Returns the conversations of a session, ordered by their starts. `parents`: the stream in which
/// each subagent started. Without `joins`, no turn waits for another conversation, and delays count
/// from the end of the turn before.
pub(super) fn session_tree(requests: &[StreamRequest<'_>], parents: &[u32], joins: bool) -> Vec<TreeConversation> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by(|one, other| requests[*one].at.total_cmp(&requests[*other].at));
    let mut tree = Tree { requests, parents, conversations: Vec::new(), turns: Vec::new() };
    for request in order {
        tree.add(request);
    }
    if joins {
        tree.join();
    }
    tree.conversations
}

/// A turn in the order of the starts.
#[derive(Clone, Copy)]
struct RankedTurn {
    turn: SessionTurn,
    request: usize,
}

struct Tree<'a> {
    requests: &'a [StreamRequest<'a>],
    parents: &'a [u32],
    conversations: Vec<TreeConversation>,
    /// All turns, ordered by their starts. A turn only waits for earlier ones, so there are no
    /// cycles.
    turns: Vec<RankedTurn>,
}

impl Tree<'_> {
    fn stream(&self, turn: &RankedTurn) -> u32 {
        self.requests[turn.request].stream
    }

    /// The stream in which the subagent of `stream` started.
    fn parent(&self, stream: u32) -> Option<u32> {
        self.parents.get(stream.checked_sub(1)? as usize).copied()
    }

    /// Adds the next request in the order of the starts.
    fn add(&mut self, request: usize) {
        let StreamRequest { stream, at, ids, .. } = self.requests[request];
        let idle = self.conversations.iter().enumerate().filter_map(|(index, conversation)| {
            let last = &self.requests[*conversation.requests.last()?];
            if conversation.stream != stream || last.end > at + EPSILON {
                return None;
            }
            let common = last.ids.iter().zip(ids).take_while(|(one, other)| one == other).count();
            Some((index, common, last.end))
        });
        let continued = idle.max_by(|one, other| one.1.cmp(&other.1).then(one.2.total_cmp(&other.2)));
        let index = match continued {
            Some((index, _, end)) => {
                let conversation = &mut self.conversations[index];
                conversation.requests.push(request);
                conversation.delays.push((at - end).max(0.0));
                index
            }
            None => {
                let after = self.turn_before(stream, at);
                let end = after.map_or(0.0, |turn| self.requests[turn.request].end);
                self.conversations.push(TreeConversation {
                    stream,
                    requests: vec![request],
                    delays: vec![(at - end).max(0.0)],
                    after: after.map(|turn| turn.turn),
                    joins: Vec::new(),
                });
                self.conversations.len() - 1
            }
        };
        let turn =
            SessionTurn { conversation: number(index), turn: number(self.conversations[index].requests.len() - 1) };
        self.turns.push(RankedTurn { turn, request });
    }

    /// Returns the turn of `stream`, or of the streams in which it started, that had ended last at
    /// time `at`.
    fn turn_before(&self, stream: u32, at: f64) -> Option<RankedTurn> {
        let mut stream = Some(stream);
        while let Some(current) = stream {
            let ended = self
                .turns
                .iter()
                .filter(|turn| self.stream(turn) == current && self.requests[turn.request].end <= at + EPSILON);
            let end = |turn: &RankedTurn| self.requests[turn.request].end;
            if let Some(last) = ended.max_by(|one, other| end(one).total_cmp(&end(other))) {
                return Some(*last);
            }
            stream = self.parent(current);
        }
        None
    }

    /// Finds the turns that wait for the end of a conversation.
    fn join(&mut self) {
        for index in 0..self.conversations.len() {
            let conversation = &self.conversations[index];
            let end = conversation.requests.iter().map(|at| self.requests[*at].end).fold(0.0, f64::max);
            let last_rank = self.turns.iter().rposition(|turn| turn.turn.conversation == number(index)).unwrap_or(0);
            let streams = [Some(conversation.stream), self.parent(conversation.stream)];
            for stream in streams.into_iter().flatten() {
                let waits = self.turns[last_rank + 1..]
                    .iter()
                    .find(|turn| self.stream(turn) == stream && self.requests[turn.request].at + EPSILON >= end);
                if let Some(&RankedTurn { turn, request }) = waits
                    && turn.turn > 0
                {
                    let delay = (self.requests[request].at - end).max(0.0);
                    let waiting = &mut self.conversations[turn.conversation as usize];
                    waiting.joins.push(SessionJoin { turn: turn.turn, conversation: number(index) });
                    let known = &mut waiting.delays[turn.turn as usize];
                    *known = known.min(delay);
                }
            }
        }
    }
}

impl TreeConversation {
    /// Returns the conversation's node, as the `index`th of its session.
    pub(super) fn node(&self, index: usize) -> SessionNode {
        SessionNode {
            index: number(index),
            after: self.after,
            delay: std::time::Duration::ZERO,
            joins: self.joins.clone(),
        }
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(stream: u32, at: f64, end: f64, ids: &[u64]) -> StreamRequest<'_> {
        StreamRequest { stream, at, end, ids }
    }

    /// Returns (stream, requests, delays, start after, joins) of each conversation.
    type Shown = (u32, Vec<usize>, Vec<f64>, Option<(u32, u32)>, Vec<(u32, u32)>);

    fn shown(requests: &[StreamRequest<'_>], parents: &[u32]) -> Vec<Shown> {
        let one = |conversation: TreeConversation| {
            let after = conversation.after.map(|turn| (turn.conversation, turn.turn));
            let joins = conversation.joins.iter().map(|join| (join.turn, join.conversation)).collect();
            (conversation.stream, conversation.requests, conversation.delays, after, joins)
        };
        session_tree(requests, parents, true).into_iter().map(one).collect()
    }

    #[test]
    fn requests_that_follow_each_other_are_one_conversation() {
        let requests = [request(0, 0.0, 2.0, &[1]), request(0, 5.0, 6.0, &[1, 2]), request(0, 6.0, 7.0, &[9])];
        assert_eq!(shown(&requests, &[]), [(0, vec![0, 1, 2], vec![0.0, 3.0, 0.0], None, vec![])]);
    }

    #[test]
    fn subagent_starts_after_the_turn_that_called_it_and_its_parent_waits() {
        let requests = [
            request(0, 0.0, 2.0, &[1]),
            request(1, 3.0, 4.0, &[7]),
            request(1, 5.0, 9.0, &[7, 8]),
            request(0, 10.0, 11.0, &[1, 2]),
            request(0, 12.0, 13.0, &[1, 2, 3]),
        ];
        let main = (0, vec![0, 3, 4], vec![0.0, 1.0, 1.0], None, vec![(1, 1)]);
        assert_eq!(shown(&requests, &[0]), [main, (1, vec![1, 2], vec![1.0, 1.0], Some((0, 0)), vec![])]);
    }

    #[test]
    fn subagent_that_outlives_the_next_turn_runs_beside_it() {
        let requests = [
            request(0, 0.0, 2.0, &[1]),
            request(1, 3.0, 9.0, &[7]),
            request(0, 4.0, 5.0, &[1, 2]),
            request(0, 9.5, 11.0, &[1, 2, 3]),
        ];
        let main = (0, vec![0, 2, 3], vec![0.0, 2.0, 0.5], None, vec![(2, 1)]);
        assert_eq!(shown(&requests, &[0]), [main, (1, vec![1], vec![1.0], Some((0, 0)), vec![])]);
    }

    #[test]
    fn requests_continue_the_idle_conversation_with_the_longest_prefix() {
        let requests = [
            request(0, 0.0, 4.0, &[1, 2]),
            request(0, 1.0, 2.0, &[1, 5]),
            request(0, 5.0, 6.0, &[1, 5, 6]),
            request(0, 5.5, 7.0, &[1, 2, 3]),
        ];
        let main = (0, vec![0, 3], vec![0.0, 1.5], None, vec![]);
        assert_eq!(shown(&requests, &[]), [main, (0, vec![1, 2], vec![1.0, 3.0], None, vec![])]);
    }

    #[test]
    fn nested_subagent_starts_in_the_nearest_stream_with_an_ended_turn() {
        let requests = [
            request(0, 0.0, 1.0, &[1]),
            request(2, 2.0, 3.0, &[5]),
            request(1, 4.0, 5.0, &[6]),
            request(0, 6.0, 7.0, &[1]),
        ];
        let found = shown(&requests, &[0, 1]);
        assert_eq!(found[1], (2, vec![1], vec![1.0], Some((0, 0)), vec![]));
        assert_eq!(found[2], (1, vec![2], vec![3.0], Some((0, 0)), vec![]));
        assert_eq!(found[0].4, [(1, 2)], "the main conversation waits for its own subagent only");
    }
}
