//! Damaged files: flipped bits, truncations, and writes that a power loss reordered.

use crate::unit_tests::{Entry, RecoveredEntries, SMALL, append, entries, open, recover, snapshot, start};
use crate::{Corruption, Crash, JournalError, JournalStorage, SimulatedStorage};

const FRAME: usize = 94;
const HEADER: usize = 512;
/// Entries in the directory of [`filled`].
const COUNT: u64 = 61;
const NEWEST: &str = "snapshot-00000000000000000040";
const OLDER: &str = "snapshot-00000000000000000020";

/// A directory with snapshots after the frames 20 and 40, and 16 frames in each of the log files
/// 2 to 4. The frames 41 to 60 are after the newest snapshot, and frame 61 proves that they were
/// durable.
fn filled(crash: Crash) -> SimulatedStorage {
    let storage = SimulatedStorage::new(6);
    let (dir, log, _) = start(&storage, SMALL);
    for count in [20, 20, 20, 1] {
        let entries = append(&log, count);
        log.sync(entries.len() as u64).unwrap();
        if entries.len() <= 40 {
            snapshot(&dir, &log, &entries, 4).unwrap();
        }
    }
    let storage = storage.crash(crash);
    assert_eq!(read(&storage).unwrap().entries, entries(COUNT));
    storage
}

fn read(storage: &SimulatedStorage) -> Result<RecoveredEntries, JournalError> {
    recover(&open(storage)?)
}

/// The offset of a frame in its file.
fn offset_of(sequence: usize) -> usize {
    HEADER + (sequence - 1) % 16 * FRAME
}

fn log_name(number: usize) -> String {
    format!("log-{number:010}")
}

/// Reads the directory with other contents of a file, and restores them.
fn with(
    storage: &SimulatedStorage,
    name: &str,
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<RecoveredEntries, JournalError> {
    let whole = storage.contents(name).unwrap();
    let mut changed = whole.clone();
    change(&mut changed);
    storage.damage(name, changed);
    let result = read(storage);
    storage.damage(name, whole);
    result
}

fn position(error: JournalError) -> (String, usize, Corruption) {
    match error {
        JournalError::Corrupt { file, offset, what } => (file, usize::try_from(offset).unwrap(), what),
        other => panic!("{other}"),
    }
}

#[test]
fn a_damaged_newest_snapshot_is_replaced_by_the_older_one_and_the_log() {
    let storage = filled(Crash::Power);
    let check = |result: Result<RecoveredEntries, JournalError>, at: usize| {
        let found = result.unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!((found.entries, found.report.records), (entries(COUNT), 41), "{at}");
        assert_eq!(found.report.snapshot.map(|snapshot| snapshot.sequence), Some(20), "{at}");
        let [(40, error)] = &found.report.damaged_snapshots[..] else { panic!("{at}") };
        let (file, offset, _) = position(error.clone());
        assert!(file == NEWEST && offset <= at, "{at}: {error}");
    };
    let size = storage.contents(NEWEST).unwrap().len();
    for at in 0..size {
        check(with(&storage, NEWEST, |bytes| bytes[at] ^= 1 << (at % 8)), at);
    }
    for at in (0..size).step_by(7).chain(size - 40..size) {
        check(with(&storage, NEWEST, |bytes| bytes.truncate(at)), at);
    }
    check(with(&storage, NEWEST, |bytes| bytes.push(0)), size);
}

#[test]
fn damage_in_the_older_snapshot_is_harmless() {
    let storage = filled(Crash::Power);
    for at in (0..storage.contents(OLDER).unwrap().len()).step_by(11) {
        assert_eq!(with(&storage, OLDER, |bytes| bytes[at] ^= 1).unwrap().entries, entries(COUNT), "{at}");
    }
}

#[test]
fn two_damaged_snapshots_are_an_error_that_names_the_newest() {
    let storage = filled(Crash::Power);
    let older = storage.contents(OLDER).unwrap();
    storage.damage(OLDER, older[..older.len() - 1].to_vec());
    let error = with(&storage, NEWEST, |bytes| bytes[600] ^= 1).err().unwrap();
    assert_eq!(position(error), (NEWEST.to_owned(), HEADER, Corruption::Chunk { index: 0 }));
}

#[test]
fn a_log_that_does_not_reach_a_damaged_snapshot_is_an_error() {
    let storage = filled(Crash::Power);
    for number in [3, 4] {
        storage.remove(&log_name(number)).unwrap();
    }
    assert_eq!(read(&storage).unwrap().entries, entries(40), "the snapshot is complete");
    let error = with(&storage, NEWEST, |bytes| bytes[600] ^= 1).err().unwrap();
    assert_eq!(position(error).0, NEWEST);
}

#[test]
fn a_flipped_bit_of_the_log_is_skipped_cut_or_reported_with_its_position() {
    for crash in [Crash::Kill, Crash::Power] {
        let storage = filled(crash);
        for number in 2..=4 {
            let name = log_name(number);
            for at in 0..2048 {
                let result = with(&storage, &name, |bytes| bytes[at] ^= 1 << (at % 8));
                check_flip(result, number, at, crash);
            }
        }
    }
}

/// Checks the result of a flipped bit at an offset of a log file of [`filled`].
fn check_flip(result: Result<RecoveredEntries, JournalError>, number: usize, at: usize, crash: Crash) {
    let frame = (number - 1) * 16 + 1 + at.saturating_sub(HEADER) / FRAME;
    let is_needed = number == 4 || (number == 3 && (at < HEADER || frame > 40));
    if number == 4 && (offset_of(61)..offset_of(61) + FRAME).contains(&at) && crash == Crash::Kill {
        let (file, offset, what) = position(result.map(|found| found.entries.len()).unwrap_err());
        let expected = (log_name(4), offset_of(61), Corruption::LostEnd { last: 60, flushed: 61 });
        assert_eq!((file, offset, what), expected, "{at}");
    } else if number == 4 && at >= offset_of(61) {
        // Nothing valid follows, so the end is cut.
        let found = result.unwrap_or_else(|error| panic!("{at}: {error}"));
        let expected = if at < offset_of(61) + FRAME { 60 } else { 61 };
        assert_eq!(found.entries, entries(expected), "{at}");
        let torn = found.report.torn.unwrap_or_else(|| panic!("{at}"));
        assert_eq!((&*torn.file, torn.offset), (&*log_name(4), offset_of(61) as u64 + 94 * (expected - 60)), "{at}");
    } else if is_needed {
        let (file, offset, what) = position(result.map(|found| found.entries.len()).unwrap_err());
        assert_eq!(file, log_name(number), "{at}: {what}");
        let expected = if at < HEADER { 0 } else { HEADER + (at - HEADER) / FRAME * FRAME };
        assert_eq!(offset, expected, "{at}: {what}");
    } else {
        assert_eq!(result.map(|found| found.entries).unwrap(), entries(COUNT), "{number} {at}");
    }
}

#[test]
fn a_truncated_log_file_is_an_error_if_it_is_needed() {
    let storage = filled(Crash::Power);
    for number in 2..=4 {
        for at in (0..2048).step_by(13).chain([511, 512, 513, 2047]) {
            let result = with(&storage, &log_name(number), |bytes| bytes.truncate(at));
            if number == 2 {
                assert_eq!(result.unwrap().entries, entries(COUNT), "{at}");
                continue;
            }
            let (file, offset, _) = position(result.map(|found| found.entries.len()).unwrap_err());
            assert_eq!((file, offset), (log_name(number), if at < HEADER { 0 } else { at }), "{at}");
        }
    }
}

#[test]
fn exchanged_or_foreign_files_are_refused() {
    let storage = filled(Crash::Power);
    let other = storage.contents(&log_name(3)).unwrap();
    let error = with(&storage, &log_name(4), |bytes| *bytes = other).err().unwrap();
    assert_eq!(position(error), (log_name(4), 108, Corruption::FileNumber { found: 3 }));
    let older = storage.contents(OLDER).unwrap();
    let found = with(&storage, NEWEST, |bytes| *bytes = older).unwrap();
    assert_eq!((found.entries, found.report.damaged_snapshots.len()), (entries(COUNT), 1));
}

/// A log with five frames, of which only the first two were synced. Frame 4 is lost.
fn with_lost_frame(crash: Crash) -> SimulatedStorage {
    let storage = SimulatedStorage::new(8);
    let (_dir, log, _) = start(&storage, SMALL);
    append(&log, 2);
    log.sync(2).unwrap();
    append(&log, 3);
    log.flush(5).unwrap();
    let mut bytes = storage.contents(&log_name(1)).unwrap();
    bytes[offset_of(4)..offset_of(5)].fill(0);
    // As if the disk had written frames 3 and 5, and not frame 4.
    storage.damage(&log_name(1), bytes);
    storage.crash(crash)
}

#[test]
fn a_reordered_write_is_a_torn_tail_only_after_a_power_loss() {
    let file = log_name(1);
    let offset = offset_of(4);
    let error = read(&with_lost_frame(Crash::Kill)).err().unwrap();
    assert_eq!(position(error), (file.clone(), offset, Corruption::Frame { expected: 4, next: 5 }));

    let storage = with_lost_frame(Crash::Power);
    let (_dir, log, found) = start(&storage, SMALL);
    assert_eq!(found, entries(3));
    let torn = read(&with_lost_frame(Crash::Power)).unwrap().report.torn.unwrap();
    assert_eq!((torn.file, torn.offset, torn.bytes), (file, offset as u64, 2 * FRAME as u64));
    let (payload, at): Entry = (b"another fourth entry".to_vec(), found[0].1);
    log.append(&payload, at).unwrap();
    log.sync(4).unwrap();
    let expected = [&found[..], &[(payload, at)]].concat();
    let found = read(&storage.crash(Crash::Power)).unwrap();
    assert_eq!((found.entries, found.report.torn), (expected, None), "the old tail is ignored");
}

#[test]
fn a_frame_that_was_durable_is_corrupt_even_after_a_power_loss() {
    let storage = with_lost_frame(Crash::Power);
    let error = with(&storage, &log_name(1), |bytes| bytes[offset_of(2) + 40] ^= 1).err().unwrap();
    assert_eq!(position(error), (log_name(1), offset_of(2), Corruption::Frame { expected: 2, next: 3 }));
}
