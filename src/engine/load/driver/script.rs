//! The timing of conversations, without their content.

use std::time::Duration;

/// A conversation's timing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Number of turns, at least one.
    pub turns: u32,
    /// Think time between the end of each turn and the next turn. Missing entries count as zero.
    pub think: Vec<Duration>,
    /// Recorded time of each turn, for [`Pace::Recorded`](super::Pace::Recorded).
    pub at: Vec<Duration>,
    /// Where the conversation belongs in its session, for
    /// [`Pace::Sessions`](super::Pace::Sessions).
    /// `None`: it is a session of its own.
    pub node: Option<Box<SessionNode>>,
    /// Whether each turn is an entire prompt, which does not depend on the response before it.
    pub whole: bool,
}

/// A conversation in its session, which is a tree of conversations, such as those of an agent
/// and its subagents. The conversations of a session follow each other in the list of scripts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionNode {
    /// Index of the conversation in its session, from 0.
    pub index: u32,
    /// The turn after which the conversation starts; `None`: at the start of the session.
    pub after: Option<SessionTurn>,
    /// Time from the end of that turn, or from the start of the session, to the first turn.
    pub delay: Duration,
    /// Turns that wait for the end of other conversations.
    pub joins: Vec<SessionJoin>,
}

/// A turn of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionTurn {
    /// Index of the conversation in its session.
    pub conversation: u32,
    /// Index of the turn in its conversation.
    pub turn: u32,
}

/// A turn that waits for the end of a conversation. Its think time counts from the end of that
/// conversation or of the turn before it, whichever is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionJoin {
    /// Index of the turn that waits. The first turn waits for [`SessionNode::delay`] after the end.
    pub turn: u32,
    /// Index of the awaited conversation in its session.
    pub conversation: u32,
}
