//! `mcctl bench`: measurements.

pub mod compare;
pub mod dataset;
pub mod ladder;
pub mod multi_turn;
pub mod serving;
pub mod sheet;
pub mod store;
pub mod transfer;

use clap::Subcommand;

use crate::commands::error::Outcome;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Conversations against an inference server
    MultiTurn(Box<multi_turn::Args>),
    /// Single requests against an inference server, with the flags and figures of sglang.bench_serving
    Serving(Box<serving::Args>),
    /// Empty the caches (L1, L2) of two inference servers, and compare them under the same conversations
    Compare(Box<compare::Args>),
    /// Make a small dataset of made-up words, in any format that multi-turn reads
    Dataset(dataset::Args),
    /// Objects put into a store and got back: latency, throughput, CPU, errors
    Store(Box<store::Args>),
    /// Empty the caches (L1, L2) of an SGLang server, and time the same prompts computed and from L1, L2 and L3
    Ladder(Box<ladder::Args>),
    /// Bytes moved by the transfer engine between two processes
    Transfer(transfer::Args),
}

impl Command {
    /// Measure.
    ///
    /// # Errors
    /// What the user has to know.
    pub fn run(self) -> Outcome {
        match self {
            Command::MultiTurn(args) => args.run(),
            Command::Serving(args) => args.run(),
            Command::Compare(args) => args.run(),
            Command::Dataset(args) => args.run(),
            Command::Store(args) => args.run(),
            Command::Ladder(args) => args.run(),
            Command::Transfer(args) => transfer::run(&args),
        }
    }
}
