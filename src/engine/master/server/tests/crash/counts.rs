//! Counters of the events in all runs, to prove that the runs reach them.

use std::collections::BTreeMap;
use std::fmt;

use mcctl_journal::{Crash, StorageOperation};

/// Counters by the name of the event.
#[derive(Clone, Debug, Default)]
pub(super) struct StepCounts {
    events: BTreeMap<&'static str, u64>,
    /// Processes that stopped at an operation on a kind of file: killed, and with a loss of power.
    boundaries: BTreeMap<Boundary, [u64; 2]>,
}

/// An operation, and the kind of the file that it changes.
pub(super) type Boundary = (StorageOperation, &'static str);

/// The boundaries that processes cross when they create a directory, start, serve and write
/// snapshots.
const BOUNDARIES: [Boundary; 18] = [
    (StorageOperation::Create, "validity"),
    (StorageOperation::Write, "validity"),
    (StorageOperation::Sync, "validity"),
    (StorageOperation::Create, "identity"),
    (StorageOperation::Write, "identity"),
    (StorageOperation::Sync, "identity"),
    (StorageOperation::Rename, "identity"),
    (StorageOperation::Create, "log"),
    (StorageOperation::Write, "log"),
    (StorageOperation::Sync, "log"),
    (StorageOperation::Rename, "log"),
    (StorageOperation::Remove, "log"),
    (StorageOperation::Create, "snapshot"),
    (StorageOperation::Write, "snapshot"),
    (StorageOperation::Sync, "snapshot"),
    (StorageOperation::Rename, "snapshot"),
    (StorageOperation::Remove, "snapshot"),
    (StorageOperation::SyncDirectory, ""),
];

/// Events that must occur.
const EVENTS: [&str; 28] = [
    "operations",
    "changes",
    "kills",
    "power losses",
    "clean ends",
    "lost changes",
    "torn logs",
    "restarts",
    "restarts from a snapshot",
    "restarts with a hold",
    "interrupted starts",
    "snapshots",
    "interrupted snapshots",
    "responses",
    "responses that waited",
    "lost responses",
    "resent calls",
    "reads",
    "reads after a restart",
    "completed writes",
    "replacing upserts",
    "revokes",
    "evicted objects",
    "removals",
    "remounts",
    "disk errors",
    "ends after disk errors",
    "continued in memory",
];

/// The kind of the file with this name.
fn kind(file: &str) -> &'static str {
    let kinds = ["log", "snapshot", "identity", "validity", "emptying"];
    match kinds.into_iter().find(|kind| file.starts_with(kind)) {
        Some(kind) => kind,
        None if file.is_empty() => "",
        None => "subdirectory",
    }
}

impl StepCounts {
    pub(super) fn count(&mut self, what: &'static str) {
        self.count_many(what, 1);
    }

    pub(super) fn count_many(&mut self, what: &'static str, number: u64) {
        *self.events.entry(what).or_default() += number;
    }

    pub(super) fn count_stop(&mut self, operation: StorageOperation, file: &str, crash: Crash) {
        self.boundaries.entry((operation, kind(file))).or_default()[usize::from(crash == Crash::Power)] += 1;
    }

    pub(super) fn add(&mut self, other: &StepCounts) {
        other.events.iter().for_each(|(what, count)| self.count_many(what, *count));
        for (boundary, [killed, power]) in &other.boundaries {
            let sums = self.boundaries.entry(*boundary).or_default();
            *sums = [sums[0] + killed, sums[1] + power];
        }
    }

    /// The boundaries with fewer than `least` stops.
    pub(super) fn rare_boundaries(&self, least: u64) -> Vec<(Boundary, u64)> {
        let count = |boundary| self.boundaries.get(boundary).map_or(0, |counts| counts.iter().sum());
        BOUNDARIES.iter().map(|boundary| (*boundary, count(boundary))).filter(|(_, count)| *count < least).collect()
    }

    /// The events that occurred less than `least` times.
    pub(super) fn rare_events(&self, least: u64) -> Vec<(&'static str, u64)> {
        let count = |event| self.events.get(event).copied().unwrap_or(0);
        EVENTS.into_iter().map(|event| (event, count(event))).filter(|(_, count)| *count < least).collect()
    }
}

impl fmt::Display for StepCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<36}{:>10}{:>10}", "process stopped at", "killed", "no power")?;
        for ((operation, file), [killed, power]) in &self.boundaries {
            writeln!(f, "{:<36}{killed:>10}{power:>10}", format!("{operation} {file}"))?;
        }
        self.events.iter().try_for_each(|(event, count)| writeln!(f, "{event:<36}{count:>10}"))
    }
}
