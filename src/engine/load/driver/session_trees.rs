//! Sessions of several conversations: which conversation or turn may go next when one has ended.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::LiveSessionPlan;
use super::script::{Script, SessionJoin, SessionTurn};

/// Sessions, their order, and the state of those that are live.
#[derive(Clone, Debug)]
pub(super) struct SessionTrees {
    plan: LiveSessionPlan,
    /// The scripts of each session.
    sessions: Vec<SessionScripts>,
    /// The session of each script.
    session_of: Vec<u32>,
    /// Number of sessions that have started.
    begun: usize,
    /// Sessions that are live, by the number of their first conversation.
    live: HashMap<u32, LiveSession>,
}

/// The scripts of a session, and what waits for what. Indices count from the session's first
/// script.
#[derive(Clone, Debug, Default)]
struct SessionScripts {
    scripts: Range<usize>,
    /// Conversations that start with the session.
    first: Vec<ConversationStart>,
    /// The delay before each conversation.
    delays: Vec<Duration>,
    /// Conversations that start after a turn.
    after: HashMap<SessionTurn, Vec<ConversationStart>>,
    /// Turns that wait for the end of a conversation.
    waiting: HashMap<u32, Vec<SessionTurn>>,
    /// Number of conversations that a turn waits for.
    joins: HashMap<SessionTurn, u32>,
}

/// A live session.
#[derive(Clone, Debug)]
struct LiveSession {
    /// Number of conversations that have not ended.
    open: usize,
    /// Number of conversations that a turn still waits for.
    joins: HashMap<SessionTurn, u32>,
    /// Turns that wait for other conversations only.
    held: Vec<SessionTurn>,
}

/// A conversation that starts or continues after `delay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConversationStart {
    pub(super) conversation: u32,
    pub(super) delay: Duration,
}

/// What may go after the end of a turn.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AfterTurn {
    /// Conversations whose first turn may go.
    pub(super) started: Vec<ConversationStart>,
    /// Later turns that may go after their think time: conversation and index of the turn.
    pub(super) ready: Vec<(u32, u32)>,
    /// Whether the session is over.
    pub(super) is_over: bool,
}

impl SessionTrees {
    pub(super) fn new(scripts: &[Script], plan: LiveSessionPlan) -> SessionTrees {
        let mut sessions: Vec<SessionScripts> = Vec::new();
        let mut session_of = Vec::with_capacity(scripts.len());
        for (at, script) in scripts.iter().enumerate() {
            let node = script.node.as_deref().cloned().unwrap_or_default();
            if node.index == 0 || sessions.is_empty() {
                sessions.push(SessionScripts { scripts: at..at, ..SessionScripts::default() });
            }
            session_of.push(u32::try_from(sessions.len() - 1).unwrap_or(u32::MAX));
            let Some(session) = sessions.last_mut() else { continue };
            session.scripts.end = at + 1;
            let index = u32::try_from(at - session.scripts.start).unwrap_or(u32::MAX);
            let started = ConversationStart { conversation: index, delay: node.delay };
            session.delays.push(node.delay);
            match node.after {
                None => session.first.push(started),
                Some(turn) => session.after.entry(turn).or_default().push(started),
            }
            for SessionJoin { turn, conversation } in node.joins {
                let turn = SessionTurn { conversation: index, turn };
                session.waiting.entry(conversation).or_default().push(turn);
                *session.joins.entry(turn).or_default() += 1;
            }
        }
        SessionTrees { plan, sessions, session_of, begun: 0, live: HashMap::new() }
    }

    /// Number of sessions that are live at a time.
    pub(super) fn live(&self) -> usize {
        self.plan.live
    }

    /// Index of a conversation's script.
    pub(super) fn script_of(&self, conversation: u32) -> usize {
        conversation as usize % self.session_of.len().max(1)
    }

    /// Starts the next session. Returns its first conversations; none if there are no more
    /// sessions.
    pub(super) fn begin(&mut self) -> Vec<ConversationStart> {
        let number = self.begun;
        let all = self.sessions.len();
        let once = self.plan.once.min(all);
        let (round, at) = match number.checked_sub(all) {
            None => (0, number),
            Some(again) if self.plan.repeat && once < all => (again / (all - once) + 1, again % (all - once) + once),
            Some(_) => return Vec::new(),
        };
        let Some(session) = self.sessions.get(at) else { return Vec::new() };
        let base = round * self.session_of.len() + session.scripts.start;
        // Turns number conversations with 32 bits.
        let Some(base) = u32::try_from(base + session.scripts.len()).ok().and_then(|_| u32::try_from(base).ok()) else {
            return Vec::new();
        };
        self.begun += 1;
        let mut live = LiveSession { open: session.scripts.len(), joins: session.joins.clone(), held: Vec::new() };
        let started = live.start(base, &session.first);
        self.live.insert(base, live);
        started
    }

    /// Returns what may go after turn `index` of a conversation that continues.
    pub(super) fn turn_ended(&mut self, conversation: u32, index: u32) -> AfterTurn {
        let Some((base, session, live)) = self.find(conversation) else { return AfterTurn::default() };
        let ended = SessionTurn { conversation: conversation - base, turn: index };
        let started = session.after.get(&ended).map_or_else(Vec::new, |started| live.start(base, started));
        let next = SessionTurn { turn: index + 1, ..ended };
        let mut ready = Vec::new();
        match live.joins.contains_key(&next) {
            true => live.held.push(next),
            false => ready.push((conversation, next.turn)),
        }
        AfterTurn { started, ready, is_over: false }
    }

    /// Returns what may go after a conversation has ended with turn `index`. If that was not its
    /// last turn, the conversations that would have started after later turns are dropped.
    pub(super) fn conversation_ended(&mut self, conversation: u32, index: u32) -> AfterTurn {
        let turns = |scripts: &SessionScripts, conversation: u32| {
            let after = scripts.after.keys().filter(|turn| turn.conversation == conversation);
            after.map(|turn| turn.turn).collect::<Vec<u32>>()
        };
        let Some((base, session, live)) = self.find(conversation) else { return AfterTurn::default() };
        let local = conversation - base;
        let mut next = AfterTurn::default();
        let mut ended = vec![local];
        for turn in turns(session, local) {
            let started = &session.after[&SessionTurn { conversation: local, turn }];
            match turn {
                turn if turn == index => next.started.extend(live.start(base, started)),
                turn if turn > index => ended.extend(started.iter().map(|started| started.conversation)),
                _ => {}
            }
        }
        while let Some(one) = ended.pop() {
            live.open = live.open.saturating_sub(1);
            if one != local {
                let dropped = turns(session, one).into_iter();
                let dropped = dropped.flat_map(|turn| &session.after[&SessionTurn { conversation: one, turn }]);
                ended.extend(dropped.map(|started| started.conversation));
            }
            for turn in session.waiting.get(&one).into_iter().flatten() {
                let Some(left) = live.joins.get_mut(turn) else { continue };
                *left -= 1;
                if *left == 0 {
                    live.joins.remove(turn);
                    if let Some(held) = live.held.iter().position(|held| held == turn) {
                        live.held.swap_remove(held);
                        let conversation = base + turn.conversation;
                        match turn.turn {
                            0 => {
                                let delay = session.delays[turn.conversation as usize];
                                next.started.push(ConversationStart { conversation, delay });
                            }
                            turn => next.ready.push((conversation, turn)),
                        }
                    }
                }
            }
        }
        next.is_over = live.open == 0;
        if next.is_over {
            self.live.remove(&base);
        }
        next
    }

    /// Returns the number of the first conversation of a session, and the session.
    fn find(&mut self, conversation: u32) -> Option<(u32, &SessionScripts, &mut LiveSession)> {
        let script = self.script_of(conversation);
        let session = self.sessions.get(*self.session_of.get(script)? as usize)?;
        let base = conversation - u32::try_from(script - session.scripts.start).ok()?;
        Some((base, session, self.live.get_mut(&base)?))
    }
}

impl LiveSession {
    /// Returns the conversations that start now, with their numbers in the run. Those that wait for
    /// others are held.
    fn start(&mut self, base: u32, started: &[ConversationStart]) -> Vec<ConversationStart> {
        let mut free = Vec::with_capacity(started.len());
        for one in started {
            let first = SessionTurn { conversation: one.conversation, turn: 0 };
            match self.joins.contains_key(&first) {
                true => self.held.push(first),
                false => free.push(ConversationStart { conversation: base + one.conversation, ..*one }),
            }
        }
        free
    }
}
