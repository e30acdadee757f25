//! The generator's times against those of an endpoint that notes when it sent each byte.
//!
//!   truth [--streams 100] [--itl-ms 20] [--ttft-ms 50] [--tokens 250] [--api generate|chat]
//!   [--burst] [--cpu 1] [--mock-cpu 0]
//!
//! So many streams are open at once, begun one after the other within a second (or all at once,
//! with --burst), by the generator on one processor; the endpoint has another. Both read the same
//! clock. Errors are the generator's times less the endpoint's.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::{Env, RealEnv};
use mcctl::engine::load::answer::{Dialect, ModelAnswer};
use mcctl::engine::load::measure::Tally;
use mcctl::engine::load::target::LoadTarget;
use mcctl::engine::load::workload::{LoadWorkload, Members, Synthetic, SyntheticPrompt, TurnRequest};
use mcctl::engine::load::{
    Arrivals, Distribution, Driver, Gaps, LiveCounters, LoadRun, Pace, Rate, Rules, RunLimits, Script, Seed,
    TimedRequest, Turn,
};

use crate::{number, word};

/// Requests that give themselves names.
struct Named(Synthetic);

fn name(turn: Turn) -> String {
    format!("{}-{}", turn.conversation, turn.index)
}

impl LoadWorkload for Named {
    fn scripts(&self) -> Vec<Script> {
        self.0.scripts()
    }
    fn request(&mut self, turn: Turn) -> TurnRequest {
        let mut ask = self.0.request(turn);
        ask.extra = Members::new([("rid".to_owned(), format!("\"{}\"", name(turn)))]);
        ask
    }
    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        self.0.on_response(turn, answer);
    }
    fn on_conversation_end(&mut self, turn: Turn) {
        self.0.on_conversation_end(turn);
    }
}

/// Errors in milliseconds, signed: what they come to.
fn tell(what: &str, mut errors: Vec<f64>) {
    if errors.is_empty() {
        return println!("{what:28} none");
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    errors.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let at = |q: f64| errors[((errors.len() as f64 * q) as usize).min(errors.len() - 1)].abs();
    let n = errors.len();
    println!(
        "{what:28} n {n:7}  mean {mean:8.4}  |p50| {:7.3}  |p99| {:7.3}  |max| {:7.3} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn stamps(port: u16) -> HashMap<String, Vec<u64>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the mock accepts");
    stream.write_all(b"GET /mock/stamps HTTP/1.1\r\nhost: mock\r\n\r\n").expect("it listens");
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).expect("a head");
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut text = vec![0; length];
    reader.read_exact(&mut text).expect("all of it");
    let of_line = |line: &str| {
        let (name, stamps) = line.split_once(' ').expect("a name");
        (name.to_owned(), stamps.split(' ').map(|stamp| stamp.parse().expect("a stamp")).collect())
    };
    String::from_utf8(text).expect("text").lines().map(of_line).collect()
}

pub fn main(args: &[String]) {
    let get = |name: &str, or: f64| number(args, name, or);
    let streams = get("--streams", 100.0) as u32;
    let tokens = get("--tokens", 250.0);
    let chat = word(args, "--api", "generate") == "chat";
    let burst = args.iter().any(|arg| arg == "--burst");
    let me = std::process::id().to_string();
    let stays = Command::new("taskset").args(["-apc", word(args, "--cpu", "1"), &me]).stdout(Stdio::null()).status();
    assert!(stays.expect("taskset runs").success(), "cannot stay on one processor");
    let mut mock = Command::new("taskset")
        .args(["-c", word(args, "--mock-cpu", "0")])
        .arg(std::env::current_exe().expect("we are a file"))
        .args([
            "mock",
            "--port",
            "0",
            "--ttft-ms",
            word(args, "--ttft-ms", "50"),
            "--itl-ms",
            word(args, "--itl-ms", "20"),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the mock starts");
    let mut ready = String::new();
    BufReader::new(mock.stdout.take().expect("piped")).read_line(&mut ready).expect("the mock prints READY");
    let port: u16 = ready.trim().rsplit(':').next().and_then(|port| port.parse().ok()).expect("its port");

    let constant = |value: f64| Distribution::Constant(value);
    let mut workload = Synthetic::new(streams, constant(1.0), constant(64.0), constant(tokens), Seed(1));
    if chat {
        workload.words = SyntheticPrompt::Chat;
    }
    let mut workload = Named(workload);
    let pace = match burst {
        true => Pace::Closed { conversations: streams as usize },
        false => {
            let arrivals = Arrivals::Drawn { gaps: Gaps::Even, rate: Rate::Constant(f64::from(streams)) };
            Pace::Conversations(arrivals.instants(Seed(1).generator("arrivals", 0)))
        }
    };
    let driver = Driver::new(workload.scripts(), pace, Rules::default(), Seed(1));
    let dialect = if chat { Dialect::Chat } else { Dialect::Generate };
    let target = LoadTarget { model: "mock".to_owned(), ..LoadTarget::new(HostPort::new("127.0.0.1", port), dialect) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let env = RealEnv::new();
    let (mut records, mut tally): (Vec<TimedRequest>, Tally) = Default::default();
    let cpu = env.thread_cpu().expect("a real thread");
    let ran = runtime.block_on(async {
        let (_tell, mut stop) = tokio::sync::mpsc::channel(1);
        let limits = RunLimits { duration: Duration::from_secs(600), connections: streams as usize };
        let told = |record: TimedRequest| {
            tally.add(&record);
            records.push(record);
        };
        let env = env.clone();
        let live = Arc::new(LiveCounters::default());
        LoadRun { env, target, workload: &mut workload, driver, limits, live }.execute(&mut stop, told).await
    });
    let cpu = env.thread_cpu().expect("a real thread") - cpu;
    // The two clocks are one, with two origins.
    let clock = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("there is one");
    let origin = Duration::from(clock).as_nanos() as u64 - env.now().0;
    let zero = origin + ran.started.0;
    let truth = stamps(port);
    mock.kill().expect("it is ours");
    mock.wait().expect("it ends");

    let ms = |from: u64, to: u64| (to as f64 - from as f64) / 1e6;
    let mut first = Vec::new();
    let mut arrival = Vec::new();
    let mut gap = Vec::new();
    for record in &records {
        let (Some(sent), exchange) = (truth.get(&name(record.turn)), &record.exchange) else { continue };
        let at = |time: Duration| zero + time.as_nanos() as u64;
        let Some(came) = exchange.first_token else { continue };
        first.push(ms(at(exchange.wrote), at(came)) - ms(sent[0], sent[1]));
        // Frames that came in one read are one arrival each; the mock sends one token a frame.
        let came: Vec<u64> = exchange.arrivals.iter().map(|arrival| at(arrival.at)).collect();
        for (pair, truth) in came.windows(2).zip(sent[1..].windows(2)) {
            gap.push(ms(pair[0], pair[1]) - ms(truth[0], truth[1]));
        }
        arrival.extend(came.iter().zip(&sent[1..]).map(|(came, sent)| ms(*sent, *came)));
    }
    let seconds = ran.took.as_secs_f64();
    let count = tally.all.tokens.completion + tally.all.tokens.uncounted;
    println!(
        "{streams} streams, {} ok, {} failed, {count} tokens in {seconds:.2} s = {:.0}/s; {:.2} us of CPU a token, busiest second {:.0} %",
        tally.all.requests,
        tally.failed(),
        count as f64 / seconds,
        cpu.as_secs_f64() * 1e6 / count as f64,
        ran.share.unwrap_or(0.0) * 100.0
    );
    tell("time to first token", first);
    tell("between tokens", gap);
    tell("arrival (with the way)", arrival);
    if let (Some(delays), Some(lag)) = (ran.delays.summary(), tally.lag.summary()) {
        println!(
            "read after arrival: mean {:.2?}, p99 {:.2?}, max {:.2?}",
            delays.mean,
            delays.p99.unwrap_or(delays.max),
            delays.max
        );
        println!(
            "lag of requests:    mean {:.2?}, p99 {:.2?}, max {:.2?}",
            lag.mean,
            lag.p99.unwrap_or(lag.max),
            lag.max
        );
    }
    for doubt in ran.caveats() {
        println!("doubt: {doubt}");
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("there is one");
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
}
