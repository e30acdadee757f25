//! `mcctl version` and `--version`: the version, and the source and target that the program was
//! built from.

use serde::Serialize;

use crate::commands::VERSION;
use crate::commands::cli::error::{Exit, Outcome};
use crate::commands::cli::output;
use crate::engine::upstream::{Release, mooncake_series};

/// Flags of `mcctl version`.
#[derive(Debug, clap::Args)]
#[command(before_long_help = "mcctl version  # the same as mcctl --version\n\
    mcctl version --json  # also the commit, the target and the build profile")]
pub struct Args {
    /// Print one JSON document to stdout
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Serialize)]
struct VersionDocument {
    schema: &'static str,
    version: &'static str,
    /// `null` in a build without optimization, and if the source had no git data.
    commit: Option<&'static str>,
    /// The series whose flags, files and variables mcctl takes.
    mooncake: &'static str,
    /// The releases whose clients, nodes and masters mcctl works with, oldest first.
    mooncake_releases: Vec<&'static str>,
    target: &'static str,
    profile: &'static str,
    rdma: bool,
}

/// The git commit of the source. `build.rs` sets the variable.
const COMMIT: Option<&str> = option_env!("MCCTL_BUILD_COMMIT");

/// Prints the version, as a JSON document if `json` is set.
///
/// # Errors
/// stdout cannot be written.
pub fn print(json: bool) -> Outcome {
    if json {
        output::json(&VersionDocument {
            schema: "mcctl.version/1",
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
            mooncake: mooncake_series!(),
            mooncake_releases: Release::ALL.iter().map(|release| release.name()).collect(),
            target: env!("MCCTL_BUILD_TARGET"),
            profile: env!("MCCTL_BUILD_PROFILE"),
            rdma: cfg!(feature = "rdma"),
        })?;
    } else {
        output::line(format_args!("mcctl {VERSION}"))?;
        if let Some(commit) = COMMIT {
            output::line(format_args!("commit {commit}"))?;
        }
    }
    Ok(Exit::Done)
}
