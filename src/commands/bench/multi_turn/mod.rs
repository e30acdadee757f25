//! `mcctl bench multi-turn`: conversations against an inference server. The flags and defaults are those of SGLang's
//! `bench_multiturn.py`, which has some of its own; ours are beside them.

mod report;
mod table;

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::commands::args as parsers;
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::engine::base::HostPort;
use crate::engine::env::RealEnv;
use crate::engine::load::answer::Dialect;
use crate::engine::load::measure::Tally;
use crate::engine::load::target::{Limits, Target};
use crate::engine::load::workload::{Synthetic, Words, Workload};
use crate::engine::load::{Arrivals, Bounds, Distribution, Driver, Gaps, Pace, Rate, Ready, Rules, Seed, run};

/// Which words the server is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    /// SGLang's /generate
    #[value(alias = "sglang")]
    Generate,
    /// /v1/chat/completions
    #[value(alias = "openai")]
    Chat,
    /// /v1/completions
    Completions,
}

impl Api {
    fn dialect(self) -> (Dialect, &'static str) {
        match self {
            Api::Generate => (Dialect::Generate, "/generate"),
            Api::Chat => (Dialect::Chat, "/v1/chat/completions"),
            Api::Completions => (Dialect::Completions, "/v1/completions"),
        }
    }
}

/// The law of the gaps between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Law {
    /// As those of independent users
    Poisson,
    /// Evenly between nothing and twice the mean
    Uniform,
    /// All the same
    Constant,
}

/// Which of several ready conversations is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Any
    Random,
    /// The one that is ready longest
    Fifo,
}

/// What to send, where, when.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Latency counts from the instant for which a request was planned, so that a server that falls behind cannot \
    hide it.\nExit codes: 0 every request went well, 1 some failed, 2 command line wrong, 3 none went well."
)]
pub struct Args {
    /// The server: http://HOST:PORT
    #[arg(long, alias = "base-url", value_name = "URL", conflicts_with_all = ["host", "port"])]
    url: Option<String>,
    /// Its host
    #[arg(long, default_value = "localhost")]
    host: String,
    /// Its port
    #[arg(long, default_value_t = 30000)]
    port: u16,
    /// Which of its routes: generate (with token ids), chat or completions; sglang and openai mean the first two
    #[arg(long, alias = "api-format", value_enum, default_value = "generate")]
    api: Api,
    /// The model that chat and completions name
    #[arg(long, alias = "served-model-name", default_value = "default", value_name = "NAME")]
    model: String,
    /// Conversations
    #[arg(long, alias = "clients", default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    num_clients: u32,
    /// Requests in flight, at most
    #[arg(long, alias = "concurrency", default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_parallel: u32,
    /// Tokens of the first question: a number, uniform:LOW,HIGH, exponential:MEAN or lognormal:MEAN,CV
    #[arg(long, alias = "input-tokens", default_value = "512", value_name = "TOKENS")]
    request_length: Distribution,
    /// Tokens of the further ones [default: as --request-length]
    #[arg(long, value_name = "TOKENS")]
    sub_question_input_length: Option<Distribution>,
    /// Tokens of an answer
    #[arg(long, alias = "output-tokens", default_value = "64", value_name = "TOKENS")]
    output_length: Distribution,
    /// Turns of a conversation
    #[arg(long, alias = "turns", default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    num_rounds: u32,
    /// Least turns of a conversation; 0 as --num-rounds
    #[arg(long, default_value_t = 0, value_name = "N")]
    min_rounds: u32,
    /// Most turns of a conversation; 0 as --num-rounds
    #[arg(long, default_value_t = 0, value_name = "N")]
    max_rounds: u32,
    /// Seconds between an answer and the next question
    #[arg(long, default_value = "0", value_name = "SECONDS")]
    think_time: Distribution,
    /// Conversations share this many system prompts
    #[arg(long, default_value_t = 0, value_name = "N", requires = "system_length")]
    system_groups: u32,
    /// Tokens of a system prompt
    #[arg(long, value_name = "TOKENS")]
    system_length: Option<Distribution>,
    /// Requests per second; inf: as fast as answers come
    #[arg(long, default_value = "1", value_name = "RATE", value_parser = rate)]
    request_rate: f64,
    /// How they are spread
    #[arg(long, value_enum, default_value = "poisson")]
    distribution: Law,
    /// Which of the ready conversations is next
    #[arg(long, value_enum, default_value = "random")]
    ready_queue_policy: Policy,
    /// Nobody begins a turn before all have ended the one before it
    #[arg(long)]
    enable_round_barrier: bool,
    /// All lengths, words and instants come from it
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Ids are drawn below this
    #[arg(long, default_value_t = 32_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    vocab_size: u32,
    /// Send nothing more after this time
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = parsers::limit)]
    duration: Duration,
    /// Longest silence of the server before a request is given up
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = parsers::limit)]
    timeout: Duration,
    /// More members of every request, a JSON object
    #[arg(long, value_name = "JSON", value_parser = object)]
    extra_request_body: Option<Map<String, Value>>,
    /// Only one rate is run: taken, since bench_multiturn.py wants it said
    #[arg(long, hide = true)]
    disable_auto_run: bool,
    /// Lengths are as asked for: taken, since bench_multiturn.py wants it said
    #[arg(long, hide = true)]
    disable_random_sample: bool,
    /// No tokenizer is needed: taken, since bench_multiturn.py has it
    #[arg(long, hide = true, value_name = "PATH")]
    model_path: Option<String>,
    /// One JSON document on stdout, or into FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate > 0.0);
    rate.ok_or_else(|| format!("'{text}' is no rate: write requests per second above 0, or inf"))
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("'{text}' is no JSON object: {error}"))
}

impl Args {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let target = self.target()?;
        let mut workload = self.workload()?;
        runtime::block_on(0, async {
            let mut signals = Signals::take()?;
            let (tell, mut stop) = mpsc::channel(2);
            let driver = Driver::new(workload.scripts(), self.pace(), self.rules(), Seed(self.seed));
            let connections = self.max_parallel.min(self.num_clients) as usize;
            let bounds = Bounds { duration: self.duration, connections };
            let mut tally = Tally::default();
            let mut stopped = None;
            let ran = {
                let told = |record: &_| tally.add(record);
                let run = run(RealEnv::new(), target.clone(), &mut workload, driver, bounds, &mut stop, told);
                let mut running = pin!(run);
                loop {
                    tokio::select! {
                        ran = &mut running => break ran,
                        signal = signals.next() => {
                            stopped = Some(signal);
                            output::say(format!("{signal}: nothing more is sent; once more to give up what is in flight"));
                            // The run has ended when nobody takes it.
                            let _ = tell.try_send(());
                        }
                    }
                }
            };
            let report = report::Report::of(&self, &target, &tally, &ran, stopped);
            match self.json.as_deref() {
                Some(path) if path.as_os_str() != "-" => {
                    let text = serde_json::to_string(&report).expect("our own documents have only text keys");
                    std::fs::write(path, text + "\n").map_err(|error| {
                        Failure::host(format!("cannot write {}", path.display())).found(error.to_string())
                    })?;
                    output::data(table::render(&report))?;
                }
                Some(_) => output::json(&report)?,
                None => output::data(table::render(&report))?,
            }
            Ok(match (tally.all.requests, tally.failed()) {
                (0, 1..) => Exit::Unreachable,
                (_, 1..) => Exit::No,
                _ => Exit::Done,
            })
        })
    }

    fn target(&self) -> Result<Target, Failure> {
        let (dialect, route) = self.api.dialect();
        let (at, path) = match &self.url {
            None => (HostPort::new(self.host.as_str(), self.port), route.to_owned()),
            Some(url) => {
                let wrong = |found: &str| {
                    Failure::usage(format!("'{url}' is no server")).found(found).next("write http://HOST:PORT")
                };
                let rest = url.strip_prefix("http://").ok_or_else(|| wrong("it does not begin with http://"))?;
                let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let prefix = prefix.trim_end_matches('/');
                let at = parsers::endpoint(host, 80).map_err(|error| wrong(&error))?;
                let path = if prefix.is_empty() { route.to_owned() } else { format!("/{prefix}{route}") };
                (at, path)
            }
        };
        path.parse::<hyper::Uri>()
            .map_err(|error| Failure::usage(format!("'{path}' is no path")).found(error.to_string()))?;
        Ok(Target {
            at,
            path,
            dialect,
            model: self.model.clone(),
            temperature: 0.0,
            ignore_eos: true,
            extra: self.extra_request_body.clone().unwrap_or_default(),
            headers: hyper::HeaderMap::new(),
            limits: Limits { silence: self.timeout, ..Limits::default() },
        })
    }

    fn workload(&self) -> Result<Synthetic, Failure> {
        let or = |rounds: u32| if rounds == 0 { self.num_rounds } else { rounds };
        let (least, most) = (or(self.min_rounds), or(self.max_rounds));
        if least > most {
            return Err(Failure::usage(format!("--min-rounds {least} is above --max-rounds {most}")));
        }
        let turns = Distribution::Uniform { low: f64::from(least), high: f64::from(most) };
        let seed = Seed(self.seed);
        let mut made = Synthetic::new(self.num_clients, turns, self.request_length, self.output_length, seed);
        made.next = self.sub_question_input_length.unwrap_or(self.request_length);
        made.think = self.think_time;
        made.groups = self.system_groups;
        made.system = self.system_length.unwrap_or(Distribution::Constant(0.0));
        made.words = match self.api {
            Api::Generate => Words::Ids { vocabulary: self.vocab_size },
            Api::Chat => Words::Chat,
            Api::Completions => Words::Text,
        };
        Ok(made)
    }

    fn pace(&self) -> Pace {
        if self.request_rate.is_infinite() {
            return Pace::Closed { conversations: self.num_clients as usize };
        }
        let gaps = match self.distribution {
            Law::Poisson => Gaps::POISSON,
            Law::Uniform => Gaps::Uniform,
            Law::Constant => Gaps::Even,
        };
        let arrivals = Arrivals::Drawn { gaps, rate: Rate::Constant(self.request_rate) };
        Pace::Requests(arrivals.instants(Seed(self.seed).generator("arrivals", 0)))
    }

    fn rules(&self) -> Rules {
        let ready = match self.ready_queue_policy {
            Policy::Random => Ready::Random,
            Policy::Fifo => Ready::Fifo,
        };
        Rules { in_flight: self.max_parallel as usize, ready, barrier: self.enable_round_barrier }
    }
}
