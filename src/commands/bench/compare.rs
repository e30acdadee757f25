//! `mcctl bench compare`: two endpoints, or one before and after a change, under the same work.

use crate::commands::bench::multi_turn;
use crate::commands::error::{Failure, Outcome};

/// Two endpoints, and the work.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "two")]
#[command(
    args_override_self = true,
    mut_args(multi_turn::negative_numbers_are_values),
    after_help = "Exit codes: 0 B is not worse, 1 B is worse beyond its interval (in any pass and measure, even if it is \
    better in others), the work was not the same, requests failed, a signal ended the run or a goal was missed, 2 command line wrong, \
    3 nothing listens at one of them or none went well there, 4 a file could not be written, or this host does not allow as many \
    connections, 70 a bug in mcctl. Where the reader of stdout has gone away the code is 0."
)]
pub struct Args {
    /// The first server, or the records of a run against it (--records)
    #[arg(value_name = "A")]
    a: String,
    /// The second
    #[arg(value_name = "B")]
    b: String,
    #[command(flatten)]
    work: multi_turn::Args,
}

impl Args {
    /// Compare.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        let mut work = self.work;
        if work.endpoint.url.is_some() || work.compare.against.is_some() {
            return Err(Failure::usage("A and B are the servers").next("leave out --url and --against"));
        }
        match (self.a.contains("://"), self.b.contains("://")) {
            (true, true) => {}
            (true, false) => {
                return Err(Failure::usage("a file comes before a server").next("give the records first, then the URL"));
            }
            (false, _) => return work.run_against(&self.a, &self.b),
        }
        work.endpoint.url = Some(self.a);
        work.compare.against = Some(self.b);
        work.run()
    }
}
