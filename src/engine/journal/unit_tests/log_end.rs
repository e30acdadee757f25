//! The end of the log: the effect of a kill, and damage.

use std::sync::Arc;

use crate::unit_tests::{SMALL, append, entries, open, options, recover, start};
use crate::{Corruption, Crash, DataDir, JournalError, JournalStorage, LogConfig, SimulatedStorage, Uuid};

const FRAME: usize = 94;
const HEADER: usize = 512;

fn log_name(number: usize) -> String {
    format!("log-{number:010}")
}

/// Twenty entries in two files, of which ten were synced.
fn filled(crash: Crash) -> SimulatedStorage {
    let storage = SimulatedStorage::new(5);
    let (_dir, log, _) = start(&storage, SMALL);
    append(&log, 10);
    log.sync(10).unwrap();
    log.prepare_next().unwrap();
    append(&log, 10);
    log.flush(20).unwrap();
    storage.crash(crash)
}

/// Changes the bytes of the frames in the second file, and reads the directory. The result is the
/// number of entries, or the position of the damage.
fn read_with(storage: &SimulatedStorage, change: impl FnOnce(&mut [u8])) -> Result<usize, (String, u64, Corruption)> {
    let whole = storage.contents(&log_name(2)).unwrap();
    let mut bytes = whole.clone();
    change(&mut bytes[HEADER..HEADER + 4 * FRAME]);
    storage.damage(&log_name(2), bytes);
    let result = open(storage).and_then(|dir| recover(&dir));
    storage.damage(&log_name(2), whole);
    match result {
        Ok(found) => Ok(found.entries.len()),
        Err(JournalError::Corrupt { file, offset, what }) => Err((file, offset, what)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_zeroed_or_flipped_end_is_damage_under_the_same_kernel() {
    let storage = filled(Crash::Kill);
    assert_eq!(read_with(&storage, |_| {}), Ok(20));
    let refused = |last: usize| {
        let offset = HEADER + (last - 16) * FRAME;
        let what = Corruption::LostEnd { last: last as u64, flushed: 20 };
        Err((log_name(2), offset as u64, what))
    };
    let end_of_first = (log_name(1), (HEADER + 16 * FRAME) as u64, Corruption::LostEnd { last: 16, flushed: 20 });
    for zeroed in 1..=4 * FRAME {
        let found = read_with(&storage, |frames| {
            let begin = frames.len() - zeroed;
            frames[begin..].fill(0);
        });
        let is_empty = zeroed == 4 * FRAME;
        let expected = if is_empty { Err(end_of_first.clone()) } else { refused(20 - zeroed.div_ceil(FRAME)) };
        assert_eq!(found, expected, "{zeroed}");
    }
    for bit in 0..FRAME * 8 {
        let found = read_with(&storage, |frames| frames[3 * FRAME + bit / 8] ^= 1 << (bit % 8));
        assert_eq!(found, refused(19), "{bit}");
    }
    storage.remove(&log_name(2)).unwrap();
    match open(&storage).and_then(|dir| recover(&dir)).err() {
        Some(JournalError::Corrupt { file, offset, what }) => {
            assert_eq!((file, offset, what), end_of_first, "a file that was removed");
        }
        other => panic!("{:?}", other.map(|error| error.to_string())),
    }
}

#[test]
fn the_end_is_not_required_after_a_host_restart_or_without_the_mark() {
    let zero = |frames: &mut [u8]| frames.fill(0);
    let storage = filled(Crash::Kill);
    let whole = storage.contents(&log_name(2)).unwrap();
    let mut bytes = whole.clone();
    zero(&mut bytes[HEADER..]);
    storage.damage(&log_name(2), bytes);
    let dir = DataDir::open(Arc::new(storage.clone()), &options(Uuid(99))).unwrap();
    assert_eq!(recover(&dir).unwrap().entries, entries(16), "another kernel");
    storage.damage(&log_name(2), whole);

    // The directory of an earlier release.
    storage.remove("flushed").unwrap();
    assert_eq!(read_with(&storage, zero), Ok(16));
}

#[test]
fn a_kill_at_any_operation_leaves_a_directory_that_starts() {
    let mut stops = 0;
    for (seed, stop) in (0..8).flat_map(|seed| (1..90).map(move |stop| (seed, stop))) {
        let storage = SimulatedStorage::new(seed);
        storage.stop_at(stop);
        let mut flushed = 0;
        let work = |flushed: &mut u64| -> Result<(), JournalError> {
            let mut dir = open(&storage)?;
            let log = dir.start_log(&recover(&dir)?.report, LogConfig { file_bytes: 1024, ..SMALL })?;
            for count in [1, 3, 2, 5, 1, 4, 2, 7] {
                append(&log, count);
                while log.flush(log.appended())? < log.appended() {
                    *flushed = log.flushed();
                    log.prepare_next()?;
                }
                *flushed = log.flushed();
            }
            Ok(())
        };
        let is_stopped = work(&mut flushed).is_err();
        stops += u64::from(is_stopped);
        let storage = storage.crash(Crash::Kill);
        let (_dir, log, found) = start(&storage, SMALL);
        assert!(found.len() as u64 >= flushed, "seed {seed}, stop {stop}: {} of {flushed}", found.len());
        assert_eq!(found, entries(found.len() as u64), "seed {seed}, stop {stop}");
        // The mark of the process before does not require the end that this one has ignored.
        append(&log, 2);
        log.flush(found.len() as u64 + 2).unwrap();
        let again = recover(&open(&storage.crash(Crash::Kill)).unwrap()).unwrap().entries;
        assert_eq!(again.len(), found.len() + 2, "seed {seed}, stop {stop}");
    }
    assert!(stops > 300, "{stops}");
}

#[test]
fn an_emptied_directory_does_not_require_the_end_of_the_log_before() {
    let storage = filled(Crash::Kill);
    let dir = open(&storage).unwrap().reopen_empty(Uuid(5)).unwrap();
    assert!(storage.contents("flushed").is_none());
    assert_eq!(recover(&dir).unwrap().entries, []);
    drop(dir);
    // A release without the mark has left it there.
    storage.create("flushed", 0).unwrap().write_at(0, &filled(Crash::Kill).contents("flushed").unwrap()).unwrap();
    assert_eq!(recover(&open(&storage).unwrap()).unwrap().entries, []);
}
