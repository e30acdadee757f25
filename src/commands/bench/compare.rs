//! `mcctl bench compare`: compares two endpoints, or one endpoint before and after a change, under
//! the same workload.

use crate::commands::bench::multi_turn;
use crate::commands::cli::error::{Failure, Outcome};

/// Comparison of two inference servers.
#[derive(Clone, Debug, clap::Args)]
#[command(before_help = "yes primary num-clients request-length output-length request-rate blocks")]
#[command(
    before_long_help = "mcctl bench compare http://10.0.0.1:30000 http://10.0.0.2:30000 --yes  # send the same prompts to both servers; empties their caches\n\
    mcctl bench compare before.jsonl http://10.0.0.1:30000  # compare a recorded run with a server"
)]
#[group(id = "two")]
#[command(
    args_override_self = true,
    mut_args(multi_turn::negative_numbers_are_values),
    after_help = "Exit codes:\n\
    \x20 0   B is not shown to be worse in any metric\n\
    \x20 1   B is worse in the primary metric or in another one, the runs are not comparable,\n\
    \x20     there are too few conversations, requests failed, a signal ended the run, or a goal was missed\n\
    \x20 2   invalid command line\n\
    \x20 3   an endpoint is unreachable, or no request to it succeeded\n\
    \x20 4   a file could not be written, or this host allows too few connections\n\
    \x20 70  a bug in mcctl\n\
    If the reader of stdout closes the pipe, the exit code is 0."
)]
pub struct Args {
    /// URL of the first server, or a file with a recorded run (--records)
    #[arg(value_name = "A")]
    a: String,
    /// URL of the second server, or a file with a recorded run
    #[arg(value_name = "B")]
    b: String,
    #[command(flatten)]
    work: multi_turn::Args,
}

impl Args {
    /// Runs the comparison and prints the report.
    ///
    /// # Errors
    /// The command line is invalid, or an endpoint or a file is unusable.
    pub fn run(self) -> Outcome {
        let mut work = self.work;
        if work.endpoint.url.is_some() || work.compare.against.is_some() {
            return Err(Failure::usage("A and B already specify the servers; --url and --against are not allowed")
                .next("drop --url and --against"));
        }
        if !multi_turn::is_url(&self.a) {
            return work.run_recorded(Some(&self.a), &self.b);
        }
        work.endpoint.url = Some(self.a);
        work.compare.against = Some(self.b);
        work.run()
    }
}
