//! Random use of a data directory with crashes at random operations, compared with a list of
//! promised changes.

use std::collections::BTreeMap;

use crate::unit_tests::{Entry, RecoveredEntries, SMALL, encode, open, recover, summary};
use crate::{
    Crash, DataDir, DiskFault, JournalError, JournalStorage, LogConfig, LogWriter, SimulatedStorage, StorageOperation,
};
use mcctl_base::{Rng, Unix};

const ENOSPC: i32 = 28;
const ERRORS: [i32; 4] = [ENOSPC, 5, 30, 13];
const FAULTS: [StorageOperation; 7] = [
    StorageOperation::Create,
    StorageOperation::Write,
    StorageOperation::Sync,
    StorageOperation::Rename,
    StorageOperation::Remove,
    StorageOperation::SyncDirectory,
    StorageOperation::Open,
];

/// A promise that was not kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenPromise {
    #[error("{promised} entries were promised, and {recovered} were recovered")]
    Lost { promised: u64, recovered: u64 },
    #[error("entry {sequence} has other bytes than the appended one, or was never appended")]
    Different { sequence: u64 },
    #[error("there is a gap before entry {sequence}")]
    Gap { sequence: u64 },
    #[error("the summary of a snapshot is not that of its entries")]
    Summary,
    #[error("the disk is not damaged, and a snapshot is: {0}")]
    DamagedSnapshot(JournalError),
    #[error("the disk is not damaged, and the data is refused: {0}")]
    Refused(JournalError),
    #[error("one snapshot is damaged, and the other one and the log do not replace it: {0}")]
    NotReplaced(JournalError),
    #[error("the disk is damaged, and the error has no position: {0}")]
    NoPosition(JournalError),
}

/// The end of a process.
enum End {
    Error,
    Broken(BrokenPromise),
}

impl From<JournalError> for End {
    fn from(error: JournalError) -> End {
        match error {
            JournalError::Storage { .. } | JournalError::LogFull { .. } => End::Error,
            other => End::Broken(BrokenPromise::Refused(other)),
        }
    }
}

impl From<BrokenPromise> for End {
    fn from(broken: BrokenPromise) -> End {
        End::Broken(broken)
    }
}

/// Counters of events in all runs.
#[derive(Default, Debug)]
pub(super) struct CrashCounts {
    pub stops: BTreeMap<StorageOperation, u64>,
    pub faults: BTreeMap<StorageOperation, u64>,
    pub kills: u64,
    pub power_losses: u64,
    pub torn: u64,
    pub from_snapshot: u64,
    pub entries_recovered: u64,
    pub unpromised_recovered: u64,
    pub damaged_recovered: u64,
    pub damaged_refused: u64,
}

/// A directory, and the changes that its processes have promised to keep.
pub(super) struct CrashRun<'a> {
    rng: Rng,
    storage: SimulatedStorage,
    /// Everything that was appended and not lost.
    history: Vec<Entry>,
    /// The number of entries that survive a killed process, and a power loss.
    flushed: u64,
    durable: u64,
    /// The number of entries that the running kernel or a log file states to be stored. If the end
    /// of the log is damaged, they are recovered, or the directory is refused.
    stated: u64,
    counts: &'a mut CrashCounts,
}

/// Runs processes until `lives` of them have crashed, and then damages the disk.
pub(super) fn run(seed: u64, lives: u32, counts: &mut CrashCounts) -> Result<(), BrokenPromise> {
    let rng = Rng::new(!seed);
    let storage = SimulatedStorage::new(seed);
    let mut run = CrashRun { rng, storage, history: Vec::new(), flushed: 0, durable: 0, stated: 0, counts };
    for _ in 0..lives {
        let count: u64 = run.storage.operations().values().sum();
        run.storage.stop_at(count + 1 + run.rng.below(150) as u64);
        run.life()?;
        run.crash();
    }
    run.damage()
}

impl CrashRun<'_> {
    fn chance(&mut self, one_in: usize) -> bool {
        self.rng.below(one_in) == 0
    }

    /// Runs one process until it stops, fails or is killed.
    fn life(&mut self) -> Result<(), BrokenPromise> {
        match self.work() {
            Ok(()) | Err(End::Error) => Ok(()),
            Err(End::Broken(broken)) => Err(broken),
        }
    }

    fn crash(&mut self) {
        if let Some(operation) = self.storage.stopped_at() {
            *self.counts.stops.entry(operation).or_default() += 1;
        }
        let crash = if self.chance(2) { Crash::Kill } else { Crash::Power };
        self.storage = self.storage.crash(crash);
        match crash {
            Crash::Kill => self.counts.kills += 1,
            Crash::Power => {
                self.counts.power_losses += 1;
                self.flushed = self.durable;
                self.stated = 0;
            }
        }
    }

    fn work(&mut self) -> Result<(), End> {
        self.maybe_fault(20);
        let mut dir = open(&self.storage)?;
        let recovered = recover(&dir)?;
        let report = &recovered.report;
        if let Some((_, error)) = report.damaged_snapshots.first() {
            return Err(BrokenPromise::DamagedSnapshot(error.clone()).into());
        }
        self.counts.torn += u64::from(report.torn.is_some());
        self.counts.from_snapshot += u64::from(report.snapshot.is_some());
        self.check(&recovered, self.flushed)?;
        if let Some(snapshot) = report.snapshot {
            let entries = &recovered.entries[..usize::try_from(snapshot.sequence).unwrap()];
            if snapshot.summary != summary(entries) {
                return Err(BrokenPromise::Summary.into());
            }
        }
        self.counts.entries_recovered += recovered.entries.len() as u64;
        self.counts.unpromised_recovered += recovered.entries.len() as u64 - self.flushed;
        self.history.truncate(recovered.entries.len());
        self.flushed = self.history.len() as u64;
        let file_bytes = 1024 + 512 * self.rng.below(6) as u64;
        let log = dir.start_log(report, LogConfig { file_bytes, ..SMALL })?;
        (self.durable, self.stated) = (self.flushed, self.flushed);
        for _ in 0..self.rng.below(120) {
            self.step(&dir, &log)?;
        }
        Ok(())
    }

    fn step(&mut self, dir: &DataDir, log: &LogWriter) -> Result<(), End> {
        match self.rng.below(100) {
            0..50 => self.append(log)?,
            50..75 => self.flush(log)?,
            75..84 => self.sync(log)?,
            84..94 => {
                if log.needs_next() || self.chance(4) {
                    self.prepare_next(log)?;
                }
            }
            94..98 => self.snapshot(dir, log)?,
            _ => self.maybe_fault(8),
        }
        Ok(())
    }

    fn append(&mut self, log: &LogWriter) -> Result<(), End> {
        for _ in 0..1 + self.rng.below(3) {
            let limit = if self.chance(10) { log.payload_bytes_max() } else { 120 };
            let byte = self.rng.next().to_le_bytes()[0];
            let entry = (vec![byte; self.rng.below(limit + 1)], Unix(self.rng.next().cast_signed() >> 20));
            let sequence = log.append(&entry.0, entry.1)?;
            self.history.push(entry);
            assert_eq!(sequence, self.history.len() as u64);
        }
        Ok(())
    }

    fn flush(&mut self, log: &LogWriter) -> Result<(), End> {
        let flushed = log.flush(log.appended())?;
        assert!(flushed >= self.flushed && flushed <= log.appended());
        self.flushed = flushed;
        self.stated = flushed;
        Ok(())
    }

    fn sync(&mut self, log: &LogWriter) -> Result<(), End> {
        self.durable = log.sync(log.appended())?;
        self.flushed = log.flushed();
        self.stated = self.flushed;
        assert_eq!(self.durable, self.history.len() as u64);
        Ok(())
    }

    /// A full disk is not the end of a process while the current file has room.
    fn prepare_next(&mut self, log: &LogWriter) -> Result<(), End> {
        match log.prepare_next() {
            Err(JournalError::Storage { cause, .. }) if cause.raw_os_error() == Some(ENOSPC) => {
                self.storage.set_fault(None);
                Ok(())
            }
            result => result.map_err(End::from),
        }
    }

    /// Writes a snapshot, while entries are appended.
    fn snapshot(&mut self, dir: &DataDir, log: &LogWriter) -> Result<(), End> {
        let entries = self.history.clone();
        let mut snapshot = dir.begin_snapshot(entries.len() as u64, Unix(5))?;
        for chunk in entries.chunks(1 + self.rng.below(20)) {
            snapshot.chunk(1, &encode(chunk))?;
            match self.rng.below(10) {
                0 => self.append(log)?,
                1 => self.flush(log)?,
                _ => {}
            }
        }
        dir.publish_snapshot(snapshot, summary(&entries), log)?;
        self.durable = self.durable.max(entries.len() as u64);
        self.flushed = self.flushed.max(self.durable);
        self.stated = self.flushed;
        Ok(())
    }

    fn maybe_fault(&mut self, one_in: usize) {
        if self.chance(one_in) {
            let operation = FAULTS[self.rng.below(FAULTS.len())];
            let after = self.rng.below(12) as u64;
            let errno = ERRORS[self.rng.below(ERRORS.len())];
            self.storage.set_fault(Some(DiskFault { operation, after, errno, is_permanent: self.rng.below(2) == 0 }));
            *self.counts.faults.entry(operation).or_default() += 1;
        }
    }

    /// Compares the recovered entries with the appended ones, of which the first `promised` must be
    /// present.
    fn check(&self, found: &RecoveredEntries, promised: u64) -> Result<(), BrokenPromise> {
        let recovered = &found.entries;
        if let Some(sequence) = found.gap {
            return Err(BrokenPromise::Gap { sequence });
        }
        if (recovered.len() as u64) < promised {
            return Err(BrokenPromise::Lost { promised, recovered: recovered.len() as u64 });
        }
        let is_same = |index: &usize| self.history.get(*index) == Some(&recovered[*index]);
        match (0..recovered.len()).find(|index| !is_same(index)) {
            Some(index) => Err(BrokenPromise::Different { sequence: index as u64 + 1 }),
            None => Ok(()),
        }
    }

    /// Damages one file. If it is a snapshot, everything is recovered. Otherwise everything is
    /// recovered, or an error names the file and the offset. Only the end of the log may be missing
    /// if a log file was damaged, because damage there looks like a torn write. It contains nothing
    /// that is stated to be stored.
    fn damage(&mut self) -> Result<(), BrokenPromise> {
        let before = open(&self.storage).and_then(|dir| recover(&dir)).map_err(BrokenPromise::Refused)?;
        self.check(&before, self.flushed)?;
        let names = self.storage.list().unwrap();
        let snapshots: Vec<&String> = names.iter().filter(|name| name.starts_with("snapshot-")).collect();
        let name = match snapshots.last() {
            Some(newest) if self.chance(2) => (*newest).clone(),
            _ => names[self.rng.below(names.len())].clone(),
        };
        let mut bytes = self.storage.contents(&name).unwrap();
        if bytes.is_empty() {
            return Ok(());
        }
        let kind = self.rng.below(5);
        match kind {
            4 => {
                let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
                let count = self.rng.below(end.min(300) + 1);
                bytes[end - count..end].fill(0);
            }
            0 => bytes.truncate(self.rng.below(bytes.len())),
            1 if name.starts_with("snapshot-") => {
                let ends = chunk_ends(&bytes);
                bytes.truncate(ends[self.rng.below(ends.len())]);
            }
            2 => {
                let at = self.rng.below(bytes.len());
                bytes[at..].iter_mut().take(200).for_each(|byte| *byte = self.rng.next().to_le_bytes()[0]);
            }
            _ => {
                let at = self.rng.below(bytes.len());
                bytes[at] ^= 1 << self.rng.below(8);
            }
        }
        self.storage.damage(&name, bytes);
        match open(&self.storage).and_then(|dir| recover(&dir)) {
            Ok(found) => {
                let is_log = name.starts_with("log-");
                let may_be_cut = is_log && (kind == 4 || found.report.torn.is_some());
                let promised = if may_be_cut { self.stated } else { before.entries.len() as u64 };
                self.counts.damaged_recovered += 1;
                self.check(&found, promised)
            }
            Err(error) if name.starts_with("snapshot-") => Err(BrokenPromise::NotReplaced(error)),
            Err(JournalError::Corrupt { file, .. } | JournalError::UnknownFormat { file, .. }) if !file.is_empty() => {
                self.counts.damaged_refused += 1;
                Ok(())
            }
            Err(error) => Err(BrokenPromise::NoPosition(error)),
        }
    }
}

/// The offsets in a snapshot at which a chunk ends, without the last one.
fn chunk_ends(bytes: &[u8]) -> Vec<usize> {
    let mut ends = vec![512];
    let mut at = 512;
    while at + 9 < bytes.len() {
        at += 9 + u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
        ends.push(at);
    }
    ends.pop();
    ends
}

#[test]
fn no_crash_loses_what_was_promised() {
    let mut counts = CrashCounts::default();
    for seed in 0..500 {
        if let Err(broken) = run(seed, 8, &mut counts) {
            panic!("seed {seed}: {broken}");
        }
    }
    println!("{counts:#?}");
    // Opening a file changes nothing on the disk.
    for operation in FAULTS.into_iter().filter(|operation| *operation != StorageOperation::Open) {
        assert!(counts.stops.get(&operation).is_some_and(|count| *count > 0), "no stop at {operation}");
        assert!(counts.faults.get(&operation).is_some_and(|count| *count > 0), "no fault at {operation}");
    }
    let CrashCounts { kills, power_losses, torn, from_snapshot, unpromised_recovered, .. } = counts;
    assert!([kills, power_losses, torn, from_snapshot, unpromised_recovered].iter().all(|count| *count > 0));
    assert!(counts.damaged_recovered > 0 && counts.damaged_refused > 0);
}
