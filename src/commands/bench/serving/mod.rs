//! `mcctl bench serving`: measures an inference server with single requests. Flags, defaults and figures are those of
//! `sglang.bench_serving` 0.5.23. The load generator and the rest of the report are those of `bench multi-turn`.

pub mod abbreviations;
pub mod compat;
#[cfg(test)]
mod effects;
pub mod figures;
pub mod flags;
pub mod plot;

use crate::commands::bench::multi_turn;
use crate::commands::error::Outcome;

/// Single requests against an inference server.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "serving")]
#[command(
    args_override_self = true,
    mut_args(multi_turn::negative_numbers_are_values),
    mut_arg("dataset_name", |arg| arg.help("Dataset [default: sharegpt]")),
    mut_arg("num_prompts", |arg| arg.help("Number of requests, or of conversations for a dataset with turns; 0 sends all [default: 1000]")),
    mut_arg("ready_check_timeout_sec", |arg| {
        arg.default_value("60").help("Wait up to this many seconds until the server is ready; 0 does not wait")
    }),
    mut_arg("request_rate", |arg| arg.default_value("inf").help("Requests per second; inf sends all at once")),
    mut_arg("max_parallel", |arg| arg.help("Maximum requests in flight [default: no limit]")),
    mut_arg("ready_queue_policy", |arg| arg.default_value("fifo")),
    mut_arg("seed", |arg| arg.default_value("42")),
    mut_arg("warmup_requests", |arg| {
        arg.help("Warm-up requests before the run; they share no prefix with it [default: 1]")
    }),
    after_help = help()
)]
pub struct Args {
    #[command(flatten)]
    work: multi_turn::Args,
}

/// Returns the text below the flags.
fn help() -> String {
    format!(
        "The report begins with the figures of sglang.bench_serving, with three differences: input tokens are the server's counts, the \
         duration ends with the last response, and a token without text counts as a token. The figures of 'mcctl bench multi-turn' \
         follow: latency from the scheduled send time, expected cache hits, caveats.\n\
         The same --seed and --request-rate give the arrival times of bench_serving. The prompts that a seed selects from a larger \
         dataset, and random texts, differ.\n\
         mcctl does not download files: datasets and tokenizers come from files or the local Hugging Face cache (HF_HOME). If ShareGPT \
         is not on this machine, synthetic prompts replace it and the report has a caveat.\n\
         --flush-cache flushes L1 and L2 of the server without asking for confirmation. A result file is written only with \
         --output-file.\n\n{}\n\n\
         Exit codes:\n\
    \x20 0   every request succeeded\n\
    \x20 1   requests failed, or a signal ended the run\n\
    \x20 2   command line wrong\n\
    \x20 3   the server is unreachable or not ready, or no request succeeded\n\
    \x20 4   a file could not be written, or this host allows too few connections\n\
    \x20 70  a bug in mcctl",
        flags::summary()
    )
}

impl Args {
    /// Converts the flags to those of `bench multi-turn`.
    pub(in crate::commands::bench) fn into_work(self) -> multi_turn::Args {
        multi_turn::Args { serving: true, ..self.work }
    }

    /// Runs the benchmark and writes its report.
    ///
    /// # Errors
    /// The command line is wrong, or the run cannot be started.
    pub fn run(self) -> Outcome {
        self.into_work().run()
    }
}
