//! What is sent next, and when it was planned: conversations as state machines.
//!
//! Pure: the shell tells the time and the ends of requests, and sends what [`Driver::due`] gives. A request that has to wait (for the
//! cap, for the shell) keeps its planned instant, from which its latency is counted; to wait for a free place is part of what a user
//! would see.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::iter::Peekable;
use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::engine::load::{Instants, Seed};

/// A request: one turn of one conversation. Both count from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Turn {
    /// Index among the scripts.
    pub conversation: u32,
    /// Which of its turns.
    pub index: u32,
}

/// A request to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which.
    pub turn: Turn,
    /// When it was to be sent: never later than now.
    pub planned: Duration,
    /// From when on it could be: then, or when a place under the cap came free for it.
    pub free: Duration,
}

/// The course of a conversation, apart from its words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// How many turns it has, at least one.
    pub turns: u32,
    /// The wait between the end of a turn and the next one; none where the list has ended.
    pub think: Vec<Duration>,
    /// When each turn was recorded, for [`Pace::Recorded`].
    pub at: Vec<Duration>,
}

/// Who decides when the next request comes.
#[derive(Clone, Debug)]
pub enum Pace {
    /// So many conversations are open at once; when one is over, the next begins.
    Closed {
        /// How many.
        conversations: usize,
    },
    /// Conversations begin at these instants; further turns follow after their think time.
    Conversations(Instants),
    /// All conversations are open from the start. At each instant one request comes, of a conversation that is ready; where none
    /// is, it comes as soon as one is.
    Requests(Instants),
    /// Every turn comes at its recorded time, or its think time after the end of the turn before it if that is later.
    Recorded,
    /// So many users, each with a turn every `gap` (or at the end of the turn before it, if that is later), out of step with each
    /// other from the start. A user whose conversation is over takes up the next.
    Users {
        /// How many.
        users: usize,
        /// Time from turn to turn.
        gap: Duration,
    },
}

/// Which of several ready conversations is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The one that is ready longest.
    Fifo,
    /// Any of them.
    Random,
}

/// Bounds that hold at every pace.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Most requests in flight.
    pub in_flight: usize,
    /// Which conversation is next.
    pub ready: Ready,
    /// Nobody begins a turn before all that are open ended the turn before it.
    pub barrier: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { in_flight: usize::MAX, ready: Ready::Fifo, barrier: false }
    }
}

/// Where a conversation stands.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// Its next turn, or the one in flight.
    turn: u32,
    /// When the user's last turn was due ([`Pace::Users`]).
    due: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct Driver {
    scripts: Vec<Script>,
    standing: Vec<Standing>,
    pace: Paced,
    rules: Rules,
    rng: ChaCha8Rng,
    /// Scripts before this one have begun.
    begun: usize,
    /// Turns that become ready at an instant.
    timers: BinaryHeap<Reverse<(Duration, u32)>>,
    /// Ready turns with the instant since which they are.
    ready: VecDeque<(Duration, u32)>,
    /// Conversations at the barrier.
    held: Vec<u32>,
    in_flight: usize,
    /// When a place last came free while all were taken.
    freed: Duration,
    stopped: bool,
}

#[derive(Debug)]
enum Paced {
    Closed,
    Conversations(Peekable<Instants>),
    Requests(Peekable<Instants>),
    Recorded,
    Users { gap: Duration },
}

impl Driver {
    /// A run of `scripts`. The order in which random choices fall comes from `seed`.
    pub fn new(scripts: Vec<Script>, pace: Pace, rules: Rules, seed: Seed) -> Driver {
        let standing = vec![Standing::default(); scripts.len()];
        let (paced, first) = match pace {
            Pace::Closed { conversations } => (Paced::Closed, conversations),
            Pace::Conversations(instants) => (Paced::Conversations(instants.peekable()), 0),
            Pace::Requests(instants) => (Paced::Requests(instants.peekable()), scripts.len()),
            Pace::Recorded => (Paced::Recorded, scripts.len()),
            Pace::Users { users, gap } => (Paced::Users { gap }, users),
        };
        let rng = seed.generator("ready", 0);
        let mut driver = Driver {
            scripts,
            standing,
            pace: paced,
            rules,
            rng,
            begun: 0,
            timers: BinaryHeap::new(),
            ready: VecDeque::new(),
            held: Vec::new(),
            in_flight: 0,
            freed: Duration::ZERO,
            stopped: false,
        };
        for place in 0..first.min(driver.scripts.len()) {
            let at = match (&driver.pace, driver.scripts[place].at.first()) {
                (Paced::Recorded, Some(at)) => *at,
                (Paced::Users { gap }, _) => gap.mul_f64(place as f64 / first as f64),
                _ => Duration::ZERO,
            };
            driver.begin(at);
        }
        driver
    }

    /// The next script begins at `at`.
    fn begin(&mut self, at: Duration) {
        if self.begun < self.scripts.len() && !self.stopped {
            self.standing[self.begun].due = at;
            self.timers.push(Reverse((at, self.begun as u32)));
            self.begun += 1;
        }
    }

    /// What is to be sent by `now`, in order. Each is in flight from then on, until [`Driver::ended`].
    pub fn due(&mut self, now: Duration) -> Vec<Start> {
        if self.stopped {
            return Vec::new();
        }
        while let Paced::Conversations(instants) = &mut self.pace
            && self.begun < self.scripts.len()
            && let Some(at) = instants.next_if(|at| *at <= now)
        {
            self.begin(at);
        }
        while let Some(Reverse((at, conversation))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            self.ready.push_back((at, conversation));
        }
        let mut starts = Vec::new();
        while self.in_flight < self.rules.in_flight && !self.ready.is_empty() {
            let mut planned = Duration::ZERO;
            if let Paced::Requests(instants) = &mut self.pace {
                match instants.next_if(|at| *at <= now) {
                    Some(at) => planned = at,
                    None => break,
                }
            }
            let index = match self.rules.ready {
                Ready::Fifo => 0,
                Ready::Random => self.rng.random_range(0..self.ready.len()),
            };
            let Some((since, conversation)) = self.ready.remove(index) else { break };
            let turn = Turn { conversation, index: self.standing[conversation as usize].turn };
            self.in_flight += 1;
            let planned = planned.max(since);
            starts.push(Start { turn, planned, free: planned.max(self.freed) });
        }
        starts
    }

    /// When [`Driver::due`] has something new even if nothing ends before; `None` while only ends can change anything.
    pub fn wake(&mut self) -> Option<Duration> {
        if self.stopped {
            return None;
        }
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let instant = match &mut self.pace {
            Paced::Conversations(instants) if self.begun < self.scripts.len() => instants.peek().copied(),
            Paced::Requests(instants) if !self.ready.is_empty() && self.in_flight < self.rules.in_flight => {
                instants.peek().copied()
            }
            _ => None,
        };
        timer.into_iter().chain(instant).min()
    }

    /// `turn` ended at `now`; is its conversation over? Where the turn failed, it is: what would follow has no history to stand on.
    pub fn ended(&mut self, turn: Turn, now: Duration, well: bool) -> bool {
        let at = turn.conversation as usize;
        debug_assert_eq!(self.standing[at].turn, turn.index, "it is in flight");
        if self.in_flight == self.rules.in_flight {
            self.freed = self.freed.max(now);
        }
        self.in_flight -= 1;
        self.standing[at].turn += 1;
        let over = !well || self.standing[at].turn >= self.scripts[at].turns;
        if over {
            match self.pace {
                Paced::Closed => self.begin(now),
                Paced::Users { gap } => self.begin((self.standing[at].due + gap).max(now)),
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

    /// The next turn of `conversation` becomes ready, at `now` at the earliest.
    fn follow(&mut self, conversation: u32, now: Duration) {
        let at = conversation as usize;
        let (script, standing) = (&self.scripts[at], &mut self.standing[at]);
        let index = standing.turn as usize;
        let think = script.think.get(index - 1).copied().unwrap_or_default();
        let due = match self.pace {
            Paced::Users { gap } => (standing.due + gap).max(now),
            Paced::Recorded => script.at.get(index).copied().unwrap_or_default().max(now + think),
            _ => now + think,
        };
        standing.due = due;
        self.timers.push(Reverse((due, conversation)));
    }

    /// Start nothing more: the time is up, or the user has seen enough.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Is nothing in flight, and nothing left to send?
    pub fn is_over(&self) -> bool {
        let left = self.begun < self.scripts.len()
            || !self.timers.is_empty()
            || !self.ready.is_empty()
            || !self.held.is_empty();
        self.in_flight == 0 && (self.stopped || !left)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::{Arrivals, Gaps, Rate};
    use proptest::prelude::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn even(rate: f64) -> Instants {
        Arrivals::Drawn { gaps: Gaps::Even, rate: Rate::Constant(rate) }.instants(Seed(1).generator("arrivals", 0))
    }

    fn scripts(count: usize, turns: u32) -> Vec<Script> {
        vec![Script { turns, ..Script::default() }; count]
    }

    /// Run to the end against a server that takes `service(turn)`; gives (sent, planned, turn) in the order of sending.
    fn play(mut driver: Driver, service: impl Fn(Turn) -> Duration) -> Vec<(Duration, Duration, Turn)> {
        let mut ends: BinaryHeap<Reverse<(Duration, Turn)>> = BinaryHeap::new();
        let (mut now, mut sent) = (Duration::ZERO, Vec::new());
        loop {
            let starts = driver.due(now);
            assert!(driver.in_flight() <= driver.rules.in_flight);
            for start in starts {
                assert!(start.planned <= now);
                sent.push((now, start.planned, start.turn));
                ends.push(Reverse((now + service(start.turn), start.turn)));
            }
            let end = ends.peek().map(|Reverse((at, _))| *at);
            let Some(next) = driver.wake().into_iter().chain(end).min() else { break };
            now = next.max(now);
            while let Some(Reverse((at, turn))) = ends.peek().copied()
                && at <= now
            {
                ends.pop();
                driver.ended(turn, now, true);
            }
        }
        assert!(driver.is_over());
        sent
    }

    fn lines(sent: &[(Duration, Duration, Turn)]) -> Vec<(u64, u64, u32, u32)> {
        let line = |(now, planned, turn): &(Duration, Duration, Turn)| {
            (now.as_millis() as u64, planned.as_millis() as u64, turn.conversation, turn.index)
        };
        sent.iter().map(line).collect()
    }

    #[test]
    fn closed_keeps_so_many_conversations_open_and_thinks_between_turns() {
        let script = Script { turns: 2, think: vec![ms(5)], ..Script::default() };
        let driver = Driver::new(vec![script; 3], Pace::Closed { conversations: 2 }, Rules::default(), Seed(1));
        let sent = lines(&play(driver, |_| ms(10)));
        let expected = [(0, 0, 0, 0), (0, 0, 1, 0), (15, 15, 0, 1), (15, 15, 1, 1), (25, 25, 2, 0), (40, 40, 2, 1)];
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_request_that_waits_for_the_cap_keeps_its_planned_instant() {
        let rules = Rules { in_flight: 1, ..Rules::default() };
        let driver = Driver::new(scripts(3, 1), Pace::Conversations(even(100.0)), rules, Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(50))), [(0, 0, 0, 0), (50, 10, 1, 0), (100, 20, 2, 0)]);
    }

    #[test]
    fn a_place_that_came_free_is_told_apart_from_lateness_of_our_own() {
        let rules = Rules { in_flight: 1, ..Rules::default() };
        let mut driver = Driver::new(scripts(3, 1), Pace::Conversations(even(100.0)), rules, Seed(1));
        let first = driver.due(ms(2))[0];
        assert_eq!((first.planned, first.free), (ms(0), ms(0)), "nobody but the shell was late");
        driver.ended(first.turn, ms(50), true);
        let second = driver.due(ms(53))[0];
        assert_eq!((second.planned, second.free), (ms(10), ms(50)), "it waited for the first until 50");
    }

    #[test]
    fn arrivals_of_a_stall_are_made_up_for() {
        // The server stands still for the first request; nine arrivals come meanwhile, each planned at its own instant.
        let driver = Driver::new(
            scripts(10, 1),
            Pace::Requests(even(100.0)),
            Rules { in_flight: 1, ..Rules::default() },
            Seed(1),
        );
        let sent = play(driver, |turn| if turn.conversation == 0 { ms(1_000) } else { ms(1) });
        for (i, (now, planned, _)) in sent.iter().enumerate().skip(1) {
            assert_eq!((*planned, *now), (ms(10 * i as u64), ms(999 + i as u64)));
        }
    }

    #[test]
    fn requests_come_at_their_instants_and_wait_for_a_ready_conversation() {
        let driver = Driver::new(scripts(1, 3), Pace::Requests(even(100.0)), Rules::default(), Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(25))), [(0, 0, 0, 0), (25, 25, 0, 1), (50, 50, 0, 2)]);
    }

    #[test]
    fn the_barrier_opens_when_all_ended_a_round_and_does_not_wait_for_those_that_failed() {
        let rules = Rules { barrier: true, ..Rules::default() };
        let mut driver = Driver::new(scripts(3, 2), Pace::Closed { conversations: 3 }, rules, Seed(1));
        let first: Vec<Turn> = driver.due(ms(0)).into_iter().map(|start| start.turn).collect();
        driver.ended(first[0], ms(10), true);
        driver.ended(first[1], ms(20), false);
        assert_eq!((driver.due(ms(25)), driver.wake()), (Vec::new(), None));
        driver.ended(first[2], ms(30), true);
        let second = driver.due(ms(30));
        let turns: Vec<(u32, u32)> = second.iter().map(|s| (s.turn.conversation, s.turn.index)).collect();
        assert_eq!(turns, [(0, 1), (2, 1)]);
        assert!(second.iter().all(|start| start.planned == ms(30)));
    }

    #[test]
    fn users_are_out_of_step_and_keep_their_gap_unless_the_server_is_slower() {
        let driver = Driver::new(scripts(2, 2), Pace::Users { users: 2, gap: ms(100) }, Rules::default(), Seed(1));
        assert_eq!(
            lines(&play(driver, |turn| if turn.conversation == 0 { ms(10) } else { ms(130) })),
            [(0, 0, 0, 0), (50, 50, 1, 0), (100, 100, 0, 1), (180, 180, 1, 1)]
        );
    }

    #[test]
    fn a_trace_keeps_its_times_and_a_turn_waits_for_the_answer_before_it() {
        let script = |at: [u64; 2]| Script { turns: 2, at: at.map(ms).to_vec(), ..Script::default() };
        let driver = Driver::new(vec![script([5, 100]), script([7, 10])], Pace::Recorded, Rules::default(), Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(20))), [(5, 5, 0, 0), (7, 7, 1, 0), (27, 27, 1, 1), (100, 100, 0, 1)]);
    }

    #[test]
    fn a_recorded_turn_without_a_time_comes_its_think_time_after_the_answer_before_it() {
        let script = Script { turns: 2, think: vec![ms(30)], at: vec![ms(5), ms(0)] };
        let driver = Driver::new(vec![script], Pace::Recorded, Rules::default(), Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(20))), [(5, 5, 0, 0), (55, 55, 0, 1)]);
    }

    #[test]
    fn after_a_stop_only_what_is_in_flight_is_left() {
        let mut driver = Driver::new(scripts(5, 2), Pace::Closed { conversations: 1 }, Rules::default(), Seed(1));
        let start = driver.due(ms(0))[0];
        driver.stop();
        assert!(!driver.is_over());
        driver.ended(start.turn, ms(1), true);
        assert!(driver.is_over() && driver.due(ms(9)).is_empty() && driver.wake().is_none());
    }

    proptest! {
        #[test]
        fn every_turn_is_sent_once_in_order_within_the_cap_and_never_early(
            turns in proptest::collection::vec(1_u32..5, 1..20),
            which in 0..5_u8,
            cap in 1_usize..6,
            barrier in any::<bool>(),
            random in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let scripts: Vec<Script> = turns
                .iter()
                .enumerate()
                .map(|(i, n)| Script { turns: *n, think: vec![ms(3); 2], at: (0..*n).map(|k| ms(u64::from(k) * 7 + i as u64)).collect() })
                .collect();
            let arrivals = |rate| Arrivals::Drawn { gaps: Gaps::POISSON, rate: Rate::Constant(rate) }
                .instants(Seed(seed).generator("arrivals", 0));
            let pace = match which {
                0 => Pace::Closed { conversations: 3 },
                1 => Pace::Conversations(arrivals(50.0)),
                2 => Pace::Requests(arrivals(200.0)),
                3 => Pace::Recorded,
                _ => Pace::Users { users: 3, gap: ms(11) },
            };
            let ready = if random { Ready::Random } else { Ready::Fifo };
            let driver = || Driver::new(scripts.clone(), pace.clone(), Rules { in_flight: cap, ready, barrier }, Seed(seed));
            let service = |turn: Turn| ms(u64::from(turn.conversation * 7 + turn.index * 3) % 13);
            let sent = play(driver(), service);
            prop_assert_eq!(sent.len(), turns.iter().sum::<u32>() as usize);
            for (conversation, turns) in turns.iter().enumerate() {
                let own: Vec<u32> = sent.iter().filter(|s| s.2.conversation as usize == conversation).map(|s| s.2.index).collect();
                prop_assert_eq!(own, (0..*turns).collect::<Vec<_>>());
            }
            prop_assert_eq!(lines(&play(driver(), service)), lines(&sent), "the same seed, the same run");
        }
    }
}
