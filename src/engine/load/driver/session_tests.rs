//! Tests of sessions: order, waits and repetition.

use super::tests::{lines, ms, play};
use super::*;

fn conversation(index: u32, turns: u32, think: u64) -> Script {
    let node = SessionNode { index, ..SessionNode::default() };
    let think = vec![ms(think); turns as usize - 1];
    Script { turns, think, node: Some(Box::new(node)), whole: true, ..Script::default() }
}

fn after(mut script: Script, conversation: u32, turn: u32, delay: u64) -> Script {
    let node = script.node.as_mut().expect("a node");
    node.after = Some(SessionTurn { conversation, turn });
    node.delay = ms(delay);
    script
}

/// An agent of three turns. Its first turn starts a subagent of two turns, for which its third turn
/// waits.
fn agent() -> Vec<Script> {
    let mut main = conversation(0, 3, 5);
    main.node.as_mut().expect("a node").joins = vec![SessionJoin { turn: 2, conversation: 1 }];
    vec![main, after(conversation(1, 2, 10), 0, 0, 3)]
}

fn driver(scripts: Vec<Script>, plan: LiveSessionPlan) -> Driver {
    Driver::new(scripts, Pace::Sessions(plan), Rules::default(), Seed(1))
}

#[test]
fn subagent_runs_beside_its_parent_which_waits_for_it() {
    let plan = LiveSessionPlan { live: 1, once: 0, repeat: false };
    let sent = lines(&play(driver(agent(), plan), |_| ms(10)));
    // The subagent ends at 43, and the parent's third turn follows after its think time of 5.
    assert_eq!(sent, [(0, 0, 0, 0), (13, 13, 1, 0), (15, 15, 0, 1), (33, 33, 1, 1), (48, 48, 0, 2)]);
}

#[test]
fn first_turn_of_a_cut_agent_waits_for_all_its_subagents() {
    let plan = LiveSessionPlan { live: 1, once: 0, repeat: false };
    let join = |conversation| SessionJoin { turn: 0, conversation };
    let mut main = conversation(0, 2, 5);
    let node = main.node.as_mut().expect("a node");
    node.joins = vec![join(1), join(2)];
    node.delay = ms(4);
    let scripts = vec![main, conversation(1, 2, 10), conversation(2, 1, 0)];
    let sent = lines(&play(driver(scripts.clone(), plan), |_| ms(10)));
    // The last subagent ends at 30, and the agent follows after its delay.
    assert_eq!(sent, [(0, 0, 1, 0), (0, 0, 2, 0), (20, 20, 1, 1), (34, 34, 0, 0), (49, 49, 0, 1)]);
    // A subagent that ends early does not keep the agent from going on.
    let mut driver = driver(scripts, plan);
    let mut sent = Vec::new();
    for now in (0..100).map(ms) {
        for start in driver.due(now) {
            sent.push((start.turn.conversation, start.turn.index));
            match start.turn.conversation {
                1 => driver.abandon(start.turn, now),
                _ => drop(driver.finish(start.turn, now, true)),
            }
        }
    }
    assert_eq!(sent, [(1, 0), (2, 0), (0, 0), (0, 1)]);
    assert!(driver.is_over());
}

#[test]
fn next_session_starts_when_one_has_ended_with_all_its_conversations() {
    let plan = LiveSessionPlan { live: 1, once: 0, repeat: false };
    // The subagent outlives its parent.
    let session = || vec![conversation(0, 1, 0), after(conversation(1, 2, 10), 0, 0, 0)];
    let sent = lines(&play(driver([session(), session()].concat(), plan), |_| ms(10)));
    let order: Vec<(u64, u32)> = sent.iter().map(|(at, _, conversation, _)| (*at, *conversation)).collect();
    assert_eq!(order, [(0, 0), (10, 1), (30, 1), (40, 2), (50, 3), (70, 3)]);
}

#[test]
fn repeated_sessions_have_new_numbers_and_the_first_ones_are_used_once() {
    let plan = LiveSessionPlan { live: 2, once: 1, repeat: true };
    let mut driver = driver(vec![conversation(0, 1, 0); 3], plan);
    let mut sent = Vec::new();
    for round in 0..4 {
        let now = ms(10 * round);
        let due = driver.due(now);
        for start in &due {
            sent.push(start.turn.conversation);
            driver.finish(start.turn, now, true);
        }
    }
    assert_eq!(sent, [0, 1, 2, 4, 5, 7, 8, 10]);
    assert!(!driver.is_over());
    driver.stop();
    assert!(driver.is_over());
}

#[test]
fn sessions_pause_while_no_request_succeeds() {
    let plan = LiveSessionPlan { live: 2, once: 0, repeat: true };
    let mut driver = driver(vec![conversation(0, 1, 0); 3], plan);
    let mut sent = 0;
    for now in (0..10_000).map(ms) {
        for start in driver.due(now) {
            sent += 1;
            driver.finish(start.turn, now, false);
        }
    }
    // The first failures at once, and then two sessions each second.
    assert!((20..26).contains(&sent), "{sent}");
    let due = driver.due(ms(10_001));
    assert!(due.len() <= 2);
}

#[test]
fn failure_ends_a_conversation_only_if_its_next_turn_needs_the_response() {
    let plan = LiveSessionPlan { live: 1, once: 0, repeat: false };
    for whole in [true, false] {
        let mut scripts = agent();
        scripts.iter_mut().for_each(|script| script.whole = whole);
        scripts.push(after(conversation(2, 1, 0), 0, 1, 0));
        scripts.push(conversation(0, 1, 0));
        let mut driver = driver(scripts, plan);
        let mut sent = Vec::new();
        for now in (0..200).map(ms) {
            for start in driver.due(now) {
                sent.push((start.turn.conversation, start.turn.index));
                driver.finish(start.turn, now, start.turn != Turn { conversation: 0, index: 0 });
            }
        }
        let all = [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (3, 0)];
        let cut = [(0, 0), (1, 0), (1, 1), (3, 0)];
        assert_eq!(sent, if whole { &all[..] } else { &cut[..] });
        assert!(driver.is_over());
    }
}

#[test]
fn the_number_of_live_sessions_is_constant_until_the_list_ends() {
    let plan = LiveSessionPlan { live: 3, once: 0, repeat: false };
    let scripts: Vec<Script> = (0..20).flat_map(|_| agent()).collect();
    let sent = play(driver(scripts, plan), |turn| ms(5 + u64::from(turn.conversation % 7)));
    let mut turns: Vec<Turn> = sent.iter().map(|(_, _, turn)| *turn).collect();
    turns.sort_unstable();
    turns.dedup();
    assert_eq!((sent.len(), turns.len()), (20 * 5, 20 * 5), "each turn is sent once");
    // A session is live from its first to its last request, and two scripts are one session.
    let times = |session: u32| {
        let of_session = sent.iter().filter(move |(_, _, turn)| turn.conversation / 2 == session);
        let sent = of_session.map(|(at, _, turn)| (*at, *at + ms(5 + u64::from(turn.conversation % 7))));
        sent.fold((Duration::MAX, Duration::ZERO), |(first, last), (start, end)| (first.min(start), last.max(end)))
    };
    let lives: Vec<(Duration, Duration)> = (0..20).map(times).collect();
    let last_start = lives.iter().map(|(start, _)| *start).max().expect("sessions");
    for (at, ..) in &sent {
        let live = lives.iter().filter(|(start, end)| start <= at && at < end).count();
        assert!(*at > last_start || live == 3, "{live} at {at:?}");
    }
}
