//! `mcctl bench`: benchmarks for inference servers, stores and the transfer engine.

pub mod caveat;
pub mod compare;
pub mod dataset;
mod glossary;
mod joined;
pub mod ladder;
mod measured;
pub mod multi_turn;
pub mod number;
mod report_files;
pub mod serving;
pub mod store;
pub mod transfer;
pub mod verify;

use clap::Subcommand;

use crate::commands::cli::error::Outcome;
use crate::engine::env::RealEnv;

/// Returns this host's clock, network and random numbers.
fn env() -> RealEnv {
    RealEnv::new()
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Benchmark an inference server with multi-turn conversations
    MultiTurn(Box<multi_turn::Args>),
    /// Benchmark an inference server with single requests, like sglang.bench_serving
    Serving(Box<serving::Args>),
    /// Compare two inference servers with the same conversations; flushes their caches (L1, L2)
    Compare(Box<compare::Args>),
    /// Generate a small synthetic dataset in any format that multi-turn reads
    Dataset(dataset::Args),
    /// Benchmark puts and gets on a store: throughput, latency, CPU and errors
    Store(Box<store::Args>),
    /// Tier ladder: TTFT of the same prompts when computed and when cached in L1, L2 and L3;
    /// flushes the SGLang server's caches (L1, L2)
    Ladder(Box<ladder::Args>),
    /// Check whether the cache changes an SGLang server's answers; flushes its caches (L1, L2)
    Verify(Box<verify::Args>),
    /// Benchmark the transfer engine between two processes
    Transfer(transfer::Args),
}

impl BenchCommand {
    /// Runs the benchmark.
    ///
    /// # Errors
    /// The command line is invalid, a peer is unreachable, or this host lacks a resource.
    pub fn run(self) -> Outcome {
        match self {
            BenchCommand::MultiTurn(args) => args.run(),
            BenchCommand::Serving(args) => args.run(),
            BenchCommand::Compare(args) => args.run(),
            BenchCommand::Dataset(args) => args.run(),
            BenchCommand::Store(args) => args.run(),
            BenchCommand::Ladder(args) => args.run(),
            BenchCommand::Verify(args) => args.run(),
            BenchCommand::Transfer(args) => transfer::run(&args),
        }
    }
}
