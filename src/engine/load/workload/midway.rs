//! Starts sessions at a random point of their life, so that a run does not begin with short
//! prompts only.

use rand::Rng;

use crate::workload::{Conversation, PlannedTurn};
use crate::{Seed, SessionJoin, SessionTurn};

/// Sessions, the first of which start at a random point.
#[derive(Clone, Debug, Default)]
pub(super) struct MidwaySessions {
    /// First the conversations of the sessions that start at a random point, then those of all
    /// sessions from their beginning.
    pub(super) conversations: Vec<Conversation>,
    /// The last request before the start of each conversation that had begun: the index of the
    /// conversation, and the request.
    pub(super) warmups: Vec<(u32, PlannedTurn)>,
}

/// Starts the first `live` sessions at a random point. They are followed by all sessions from their
/// beginning, those that did not start yet first.
pub(super) fn start_midway(conversations: Vec<Conversation>, live: usize, seed: Seed) -> MidwaySessions {
    let sessions = Conversation::sessions(conversations);
    let mut midway = MidwaySessions::default();
    if sessions.is_empty() {
        return midway;
    }
    for number in 0..live {
        let ratio = seed.generator("session-start", number as u64).random_range(0.0..1.0);
        let first = midway.conversations.len();
        let (left, warmups) = cut(&sessions[number % sessions.len()], ratio);
        midway.warmups.extend(warmups.into_iter().map(|(at, turn)| (index(first + at as usize), turn)));
        midway.conversations.extend(left);
    }
    let next = live % sessions.len();
    let all = sessions[next..].iter().chain(&sessions[..next]);
    midway.conversations.extend(all.flatten().cloned());
    midway
}

/// Returns what is left of a session after `ratio` of its life, and for each of its conversations
/// that had begun, its index in what is left and its last request before. At least one request is
/// left.
///
/// A session without recorded times has lived for `ratio` of its requests.
fn cut(session: &[Conversation], ratio: f64) -> (Vec<Conversation>, Vec<(u32, PlannedTurn)>) {
    let turns = || session.iter().flat_map(|conversation| &conversation.turns);
    let last = turns().map(|turn| turn.since_start).max().unwrap_or_default();
    let start = last.mul_f64(ratio);
    // The number of turns of each conversation that are over.
    let over = |conversation: &Conversation| match last.is_zero() {
        true => (conversation.turns.len() as f64 * ratio) as usize,
        false => conversation.turns.iter().take_while(|turn| turn.since_start < start).count(),
    };
    let over: Vec<usize> = session.iter().map(over).collect();
    let mut new_index = Vec::with_capacity(session.len());
    let mut left = 0;
    for (conversation, over) in session.iter().zip(&over) {
        let is_left = *over < conversation.turns.len();
        new_index.push(is_left.then_some(left));
        left += u32::from(is_left);
    }
    // A turn that is not over, with its new number.
    let moved = |turn: SessionTurn| {
        let conversation = turn.conversation as usize;
        let left = turn.turn.checked_sub(index(*over.get(conversation)?))?;
        Some(SessionTurn { conversation: (*new_index.get(conversation)?)?, turn: left })
    };
    let mut conversations = Vec::with_capacity(left as usize);
    let mut warmups = Vec::new();
    for (at, conversation) in session.iter().enumerate() {
        let (Some(new), over) = (new_index[at], over[at]) else { continue };
        let mut rest = Conversation { turns: conversation.turns[over..].to_vec(), ..conversation.clone() };
        if let Some(last) = conversation.turns[..over].last() {
            warmups.push((new, last.clone()));
        }
        if let Some(node) = &mut rest.node {
            let next = &rest.turns[0];
            let recorded = if over > 0 { next.delay } else { node.delay };
            let kept = |join: &SessionJoin| {
                let conversation = (*new_index.get(join.conversation as usize)?)?;
                Some(SessionJoin { turn: join.turn.checked_sub(index(over))?, conversation })
            };
            node.joins = node.joins.iter().filter_map(kept).collect();
            node.after = node.after.filter(|_| over == 0).and_then(moved);
            let waits = node.after.is_some() || node.joins.iter().any(|join| join.turn == 0);
            node.delay = if waits { recorded } else { recorded.min(next.since_start.saturating_sub(start)) };
            node.index = new;
        }
        conversations.push(rest);
    }
    (conversations, warmups)
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::SessionNode;
    use crate::workload::{TextSpan, TurnContent};

    fn conversation(node: SessionNode, starts: &[u64]) -> Conversation {
        let turn = |second: &u64| {
            let span = TextSpan::Drawn { purpose: "block", number: *second, tokens: 16 };
            let mut turn = PlannedTurn::whole(TurnContent::made(vec![span]), 5);
            turn.since_start = Duration::from_secs(*second);
            turn.delay = Duration::from_secs(2);
            turn
        };
        Conversation { node: Some(Box::new(node)), ..Conversation::new(starts.iter().map(turn).collect()) }
    }

    /// An agent whose third turn waits for a subagent that starts after its first turn, and another
    /// one that starts after its third turn.
    fn session() -> Vec<Conversation> {
        let after = |turn| Some(SessionTurn { conversation: 0, turn });
        let delay = Duration::from_secs(1);
        vec![
            conversation(
                SessionNode { joins: vec![SessionJoin { turn: 2, conversation: 1 }], ..SessionNode::default() },
                &[0, 10, 60],
            ),
            conversation(SessionNode { index: 1, after: after(0), delay, joins: vec![] }, &[5, 20, 50]),
            conversation(SessionNode { index: 2, after: after(2), delay, joins: vec![] }, &[100]),
        ]
    }

    fn starts(conversations: &[Conversation]) -> Vec<Vec<u64>> {
        let seconds = |one: &Conversation| one.turns.iter().map(|turn| turn.since_start.as_secs()).collect();
        conversations.iter().map(seconds).collect()
    }

    #[test]
    fn what_is_over_is_cut_and_the_rest_waits_as_before() {
        let (left, warmups) = cut(&session(), 0.3);
        assert_eq!(starts(&left), [vec![60], vec![50], vec![100]]);
        let warmups: Vec<(u32, u64)> = warmups.iter().map(|(at, turn)| (*at, turn.since_start.as_secs())).collect();
        assert_eq!(warmups, [(0, 10), (1, 20)]);
        let node = |at: usize| left[at].node.clone().expect("a node");
        // The agent's next turn waits for the end of the subagent.
        assert_eq!((node(0).after, node(0).joins), (None, vec![SessionJoin { turn: 0, conversation: 1 }]));
        assert_eq!(node(0).delay, Duration::from_secs(2));
        assert_eq!((node(1).after, node(1).delay), (None, Duration::from_secs(2)));
        assert_eq!(node(2).after, Some(SessionTurn { conversation: 0, turn: 0 }));
    }

    #[test]
    fn a_conversation_that_is_over_is_dropped() {
        let (left, warmups) = cut(&session(), 0.995);
        assert_eq!((starts(&left), warmups.len()), (vec![vec![100]], 0));
        let node = left[0].node.clone().expect("a node");
        assert_eq!((node.index, node.after, node.delay), (0, None, Duration::from_millis(500)));
    }

    #[test]
    fn nothing_is_cut_at_the_beginning() {
        let (left, warmups) = cut(&session(), 0.0);
        assert_eq!((left, warmups.len()), (session(), 0));
    }

    #[test]
    fn session_without_recorded_times_is_cut_by_its_number_of_turns() {
        let (left, warmups) = cut(&[conversation(SessionNode::default(), &[0; 4])], 0.5);
        assert_eq!((left[0].turns.len(), warmups.len()), (2, 1));
        let none = Conversation { node: None, ..conversation(SessionNode::default(), &[0]) };
        assert_eq!(cut(std::slice::from_ref(&none), 0.9), (vec![none], vec![]));
    }

    #[test]
    fn sessions_that_have_not_started_come_first_after_the_cut_ones() {
        let sessions: Vec<Conversation> = (1..4).map(|n| conversation(SessionNode::default(), &[0, n])).collect();
        let midway = start_midway(sessions, 2, Seed(1));
        let lives: Vec<u64> =
            midway.conversations.iter().map(|one| one.turns.last().unwrap().since_start.as_secs()).collect();
        assert_eq!(lives, [1, 2, 3, 1, 2]);
        assert_eq!(midway.warmups.iter().map(|(at, _)| *at).collect::<Vec<u32>>(), [0, 1]);
    }
}
