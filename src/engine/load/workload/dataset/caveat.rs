//! Caveats about a dataset, which are shown before the run and in the report.

use mcctl_trace::TraceCaveat;

/// A reason why the requests may differ from the recorded ones.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DatasetCaveat {
    /// Reported by the reader of traces.
    #[error("{0}")]
    Trace(TraceCaveat),
    #[error("{conversations} conversations have no recorded time; their first requests are sent at the start")]
    MissingTimes { conversations: usize },
    #[error(
        "{subagents} subagents are sent as conversations of their own at their recorded times; their session does not wait for them"
    )]
    DetachedSubagents { subagents: u64 },
    /// The dataset has times and lengths only.
    #[error(
        "the dataset has times and lengths only: no prompt shares a prefix with another one, so caches are not measured"
    )]
    NoReuse,
    /// `part`: the number of examined requests, if there are more.
    #[error(
        "{} share at most {percent:.1} % of their tokens with other prompts, so no cache can hit more in one pass",
        .part.map_or("the prompts".to_owned(), |requests| format!("the first {requests} prompts"))
    )]
    LittleReuse { percent: f64, part: Option<usize> },
}

impl From<TraceCaveat> for DatasetCaveat {
    fn from(caveat: TraceCaveat) -> DatasetCaveat {
        DatasetCaveat::Trace(caveat)
    }
}
