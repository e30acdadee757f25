//! Random writes with a crash at each operation of the disk, against a table in memory.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::KeySpace;
use crate::records::{MetadataTable, RemovedRecords, WriteOutcome};
use crate::restore::MetadataJournalError;
use crate::store::RecordStore;
use crate::store::tests::{AT, SteppedStore, meta, options, restore};
use mcctl_base::Rng;
use mcctl_journal::{Crash, DiskErrorPolicy, JournalError, SimulatedStorage, StorageOperation, SyncMode};

/// Names with and without a slash, which have different keys.
const NAMES: [&str; 4] = ["a", "b", "n/v", "d"];

/// A write, and its result.
#[derive(Clone, Debug)]
enum Step {
    Put(String, Bytes),
    TakeOver(String, Bytes, Bytes),
    Remove(String),
    RemoveSegment(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
enum StepResult {
    Written(WriteOutcome),
    Removed(bool),
    Segment(RemovedRecords),
}

impl Step {
    fn random(rng: &mut Rng, twin: &MetadataTable) -> Step {
        let keys = KeySpace::default();
        let name = NAMES[rng.below(NAMES.len())];
        let rpc = keys.rpc_meta_key(name);
        let ram = keys.ram_key(name);
        // Few ports, so that several names announce the same one.
        let announced = meta(u16::try_from(rng.below(3)).unwrap());
        match rng.below(10) {
            0..3 => Step::Put(rpc, announced),
            3..5 => {
                let current = twin.get(rpc.as_bytes()).filter(|_| rng.below(4) > 0).unwrap_or(meta(9));
                Step::TakeOver(rpc, current, announced)
            }
            5..8 => Step::Put(ram, vec![b'd'; rng.below(200)].into()),
            8 => Step::Remove(if rng.below(2) == 0 { rpc } else { ram }),
            _ => Step::RemoveSegment(name),
        }
    }

    fn on_store(&self, store: &RecordStore) -> Result<StepResult, JournalError> {
        Ok(match self {
            Step::Put(key, value) => StepResult::Written(store.put(key.as_bytes(), value, AT)?),
            Step::TakeOver(key, current, value) => {
                StepResult::Written(store.take_over(key.as_bytes(), current, value, AT)?)
            }
            Step::Remove(key) => StepResult::Removed(store.remove(key.as_bytes(), AT)?),
            Step::RemoveSegment(name) => StepResult::Segment(store.remove_segment(&KeySpace::default(), name, AT)?),
        })
    }

    fn on_table(&self, table: &mut MetadataTable) -> StepResult {
        match self {
            Step::Put(key, value) => StepResult::Written(table.put(key.as_bytes(), value)),
            Step::TakeOver(key, current, value) => StepResult::Written(table.take_over(key.as_bytes(), current, value)),
            Step::Remove(key) => StepResult::Removed(table.remove(key.as_bytes())),
            Step::RemoveSegment(name) => StepResult::Segment(table.remove_segment(&KeySpace::default(), name)),
        }
    }
}

/// How often something happened in all runs.
#[derive(Default, Debug)]
struct CrashCounts {
    stops: BTreeMap<StorageOperation, u64>,
    from_snapshot: u64,
    torn: u64,
    lost_unacknowledged: u64,
}

/// A directory, and what its processes have promised.
struct CrashRun<'a> {
    rng: Rng,
    storage: SimulatedStorage,
    sync: SyncMode,
    /// The steps that have changed the table, one per change in the log.
    steps: Vec<Step>,
    /// The number of changes that were acknowledged, and that survive a power loss.
    acknowledged: usize,
    durable: usize,
    counts: &'a mut CrashCounts,
}

impl CrashRun<'_> {
    /// Restores the records, compares them with those of a table that was not restarted, and writes
    /// until the process stops.
    fn live(&mut self, steps: usize) -> Result<(), MetadataJournalError> {
        let (mut store, report) = restore(&self.storage, options(self.sync, DiskErrorPolicy::Stop))?;
        let changes = usize::try_from(report.recovery.last_sequence).unwrap();
        assert!(changes >= self.acknowledged, "{changes} of {} acknowledged changes", self.acknowledged);
        assert!(changes <= self.steps.len());
        self.counts.from_snapshot += u64::from(report.recovery.snapshot.is_some());
        self.counts.torn += u64::from(report.recovery.torn.is_some());
        self.counts.lost_unacknowledged += (self.steps.len() - changes) as u64;
        self.steps.truncate(changes);
        let mut twin = MetadataTable::default();
        for step in &self.steps {
            step.on_table(&mut twin);
        }
        assert_eq!(store.image().into_records(), twin.image().into_records());
        assert_eq!(report.records, twin.len());
        // What a process has restored is durable before it begins a log.
        self.acknowledged = changes;
        self.durable = changes;
        for _ in 0..steps {
            self.step(&mut store, &mut twin)?;
        }
        Ok(())
    }

    fn step(&mut self, store: &mut SteppedStore, twin: &mut MetadataTable) -> Result<(), JournalError> {
        let step = Step::random(&mut self.rng, twin);
        let before = twin.image().into_records();
        let expected = step.on_table(twin);
        if twin.image().into_records() != before {
            // Also if the next line fails: the change may be in the log.
            self.steps.push(step.clone());
        }
        assert_eq!(step.on_store(&store.store)?, expected, "{step:?}");
        match self.rng.below(12) {
            0..7 => {
                store.commit()?;
                assert_eq!(store.log.unstored(0), None);
                self.acknowledged = self.steps.len();
                if self.sync == SyncMode::Always {
                    self.durable = self.steps.len();
                }
            }
            7 => {
                store.log.writer.sync(store.log.writer.appended())?;
                (self.acknowledged, self.durable) = (self.steps.len(), self.steps.len());
            }
            8 => drop(store.log.writer.prepare_next()),
            9 if self.rng.below(3) == 0 => {
                if store.write_snapshot() {
                    (self.acknowledged, self.durable) = (self.steps.len(), self.steps.len());
                } else {
                    assert!(self.storage.stopped_at().is_some());
                }
            }
            // Several changes are appended before they are stored.
            _ => {}
        }
        Ok(())
    }

    fn crash(&mut self, crash: Crash) {
        if let Some(operation) = self.storage.stopped_at() {
            *self.counts.stops.entry(operation).or_default() += 1;
        }
        self.storage = self.storage.crash(crash);
        if crash == Crash::Power {
            self.acknowledged = self.durable;
        }
    }
}

/// Runs a process until it stops at operation `stop`, and two more. Returns false if it did not
/// stop.
fn run(stop: u64, sync: SyncMode, crash: Crash, counts: &mut CrashCounts) -> bool {
    let storage = SimulatedStorage::new(stop);
    let rng = Rng::new(!stop);
    storage.stop_at(stop);
    let mut run = CrashRun { rng, storage, sync, steps: Vec::new(), acknowledged: 0, durable: 0, counts };
    match run.live(90) {
        Ok(()) => {}
        Err(MetadataJournalError::Journal(JournalError::Storage { .. })) if run.storage.stopped_at().is_some() => {}
        Err(error) => panic!("{sync}, {crash:?} at operation {stop}: {error}"),
    }
    let has_stopped = run.storage.stopped_at().is_some();
    run.crash(crash);
    for next in [Crash::Kill, Crash::Power, Crash::Kill] {
        run.live(10).unwrap_or_else(|error| panic!("{sync}, {crash:?} at operation {stop}: {error}"));
        run.crash(next);
    }
    has_stopped
}

#[test]
fn no_crash_loses_an_acknowledged_write_or_changes_a_decision() {
    let mut counts = CrashCounts::default();
    for sync in [SyncMode::Always, SyncMode::default(), SyncMode::Never] {
        for crash in [Crash::Kill, Crash::Power] {
            let mut stop = 1;
            while run(stop, sync, crash, &mut counts) {
                stop += 1;
            }
            assert!(stop > 40, "{stop} operations");
        }
    }
    println!("{counts:#?}");
    for operation in [
        StorageOperation::Create,
        StorageOperation::Write,
        StorageOperation::Sync,
        StorageOperation::Rename,
        StorageOperation::Remove,
        StorageOperation::SyncDirectory,
    ] {
        assert!(counts.stops.get(&operation).is_some_and(|count| *count > 0), "no stop at {operation}");
    }
    assert!([counts.from_snapshot, counts.torn, counts.lost_unacknowledged].iter().all(|count| *count > 0));
}
