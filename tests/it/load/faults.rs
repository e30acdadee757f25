//! Misbehaving servers, and how their failures are counted.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mcctl::engine::base::{Mono, Unix};
use mcctl::engine::env::{Env, RealEnv};
use mcctl::engine::load::target::ExchangeOutcome;
use mcctl::engine::load::workload::LoadWorkload;
use mcctl::engine::load::{Driver, LoadRun, Pace, Rules, RunLimits, Seed};
use tokio::sync::mpsc;

use super::server::{Behaviour, serve};
use super::{ms, play, synthetic, target};

fn one_at_a_time() -> (Pace, Rules) {
    (Pace::Closed { conversations: 1 }, Rules { in_flight: 1, ..Rules::default() })
}

#[tokio::test]
async fn idle_connections_closed_by_the_server_cost_no_request() {
    let port = serve(|_| Behaviour::CloseAfter).await;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(target(port), synthetic(4, 5), pace, rules).await;
    assert!(records.iter().all(|record| record.exchange.outcome == ExchangeOutcome::Ok), "{records:?}");
    assert_eq!(records.len(), 20);
    assert!(ran.connections >= 20 - 2, "about one connection per request: {}", ran.connections);
}

#[tokio::test]
async fn endless_head_and_frame_are_aborted() {
    let behaviours =
        [Behaviour::EndlessHead, Behaviour::EndlessFrame, Behaviour::HalfFrame, Behaviour::Answer(2, ms(0), ms(0))];
    let port = serve(move |n| behaviours[n]).await;
    let (pace, rules) = one_at_a_time();
    let (_, records) = play(target(port), synthetic(4, 1), pace, rules).await;
    let outcomes: Vec<String> = records.iter().map(|record| record.exchange.outcome.kind()).collect();
    assert_eq!(outcomes, ["connection broke", "connection broke", "stream cut off", "ok"], "{records:?}");
    assert!(
        matches!(&records[0].exchange.outcome, ExchangeOutcome::Broken(why) if why.contains("head")),
        "{:?}",
        records[0]
    );
    assert!(
        matches!(&records[1].exchange.outcome, ExchangeOutcome::Broken(why) if why.contains("frame")),
        "{:?}",
        records[1]
    );
}

#[tokio::test]
async fn busy_server_is_retried_after_its_delay_which_counts() {
    let busy = |n: usize| match n {
        0 => Behaviour::Status(503, "retry-after: 1\r\n"),
        1 => Behaviour::Status(429, "retry-after: 0\r\n"),
        _ => Behaviour::Answer(1, ms(0), ms(0)),
    };
    let port = serve(busy).await;
    let mut patient = target(port);
    patient.limits.busy_retries = 2;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(patient, synthetic(1, 1), pace, rules).await;
    let record = &records[0];
    assert_eq!((record.exchange.outcome.clone(), ran.retried, records.len()), (ExchangeOutcome::Ok, 2, 1));
    assert!(record.exchange.waited >= Duration::from_secs(1), "{record:?}");
    let ttft = record.exchange.first_token.expect("a first token") - record.planned;
    assert!(ttft >= Duration::from_secs(1) && record.lag() + Duration::from_secs(1) <= ttft, "{record:?}");
}

#[tokio::test]
async fn busy_server_is_not_retried_by_default() {
    let port = serve(|_| Behaviour::Status(503, "retry-after: 0\r\n")).await;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(target(port), synthetic(2, 3), pace, rules).await;
    assert_eq!((records.len(), ran.retried), (2, 0), "a failure ends its conversation: {records:?}");
}

#[tokio::test]
async fn redirects_pages_and_error_messages_are_reported() {
    let behaviours =
        [Behaviour::Status(302, "Location: http://other/login\r\n"), Behaviour::Page, Behaviour::RawErrorInStream];
    let port = serve(move |n| behaviours[n]).await;
    let (pace, rules) = one_at_a_time();
    let (_, records) = play(target(port), synthetic(3, 1), pace, rules).await;
    let outcomes: Vec<(String, String)> =
        records.iter().map(|record| (record.exchange.outcome.kind(), record.exchange.outcome.message())).collect();
    let expected = [
        ("status 302", "redirect to http://other/login: try next"),
        ("no stream", "text/html; charset=utf-8: <html> <body>sign in </html>"),
        ("error in the stream", "caf\u{fffd} is too  [1mlong"),
    ];
    assert_eq!(outcomes, expected.map(|(word, said)| (word.to_owned(), said.to_owned())));
}

#[tokio::test]
async fn gaps_of_failed_answers_are_not_counted() {
    let behaviours = [Behaviour::CloseMidStream, Behaviour::NoEnd, Behaviour::Answer(4, ms(0), ms(200))];
    let port = serve(move |n| behaviours[n]).await;
    let (pace, rules) = one_at_a_time();
    let (ran, records) = play(target(port), synthetic(3, 1), pace, rules).await;
    assert!(records[0].exchange.arrived >= 1 && records[1].exchange.arrived == 2, "{records:?}");
    let gaps = ran.gaps.summary().expect("one successful answer");
    assert_eq!(gaps.count, 3);
    assert!(gaps.min >= ms(150), "{gaps:?}");
}

/// The real environment, except that the network panics when it is used the third time.
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
async fn panic_in_an_exchange_is_a_failed_request() {
    // Each answer closes its connection.
    let port = serve(|_| Behaviour::CloseAfter).await;
    let mut workload = synthetic(5, 1);
    let (pace, rules) = one_at_a_time();
    let driver = Driver::new(workload.scripts(), pace, rules, Seed(3));
    let (_tell, mut stop) = mpsc::channel(1);
    let limits = RunLimits { duration: Duration::from_secs(60), connections: 0 };
    let mut outcomes = Vec::new();
    let report = |record: mcctl::engine::load::TimedRequest| outcomes.push(record.exchange.outcome);
    let env = Broken(RealEnv::new(), Arc::default());
    let target = target(port);
    let live = Arc::default();
    let ran = LoadRun { env, target, workload: &mut workload, driver, limits, live }.execute(&mut stop, report).await;
    let bugs: Vec<&ExchangeOutcome> = outcomes.iter().filter(|outcome| **outcome != ExchangeOutcome::Ok).collect();
    assert!(matches!(&bugs[..], [ExchangeOutcome::Bug(said)] if said.contains("on purpose")), "{outcomes:?}");
    assert_eq!((outcomes.len(), ran.bugs, ran.unfinished), (5, 1, 0));
    assert!(ran.caveats().iter().any(|doubt| doubt.to_string().contains("a bug in mcctl")), "{:?}", ran.caveats());
}
