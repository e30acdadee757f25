//! Runs the steps of a store benchmark: in this process, or in several processes at the same time.

use std::time::Duration;

use crate::commands::bench::store::rank_message::{RankReply, RankStep};
use crate::commands::bench::store::ranks::RankProcesses;
use crate::commands::cli::error::Failure;
use crate::engine::bench::store::{PassKind, StoreBench, StorePass};
use crate::engine::env::RealEnv;
use crate::engine::store::StoreClient;

/// What runs the steps.
pub(super) enum BenchRunner {
    Local { bench: Box<StoreBench<RealEnv>>, client: Box<StoreClient<RealEnv>> },
    Ranks(RankProcesses),
}

impl BenchRunner {
    /// Runs one pass. Returns the results of each process; see [`StoreBench::pass`].
    ///
    /// # Errors
    /// The process of a rank ended, or its pipe broke.
    pub(super) async fn pass(
        &mut self,
        kind: PassKind,
        goal: u32,
        duration: Option<Duration>,
    ) -> Result<Vec<StorePass>, Failure> {
        match self {
            BenchRunner::Local { bench, .. } => Ok(vec![bench.pass(kind, goal, duration).await]),
            BenchRunner::Ranks(ranks) => {
                let replies = ranks.execute(&RankStep::Pass { kind, goal, duration }).await?;
                let passes = replies.into_iter().filter_map(|reply| match reply {
                    RankReply::Pass(pass) => Some(*pass),
                    _ => None,
                });
                Ok(passes.collect())
            }
        }
    }

    /// Removes the objects of the put pass, or all objects of the run. Returns their number, or why
    /// they could not be removed.
    ///
    /// # Errors
    /// The process of a rank ended, or its pipe broke.
    pub(super) async fn remove(&mut self, all: bool) -> Result<Result<i64, String>, Failure> {
        match self {
            BenchRunner::Local { bench, client } if all => {
                Ok(client.remove_by_regex(&bench.plan().every_key(), true).await.map_err(|error| error.to_string()))
            }
            BenchRunner::Local { bench, client } => {
                Ok(bench.remove_round(client).await.map_err(|error| error.to_string()))
            }
            BenchRunner::Ranks(ranks) => {
                let step = if all { RankStep::RemoveAll } else { RankStep::RemoveRound };
                let replies = ranks.execute(&step).await?;
                let removed = replies.into_iter().enumerate().map(|(rank, reply)| match reply {
                    RankReply::Removed(removed) => removed.map_err(|error| format!("rank {rank}: {error}")),
                    _ => Ok(0),
                });
                Ok(removed.sum())
            }
        }
    }
}

/// Combines the results of all processes. Failures name their process if there are several.
pub(super) fn together(mut passes: Vec<StorePass>) -> Option<StorePass> {
    if passes.len() > 1 {
        for (rank, pass) in passes.iter_mut().enumerate() {
            for failed in pass.put.failed.values_mut().chain(pass.get.failed.values_mut()) {
                failed.first = format!("rank {rank}: {}", failed.first);
            }
        }
    }
    passes.into_iter().reduce(|mut all, one| {
        all.beside(one);
        all
    })
}
