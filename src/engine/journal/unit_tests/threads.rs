//! A log on a real file system, used by several threads at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::unit_tests::options;
use crate::{DataDir, DiskStorage, JournalError, LogConfig, RecoveredItem, Uuid};
use mcctl_base::Unix;

const THREADS: u64 = 4;
const FRAMES: u64 = 400;

#[test]
fn threads_append_flush_and_sync_at_the_same_time() {
    let root = tempfile::tempdir().unwrap();
    let new = || DataDir::open(Arc::new(DiskStorage::open(root.path()).unwrap()), &options(Uuid(1))).unwrap();
    let mut dir = new();
    let ignore = |_: RecoveredItem<'_>| Ok::<(), JournalError>(());
    let report = dir.recover(ignore).unwrap();
    let config = LogConfig { file_bytes: 16 << 10, ..LogConfig::default() };
    let log = dir.start_log(&report, config).unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let log = &log;
                    move || {
                        (0..FRAMES).for_each(|number| {
                            let payload = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                            let sequence = log.append(&payload, Unix(1)).unwrap();
                            while log.flush(sequence).unwrap() < sequence {
                                log.prepare_next().unwrap();
                            }
                        })
                    }
                })
            })
            .collect();
        let background = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                if log.needs_next() {
                    log.prepare_next().unwrap();
                }
                let durable = log.sync(log.appended()).unwrap();
                assert!(durable <= log.flushed());
                let mut snapshot = dir.begin_snapshot(durable, Unix(2)).unwrap();
                snapshot.chunk(3, b"all").unwrap();
                let summary = crate::SnapshotTrailer { items: durable, digest: 9 };
                dir.publish_snapshot(snapshot, summary, &log).unwrap();
            }
        });
        for worker in workers {
            worker.join().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        background.join().unwrap();
    });
    assert_eq!((log.appended(), log.flushed()), (THREADS * FRAMES, THREADS * FRAMES));
    drop((dir, log));

    let mut next = [None; 4];
    let mut first = None;
    let report = new()
        .recover(|item| {
            if let RecoveredItem::Record { sequence, payload, .. } = item {
                first.get_or_insert(sequence);
                let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
                let last = next[usize::try_from(word(0)).unwrap()].replace(word(8));
                assert!(last.is_none_or(|last: u64| last + 1 == word(8)), "{sequence}");
            }
            Ok::<(), JournalError>(())
        })
        .unwrap();
    let snapshot = report.snapshot.unwrap();
    assert_eq!((snapshot.chunks, snapshot.summary.items), (1, snapshot.sequence));
    assert_eq!((report.last_sequence, report.torn), (THREADS * FRAMES, None));
    assert_eq!(report.records, THREADS * FRAMES - snapshot.sequence);
    assert!(first.is_none_or(|first| first == snapshot.sequence + 1));
}
