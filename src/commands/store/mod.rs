//! `mcctl store`: objects by hand. Questions go through the master's admin HTTP, which grants no lease; where it cannot answer,
//! the RPC is asked, which grants one, and a line on stderr says so.

mod destination;
mod exists;
mod get;
mod key;
pub mod link;
mod ls;
mod put;
mod rm;
mod stat;
mod writing;

use clap::Subcommand;

use crate::commands::error::Outcome;
use crate::commands::runtime;

/// What to do with objects.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Store an object from a file, from stdin or as text. Exit code 1 when the key is taken
    Put(put::Args),
    /// Read an object into a file or to stdout
    Get(get::Args),
    /// Is each key there? Exit code 1 when one is not
    Exists(exists::Args),
    /// Remove objects by key or pattern, or empty the whole store (--all, which asks first)
    Rm(rm::Args),
    /// List keys
    Ls(ls::Args),
    /// Size and replicas of objects
    Stat(stat::Args),
}

impl Command {
    /// Do it.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        runtime::block_on(0, async {
            match self {
                Command::Put(args) => args.run().await,
                Command::Get(args) => args.run().await,
                Command::Exists(args) => args.run().await,
                Command::Rm(args) => args.run().await,
                Command::Ls(args) => args.run().await,
                Command::Stat(args) => args.run().await,
            }
        })
    }
}

/// The tenant of every call: without strict tenants the master ignores it.
const TENANT: &str = "default";
