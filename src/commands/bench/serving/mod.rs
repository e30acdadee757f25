//! `mcctl bench serving`: benchmarks an inference server with single requests. Flags, defaults and
//! figures match `sglang.bench_serving` 0.5.23. The load generator and the rest of the report are
//! the same as in `bench multi-turn`.

pub mod abbreviations;
pub mod compat;
#[cfg(test)]
mod effects;
pub mod figures;
pub mod flags;
pub mod plot;

use crate::commands::bench::multi_turn;
use crate::commands::cli::error::Outcome;

/// Single-request benchmark against an inference server.
#[derive(Clone, Debug, clap::Args)]
#[command(before_help = "backend url model dataset-name dataset-path num-prompts request-rate max-parallel")]
#[command(
    before_long_help = "mcctl bench serving --backend sglang --dataset-name random --num-prompts 1000 --request-rate 8  # 1,000 random prompts at 8 requests per second, with the flags of sglang.bench_serving"
)]
#[group(id = "serving")]
#[command(
    args_override_self = true,
    mut_args(multi_turn::negative_numbers_are_values),
    mut_arg("dataset_name", |arg| arg.help("Dataset [default: sharegpt]")),
    mut_arg("num_prompts", |arg| arg.help("Number of requests (datasets with turns: conversations); 0 means all [default: 1000]")),
    mut_arg("ready_check_timeout_sec", |arg| {
        arg.default_value("60").help("Wait up to this many seconds for the server to become ready; 0 means no wait")
    }),
    mut_arg("request_rate", |arg| arg.default_value("inf").help("Requests per second; with inf, all requests are sent at once")),
    mut_arg("max_parallel", |arg| arg.help("Maximum requests in flight [default: no limit]")),
    mut_arg("ready_queue_policy", |arg| arg.default_value("fifo")),
    mut_arg("seed", |arg| arg.default_value("42")),
    mut_arg("warmup_requests", |arg| {
        arg.help("Warm-up requests to send before the run, with prefixes that the run does not use [default: 1]")
    }),
    after_help = help()
)]
pub struct Args {
    #[command(flatten)]
    work: multi_turn::Args,
}

/// Returns the text shown below the flags.
fn help() -> String {
    format!(
        "The report begins with the same figures as sglang.bench_serving, with three differences: input tokens are the server's counts, \
        the duration ends with the last response, and a token without text counts as a token. The 'mcctl bench multi-turn' figures \
        follow: latency from the scheduled send time, expected cache hits, caveats.\n\
        Random lengths and arrival times have the same distributions as in bench_serving, but other values. With the same --seed, \
        datasets from files are sent in the same order. A conversation counts against --max-concurrency until it ends.\n\
        mcctl does not download files: datasets and tokenizers come from files or the local Hugging Face cache (HF_HOME). If ShareGPT \
        is not on this machine, synthetic prompts replace it and the report includes a caveat.\n\
        --flush-cache flushes the server's L1 and L2 without asking for confirmation. A result file is written only if \
         --output-file is set.\n\n{}\n\n\
         Exit codes:\n\
    \x20 0   every request succeeded\n\
    \x20 1   requests failed, or a signal ended the run\n\
    \x20 2   invalid command line\n\
    \x20 3   the server is unreachable or not ready, or no request succeeded\n\
    \x20 4   a file could not be written, or this host allows too few connections\n\
    \x20 70  a bug in mcctl",
        flags::summary()
    )
}

impl Args {
    /// Converts the flags to `bench multi-turn` flags.
    pub(in crate::commands::bench) fn into_work(self) -> multi_turn::Args {
        multi_turn::Args { serving: true, ..self.work }
    }

    /// Runs the benchmark and writes the report.
    ///
    /// # Errors
    /// The command line is invalid, or the run cannot start.
    pub fn run(self) -> Outcome {
        self.into_work().run()
    }
}
