//! Decides which request to send next and when it is scheduled. Conversations are state machines.
//!
//! The driver does no I/O. The caller passes in the time and completed requests, and sends the
//! requests that [`Driver::due`] returns. A request that must wait because of the concurrency limit
//! or a delay in the caller keeps its scheduled time. Latency is measured from the scheduled time,
//! because a real user would experience that wait too.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::iter::Peekable;
use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::{Instants, Seed};

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

/// A conversation's timing, without its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// Number of turns, at least one.
    pub turns: u32,
    /// Think time between the end of each turn and the next turn. Missing entries count as zero.
    pub think: Vec<Duration>,
    /// Recorded time of each turn, for [`Pace::Recorded`].
    pub at: Vec<Duration>,
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
    /// A conversation keeps its place among the requests in flight until it ends, as in
    /// `sglang.bench_serving`: the limit applies to conversations. Has no effect with `barrier`.
    pub whole_conversations: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { in_flight: usize::MAX, ready: ReadyOrder::Fifo, barrier: false, whole_conversations: false }
    }
}

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
    standing: Vec<ConversationState>,
    pace: PaceState,
    rules: Rules,
    rng: ChaCha8Rng,
    /// Number of scripts that have started.
    begun: usize,
    /// Turns that become ready at a given time.
    timers: BinaryHeap<Reverse<(Duration, u32)>>,
    /// Ready turns and when each became ready.
    ready: VecDeque<(Duration, u32)>,
    /// Ready turns of conversations that kept their place.
    continued: VecDeque<(Duration, u32)>,
    /// Conversations waiting at the barrier.
    held: Vec<u32>,
    in_flight: usize,
    /// Places in use: requests in flight, and conversations that kept their place between two
    /// turns.
    places: usize,
    /// When a slot last became free after all slots had been in use.
    freed: Duration,
    stopped: bool,
}

#[derive(Debug)]
enum PaceState {
    Closed,
    Conversations(Peekable<Instants>),
    Requests(Peekable<Instants>),
    Recorded,
    Users { gap: Duration },
}

impl Driver {
    /// Creates a driver for `scripts`. `seed` determines all random choices.
    pub fn new(scripts: Vec<Script>, pace: Pace, rules: Rules, seed: Seed) -> Driver {
        let standing = vec![ConversationState::default(); scripts.len()];
        let (paced, first) = match pace {
            Pace::Closed { conversations } => (PaceState::Closed, conversations),
            Pace::Conversations(instants) => (PaceState::Conversations(instants.peekable()), 0),
            Pace::Requests(instants) => (PaceState::Requests(instants.peekable()), scripts.len()),
            Pace::Recorded => (PaceState::Recorded, scripts.len()),
            Pace::Users { users, gap } => (PaceState::Users { gap }, users),
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
            continued: VecDeque::new(),
            held: Vec::new(),
            in_flight: 0,
            places: 0,
            freed: Duration::ZERO,
            stopped: false,
        };
        for place in 0..first.min(driver.scripts.len()) {
            let at = match (&driver.pace, driver.scripts[place].at.first()) {
                (PaceState::Recorded, Some(at)) => *at,
                (PaceState::Users { gap }, _) => gap.mul_f64(place as f64 / first as f64),
                _ => Duration::ZERO,
            };
            driver.begin(at);
        }
        driver
    }

    /// Starts the next script at `at`.
    fn begin(&mut self, at: Duration) {
        if self.begun < self.scripts.len() && !self.stopped {
            self.standing[self.begun].due = at;
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
            let is_continued = self.keeps_place() && self.standing[conversation as usize].turn > 0;
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
                let turn = Turn { conversation, index: self.standing[conversation as usize].turn };
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
            let turn = Turn { conversation, index: self.standing[conversation as usize].turn };
            self.in_flight += 1;
            self.places += 1;
            let planned = planned.max(since);
            starts.push(DueRequest { turn, planned, eligible_at: planned.max(self.freed) });
        }
        starts
    }

    /// Whether a conversation keeps its place until it ends.
    fn keeps_place(&self) -> bool {
        self.rules.whole_conversations && !self.rules.barrier
    }

    /// Whether a turn is ready and has a place.
    fn can_send(&self) -> bool {
        !self.continued.is_empty() || (!self.ready.is_empty() && self.places < self.rules.in_flight)
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
    /// turn ends its conversation, because the next turn would lack part of its history.
    pub fn finish(&mut self, turn: Turn, now: Duration, well: bool) -> bool {
        let at = turn.conversation as usize;
        debug_assert_eq!(self.standing[at].turn, turn.index, "the turn is in flight");
        self.in_flight -= 1;
        self.standing[at].turn += 1;
        let over = !well || self.standing[at].turn >= self.scripts[at].turns;
        if over || !self.keeps_place() {
            if self.places == self.rules.in_flight {
                self.freed = self.freed.max(now);
            }
            self.places -= 1;
        }
        if over {
            match self.pace {
                PaceState::Closed => self.begin(now),
                PaceState::Users { gap } => self.begin((self.standing[at].due + gap).max(now)),
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
        let standing = &mut self.standing[at];
        let index = standing.turn as usize;
        let think = script.think.get(index - 1).copied().unwrap_or_default();
        let due = match self.pace {
            PaceState::Users { gap } => (standing.due + gap).max(now),
            PaceState::Recorded => script.at.get(index).copied().unwrap_or_default().max(now + think),
            _ => now + think,
        };
        standing.due = due;
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
mod tests {
    use super::*;
    use crate::{Arrivals, Gaps, Rate};
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

    /// Runs to completion against a server that takes `service(turn)` per request. Returns (sent,
    /// planned, turn) in send order.
    fn play(mut driver: Driver, service: impl Fn(Turn) -> Duration) -> Vec<(Duration, Duration, Turn)> {
        let mut ends: BinaryHeap<Reverse<(Duration, Turn)>> = BinaryHeap::new();
        let mut now = Duration::ZERO;
        let mut sent = Vec::new();
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
                driver.finish(turn, now, true);
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
    fn closed_pace_limits_open_conversations_and_waits_think_times() {
        let script = Script { turns: 2, think: vec![ms(5)], ..Script::default() };
        let driver = Driver::new(vec![script; 3], Pace::Closed { conversations: 2 }, Rules::default(), Seed(1));
        let sent = lines(&play(driver, |_| ms(10)));
        let expected = [(0, 0, 0, 0), (0, 0, 1, 0), (15, 15, 0, 1), (15, 15, 1, 1), (25, 25, 2, 0), (40, 40, 2, 1)];
        assert_eq!(sent, expected);
    }

    #[test]
    fn waiting_for_the_limit_keeps_the_scheduled_time() {
        let rules = Rules { in_flight: 1, ..Rules::default() };
        let driver = Driver::new(scripts(3, 1), Pace::Conversations(even(100.0)), rules, Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(50))), [(0, 0, 0, 0), (50, 10, 1, 0), (100, 20, 2, 0)]);
    }

    #[test]
    fn concurrency_wait_is_separate_from_generator_lag() {
        let rules = Rules { in_flight: 1, ..Rules::default() };
        let mut driver = Driver::new(scripts(3, 1), Pace::Conversations(even(100.0)), rules, Seed(1));
        let first = driver.due(ms(2))[0];
        assert_eq!((first.planned, first.eligible_at), (ms(0), ms(0)), "only the caller is late");
        driver.finish(first.turn, ms(50), true);
        let second = driver.due(ms(53))[0];
        assert_eq!(
            (second.planned, second.eligible_at),
            (ms(10), ms(50)),
            "the second request waits for the first until 50 ms"
        );
    }

    #[test]
    fn arrivals_during_a_stall_are_caught_up() {
        // The server stalls on the first request. Nine more arrive in the meantime, each with its
        // own scheduled time.
        let driver = Driver::new(
            scripts(10, 1),
            Pace::Requests(even(100.0)),
            Rules { in_flight: 1, ..Rules::default() },
            Seed(1),
        );
        let sent = play(driver, |turn| if turn.conversation == 0 { ms(1_000) } else { ms(1) });
        assert_eq!(sent.len(), 10);
        for (i, (now, planned, _)) in sent.iter().enumerate().skip(1) {
            assert_eq!((*planned, *now), (ms(10 * i as u64), ms(999 + i as u64)));
        }
    }

    #[test]
    fn requests_wait_for_a_ready_conversation() {
        let driver = Driver::new(scripts(1, 3), Pace::Requests(even(100.0)), Rules::default(), Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(25))), [(0, 0, 0, 0), (25, 25, 0, 1), (50, 50, 0, 2)]);
    }

    #[test]
    fn barrier_opens_after_a_round_and_skips_failed_conversations() {
        let rules = Rules { barrier: true, ..Rules::default() };
        let mut driver = Driver::new(scripts(3, 2), Pace::Closed { conversations: 3 }, rules, Seed(1));
        let first: Vec<Turn> = driver.due(ms(0)).into_iter().map(|start| start.turn).collect();
        driver.finish(first[0], ms(10), true);
        driver.finish(first[1], ms(20), false);
        assert_eq!((driver.due(ms(25)), driver.wake()), (Vec::new(), None));
        driver.finish(first[2], ms(30), true);
        let second = driver.due(ms(30));
        let turns: Vec<(u32, u32)> = second.iter().map(|s| (s.turn.conversation, s.turn.index)).collect();
        assert_eq!(turns, [(0, 1), (2, 1)]);
        assert!(second.iter().all(|start| start.planned == ms(30)));
    }

    #[test]
    fn users_are_staggered_and_keep_their_gap() {
        let driver = Driver::new(scripts(2, 2), Pace::Users { users: 2, gap: ms(100) }, Rules::default(), Seed(1));
        assert_eq!(
            lines(&play(driver, |turn| if turn.conversation == 0 { ms(10) } else { ms(130) })),
            [(0, 0, 0, 0), (50, 50, 1, 0), (100, 100, 0, 1), (180, 180, 1, 1)]
        );
    }

    #[test]
    fn recorded_turns_keep_their_times_and_wait_for_the_previous_answer() {
        let script = |at: [u64; 2]| Script { turns: 2, at: at.map(ms).to_vec(), ..Script::default() };
        let driver = Driver::new(vec![script([5, 100]), script([7, 10])], Pace::Recorded, Rules::default(), Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(20))), [(5, 5, 0, 0), (7, 7, 1, 0), (27, 27, 1, 1), (100, 100, 0, 1)]);
    }

    #[test]
    fn recorded_turn_without_time_follows_after_its_think_time() {
        let script = Script { turns: 2, think: vec![ms(30)], at: vec![ms(5), ms(0)] };
        let driver = Driver::new(vec![script], Pace::Recorded, Rules::default(), Seed(1));
        assert_eq!(lines(&play(driver, |_| ms(20))), [(5, 5, 0, 0), (55, 55, 0, 1)]);
    }

    #[test]
    fn stop_leaves_only_requests_in_flight() {
        let mut driver = Driver::new(scripts(5, 2), Pace::Closed { conversations: 1 }, Rules::default(), Seed(1));
        let start = driver.due(ms(0))[0];
        driver.stop();
        assert!(!driver.is_over());
        driver.finish(start.turn, ms(1), true);
        assert!(driver.is_over() && driver.due(ms(9)).is_empty() && driver.wake().is_none());
    }

    #[test]
    fn limit_of_whole_conversations_keeps_their_number_constant() {
        let rules = Rules { in_flight: 2, whole_conversations: true, ..Rules::default() };
        let driver = Driver::new(scripts(4, 2), Pace::Closed { conversations: 4 }, rules, Seed(1));
        let sent = play(driver, |turn| ms(10 + u64::from(turn.conversation)));
        let order: Vec<(u32, u32)> = sent.iter().map(|(_, _, turn)| (turn.conversation, turn.index)).collect();
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]);
        let rules = Rules { whole_conversations: false, ..rules };
        let driver = Driver::new(scripts(4, 2), Pace::Closed { conversations: 4 }, rules, Seed(1));
        let sent = play(driver, |turn| ms(10 + u64::from(turn.conversation)));
        assert!(sent[..4].iter().all(|(_, _, turn)| turn.index == 0), "all conversations are open at the same time");
    }

    proptest! {
        #[test]
        fn every_turn_is_sent_once_in_order_within_the_limit(
            turns in proptest::collection::vec(1_u32..5, 1..20),
            which in 0..5_u8,
            cap in 1_usize..6,
            barrier in any::<bool>(),
            random in any::<bool>(),
            whole_conversations in any::<bool>(),
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
            let ready = if random { ReadyOrder::Random } else { ReadyOrder::Fifo };
            let driver = || Driver::new(scripts.clone(), pace.clone(), Rules { in_flight: cap, ready, barrier, whole_conversations }, Seed(seed));
            let service = |turn: Turn| ms(u64::from(turn.conversation * 7 + turn.index * 3) % 13);
            let sent = play(driver(), service);
            prop_assert_eq!(sent.len(), turns.iter().sum::<u32>() as usize);
            for (conversation, turns) in turns.iter().enumerate() {
                let own: Vec<u32> = sent.iter().filter(|s| s.2.conversation as usize == conversation).map(|s| s.2.index).collect();
                prop_assert_eq!(own, (0..*turns).collect::<Vec<_>>());
            }
            prop_assert_eq!(lines(&play(driver(), service)), lines(&sent), "the same seed produces the same run");
        }
    }
}
