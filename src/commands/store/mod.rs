//! `mcctl store`: put, get and list objects. Lookups use the master's admin HTTP, which grants no lease. If it cannot answer, the RPC is
//! used, which grants one, and a note on stderr reports that.

pub mod connect;
mod destination;
mod exists;
mod get;
mod key;
mod ls;
mod object_write;
mod put;
mod rm;
mod stat;

use clap::Subcommand;

use crate::commands::error::Outcome;
use crate::commands::runtime;

/// Subcommands of `mcctl store`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Store an object from a file, stdin or text; exit code 1 if the key exists
    Put(put::Args),
    /// Read an object to a file or stdout
    Get(get::Args),
    /// Check whether keys exist; exit code 1 if one does not
    Exists(exists::Args),
    /// Remove objects by key or pattern, or empty the store
    Rm(rm::Args),
    /// List the keys in the store
    Ls(ls::Args),
    /// Show size and replicas of objects
    Stat(stat::Args),
}

impl StoreCommand {
    /// Run the subcommand.
    ///
    /// # Errors
    /// The master or a node is unreachable, or refuses.
    pub fn run(self) -> Outcome {
        runtime::block_on(0, async {
            match self {
                StoreCommand::Put(args) => args.run().await,
                StoreCommand::Get(args) => args.run().await,
                StoreCommand::Exists(args) => args.run().await,
                StoreCommand::Rm(args) => args.run().await,
                StoreCommand::Ls(args) => args.run().await,
                StoreCommand::Stat(args) => args.run().await,
            }
        })
    }
}

/// The tenant of every call. A master without strict tenants ignores it.
const TENANT: &str = "default";
