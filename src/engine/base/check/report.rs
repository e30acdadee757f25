//! A check and its result.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::check::{Finding, Severity};
use crate::text::masked;

/// The subject of a check. Its name is also accepted by `--only` and `--skip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckGroup {
    /// This machine: memory, limits, ports, devices.
    Host,
    /// Flags, variables and files of processes that are running or will be started.
    Config,
    /// Mooncake's Python wheel and the libraries that it links against.
    Wheel,
    /// A running master, its nodes and its metadata service, checked over the network.
    Cluster,
    /// A running SGLang server.
    Serving,
    /// The RDMA paths to another engine.
    Peer,
}

impl CheckGroup {
    /// All groups, in report order.
    pub const ALL: [CheckGroup; 6] = [
        CheckGroup::Host,
        CheckGroup::Config,
        CheckGroup::Wheel,
        CheckGroup::Cluster,
        CheckGroup::Serving,
        CheckGroup::Peer,
    ];

    /// The name in tables, JSON and flags.
    pub const fn word(self) -> &'static str {
        match self {
            CheckGroup::Host => "host",
            CheckGroup::Config => "config",
            CheckGroup::Wheel => "wheel",
            CheckGroup::Cluster => "cluster",
            CheckGroup::Serving => "serving",
            CheckGroup::Peer => "peer",
        }
    }
}

impl fmt::Display for CheckGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// The definition of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Stable and kebab-case, for example `hugepages-per-node`.
    pub id: &'static str,
    /// The subject of the check.
    pub group: CheckGroup,
    /// What the check verifies, in one line.
    pub about: &'static str,
    /// The numbers of the deployment problems that the check detects, as listed by
    /// `mcctl doctor --list-problems`.
    pub problems: &'static [u8],
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// No finding. The string describes what was observed: `23 GiB free`, `2 segments, 1 protocol`.
    Passed(String),
    /// At least one finding.
    Found(Vec<Finding>),
    /// The check could not run. The string gives the reason and how to enable the check.
    Skipped(String),
}

/// A check with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    pub check: Check,
    pub status: CheckStatus,
    /// How long the check took.
    pub took: Duration,
}

impl CheckReport {
    /// The findings of this check; empty if it passed or was skipped.
    pub fn findings(&self) -> &[Finding] {
        match &self.status {
            CheckStatus::Found(findings) => findings,
            CheckStatus::Passed(_) | CheckStatus::Skipped(_) => &[],
        }
    }

    /// Masks passwords in URLs throughout the report.
    pub fn masked(mut self) -> CheckReport {
        let mask = |text: &mut String| *text = masked(text).into_owned();
        match &mut self.status {
            CheckStatus::Passed(text) | CheckStatus::Skipped(text) => mask(text),
            CheckStatus::Found(findings) => {
                for finding in findings {
                    mask(&mut finding.finding);
                    mask(&mut finding.evidence);
                    mask(&mut finding.remedy);
                }
            }
        }
        self
    }

    /// The highest severity among the findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings().iter().map(|finding| finding.severity).max()
    }
}
