//! `mcctl bench serving`: single requests against an inference server. Flags, defaults, figures and their definitions are those of
//! `sglang.bench_serving` 0.5.23; the generator, and what stands below its figures, are those of `bench multi-turn`.

pub mod abbreviations;
pub mod accepted;
#[cfg(test)]
mod effects;
pub mod figures;
pub mod flags;
pub mod plot;

use crate::commands::bench::multi_turn;
use crate::commands::error::Outcome;

/// What to send, where, when.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "serving")]
#[command(
    args_override_self = true,
    mut_args(multi_turn::negative_numbers_are_values),
    mut_arg("dataset_name", |arg| arg.help("Dataset [default: sharegpt]")),
    mut_arg("num_prompts", |arg| arg.help("Requests, or conversations of a dataset with turns; 0: all [default: 1000]")),
    mut_arg("ready_check_timeout_sec", |arg| {
        arg.default_value("60").help("Wait up to this long for the server to be ready, seconds; 0 does not wait")
    }),
    mut_arg("request_rate", |arg| arg.default_value("inf").help("Requests per second; inf: all at once")),
    mut_arg("max_parallel", |arg| arg.help("Requests in flight, at most [default: no limit]")),
    mut_arg("ready_queue_policy", |arg| arg.default_value("fifo")),
    mut_arg("seed", |arg| arg.default_value("42")),
    mut_arg("warmup_requests", |arg| {
        arg.help("Requests before the run, of made-up prompts that share nothing with it [default: 1]")
    }),
    after_help = help()
)]
pub struct Args {
    #[command(flatten)]
    work: multi_turn::Args,
}

/// What stands below the flags.
fn help() -> String {
    format!(
        "The first figures have the names and definitions of sglang.bench_serving, with these differences: input tokens are the server's \
         counts; the duration ends with the last answer; a token without text counts as a token. Below them stand those of 'mcctl bench \
         multi-turn': latency from the scheduled send time, expected cache hits, caveats.\n\
         The same --seed and --request-rate give the arrival times of bench_serving. Which prompts a seed picks from a larger dataset, and \
         random texts, differ.\n\
         Nothing is downloaded: datasets and tokenizers come from files or the local Hugging Face cache (HF_HOME). ShareGPT has a stand-in \
         of made-up prompts where it is not on this machine, and a caveat says so.\n\
         --flush-cache empties the server's L1 and L2. The flag is the confirmation: no question is asked. No result file is written \
         without --output-file.\n\n{}\n\n\
         Exit codes: 0 every request succeeded, 1 some failed or were stopped, 2 command line wrong, 3 the server is not reachable or ready, \
         or no request succeeded, 4 a file could not be written, or this host does not allow as many connections, 70 a bug in mcctl.",
        flags::summary()
    )
}

impl Args {
    /// The flags as those of a run of conversations.
    pub(in crate::commands::bench) fn into_work(self) -> multi_turn::Args {
        multi_turn::Args { serving: true, ..self.work }
    }

    /// Measure.
    ///
    /// # Errors
    /// The command line is wrong, or the run cannot be started.
    pub fn run(self) -> Outcome {
        self.into_work().run()
    }
}
