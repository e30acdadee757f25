//! What a run is given, and what it returns.

use std::collections::BTreeMap;

use crate::engine::base::rng::Rng;
use crate::engine::ha::MemberId;
use crate::engine::ha::stage::HaStage;

/// What a seed decides beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub clients: usize,
    /// Number of faults.
    pub faults: u64,
    /// Average time between two faults, in microseconds.
    pub pause: u64,
    /// Additional delay between masters, and to etcd, up to this many microseconds.
    pub slow_link: usize,
    pub slow_etcd: usize,
    /// The nodes have data directories.
    pub has_data: bool,
    /// The time until a data directory has a change, up to this many microseconds.
    pub slow_disk: usize,
    /// Responses do not wait for standbys. A failover may lose changes, so no fault causes an election without a hand-over.
    pub is_async: bool,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let has_data = rng.below(2) == 0;
        let mut plan = Plan {
            nodes: 2 + rng.below(2),
            clients: 8,
            faults: 6 + rng.below(8) as u64,
            pause: 1_500_000 + rng.below(5_000_000) as u64,
            slow_link: if rng.below(3) == 0 { 1 + rng.below(150_000) } else { 1 },
            slow_etcd: if rng.below(3) == 0 { 1 + rng.below(250_000) } else { 1 },
            has_data,
            slow_disk: if has_data && rng.below(3) == 0 { 1 + rng.below(200_000) } else { 1 },
            is_async: false,
        };
        // A standby with a slow disk would lag behind, and a hand-over to it would be cancelled.
        plan.is_async = plan.slow_disk == 1 && rng.below(12) == 0;
        plan
    }
}

/// A rule that the cluster has broken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Violation {
    /// The key was acknowledged and is gone.
    #[error("the acknowledged key {key} is lost")]
    Lost { key: String },
    /// A read within its lease found another key's bytes.
    #[error("a read of key {key} found the bytes of {found:?}")]
    OtherBytes { key: String, found: Option<String> },
    /// A master answered after one that was elected later.
    #[error("master {node} answered after one that was elected later")]
    StaleAnswer { node: usize },
    /// A copy with the same ID has everything that it has acknowledged.
    #[error("the copy {id} lacks changes that it has acknowledged")]
    NotStored { id: MemberId },
    /// No put succeeded for a long time after the last fault.
    #[error("no put succeeds any more: {roles:#?}")]
    NoService { roles: Vec<String> },
}

/// What happened, for the report.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Number of faults that had an effect.
    pub effective: u64,
    /// Number of runs, and of those with slow disks.
    pub runs: u64,
    pub slow_disks: u64,
    pub puts: u64,
    pub reads: u64,
    pub elections: u64,
    pub etcd_writes: u64,
    pub snapshots: u64,
    pub hand_overs: u64,
    pub recreations: u64,
    pub fast_paths: u64,
    pub reopened: u64,
    pub faults: BTreeMap<String, u64>,
    /// Faults that had an effect while a node was at a stage: at this node itself, or at another one.
    pub stages: BTreeMap<HaStage, BTreeMap<String, u64>>,
}

impl Totals {
    /// Number of acknowledged puts and reads.
    pub(super) fn operations(&self) -> u64 {
        self.puts + self.reads
    }

    pub(super) fn add(&mut self, other: &Totals) {
        self.runs += 1;
        self.slow_disks += other.slow_disks;
        self.effective += other.effective;
        self.puts += other.puts;
        self.reads += other.reads;
        self.elections += other.elections;
        self.etcd_writes += other.etcd_writes;
        self.snapshots += other.snapshots;
        self.hand_overs += other.hand_overs;
        self.recreations += other.recreations;
        self.fast_paths += other.fast_paths;
        self.reopened += other.reopened;
        for (fault, count) in &other.faults {
            *self.faults.entry(fault.clone()).or_default() += count;
        }
        for (stage, counts) in &other.stages {
            let sum = self.stages.entry(*stage).or_default();
            counts.iter().for_each(|(fault, count)| *sum.entry(fault.clone()).or_default() += count);
        }
    }

    /// One line per stage, with the faults that hit while a node was at it.
    pub(super) fn stage_table(&self) -> String {
        let cell = |(fault, count): (&String, &u64)| format!("{fault} {count}");
        let row = |(stage, counts): (&HaStage, &BTreeMap<String, u64>)| {
            format!("{stage:?}: {}\n", counts.iter().map(cell).collect::<Vec<_>>().join(", "))
        };
        self.stages.iter().map(row).collect()
    }

    /// The stages at which no process crashed.
    pub(super) fn stages_without_a_crash(&self) -> Vec<HaStage> {
        let has_crash = |stage: &HaStage| {
            self.stages.get(stage).is_some_and(|counts| counts.keys().any(|fault| fault.starts_with("Crash")))
        };
        HaStage::ALL.into_iter().filter(|stage| !has_crash(stage)).collect()
    }
}
