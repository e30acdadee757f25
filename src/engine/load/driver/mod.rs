//! Decides which request to send next and when it is scheduled. Conversations are state machines.
//!
//! The driver does no I/O. The caller passes in the time and completed requests, and sends the
//! requests that [`Driver::due`] returns. A request that must wait because of the concurrency limit
//! or a delay in the caller keeps its scheduled time. Latency is measured from the scheduled time,
//! because a real user would experience that wait too.

mod script;
mod session_trees;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::iter::Peekable;
use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::{Instants, Seed};
use session_trees::{ConversationStart, SessionTrees};

pub use script::{Script, SessionJoin, SessionNode, SessionTurn};

/// Identifies a request: one turn of one conversation. Both indices start at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Turn {
    pub conversation: u32,
    pub index: u32,
}

/// A request that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueRequest {
    pub turn: Turn,
    /// Scheduled send time, never later than the current time.
    pub planned: Duration,
    /// Earliest possible send time: the scheduled time, or the time at which a slot became free
    /// under the concurrency limit.
    pub eligible_at: Duration,
}

/// Determines when the next request is sent.
#[derive(Clone, Debug)]
pub enum Pace {
    /// A fixed number of open conversations. When one ends, the next one starts.
    Closed { conversations: usize },
    /// Conversations start at these times. Later turns follow after their think time.
    Conversations(Instants),
    /// All conversations are open from the start. At each of these times, a ready conversation
    /// sends one request. If no conversation is ready, the request is sent as soon as a
    /// conversation is ready.
    Requests(Instants),
    /// Each turn is sent at its recorded time, or one think time after the end of the previous
    /// turn, whichever is later.
    Recorded,
    /// A fixed number of users. Each user sends a turn every `gap`, or at the end of the previous
    /// turn if that is later. Start times are staggered. When a conversation ends, its user starts
    /// another one.
    Users { users: usize, gap: Duration },
    /// A fixed number of live sessions, each of one or several conversations. When a session ends,
    /// the next one starts.
    Sessions(LiveSessionPlan),
}

/// Which sessions are live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveSessionPlan {
    /// Number of sessions that are live at a time.
    pub live: usize,
    /// Number of sessions at the start of the list that are used once only, even if the list is
    /// repeated.
    pub once: usize,
    /// Whether the list is repeated after its last session. Conversations of the second round have
    /// the numbers after those of the first one, and so on.
    pub repeat: bool,
}

/// Order in which ready conversations are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyOrder {
    /// The conversation that has been ready for longest is served first.
    Fifo,
    Random,
}

/// Limits that apply to every pace.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Maximum number of requests in flight.
    pub in_flight: usize,
    pub ready: ReadyOrder,
    /// Do not start a turn until all open conversations have finished their previous turn.
    pub barrier: bool,
    /// A conversation keeps its slot until it ends, as in
    /// `sglang.bench_serving`: the limit applies to conversations. Has no effect with `barrier`.
    pub whole_conversations: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { in_flight: usize::MAX, ready: ReadyOrder::Fifo, barrier: false, whole_conversations: false }
    }
}

/// Delay before the next turn of a session while no request succeeds.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Number of failed requests in a row, and at least that of the live sessions, after which sessions
/// pause.
const FAILURES_MIN: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct ConversationState {
    /// Index of the next turn, or of the turn in flight.
    turn: u32,
    /// When the user's last turn was due ([`Pace::Users`]).
    due: Duration,
}

/// Schedules the requests for a run.
#[derive(Debug)]
pub struct Driver {
    scripts: Vec<Script>,
    states: Vec<ConversationState>,
    pace: PaceState,
    rules: Rules,
    rng: ChaCha8Rng,
    /// Number of scripts that have started.
    begun: usize,
    /// Turns that become ready at a given time.
    timers: BinaryHeap<Reverse<(Duration, u32)>>,
    /// Ready turns and when each became ready.
    ready: VecDeque<(Duration, u32)>,
    /// Ready turns of conversations that kept their slot.
    continued: VecDeque<(Duration, u32)>,
    /// Conversations waiting at the barrier.
    held: Vec<u32>,
    in_flight: usize,
    /// Slots in use: requests in flight, and conversations that kept their slot between two turns.
    slots: usize,
    /// When a slot last became free after all slots had been in use.
    freed: Duration,
    stopped: bool,
    /// Failed requests since the last successful one.
    failed_in_row: usize,
}

#[derive(Debug)]
enum PaceState {
    Closed,
    Conversations(Peekable<Instants>),
    Requests(Peekable<Instants>),
    Recorded,
    Users { gap: Duration },
    Sessions(SessionTrees),
}

impl Driver {
    /// Creates a driver for `scripts`. `seed` determines all random choices.
    pub fn new(scripts: Vec<Script>, pace: Pace, rules: Rules, seed: Seed) -> Driver {
        let states = vec![ConversationState::default(); scripts.len()];
        let (paced, first) = match pace.clone() {
            Pace::Closed { conversations } => (PaceState::Closed, conversations),
            Pace::Conversations(instants) => (PaceState::Conversations(instants.peekable()), 0),
            Pace::Requests(instants) => (PaceState::Requests(instants.peekable()), scripts.len()),
            Pace::Recorded => (PaceState::Recorded, scripts.len()),
            Pace::Users { users, gap } => (PaceState::Users { gap }, users),
            Pace::Sessions(plan) => (PaceState::Sessions(SessionTrees::new(&scripts, plan)), 0),
        };
        let rng = seed.generator("ready", 0);
        let mut driver = Driver {
            scripts,
            states,
            pace: paced,
            rules,
            rng,
            begun: 0,
            timers: BinaryHeap::new(),
            ready: VecDeque::new(),
            continued: VecDeque::new(),
            held: Vec::new(),
            in_flight: 0,
            slots: 0,
            freed: Duration::ZERO,
            stopped: false,
            failed_in_row: 0,
        };
        for script in 0..first.min(driver.scripts.len()) {
            let at = match (&driver.pace, driver.scripts[script].at.first()) {
                (PaceState::Recorded, Some(at)) => *at,
                (PaceState::Users { gap }, _) => gap.mul_f64(script as f64 / first as f64),
                _ => Duration::ZERO,
            };
            driver.begin(at);
        }
        if let Pace::Sessions(plan) = pace {
            driver.begun = driver.scripts.len();
            (0..plan.live).for_each(|_| driver.begin_session(Duration::ZERO));
        }
        driver
    }

    /// Starts the next session at `now`.
    fn begin_session(&mut self, now: Duration) {
        if let PaceState::Sessions(trees) = &mut self.pace
            && !self.stopped
        {
            let started = trees.begin();
            self.start(started, now);
        }
    }

    /// Minimum delay before the next turn of a session, so that a server that refuses every request
    /// is not flooded.
    fn pause(&self) -> Duration {
        match &self.pace {
            PaceState::Sessions(trees) if self.failed_in_row >= trees.live().max(FAILURES_MIN) => FAILURE_PAUSE,
            _ => Duration::ZERO,
        }
    }

    /// Schedules turns of conversations of a session.
    fn start(&mut self, started: Vec<ConversationStart>, now: Duration) {
        let pause = self.pause();
        for ConversationStart { conversation, delay } in started {
            let at = conversation as usize;
            if self.states.len() <= at {
                self.states.resize(at + 1, ConversationState::default());
            }
            self.timers.push(Reverse((now + delay.max(pause), conversation)));
        }
    }

    /// Continues the session of a conversation after its turn `index` has ended at `now`.
    fn continue_session(&mut self, conversation: u32, index: u32, over: bool, now: Duration) {
        let PaceState::Sessions(trees) = &mut self.pace else { return };
        let next =
            if over { trees.conversation_ended(conversation, index) } else { trees.turn_ended(conversation, index) };
        let mut started = next.started;
        for (conversation, turn) in next.ready {
            let script = trees.script_of(conversation);
            let think = self.scripts[script].think.get(turn as usize - 1).copied().unwrap_or_default();
            started.push(ConversationStart { conversation, delay: think });
        }
        self.start(started, now);
        if next.is_over {
            self.begin_session(now);
        }
    }

    /// Starts the next script at `at`.
    fn begin(&mut self, at: Duration) {
        if self.begun < self.scripts.len() && !self.stopped {
            self.states[self.begun].due = at;
            self.timers.push(Reverse((at, self.begun as u32)));
            self.begun += 1;
        }
    }

    /// Returns the requests to send by `now`, in order. Each one is in flight until it is passed to
    /// [`Driver::finish`].
    pub fn due(&mut self, now: Duration) -> Vec<DueRequest> {
        if self.stopped {
            return Vec::new();
        }
        while let PaceState::Conversations(instants) = &mut self.pace
            && self.begun < self.scripts.len()
            && let Some(at) = instants.next_if(|at| *at <= now)
        {
            self.begin(at);
        }
        while let Some(Reverse((at, conversation))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            let is_continued = self.keeps_slot() && self.states[conversation as usize].turn > 0;
            let queue = if is_continued { &mut self.continued } else { &mut self.ready };
            queue.push_back((at, conversation));
        }
        let mut starts = Vec::new();
        while self.can_send() {
            let mut planned = Duration::ZERO;
            if let PaceState::Requests(instants) = &mut self.pace {
                match instants.next_if(|at| *at <= now) {
                    Some(at) => planned = at,
                    None => break,
                }
            }
            if let Some((since, conversation)) = self.continued.pop_front() {
                let turn = Turn { conversation, index: self.states[conversation as usize].turn };
                self.in_flight += 1;
                let planned = planned.max(since);
                starts.push(DueRequest { turn, planned, eligible_at: planned });
                continue;
            }
            let index = match self.rules.ready {
                ReadyOrder::Fifo => 0,
                ReadyOrder::Random => self.rng.random_range(0..self.ready.len()),
            };
            let Some((since, conversation)) = self.ready.remove(index) else { break };
            let turn = Turn { conversation, index: self.states[conversation as usize].turn };
            self.in_flight += 1;
            self.slots += 1;
            let planned = planned.max(since);
            starts.push(DueRequest { turn, planned, eligible_at: planned.max(self.freed) });
        }
        starts
    }

    /// Whether a conversation keeps its slot until it ends.
    fn keeps_slot(&self) -> bool {
        self.rules.whole_conversations && !self.rules.barrier
    }

    /// Whether a turn is ready and has a slot.
    fn can_send(&self) -> bool {
        !self.continued.is_empty() || (!self.ready.is_empty() && self.slots < self.rules.in_flight)
    }

    /// Returns the turn that becomes ready next, if that is not later than `until` and it can be
    /// sent at once. Its conversation cannot change before.
    pub fn upcoming(&self, until: Duration) -> Option<Turn> {
        let Reverse((at, conversation)) = self.timers.peek().copied()?;
        let index = self.states.get(conversation as usize)?.turn;
        let has_slot = self.ready.is_empty() && self.slots < self.rules.in_flight;
        (at <= until && has_slot && !self.stopped).then_some(Turn { conversation, index })
    }

    /// Returns the next time at which [`Driver::due`] will return a request, unless a request
    /// finishes earlier. `None` if nothing can change until a request finishes.
    pub fn wake(&mut self) -> Option<Duration> {
        if self.stopped {
            return None;
        }
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let can_send = self.can_send();
        let instant = match &mut self.pace {
            PaceState::Conversations(instants) if self.begun < self.scripts.len() => instants.peek().copied(),
            PaceState::Requests(instants) if can_send => instants.peek().copied(),
            _ => None,
        };
        timer.into_iter().chain(instant).min()
    }

    /// Records that `turn` finished at `now`. Returns whether its conversation is over. A failed
    /// turn ends its conversation if the next turn would lack part of its history.
    pub fn finish(&mut self, turn: Turn, now: Duration, well: bool) -> bool {
        // The next prompt of a session does not depend on the response if it is entire.
        let script = &self.scripts[turn.conversation as usize % self.scripts.len()];
        let may_go_on = well || script.whole && matches!(self.pace, PaceState::Sessions(_));
        self.failed_in_row = if well { 0 } else { self.failed_in_row + 1 };
        self.end_turn(turn, now, may_go_on)
    }

    /// Records that `turn` failed at `now` in a way in which all later turns of its conversation
    /// would fail. The conversation is over.
    pub fn abandon(&mut self, turn: Turn, now: Duration) {
        self.failed_in_row += 1;
        self.end_turn(turn, now, false);
    }

    fn end_turn(&mut self, turn: Turn, now: Duration, may_go_on: bool) -> bool {
        let at = turn.conversation as usize;
        debug_assert_eq!(self.states[at].turn, turn.index, "the turn is in flight");
        self.in_flight -= 1;
        self.states[at].turn += 1;
        let script = &self.scripts[at % self.scripts.len()];
        let over = !may_go_on || self.states[at].turn >= script.turns;
        if over || !self.keeps_slot() {
            if self.slots == self.rules.in_flight {
                self.freed = self.freed.max(now);
            }
            self.slots -= 1;
        }
        if matches!(self.pace, PaceState::Sessions(_)) {
            self.continue_session(turn.conversation, turn.index, over, now);
        } else if over {
            match self.pace {
                PaceState::Closed => self.begin(now),
                PaceState::Users { gap } => self.begin((self.states[at].due + gap).max(now)),
                _ => {}
            }
        } else if self.rules.barrier {
            self.held.push(turn.conversation);
        } else {
            self.follow(turn.conversation, now);
        }
        if self.in_flight == 0 && self.ready.is_empty() && self.timers.is_empty() {
            for conversation in std::mem::take(&mut self.held) {
                self.follow(conversation, now);
            }
        }
        over
    }

    /// Schedules the next turn of `conversation` for `now` or later.
    fn follow(&mut self, conversation: u32, now: Duration) {
        let at = conversation as usize;
        let script = &self.scripts[at];
        let state = &mut self.states[at];
        let index = state.turn as usize;
        let think = script.think.get(index - 1).copied().unwrap_or_default();
        let due = match self.pace {
            PaceState::Users { gap } => (state.due + gap).max(now),
            PaceState::Recorded => script.at.get(index).copied().unwrap_or_default().max(now + think),
            _ => now + think,
        };
        state.due = due;
        self.timers.push(Reverse((due, conversation)));
    }

    /// Stops sending: the time limit has been reached, or the user has stopped the run.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether no request is in flight and none remains to be sent.
    pub fn is_over(&self) -> bool {
        let left = self.begun < self.scripts.len()
            || !self.timers.is_empty()
            || !self.ready.is_empty()
            || !self.continued.is_empty()
            || !self.held.is_empty();
        self.in_flight == 0 && (self.stopped || !left)
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
