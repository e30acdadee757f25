//! `mcctl bench ladder`: the tier ladder. Measures the TTFT of the same prompts when computed and when cached in L1, L2 or L3.

use std::path::PathBuf;

use serde::Serialize;

use crate::commands::bench::caveat::{BenchCaveat, render_end};
use crate::commands::bench::env;
use crate::commands::bench::multi_turn::args::{Api, EndpointArgs, ServerArgs};
use crate::commands::bench::multi_turn::execute;
use crate::commands::bench::multi_turn::negative_numbers_are_values;
use crate::commands::bench::multi_turn::preflight::unreachable;
use crate::commands::bench::multi_turn::progress::Screen;
use crate::commands::confirm::{self, ConfirmArgs};
use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::table::{self, ReportTable};
use crate::engine::env::Env;
use crate::engine::load::Seed;
use crate::engine::load::ladder::{Ladder, LadderPrompts, LadderResult, PromptTooLong, server_info};
use crate::engine::load::plan::check_all_reachable;
use crate::engine::load::server::{ServerClient, ServerInfo};
use crate::engine::load::session::{LoadEndpoint, Observer};

/// Tier ladder for an SGLang server.
#[derive(Clone, Debug, clap::Args)]
#[command(
    mut_args(negative_numbers_are_values),
    after_help = "The server must be an SGLang server without other clients: the ladder repeatedly flushes L1 and L2 and fills them \
    with synthetic prompts. L3 is not cleared. A request counts for a tier only if the server reports that it loaded the prompt from \
    that tier.\n\
    Exit codes:\n\
    \x20 0   every tier was verified at every length\n\
    \x20 1   a tier was not verified, requests failed, or a signal ended the run\n\
    \x20 2   invalid command line\n\
    \x20 3   the server is unreachable, or is not SGLang\n\
    \x20 4   the --json file could not be written\n\
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
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    lengths: Vec<u32>,
    /// Number of prompts per length
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// Output length per request, in tokens
    #[arg(long, alias = "output-tokens", default_value_t = 4, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    output_length: u32,
    /// Sample token IDs below N
    #[arg(long, default_value_t = 32_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    vocab_size: u32,
    /// Seed for the prompts; if an earlier run used the same seed, L3 may already hold its prompts [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print the report as one JSON document, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// The JSON report (schema `mcctl.bench.ladder/1`).
#[derive(Debug, Serialize)]
struct LadderReport {
    schema: &'static str,
    version: &'static str,
    target: String,
    seed: u64,
    server: ServerInfo,
    #[serde(flatten)]
    ladder: Ladder,
    /// Whether the responses match the server's counters in every pass; `None` if not checked.
    agrees: Option<bool>,
    #[serde(rename = "doubts")]
    caveats: Vec<BenchCaveat>,
}

/// Logs the steps of the run.
struct StepLogger;

impl Observer for StepLogger {
    fn note(&mut self, text: &str) {
        output::say(text);
    }
}

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
        let target = self.endpoint.target()?;
        let base = self.endpoint.base_of(&target);
        self.endpoint.trust_is_used(target.protocol.tls.is_some() || self.server.has_https())?;
        let server = self.server.server(&self.endpoint, &target, true)?;
        let server = server.ok_or_else(|| {
            Failure::usage("the tier ladder needs the server's management routes").next("drop --no-server-calls")
        })?;
        let reached = runtime::block_on(0, async { Ok(check_all_reachable(&env(), [("A", &target)]).await) })?;
        reached.map_err(unreachable)?;
        let info = info(&server)?;
        let prompts = self.prompts(&info)?;
        confirm::destruction(self.confirm.yes, &format!("repeatedly flushes the caches (L1 and L2) of {base}"))?;
        let mut side = LoadEndpoint::new("A", target, Box::new(prompts.clone()));
        (side.server, side.vocabulary) = (Some(server), self.vocab_size);
        let mut logger = StepLogger;
        let session = prompts.session(side, &info);
        let measured = execute::run(session, Vec::new(), vec![&mut logger], &Screen::new(true))?;
        let stopped = measured.signal.is_some() || measured.executed.failed_step.is_some();
        let result = LadderResult::of(&prompts, &info, &measured.executed, stopped);
        let signal = measured.signal.map(|signal| BenchCaveat::Signal { signal });
        let report = LadderReport {
            schema: "mcctl.bench.ladder/1",
            version: env!("CARGO_PKG_VERSION"),
            target: base,
            seed: prompts.seed.0,
            server: info,
            ladder: result.ladder,
            agrees: result.agrees,
            caveats: signal.into_iter().chain(result.caveats.into_iter().map(BenchCaveat::Load)).collect(),
        };
        match self.json.as_deref() {
            Some(path) if path.as_os_str() != "-" => {
                let text = serde_json::to_string(&report).expect("report keys are strings");
                std::fs::write(path, text + "\n").map_err(|error| {
                    Failure::host(format!("cannot write {}", path.display())).found(error.to_string())
                })?;
                output::data(render(&report, table::width()))?;
            }
            Some(_) => output::json(&report)?,
            None => output::data(render(&report, table::width()))?,
        }
        let none = measured.executed.passes.iter().all(|pass| pass.tally.all.requests == 0);
        Ok(match (none, result.is_verified && result.failed == 0 && !stopped) {
            _ if measured.executed.bugs() > 0 => Exit::Bug,
            (true, _) if measured.signal.is_none() => Exit::Unreachable,
            (_, true) => Exit::Done,
            (_, false) => Exit::No,
        })
    }

    /// Returns the prompts for a server with these settings.
    fn prompts(&self, info: &ServerInfo) -> Result<LadderPrompts, Failure> {
        let prompts = LadderPrompts {
            lengths: self.lengths.clone(),
            repeats: self.repeats,
            vocabulary: self.vocab_size,
            output: self.output_length,
            seed: Seed(self.seed.unwrap_or_else(|| env().rng() >> 16)),
        };
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
            signal = signals.next() => Err(Failure::no(format!("{signal}: stopped before the first measurement"))),
        }
    })?;
    answer.map_err(|refusal| {
        Failure::unreachable(format!("cannot run the tier ladder against {}", server.base()))
            .tried("GET /server_info")
            .found(refusal.to_string())
            .next("set --url to an SGLang server, version 0.5 or later; for other servers, use bench multi-turn")
    })
}

fn render(report: &LadderReport, width: usize) -> String {
    let server = &report.server;
    let mut text = table::wrapped_line(
        &format!(
            "{} (SGLang {}): {} tokens in L1, {} tokens per page, L3 {} (seed {})",
            report.target,
            server.version.as_deref().unwrap_or("version unknown"),
            server.device_tokens.unwrap_or(0),
            server.page_size.unwrap_or(0),
            server.storage.as_deref().unwrap_or("none"),
            report.seed
        ),
        width,
    );
    let head = ["tokens", "tier", "verified", "TTFT mean, ms", "95 % interval", "tokens/s", "cached tokens"];
    let mut rows = ReportTable::new("", &head).text_column(1);
    for rung in &report.ladder.rungs {
        let ttft = rung.ttft;
        let interval = ttft.and_then(|ttft| Some(format!("{:.1} to {:.1}", ttft.low_ms?, ttft.high_ms?)));
        rows.row([
            rung.length.to_string(),
            rung.tier.name().to_owned(),
            format!("{}/{}", rung.verified, rung.requests),
            ttft.map_or("-".to_owned(), |ttft| format!("{:.1}", ttft.mean_ms)),
            interval.unwrap_or_else(|| "-".to_owned()),
            rung.tokens_per_s.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
            format!("{:.0}", (rung.device + rung.host + rung.storage) as f64 / f64::from(rung.requests.max(1))),
        ]);
    }
    rows.notes.push("cached tokens: mean per request".to_owned());
    text.push('\n');
    text.push_str(&rows.render(width));
    if !report.ladder.fits.is_empty() {
        let mut rows =
            ReportTable::new("Linear fit of TTFT against prompt length", &["tier", "fixed cost, ms", "tokens/s"]);
        for fit in &report.ladder.fits {
            let rate = fit.tokens_per_s.map_or("no increase".to_owned(), |rate| format!("{rate:.0}"));
            rows.row([fit.tier.name().to_owned(), format!("{:.1}", fit.fixed_ms), rate]);
        }
        text.push('\n');
        text.push_str(&rows.render(width));
    }
    let agreement = match report.agrees {
        Some(true) => "Cached tokens in the responses match the server's counters in every pass",
        Some(false) => "Cached tokens in the responses differ from the server's counters",
        None => "The server's counters were unavailable for comparison",
    };
    text.push('\n');
    text.push_str(&table::wrapped_line(agreement, width));
    text + &render_end(&report.caveats, &answer(report), width)
}

/// Returns the report's conclusion: the verified tiers, and the prompt length above which loading from L2 or L3 is faster
/// than computing.
fn answer(report: &LadderReport) -> Vec<String> {
    let rungs = &report.ladder.rungs;
    let verified = rungs.iter().filter(|rung| rung.verified > 0).count();
    let mut answer = Vec::new();
    // The conclusion is limited to three lines; the table shows the verified requests per row.
    if report.ladder.break_even.len() < 3 {
        answer.push(format!("Verified: {verified} of {} tier/length combinations", rungs.len()));
    }
    for even in &report.ladder.break_even {
        let measured = match even.shown_from {
            None => "not faster than computing at any measured length".to_owned(),
            Some(length) => format!("faster than computing at {length} tokens or more"),
        };
        let fitted = match even.fitted {
            None => "the fitted lines never cross".to_owned(),
            Some(0.0) => "the fitted line is lower at every length".to_owned(),
            Some(tokens) => format!("the fitted lines cross at {tokens:.0} tokens"),
        };
        answer.push(format!("{}: {measured}; {fitted}", even.tier.name()));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::ladder::{LadderCell, LadderTier};

    #[test]
    fn cached_tokens_are_the_mean_per_request() {
        let settings = serde_json::json!({"page_size": 16, "max_total_num_tokens": 4096});
        let rung = LadderCell {
            requests: 5,
            verified: 5,
            device: 5 * 496,
            computed: 5 * 16,
            ..LadderCell::new(512, LadderTier::Device)
        };
        let report = LadderReport {
            schema: "mcctl.bench.ladder/1",
            version: "0",
            target: "http://h:1".to_owned(),
            seed: 1,
            server: ServerInfo::read(&settings).expect("SGLang's"),
            ladder: Ladder { rungs: vec![rung], ..Ladder::default() },
            agrees: None,
            caveats: Vec::new(),
        };
        let text = render(&report, 100);
        let row = text.lines().find(|line| line.contains(" device ")).expect("its row");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["512", "device", "5/5", "-", "-", "-", "496"]);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(render(&report, 60).lines().all(|line| line.chars().count() <= 60));
    }
}
