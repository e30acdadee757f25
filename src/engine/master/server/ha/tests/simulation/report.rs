//! The input of a run, and its report.

use std::collections::BTreeMap;
use std::time::Duration;

use super::memory::StoredValue;
use crate::server::ha::leader::tail::TailLimits;
use mcctl_base::rng::Rng;
use mcctl_election::ha::stage::HaStage;
use mcctl_election::ha::{HandOverProblem, MemberId, NotInSyncPolicy};

/// The plan of a run, which its seed determines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub nodes: usize,
    pub clients: usize,
    /// Number of faults that the run injects.
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
    /// Responses do not wait for standbys.
    pub is_async: bool,
    /// The policy of a standby that is not in sync.
    pub not_in_sync: NotInSyncPolicy,
    /// Work that is awaited, such as making a copy ready, takes up to this many microseconds.
    pub work: usize,
    /// Size of a client's segment, in bytes. Small ones are full, so that objects are evicted.
    pub segment_bytes: u64,
    /// Number of changes that a leader keeps.
    pub tail: TailLimits,
    /// Records of the metadata service are written and read.
    pub has_records: bool,
    /// Each fault comes long after the one before, so that its effect must have ended.
    pub is_isolated: bool,
    /// Clocks stand still, and etcd loses data.
    pub is_outside: bool,
}

impl Plan {
    /// The mode of acknowledgement, the policy and where copies are kept.
    pub(super) fn name(&self) -> String {
        let ack = if self.is_async { "async" } else { "sync" };
        let policy = if self.not_in_sync == NotInSyncPolicy::Wait { "wait" } else { "promote-after" };
        let copies = if self.has_data { "data directories" } else { "memory" };
        format!("{ack}, {policy}, {copies}")
    }

    pub(super) fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let has_data = rng.below(2) == 0;
        let mut plan = Plan {
            nodes: 2 + rng.below(2),
            clients: 3 + rng.below(4),
            faults: 8 + rng.below(12) as u64,
            pause: 1_500_000 + rng.below(5_000_000) as u64,
            slow_link: if rng.below(3) == 0 { 1 + rng.below(150_000) } else { 1 },
            slow_etcd: if rng.below(3) == 0 { 1 + rng.below(250_000) } else { 1 },
            has_data,
            slow_disk: if has_data && rng.below(3) == 0 { 1 + rng.below(200_000) } else { 1 },
            is_async: rng.below(2) == 0,
            not_in_sync: NotInSyncPolicy::Wait,
            // With many keys, it takes long.
            work: if rng.below(3) == 0 { 6_000_000 } else { 150_000 },
            segment_bytes: if rng.below(2) == 0 { 24 << 20 } else { 6 << 20 },
            tail: if rng.below(3) == 0 {
                TailLimits { segment: 512, kept: 2048, max: 4096 }
            } else {
                TailLimits::default()
            },
            has_records: Rng::new(seed ^ 0x4ec0).below(2) == 0,
            is_isolated: false,
            is_outside: false,
        };
        if rng.below(16) == 0 {
            plan = Plan { clients: 3, faults: 5, pause: 80_000_000, is_isolated: true, ..plan };
        }
        if rng.below(2) == 0 {
            let after = Duration::from_millis(4_000 + rng.below(8_000) as u64);
            plan.not_in_sync = NotInSyncPolicy::PromoteAfter(after);
        }
        plan
    }
}

/// A rule that the cluster has broken.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Violation {
    /// The put of the key was acknowledged, and the key is missing.
    #[error("the acknowledged key {key} is lost")]
    Lost { key: String },
    /// A read within its lease found other bytes than those of a write of this key, from number
    /// `oldest` on.
    #[error("a read of key {key}, write {oldest} or later, found the bytes of {found:?}")]
    OtherBytes { key: String, oldest: u32, found: Option<StoredValue> },
    /// A master has allocated memory that belongs to another of its objects.
    #[error("master {node} has allocated memory twice for key {key}")]
    AllocatedTwice { node: usize, key: String },
    /// The removal of the key was acknowledged, no write of it has ended since, and it exists.
    #[error("the removed key {key} exists")]
    Resurrected { key: String },
    /// A copy that may lack changes was promoted, although the policy forbids it.
    #[error("master {node} leads with a copy that may lack changes")]
    LossyPromotion { node: usize },
    /// At one moment, two masters could have sent a response.
    #[error("masters {0} and {1} could both send responses")]
    TwoLeaders(usize, usize),
    /// A planned hand-over failed although no fault was present.
    #[error("a hand-over without a fault failed: {problem}: {roles:#?}")]
    HandOverFailed { problem: HandOverProblem, roles: Vec<String> },
    /// The only copy with everything that was acknowledged was discarded.
    #[error("master {node} has discarded the last complete copy {id}")]
    LastCopyDiscarded { node: usize, id: MemberId },
    /// A standby is not in the sync record although no fault was present for a long time.
    #[error("a healthy standby is not in sync: {roles:#?}")]
    NotInSync { roles: Vec<String> },
    /// A master answered after one that was elected later.
    #[error("master {node} answered after one that was elected later")]
    StaleAnswer { node: usize },
    /// A read of a metadata record found a value before the last one that was acknowledged when it
    /// began, or one that was never written.
    #[error("master {node} has answered a read with record {found}, after {floor} was acknowledged")]
    OldRecord { node: usize, floor: u64, found: u64 },
    /// A copy with the same ID has everything that it has acknowledged.
    #[error("the copy {id} lacks changes that it has acknowledged")]
    NotStored { id: MemberId },
    /// No put succeeded for a long time after the last fault.
    #[error("puts no longer succeed: {roles:#?}")]
    NoService { roles: Vec<String> },
}

impl Violation {
    /// The name of the broken rule.
    pub(super) fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '(', '{']).next().unwrap_or("").to_owned()
    }
}

/// The counters of a run, for the report.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// Number of faults that had an effect.
    pub effective: u64,
    /// Number of runs, and of those with slow disks.
    pub runs: u64,
    pub slow_disks: u64,
    pub puts: u64,
    pub reads: u64,
    pub removals: u64,
    /// Acknowledged writes, and answered reads, of metadata records.
    pub record_writes: u64,
    pub record_reads: u64,
    /// Requests that were sent twice, and that arrived late.
    pub duplicates: u64,
    pub late: u64,
    pub elections: u64,
    pub etcd_writes: u64,
    pub hand_overs: u64,
    /// Hand-overs that were requested and not completed.
    pub failed_hand_overs: BTreeMap<String, u64>,
    /// Elections of a copy that may have lacked changes.
    pub lossy_promotions: u64,
    /// Those that kept objects.
    pub kept_promotions: u64,
    /// Copies that were replaced when their leader ended, before it could list the new ones.
    pub unlisted_copies: u64,
    /// Times at which an operator had to delete the sync record.
    pub operator_recoveries: u64,
    /// Broken rules, in runs outside the assumptions.
    pub broken: BTreeMap<String, u64>,
    /// Runs by mode of acknowledgement, policy and where copies are kept.
    pub plans: BTreeMap<String, u64>,
    pub recreations: u64,
    pub fast_paths: u64,
    pub reopened: u64,
    /// Standbys that received changes from the log of the leader's data directory.
    pub log_streams: u64,
    pub faults: BTreeMap<String, u64>,
    /// Faults that had an effect while a node was at a stage: at this node itself, or at another
    /// one.
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
        self.removals += other.removals;
        self.record_writes += other.record_writes;
        self.record_reads += other.record_reads;
        self.duplicates += other.duplicates;
        self.late += other.late;
        self.elections += other.elections;
        self.etcd_writes += other.etcd_writes;
        self.hand_overs += other.hand_overs;
        self.lossy_promotions += other.lossy_promotions;
        self.kept_promotions += other.kept_promotions;
        self.unlisted_copies += other.unlisted_copies;
        self.operator_recoveries += other.operator_recoveries;
        for (sums, counts) in [
            (&mut self.failed_hand_overs, &other.failed_hand_overs),
            (&mut self.plans, &other.plans),
            (&mut self.broken, &other.broken),
        ] {
            counts.iter().for_each(|(name, count)| *sums.entry(name.clone()).or_default() += count);
        }
        self.recreations += other.recreations;
        self.fast_paths += other.fast_paths;
        self.reopened += other.reopened;
        self.log_streams += other.log_streams;
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
