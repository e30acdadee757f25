//! A check, and what came of it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::engine::check::{Finding, Severity};

/// What a check looks at; also a name that `--only` and `--skip` take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// This machine: memory, limits, ports, devices.
    Host,
    /// Flags, variables and files of the processes that are or shall be started.
    Config,
    /// Mooncake's Python wheel and the libraries it is linked to.
    Wheel,
    /// A running master, its nodes and its metadata service, over the wire.
    Cluster,
    /// A running SGLang server.
    Serving,
    /// Another engine, over RDMA.
    Peer,
}

impl Group {
    /// All of them, in the order of a report.
    pub const ALL: [Group; 6] = [Group::Host, Group::Config, Group::Wheel, Group::Cluster, Group::Serving, Group::Peer];

    /// The word in tables, JSON and flags.
    pub const fn word(self) -> &'static str {
        match self {
            Group::Host => "host",
            Group::Config => "config",
            Group::Wheel => "wheel",
            Group::Cluster => "cluster",
            Group::Serving => "serving",
            Group::Peer => "peer",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A line of a catalogue of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Stable, kebab-case: `hugepages-per-node`.
    pub id: &'static str,
    /// What it looks at.
    pub group: Group,
    /// What it makes sure of, in one line.
    pub about: &'static str,
    /// The problems of operators that it recognises: numbers of the list that `mcctl doctor --problems` prints.
    pub problems: &'static [u8],
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing to say. The text is what was seen: `23 GiB free`, `2 segments, 1 protocol`.
    Passed(String),
    /// Findings, at least one.
    Found(Vec<Finding>),
    /// It could not be done; the text says why, and what would make it possible.
    Skipped(String),
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub check: Check,
    pub status: Status,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    /// Its findings, none when it passed or was skipped.
    pub fn findings(&self) -> &[Finding] {
        match &self.status {
            Status::Found(findings) => findings,
            Status::Passed(_) | Status::Skipped(_) => &[],
        }
    }

    /// The worst of its findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings().iter().map(|finding| finding.severity).max()
    }
}
