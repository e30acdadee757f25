//! Everything that exists in a run: the disk, the master's processes one after another, nodes,
//! readers and writers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::counts::StepCounts;
use super::env::RunClock;
use super::memory::{LeasedReader, NodeMemory, SlowWriter, ValueId};
use super::process::Process;
use super::trace::ChangeTrace;
use crate::{DATA_FORMAT, DataFormat};
use mcctl_base::Rng;
use mcctl_base::{ClientId, SegmentId};
use mcctl_journal::{CommitLogOptions, DiskFault, SimulatedStorage, StorageOperation, Uuid};
use mcctl_sys::env::Env;
use mcctl_wire::types::Segment;

/// The longest lease. A process grants this one or a shorter one.
pub(super) const LEASE: u64 = 1_000;
pub(super) const CLIENT_TTL: u64 = 5_000;
pub(super) const DISCARD: u64 = 2_000;
pub(super) const RELEASE: u64 = 4_000;
const KEYS: usize = 24;
pub(super) const NODES: usize = 4;

/// Minimum number of operations and of crashes per run.
const OPERATIONS: u64 = 300;
const CRASHES: u64 = 5;

/// Operations of the disk at which runs inject errors.
const FAULTS: [StorageOperation; 8] = [
    StorageOperation::Open,
    StorageOperation::Read,
    StorageOperation::Create,
    StorageOperation::Write,
    StorageOperation::Sync,
    StorageOperation::Rename,
    StorageOperation::Remove,
    StorageOperation::SyncDirectory,
];
/// The operations of a running process begin at this index.
const RUNNING: usize = 2;
/// No space, input/output error, read-only, permission denied.
const ERRORS: [i32; 4] = [28, 5, 30, 13];

/// A process that contributes memory.
pub(super) struct Node {
    pub client: ClientId,
    pub segments: Vec<Segment>,
    /// It waits for a response.
    pub is_busy: bool,
    /// Segments whose memory was freed, because the response to their mount was lost.
    pub abandoned: Vec<SegmentId>,
}

/// A write whose end was sent, and whose response was lost.
#[derive(Clone, Copy)]
pub(super) struct UnknownEnd {
    pub client: u64,
    pub key: u64,
    pub value: ValueId,
}

/// A write that ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinishedWrite {
    /// The change that made the object complete.
    pub sequence: u64,
    pub key: u64,
    pub value: ValueId,
    /// It was acknowledged, and nothing has happened that may lose it.
    pub must_be_kept: bool,
    /// Not even a loss of power may lose it.
    pub survives_power_loss: bool,
}

/// The changes that must be on the disk at the next start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PromisedChanges {
    /// If only the process dies.
    pub kill: u64,
    /// If the host loses power, too.
    pub power_loss: u64,
}

/// Everything that exists in a run.
pub(super) struct World {
    pub rng: Rng,
    pub clock: RunClock,
    pub wall_clock: i64,
    pub storage: SimulatedStorage,
    pub trace: ChangeTrace,
    /// The change that the last call has made, or 0.
    pub made: u64,
    pub promised: PromisedChanges,
    /// The options of the running process for the directory, and its longest lease.
    pub options: CommitLogOptions,
    pub format: DataFormat,
    pub lease: u64,
    /// The log thread runs once in this many steps.
    pub disk_delay: usize,
    /// The boot ID with which the last start began.
    pub first_change_boot: Uuid,
    /// The disk may report errors for opened and read files.
    pub fails_reads: bool,
    /// The running process continues without the directory, and has sent a response since.
    pub is_memory_only: bool,
    /// The directory is marked as invalid.
    pub is_invalid: bool,
    /// A process has tried to mark the directory as invalid.
    pub may_be_invalid: bool,
    /// An operator gives up the data in the directory.
    pub gives_up_data: bool,
    pub operations: u64,
    pub crashes: u64,
    pub starts: u64,
    pub nodes: Vec<Node>,
    next_id: u64,
    pub memory: NodeMemory,
    /// Segments whose process no longer serves the memory.
    pub freed: BTreeSet<SegmentId>,
    pub readers: Vec<LeasedReader>,
    pub writers: Vec<SlowWriter>,
    /// Clients and keys with a call whose response has not arrived.
    pub busy: BTreeSet<(u64, u64)>,
    pub unknown_ends: Vec<UnknownEnd>,
    /// Writes that ended and were not lost, in the order of their changes.
    pub finished: Vec<FinishedWrite>,
    /// The key of each value.
    pub key_of: BTreeMap<ValueId, u64>,
    pub counts: StepCounts,
    /// Writes also go to some memory around their replicas.
    pub scribble: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut world = World {
            rng: Rng::new(!seed),
            clock: RunClock::default(),
            wall_clock: 1_700_000_000_000,
            storage: SimulatedStorage::new(seed),
            trace: ChangeTrace::new(),
            made: 0,
            promised: PromisedChanges::default(),
            options: CommitLogOptions::default(),
            format: DATA_FORMAT,
            lease: LEASE,
            disk_delay: 1,
            first_change_boot: Uuid(0),
            fails_reads: false,
            is_memory_only: false,
            is_invalid: false,
            may_be_invalid: false,
            gives_up_data: false,
            operations: 0,
            crashes: 0,
            starts: 0,
            nodes: Vec::new(),
            next_id: 1,
            memory: NodeMemory::default(),
            freed: BTreeSet::new(),
            readers: Vec::new(),
            writers: Vec::new(),
            busy: BTreeSet::new(),
            unknown_ends: Vec::new(),
            finished: Vec::new(),
            key_of: BTreeMap::new(),
            counts: StepCounts::default(),
            scribble: false,
        };
        world.clock.advance(1_000_000);
        // Clients with these numbers also write objects.
        world.nodes = (0..NODES).map(|_| world.new_node(0)).collect();
        world
    }

    /// A process without memory. Its client id is a new number above `above`.
    pub(super) fn new_node(&mut self, above: u64) -> Node {
        let client = ClientId(self.id() + above, 0);
        Node { client, segments: Vec::new(), is_busy: false, abandoned: Vec::new() }
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub(super) fn chance(&mut self, one_in: usize) -> bool {
        self.rng.below(one_in) == 0
    }

    pub(super) fn key(&mut self) -> u64 {
        self.rng.below(KEYS) as u64
    }

    pub(super) fn ms(&self) -> u64 {
        self.clock.ms()
    }

    /// Whether the process has stopped at an operation of the disk.
    pub(super) fn is_dead(&self) -> bool {
        self.storage.stopped_at().is_some()
    }

    /// Runs processes until there were enough operations and crashes, and then damages the disk.
    pub(super) fn run(&mut self) {
        while self.operations < OPERATIONS || self.crashes < CRASHES {
            assert!(self.crashes < 200, "too many crashes");
            self.live();
        }
        self.damage();
        self.counts.count_many("changes", self.trace.made);
    }

    /// Performs one random call or event, the work of the master's threads meanwhile, and all
    /// checks.
    pub(super) fn step(&mut self, process: &mut Process<'_>) {
        self.operations += 1;
        self.counts.count("operations");
        match self.rng.below(100) {
            0..24 => self.put(process),
            24..33 => self.write_some(),
            33..49 => self.end(process),
            49..52 => self.revoke(process),
            52..60 => self.get(process),
            60..63 => self.remove(process),
            63..65 => self.clear(process),
            65..75 => (0..2).for_each(|_| self.ping_some(process)),
            75..79 => self.change_segments(process),
            79..85 => self.resend(process),
            85 => self.add_fault(RUNNING),
            86..94 => self.pass(process),
            94..97 => self.write_record(process),
            _ => {}
        }
        self.handle_effects(process);
        self.commit_some(process, false);
        if self.chance(self.disk_delay) {
            process.run_log_thread();
        }
        if !self.chance(3) {
            self.run_snapshot_thread(process);
        }
        if self.chance(2) {
            self.tick(process);
        }
        self.poll_responses(process);
        self.check(process);
    }

    /// Time passes. Mostly, the ticker is planned for its end, so that it does not count as a stall
    /// of the master.
    fn pass(&mut self, process: &mut Process<'_>) {
        let ms = if self.chance(3) { 3_000 } else { 200 };
        let ms = self.rng.below(ms) as u64;
        if !self.chance(10) {
            let now = process.shared.env.now();
            process.shared.lock(now).0.stalls.expect_by(now + Duration::from_millis(ms));
        }
        self.clock.advance(ms);
    }

    /// The disk will report an error for one of the operations from the `first` one on.
    pub(super) fn add_fault(&mut self, first: usize) {
        let operation = FAULTS[first + self.rng.below(FAULTS.len() - first)];
        let after = self.rng.below(12) as u64;
        let errno = ERRORS[self.rng.below(ERRORS.len())];
        let is_permanent = self.chance(2);
        self.storage.set_fault(Some(DiskFault { operation, after, errno, is_permanent }));
        self.fails_reads = first == 0;
    }
}

pub(super) fn node_name(node: usize) -> String {
    format!("node-{node}:1")
}
