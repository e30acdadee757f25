//! `mcctl bench ladder`: the tier ladder. Measures the TTFT of the same prompts when computed and
//! when cached in L1, L2 or L3.

mod conclusion;
mod outputs;
mod progress;
mod report;

use std::time::Duration;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::env;
use crate::commands::bench::ladder::progress::LadderProgress;
use crate::commands::bench::ladder::report::LadderReport;
use crate::commands::bench::measured::{MeasuredSystem, QueriedServer};
use crate::commands::bench::multi_turn::Identity;
use crate::commands::bench::multi_turn::args::{Api, EndpointArgs, ServerArgs};
use crate::commands::bench::multi_turn::execute;
use crate::commands::bench::multi_turn::negative_numbers_are_values;
use crate::commands::bench::multi_turn::preflight::unreachable;
use crate::commands::bench::multi_turn::progress::Screen;
use crate::commands::bench::report_files::ReportFileArgs;
use crate::commands::cli::args as values;
use crate::commands::cli::confirm::{self, ConfirmArgs};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::cli::table;
use crate::commands::cli::time_flag::TimeParser;
use crate::engine::env::{Env, wall_clock};
use crate::engine::load::Seed;
use crate::engine::load::ladder::{
    AbsentTier, LadderEnd, LadderLimits, LadderPrompts, LadderResult, LadderRounds, PromptTooLong, server_info,
};
use crate::engine::load::plan::check_all_reachable;
use crate::engine::load::server::{ServerClient, ServerInfo};
use crate::engine::load::session::LoadEndpoint;

/// Tier ladder for an SGLang server.
#[derive(Clone, Debug, clap::Args)]
#[command(before_help = "url yes lengths repeats html svg csv json")]
#[command(
    before_long_help = "mcctl bench ladder --url http://127.0.0.1:30000 --yes  # compare prefill with L1, L2 and L3 hits; empties the server's L1 and L2 caches"
)]
#[command(
    mut_args(negative_numbers_are_values),
    after_help = "The server must be an SGLang server without other clients: the ladder repeatedly flushes L1 and L2 and fills them \
    with synthetic prompts. L3 is not cleared. A request counts for a tier only if the server reports that it loaded the prompt from \
    that tier. The report contains medians with 95 % intervals. A tier is faster or slower than computing at a length if the 99 % interval \
    of the time saved, over the same prompts, excludes 0; this takes at least 8 prompts. If an interval is wide, more prompts follow.\n\
    Exit codes:\n\
    \x20 0   every tier was verified at every length\n\
    \x20 1   a tier was not verified, requests failed, or a signal ended the run\n\
    \x20 2   invalid command line\n\
    \x20 3   the server is unreachable, or is not SGLang\n\
    \x20 4   a file could not be written\n\
    \x20 70  a bug in mcctl\n\
    If the reader of stdout closes the pipe, the exit code is 0."
)]
pub struct Args {
    #[command(flatten)]
    endpoint: EndpointArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Prompt lengths in tokens [default: the powers of two from 512 to 65536, up to half of L1]
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = values::tokens)]
    lengths: Vec<u32>,
    /// Number of prompts per length [default: 8, and up to --max-repeats]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: Option<u32>,
    /// Add prompts to lengths with wide intervals, up to N per length [default: --repeats if it is
    /// given, otherwise 24]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max_repeats: Option<u32>,
    /// Widest interval that needs no further prompts: half of its width, in percent of the TTFT of
    /// computing
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = values::positive)]
    precision: f64,
    /// Add no prompts after this time
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = TimeParser::limit())]
    max_time: Duration,
    /// Output length per request, in tokens
    #[arg(long, alias = "output-tokens", default_value_t = 4, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    output_length: u32,
    /// Sample token IDs below N
    #[arg(long, default_value_t = 32_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    vocab_size: u32,
    /// Seed for the prompts; if an earlier run used the same seed, L3 may already hold its prompts
    /// [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    files: ReportFileArgs,
}

/// Number of prompts per length in the first round, and at most.
const REPEATS: (u32, u32) = (8, 24);

impl Args {
    /// Runs the ladder and prints the report.
    ///
    /// # Errors
    /// The command line is invalid, the server is unusable, or the user does not confirm.
    pub fn run(self) -> Outcome {
        if self.endpoint.api != Api::Generate {
            return Err(Failure::usage("the tier ladder sends token IDs, which requires the generate API")
                .next("use --api generate"));
        }
        let limits = self.limits()?;
        self.files.check()?;
        let target = self.endpoint.target()?;
        let base = self.endpoint.base_of(&target);
        self.endpoint.trust_is_used(target.protocol.tls.is_some() || self.server.has_https())?;
        let server = self.server.server(&self.endpoint, &target, true)?;
        let server = server.ok_or_else(|| {
            Failure::usage("the tier ladder needs the server's management routes").next("drop --no-server-calls")
        })?;
        let reached = runtime::block_on(0, async { Ok(check_all_reachable(&env(), [("A", &target)]).await) })?;
        reached.map_err(|error| unreachable(error, false))?;
        let info = info(&server)?;
        let prompts = self.prompts(&info)?;
        confirm::destruction(self.confirm.yes, &format!("repeatedly flushes the caches (L1 and L2) of {base}"))?;
        let mut side = LoadEndpoint::new("A", target, Box::new(prompts.clone()));
        side.server = Some(server);
        side.vocabulary = self.vocab_size;
        let run = Identity::of_this_run(prompts.seed.0, wall_clock(&env()));
        let queried = QueriedServer { label: "A", target: base.clone(), client: side.server.as_ref() };
        let system = MeasuredSystem::query(&[queried])?;
        let mut rounds = LadderRounds::new(env(), prompts.clone(), limits, info.clone());
        let session = rounds.session(side);
        let mut progress = LadderProgress::start();
        let measured = execute::run(session, Vec::new(), vec![&mut progress, &mut rounds], &Screen::new(true))?;
        drop(progress);
        let stopped = measured.signal.is_some() || measured.executed.failed_step.is_some();
        let result = LadderResult::of(&prompts, &info, &measured.executed, stopped);
        let signal = measured.signal.map(|signal| BenchCaveat::Signal { signal });
        let end = if stopped { LadderEnd::Interrupted } else { rounds.end() };
        let wide = match end {
            LadderEnd::MaxRepeats | LadderEnd::MaxTime => result.ladder.unsettled(limits.precision),
            LadderEnd::Precise | LadderEnd::Interrupted => Vec::new(),
        };
        let wide = (!wide.is_empty()).then(|| BenchCaveat::WideIntervals {
            lengths: wide,
            percent: self.precision,
            is_time: end == LadderEnd::MaxTime,
        });
        let report = LadderReport {
            schema: "mcctl.bench.ladder/2",
            version: env!("CARGO_PKG_VERSION"),
            target: base,
            seed: prompts.seed.0,
            absent: AbsentTier::of(&info),
            server: info,
            measured: system,
            ladder: result.ladder,
            limits,
            verdict_error: limits.verdict_error(),
            rounds: rounds.rounds(),
            end,
            agrees: result.agrees,
            caveats: signal.into_iter().chain(wide).chain(result.caveats.into_iter().map(BenchCaveat::Load)).collect(),
        };
        let written = outputs::write(&self.files, &report, &run);
        match self.files.prints_json() {
            true => output::json(&report)?,
            false => output::data(report.text(&run, table::width()))?,
        }
        written?;
        let none = measured.executed.passes.iter().all(|pass| pass.tally.all.requests == 0);
        Ok(match (none, result.is_verified && result.failed == 0 && !stopped) {
            _ if measured.executed.bugs() > 0 => Exit::Bug,
            (true, _) if measured.signal.is_none() => Exit::Unreachable,
            (_, true) => Exit::Done,
            (_, false) => Exit::No,
        })
    }

    /// Returns the number of prompts, and when no more are added.
    fn limits(&self) -> Result<LadderLimits, Failure> {
        let repeats = self.repeats.unwrap_or(REPEATS.0.min(self.max_repeats.unwrap_or(REPEATS.0)));
        let repeats_max = self.max_repeats.or(self.repeats).unwrap_or(REPEATS.1);
        if repeats_max < repeats {
            return Err(Failure::usage(format!("--max-repeats {repeats_max} is less than --repeats {repeats}"))
                .next("lower --repeats, or drop it"));
        }
        Ok(LadderLimits { repeats, repeats_max, precision: self.precision / 100.0, time_max: self.max_time })
    }

    /// Returns the prompts for a server with these settings.
    fn prompts(&self, info: &ServerInfo) -> Result<LadderPrompts, Failure> {
        let seed = Seed(self.seed.unwrap_or_else(|| env().rng() >> 16));
        let prompts = LadderPrompts::new(self.lengths.clone(), self.vocab_size, self.output_length, seed);
        prompts.fitted(info.device_tokens.unwrap_or(0)).map_err(|PromptTooLong { longest, most, device }| {
            Failure::usage(format!("a {longest}-token prompt is too long for this server"))
                .found(format!("L1 holds {device} tokens; the tier ladder needs space for twice the prompt length"))
                .next(format!("set --lengths to at most {most}"))
        })
    }
}

/// Reads the server's settings.
fn info(server: &ServerClient) -> Result<ServerInfo, Failure> {
    let answer = runtime::block_on(0, async {
        let mut signals = Signals::take()?;
        tokio::select! {
            answer = server_info(server) => Ok(answer),
            signal = signals.next() => Err(Failure::interrupted(format!("{signal}: stopped before the first measurement"))),
        }
    })?;
    answer.map_err(|refusal| {
        Failure::unreachable(format!("cannot run the tier ladder against {}", server.base()))
            .tried("GET /server_info")
            .found(refusal.to_string())
            .next("set --url to an SGLang server, version 0.5 or later; for other servers, use bench multi-turn")
    })
}
