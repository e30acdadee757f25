//! Servers that misbehave, and what is counted then.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mcctl::engine::base::{Mono, Unix};
use mcctl::engine::env::{Env, RealEnv};
use mcctl::engine::load::target::Outcome;
use mcctl::engine::load::workload::Workload;
use mcctl::engine::load::{Bounds, Driver, Pace, Rules, Seed, run};
use tokio::sync::mpsc;

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

#[tokio::test]
async fn where_a_redirection_leads_what_a_page_is_and_the_words_of_any_failure_are_told() {
    let manners = [Manner::Status(302, "Location: http://other/login\r\n"), Manner::Page, Manner::RawErrorInStream];
    let port = serve(move |n| manners[n]).await;
    let (pace, rules) = one_at_a_time();
    let (_, records) = play(target(port), synthetic(3, 1), pace, rules).await;
    let outcomes: Vec<(String, String)> =
        records.iter().map(|record| (record.exchange.outcome.word(), record.exchange.outcome.said())).collect();
    let expected = [
        ("status 302", "to http://other/login: try next"),
        ("no stream", "text/html; charset=utf-8: <html> <body>sign in </html>"),
        ("error in the stream", "caf\u{fffd} is too  [1mlong"),
    ];
    assert_eq!(outcomes, expected.map(|(word, said)| (word.to_owned(), said.to_owned())));
}

#[tokio::test]
async fn gaps_of_an_answer_that_failed_are_no_time_between_tokens() {
    let manners = [Manner::CloseMidStream, Manner::NoEnd, Manner::Answer(4, ms(0), ms(5))];
    let port = serve(move |n| manners[n]).await;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(target(port), synthetic(3, 1), pace, rules).await;
    assert!(records[0].exchange.arrived >= 1 && records[1].exchange.arrived == 2, "{records:?}");
    let gaps = ran.gaps.summary().expect("one answer went well");
    assert_eq!(gaps.count, 3);
    assert!(gaps.min >= ms(4), "{gaps:?}");
}

/// The real one, but that the network panics when it is used the third time.
#[derive(Clone)]
struct Broken(RealEnv, Arc<AtomicU32>);

impl Env for Broken {
    type Net = <RealEnv as Env>::Net;
    fn net(&self) -> &Self::Net {
        assert_ne!(self.1.fetch_add(1, Ordering::Relaxed), 2, "on purpose");
        self.0.net()
    }
    fn now(&self) -> Mono {
        self.0.now()
    }
    fn unix(&self) -> Unix {
        self.0.unix()
    }
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        self.0.sleep(duration)
    }
    fn rng(&self) -> u64 {
        self.0.rng()
    }
}

#[tokio::test]
async fn a_panic_in_an_exchange_is_a_failed_request_and_the_run_ends() {
    // Each answer takes a connection of its own.
    let port = serve(|_| Manner::CloseAfter).await;
    let mut workload = synthetic(5, 1);
    let (pace, rules) = one_at_a_time();
    let driver = Driver::new(workload.scripts(), pace, rules, Seed(3));
    let (_tell, mut stop) = mpsc::channel(1);
    let bounds = Bounds { duration: Duration::from_secs(60), connections: 0 };
    let mut outcomes = Vec::new();
    let told = |record: mcctl::engine::load::Record| outcomes.push(record.exchange.outcome);
    let env = Broken(RealEnv::new(), Arc::default());
    let ran = run(env, target(port), &mut workload, driver, bounds, Arc::default(), &mut stop, told).await;
    let bugs: Vec<&Outcome> = outcomes.iter().filter(|outcome| **outcome != Outcome::Ok).collect();
    assert!(matches!(&bugs[..], [Outcome::Bug(said)] if said.contains("on purpose")), "{outcomes:?}");
    assert_eq!((outcomes.len(), ran.bugs, ran.unfinished), (5, 1, 0));
    assert!(ran.doubts().iter().any(|doubt| doubt.to_string().contains("a bug in mcctl")), "{:?}", ran.doubts());
}
