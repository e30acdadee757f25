//! `mcctl bench verify`: checks whether the cache changes a server's answers.

pub mod caveat;
mod conclusion;
mod outputs;
mod planned;
mod progress;
mod report;

use std::path::PathBuf;

use crate::commands::bench::caveat::BenchCaveat;
use crate::commands::bench::env;
use crate::commands::bench::measured::{MeasuredSystem, QueriedServer};
use crate::commands::bench::multi_turn::Identity;
use crate::commands::bench::multi_turn::args::{Api, EndpointArgs, ServerArgs};
use crate::commands::bench::multi_turn::negative_numbers_are_values;
use crate::commands::bench::multi_turn::preflight::unreachable;
use crate::commands::bench::report_files::ReportFileArgs;
use crate::commands::bench::verify::caveat::VerifyCaveat;
use crate::commands::bench::verify::planned::PROMPTS_MAX;
use crate::commands::bench::verify::progress::VerifyProgress;
use crate::commands::bench::verify::report::VerifyReport;
use crate::commands::cli::args as values;
use crate::commands::cli::confirm::{self, ConfirmArgs};
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::output;
use crate::commands::cli::runtime::{self, Signals, StopSignal};
use crate::commands::cli::table;
use crate::engine::env::{RealEnv, wall_clock};
use crate::engine::load::plan::check_all_reachable;
use crate::engine::load::server::{ServerClient, ServerInfo};
use crate::engine::load::verify::{VerifiedEndpoint, VerifyPass, VerifyRun, VerifyStepError};

/// Checks whether cache hits change the answers of a server.
#[derive(Clone, Debug, clap::Args)]
#[command(before_help = "url yes restart tiers html json")]
#[command(
    before_long_help = "mcctl bench verify --url http://127.0.0.1:30000 --yes  # are answers from L1, L2 and L3 those of computing? empties the server's L1 and L2 caches"
)]
#[command(
    mut_args(negative_numbers_are_values),
    after_help = "The same prompts are computed, and served from each tier. The log-probabilities of the last tokens of each prompt \
    (--continuation) and the tokens generated at temperature 0 are compared. A prompt differs if its divergence is above 10 times the largest \
    one between repeated passes. A tier that the server did not use is void. The server must have no other clients: L1 and L2 are flushed \
    repeatedly. L3 is not cleared; the prompts stay there.\n\
    The completions API returns log-probabilities only for generated tokens, and few servers report tiers there. Use generate for SGLang.\n\
    Exit codes:\n\
    \x20 0   every tier was verified, and none changes the answers or slows decoding\n\
    \x20 1   a tier changes the answers, slows decoding or is void, requests failed, or a signal ended the run\n\
    \x20 2   invalid command line\n\
    \x20 3   the server is unreachable, or does not support the checks\n\
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
    /// Find faults that affect this share of the prompts, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = values::positive)]
    affected: f64,
    /// Find them with this probability, in percent; at most 99.9999
    #[arg(long, value_name = "PERCENT", default_value_t = 99.9, value_parser = values::positive)]
    power: f64,
    /// Number of prompts [default: from --affected and --power]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(PROMPTS_MAX)), conflicts_with_all = ["affected", "power"])]
    prompts: Option<u32>,
    /// File with the prompts, one JSON list of token IDs per line [default: random token IDs]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["affected", "power", "prompts", "length", "seed"])]
    prompt_file: Option<PathBuf>,
    /// Prompt length in tokens, the continuation included
    #[arg(long, alias = "prompt-length", value_name = "TOKENS", default_value_t = 1024, value_parser = values::tokens)]
    length: u32,
    /// Length of the forced continuation, the last tokens of each prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 48, value_parser = clap::value_parser!(u32).range(2..=4096))]
    continuation: u32,
    /// Number of tokens to generate
    #[arg(long, alias = "output-tokens", value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    output_length: u32,
    /// Tiers to verify: device (L1), host (L2), storage (L3), mixed (L1 and L3) [default: all that
    /// the server has]
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = tier)]
    tiers: Vec<VerifyPass>,
    /// Shell command that restarts parts of the store; then every prompt is verified from L3 again.
    /// The command must wait until the store is ready
    #[arg(long, value_name = "COMMAND")]
    restart: Option<String>,
    /// Sample token IDs below N, which must be at most the size of the model's vocabulary
    #[arg(long, default_value_t = 32_000, value_name = "N", value_parser = clap::value_parser!(u32).range(2..), conflicts_with = "prompt_file")]
    vocab_size: u32,
    /// Seed for the prompts. With the seed of an earlier run, L3 may serve the pages of that run,
    /// which shows whether they still fit the model [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    files: ReportFileArgs,
}

/// The value of `--tiers` is not a tier.
#[derive(Clone, Debug, thiserror::Error)]
#[error("'{0}' is not a tier: use device, host, storage or mixed")]
struct TierError(String);

fn tier(text: &str) -> Result<VerifyPass, TierError> {
    let found = VerifyPass::TIERS.into_iter().find(|tier| tier.name() == text && *tier != VerifyPass::Restarted);
    found.ok_or_else(|| TierError(text.to_owned()))
}

/// How a run ended.
enum RunEnd {
    Complete,
    Stopped(StopSignal),
    Failed(VerifyStepError),
}

impl Args {
    /// Runs the checks and prints the report.
    ///
    /// # Errors
    /// The command line is invalid, the server is unusable, or the user does not confirm.
    pub fn run(self) -> Outcome {
        self.files.check()?;
        for flag in self.unused_flags() {
            output::say(format!("warning: {flag} has no effect in bench verify"));
        }
        let size = self.sample_size()?;
        if !matches!(self.endpoint.api, Api::Generate | Api::Completions) {
            return Err(Failure::usage("bench verify sends token IDs, which this API does not accept")
                .next("use --api generate or --api completions"));
        }
        let target = self.endpoint.target()?;
        let base = self.endpoint.base_of(&target);
        self.endpoint.trust_is_used(target.protocol.tls.is_some() || self.server.has_https())?;
        let server = self.server.server(&self.endpoint, &target, true)?.ok_or_else(|| {
            Failure::usage("bench verify needs the server's management routes").next("drop --no-server-calls")
        })?;
        let reached = runtime::block_on(0, async { Ok(check_all_reachable(&env(), [("A", &target)]).await) })?;
        reached.map_err(|error| unreachable(error, false))?;
        let info = settings(&server)?;
        let api = self.api(info.as_ref(), &base)?;
        let (plan, mut caveats) = self.plan(info.as_ref(), size)?;
        confirm::destruction(self.confirm.yes, &format!("repeatedly flushes the caches (L1 and L2) of {base}"))?;
        let identity = Identity::of_this_run(plan.seed.0, wall_clock(&env()));
        let queried = QueriedServer { label: "A", target: base.clone(), client: Some(&server) };
        let system = MeasuredSystem::query(&[queried])?;
        let endpoint = VerifiedEndpoint {
            env: env(),
            server,
            api,
            extra: target.extra.clone(),
            // The server sends nothing before the answer is complete.
            limit: self.endpoint.request_timeout.min(self.endpoint.timeout),
            restart: self.restart.clone(),
        };
        let mut run = VerifyRun::new(&plan);
        let end = execute(&mut run, &endpoint)?;
        let result = run.result();
        caveats.extend(VerifyCaveat::of(&result));
        let signal = match &end {
            RunEnd::Stopped(signal) => Some(BenchCaveat::Signal { signal: *signal }),
            RunEnd::Failed(error) => Some(BenchCaveat::Verify(VerifyCaveat::Stopped { error: error.to_string() })),
            RunEnd::Complete => None,
        };
        let report = VerifyReport {
            schema: "mcctl.bench.verify/1",
            version: env!("CARGO_PKG_VERSION"),
            target: base,
            seed: plan.seed.0,
            prompts: plan.prompts,
            prompt_tokens: (0..plan.prompts).map(|prompt| plan.length_of(prompt)).max().unwrap_or(0),
            continuation_tokens: plan.forced,
            output_tokens: plan.generated,
            sample_size: (self.prompts.is_none() && self.prompt_file.is_none()).then_some(size),
            complete: matches!(end, RunEnd::Complete),
            measured: system,
            result,
            caveats: signal.into_iter().chain(caveats.into_iter().map(BenchCaveat::Verify)).collect(),
        };
        let written = outputs::write(&self.files, &report, &identity);
        match self.files.prints_json() {
            true => output::json(&report.document())?,
            false => output::data(report.text(&identity, table::width()))?,
        }
        written?;
        let is_clean = report.complete && report.result.is_clean();
        Ok(match end {
            RunEnd::Complete if is_clean => Exit::Done,
            RunEnd::Failed(_) if !run.has_answers() => Exit::Unreachable,
            _ => Exit::No,
        })
    }
}

/// Reads the server's settings; `None` if it is not SGLang.
fn settings(server: &ServerClient) -> Result<Option<ServerInfo>, Failure> {
    let answer = runtime::block_on(0, async { Ok(server.info().await) })?;
    answer.map_err(|error| {
        Failure::unreachable(format!("cannot read the settings of {}", server.base()))
            .tried("GET /server_info")
            .found(error.to_string())
            .next("check that the server is running, and its URL")
    })
}

/// Runs the passes until they end, one fails, or a signal arrives.
fn execute(run: &mut VerifyRun<'_>, endpoint: &VerifiedEndpoint<RealEnv>) -> Result<RunEnd, Failure> {
    let mut progress = VerifyProgress::start();
    runtime::block_on(0, async {
        let mut signals = Signals::take()?;
        tokio::select! {
            ended = run.run(endpoint, &mut progress) => Ok(match ended {
                Ok(()) => RunEnd::Complete,
                Err(error) => RunEnd::Failed(error),
            }),
            signal = signals.next() => Ok(RunEnd::Stopped(signal)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_named_as_in_the_report() {
        assert_eq!(tier("storage").ok(), Some(VerifyPass::Storage));
        for bad in ["", "l3", "cold", "restarted"] {
            assert!(tier(bad).is_err(), "{bad}");
        }
    }
}
