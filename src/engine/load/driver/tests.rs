//! Tests of the driver with a server that takes a given time per request.

use super::*;
use crate::{Arrivals, Gaps, Rate};
use proptest::prelude::*;

pub(super) fn ms(ms: u64) -> Duration {
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
pub(super) fn play(mut driver: Driver, service: impl Fn(Turn) -> Duration) -> Vec<(Duration, Duration, Turn)> {
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

pub(super) fn lines(sent: &[(Duration, Duration, Turn)]) -> Vec<(u64, u64, u32, u32)> {
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
    let driver =
        Driver::new(scripts(10, 1), Pace::Requests(even(100.0)), Rules { in_flight: 1, ..Rules::default() }, Seed(1));
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
    let script = Script { turns: 2, think: vec![ms(30)], at: vec![ms(5), ms(0)], ..Script::default() };
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
            .map(|(i, n)| Script { turns: *n, think: vec![ms(3); 2], at: (0..*n).map(|k| ms(u64::from(k) * 7 + i as u64)).collect(), ..Script::default() })
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

#[test]
fn upcoming_turn_is_known_only_if_it_can_be_sent_at_once() {
    let scripts = vec![Script { turns: 2, think: vec![ms(10)], ..Script::default() }; 2];
    let rules = Rules { in_flight: 1, ..Rules::default() };
    let mut driver = Driver::new(scripts, Pace::Closed { conversations: 2 }, rules, Seed(1));
    let first = driver.due(ms(0));
    assert_eq!((first.len(), driver.upcoming(ms(50))), (1, None), "no slot is free");
    driver.finish(first[0].turn, ms(5), true);
    assert_eq!(driver.upcoming(ms(50)), None, "another conversation is ready");
    let second = driver.due(ms(5));
    driver.finish(second[0].turn, ms(8), true);
    let next = Turn { conversation: first[0].turn.conversation, index: 1 };
    assert_eq!((driver.upcoming(ms(14)), driver.upcoming(ms(15))), (None, Some(next)));
    assert_eq!(driver.due(ms(15))[0].turn, next);
    driver.stop();
    assert_eq!(driver.upcoming(ms(50)), None);
}
