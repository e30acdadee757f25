//! Servers that misbehave, and what is counted then.

use std::time::Duration;

use mcctl::engine::load::target::Outcome;
use mcctl::engine::load::{Pace, Rules};

use super::server::{Manner, serve};
use super::{ms, play, synthetic, target};

fn one_at_a_time() -> (Pace, Rules) {
    (Pace::Closed { conversations: 1 }, Rules { in_flight: 1, ..Rules::default() })
}

#[tokio::test]
async fn connections_that_the_server_closes_while_they_are_idle_cost_no_request() {
    let port = serve(|_| Manner::CloseAfter).await;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(target(port), synthetic(4, 5), pace, rules).await;
    assert!(records.iter().all(|record| record.exchange.outcome == Outcome::Ok), "{records:?}");
    assert_eq!(records.len(), 20);
    assert!(ran.connections >= 20 - 2, "each took a connection of its own: {}", ran.connections);
}

#[tokio::test]
async fn what_has_no_end_is_given_up() {
    let manners = [Manner::EndlessHead, Manner::EndlessFrame, Manner::HalfFrame, Manner::Answer(2, ms(0), ms(0))];
    let port = serve(move |n| manners[n]).await;
    let (pace, rules) = one_at_a_time();
    let (_, records) = play(target(port), synthetic(4, 1), pace, rules).await;
    let outcomes: Vec<String> = records.iter().map(|record| record.exchange.outcome.word()).collect();
    assert_eq!(outcomes, ["connection broke", "connection broke", "stream cut off", "ok"], "{records:?}");
    assert!(matches!(&records[0].exchange.outcome, Outcome::Broken(why) if why.contains("head")), "{:?}", records[0]);
    assert!(matches!(&records[1].exchange.outcome, Outcome::Broken(why) if why.contains("frame")), "{:?}", records[1]);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_when_it_says_so_and_the_wait_counts() {
    let busy = |n: usize| match n {
        0 => Manner::Status(503, "retry-after: 1\r\n"),
        1 => Manner::Status(429, "retry-after: 0\r\n"),
        _ => Manner::Answer(1, ms(0), ms(0)),
    };
    let port = serve(busy).await;
    let mut patient = target(port);
    patient.limits.busy_retries = 2;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(patient, synthetic(1, 1), pace, rules).await;
    let record = &records[0];
    assert_eq!((record.exchange.outcome.clone(), ran.retried, records.len()), (Outcome::Ok, 2, 1));
    assert!(record.exchange.waited >= Duration::from_secs(1), "{record:?}");
    let ttft = record.exchange.first_token.expect("it came") - record.planned;
    assert!(ttft >= Duration::from_secs(1) && record.lag() + Duration::from_secs(1) <= ttft, "{record:?}");
}

#[tokio::test]
async fn a_busy_server_is_not_asked_again_unless_that_is_wanted() {
    let port = serve(|_| Manner::Status(503, "retry-after: 0\r\n")).await;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(target(port), synthetic(2, 3), pace, rules).await;
    assert_eq!((records.len(), ran.retried), (2, 0), "a failure ends its conversation: {records:?}");
}
