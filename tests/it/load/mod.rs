//! The load generator against a scripted server.

mod browser;
mod command;
mod compare;
mod control;
mod dataset;
mod faults;
mod plan;
mod report;
mod secure;
mod server;
mod serving;
mod sessions;
mod verify;

use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::load::answer::Dialect;
use mcctl::engine::load::measure::Tally;
use mcctl::engine::load::target::{ExchangeLimits, ExchangeOutcome, LoadTarget};
use mcctl::engine::load::workload::Synthetic;
use mcctl::engine::load::{
    Arrivals, Distribution, Driver, Gaps, LoadRun, Pace, Rate, Rules, RunLimits, RunStats, Seed, TimedRequest,
    workload::LoadWorkload,
};
use tokio::sync::mpsc;

use crate::peer::process::{PATIENCE, free_port};
use server::{Behaviour, serve};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn target(port: u16) -> LoadTarget {
    LoadTarget {
        model: String::new(),
        limits: ExchangeLimits { connect: PATIENCE, silence: PATIENCE, whole: PATIENCE, busy_retries: 0 },
        ..LoadTarget::new(HostPort::new("127.0.0.1", port), Dialect::Generate)
    }
}

fn synthetic(conversations: u32, turns: u32) -> Synthetic {
    let constant = |value: u32| Distribution::Constant(f64::from(value));
    Synthetic::new(conversations, constant(turns), constant(20), constant(4), Seed(3))
}

async fn play(target: LoadTarget, mut workload: Synthetic, pace: Pace, rules: Rules) -> (RunStats, Vec<TimedRequest>) {
    let driver = Driver::new(workload.scripts(), pace, rules, Seed(3));
    let (_tell, mut stop) = mpsc::channel(1);
    let limits = RunLimits { duration: Duration::from_secs(60), connections: 2 };
    let mut records = Vec::new();
    let report = |record: TimedRequest| records.push(record);
    let env = RealEnv::new();
    let live = Arc::default();
    let ran = LoadRun { env, target, workload: &mut workload, driver, limits, live }.execute(&mut stop, report).await;
    (ran, records)
}

#[tokio::test]
async fn conversations_continue_with_the_answers_and_tokens_are_timed() {
    // Tokens that are read together have the arrival time of the last one. So the gaps are longer
    // than a busy machine delays a read.
    let port = serve(|_| Behaviour::Answer(4, ms(20), ms(200))).await;
    let (ran, records) = play(target(port), synthetic(3, 2), Pace::Closed { conversations: 3 }, Rules::default()).await;
    assert_eq!(records.len(), 6);
    for record in &records {
        assert_eq!(record.exchange.outcome, ExchangeOutcome::Ok);
        assert_eq!((record.exchange.arrived, &record.exchange.answer.output_ids[..]), (4, &[1, 2, 3, 4][..]));
        let first = record.exchange.first_token.expect("a first token");
        assert!(first - record.exchange.wrote >= ms(20), "{record:?}");
        assert!(record.exchange.last_token.expect("a last token") - first >= ms(600), "{record:?}");
    }
    assert_eq!((ran.gaps.count(), ran.unfinished), (6 * 3, 0));
}

#[tokio::test]
async fn each_kind_of_failure_has_its_name_and_totals_add_up() {
    let behaviours = [
        Behaviour::Answer(2, ms(0), ms(0)),
        Behaviour::CloseMidStream,
        Behaviour::NoEnd,
        Behaviour::ByteByByte,
        Behaviour::Garbage,
        Behaviour::Status(429, "retry-after: 7\r\n"),
        Behaviour::Status(503, ""),
        Behaviour::ErrorInStream,
        Behaviour::Silence,
        Behaviour::SilenceAfterHead,
        Behaviour::Nonsense,
        Behaviour::Empty,
    ];
    let port = serve(move |n| behaviours[n]).await;
    let mut impatient = target(port);
    impatient.limits.silence = ms(2_000);
    let (_, records) = play(
        impatient,
        synthetic(12, 1),
        Pace::Closed { conversations: 1 },
        Rules { in_flight: 1, ..Rules::default() },
    )
    .await;
    let outcomes: Vec<String> = records.iter().map(|record| record.exchange.outcome.kind()).collect();
    let sent = records.len() as u64;
    let mut tally = Tally::default();
    records.iter().for_each(|record| tally.add(record));
    assert_eq!(tally.all.requests + tally.failed(), sent, "{outcomes:?}");
    let found = |word: &str| outcomes.iter().filter(|outcome| *outcome == word).count();
    let words = ["status 429", "status 503", "error in the stream", "stream cut off", "no tokens"];
    assert_eq!(words.map(found), [1, 1, 1, 1, 1], "{outcomes:?}");
    assert_eq!((found("connection broke"), found("time-out"), found("ok")), (2, 2, 3), "{outcomes:?}");
    let status = records.iter().find(|record| record.exchange.outcome.kind() == "status 429").expect("a 429 response");
    assert_eq!(
        status.exchange.outcome,
        ExchangeOutcome::Status {
            status: 429,
            message: "try next".to_owned(),
            retry_after: Some(Duration::from_secs(7))
        }
    );
    assert_eq!(tally.bad_frames, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_stream_is_aborted_at_the_time_limit() {
    let port = serve(|_| Behaviour::Flood).await;
    let mut target = target(port);
    target.limits.whole = ms(400);
    let mut workload = synthetic(2, 1);
    let driver = Driver::new(workload.scripts(), Pace::Closed { conversations: 2 }, Rules::default(), Seed(3));
    let (_tell, mut stop) = mpsc::channel(1);
    let limits = RunLimits { duration: Duration::from_secs(60), connections: 0 };
    let mut words = Vec::new();
    let report = |record: TimedRequest| words.push(record.exchange.outcome.kind());
    let env = RealEnv::new();
    let live = Arc::default();
    let ran = LoadRun { env, target, workload: &mut workload, driver, limits, live }.execute(&mut stop, report).await;
    assert_eq!((words, ran.unfinished), (vec!["time-out".to_owned(); 2], 0));
}

#[tokio::test]
async fn stall_shows_in_the_latency_of_all_later_requests() {
    let port =
        serve(|n| if n == 0 { Behaviour::Answer(1, ms(200), ms(0)) } else { Behaviour::Answer(1, ms(0), ms(0)) }).await;
    let arrivals = Arrivals::Drawn { gaps: Gaps::Even, rate: Rate::Constant(100.0) };
    let pace = Pace::Conversations(arrivals.instants(Seed(1).generator("arrivals", 0)));
    let (_, records) = play(target(port), synthetic(10, 1), pace, Rules { in_flight: 1, ..Rules::default() }).await;
    assert_eq!(records.len(), 10);
    for (n, record) in records.iter().enumerate().skip(1) {
        assert_eq!(record.planned, ms(10 * n as u64));
        let waited = record.exchange.first_token.expect("a first token") - record.planned;
        assert!(waited >= ms(200 - 10 * n as u64), "request {n} waited {waited:?}");
    }
}

#[tokio::test]
async fn unreachable_server_fails_every_request_and_the_run_ends() {
    let port = free_port();
    let (ran, records) = play(target(port), synthetic(3, 5), Pace::Closed { conversations: 2 }, Rules::default()).await;
    assert!(records.iter().all(|record| matches!(record.exchange.outcome, ExchangeOutcome::Connect(_))), "{records:?}");
    assert_eq!((records.len(), ran.unfinished), (3, 0));
}

#[tokio::test]
async fn stop_waits_for_requests_in_flight_and_a_second_one_does_not() {
    for (stops, finished) in [(1, 1), (2, 0)] {
        let port = serve(|_| Behaviour::Answer(3, ms(250), ms(0))).await;
        let mut workload = synthetic(5, 1);
        let driver = Driver::new(workload.scripts(), Pace::Closed { conversations: 1 }, Rules::default(), Seed(3));
        let (tell, mut stop) = mpsc::channel(2);
        for _ in 0..stops {
            tell.send(()).await.expect("disk space");
        }
        let limits = RunLimits { duration: Duration::from_secs(60), connections: 0 };
        let mut records = 0;
        let env = RealEnv::new();
        let target = target(port);
        let live = Arc::default();
        let run = LoadRun { env, target, workload: &mut workload, driver, limits, live };
        let ran = run.execute(&mut stop, |_| records += 1).await;
        assert_eq!((records, ran.unfinished), (finished, 1 - finished as u64), "{stops} stops");
    }
}
