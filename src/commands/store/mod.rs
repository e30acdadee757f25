//! `mcctl store`: put, get and list objects. Lookups use the master's admin HTTP endpoint, which
//! grants no lease. If the endpoint is unavailable, RPC is used instead, which grants a lease, and
//! a note is printed to stderr.

mod destination;
mod exists;
mod get;
mod key;
mod ls;
mod object_write;
mod put;
mod rm;
mod session;
mod stat;
mod unused_flags;
mod verify;
mod verify_report;

use clap::Subcommand;

use crate::commands::cli::error::Outcome;
use crate::commands::cli::runtime;

/// Subcommands of `mcctl store`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Store an object from a file, stdin or the command line; exit code 1 if the key exists
    Put(put::Args),
    /// Read an object to a file or stdout
    Get(get::Args),
    /// Check whether keys exist; exit code 1 if any key does not exist
    Exists(exists::Args),
    /// Remove objects by key or pattern, or empty the store
    Rm(rm::Args),
    /// List the keys in the store
    Ls(ls::Args),
    /// Show the size and replicas of objects
    Stat(stat::Args),
    /// Compare all replicas with checksums; exit code 1 if any is damaged
    Verify(verify::Args),
}

impl StoreCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// The master or a node is unreachable, or rejects the request.
    pub fn run(self) -> Outcome {
        runtime::block_on(0, async {
            match self {
                StoreCommand::Put(args) => args.run().await,
                StoreCommand::Get(args) => args.run().await,
                StoreCommand::Exists(args) => runtime::reporting_signals(args.json, args.run()).await,
                StoreCommand::Rm(args) => runtime::reporting_signals(args.json && !args.may_ask(), args.run()).await,
                StoreCommand::Ls(args) => args.run().await,
                StoreCommand::Stat(args) => runtime::reporting_signals(args.json, args.run()).await,
                StoreCommand::Verify(args) => args.run().await,
            }
        })
    }
}
