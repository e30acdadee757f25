//! The messages between `mcctl bench store --ranks` and its processes: one JSON document per line.
//! The processes are the same program, so the format needs no version.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::commands::cli::error::{Exit, Failure};
use crate::engine::bench::store::{PassKind, StorePass};

/// A step that a rank executes. It answers each with one [`RankReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RankStep {
    Pass {
        kind: PassKind,
        goal: u32,
        duration: Option<Duration>,
    },
    /// Remove the objects of the put pass.
    RemoveRound,
    /// Remove all objects of the rank.
    RemoveAll,
    /// End the current pass early. Not answered.
    Stop,
}

/// What a rank answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RankReply {
    /// The rank is connected.
    Ready,
    Pass(Box<StorePass>),
    Removed(Result<i64, String>),
    /// The rank cannot continue.
    Failed(RankFailure),
}

/// A [`Failure`] on its way from a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankFailure {
    exit: u8,
    what: String,
    tried: Option<String>,
    found: Option<String>,
    next: Option<String>,
}

impl From<Failure> for RankFailure {
    fn from(failure: Failure) -> RankFailure {
        let Failure { exit, what, tried, found, next, .. } = failure;
        RankFailure { exit: exit.code(), what, tried, found, next }
    }
}

impl RankFailure {
    /// Returns the failure of rank `rank`.
    pub(super) fn of(self, rank: usize) -> Failure {
        let RankFailure { exit, what, tried, found, next } = self;
        let all = [Exit::No, Exit::Usage, Exit::Unreachable, Exit::Host, Exit::Bug];
        let exit = all.into_iter().find(|one| one.code() == exit).unwrap_or(Exit::Bug);
        Failure { tried, found, next, ..Failure::new(exit, format!("rank {rank}: {what}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_its_parts_and_names_its_rank() {
        let failure = Failure::unreachable("no route").tried("connect").found("refused").next("start it");
        let text = serde_json::to_string(&RankReply::Failed(failure.into())).expect("JSON");
        let Ok(RankReply::Failed(read)) = serde_json::from_str(&text) else { panic!("{text}") };
        let failure = read.of(3);
        assert_eq!((failure.exit, failure.what.as_str()), (Exit::Unreachable, "rank 3: no route"));
        assert_eq!(failure.next.as_deref(), Some("start it"));
        let step = RankStep::Pass { kind: PassKind::Get, goal: 7, duration: Some(Duration::from_millis(1500)) };
        let text = serde_json::to_string(&step).expect("JSON");
        assert_eq!(serde_json::from_str::<RankStep>(&text).expect("the same type"), step);
    }
}
