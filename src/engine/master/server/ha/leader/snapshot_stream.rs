//! A snapshot of the leader's state for a standby, taken slice by slice while the leader serves.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::engine::env::Env;
use crate::engine::ha::message::SnapshotEnd;
use crate::engine::master::SnapshotStep;
use crate::engine::master::record::DataFormat;
use crate::engine::master::server::ha::leader::tail::{ChangeTail, TailCursor};
use crate::engine::master::server::shared::{MasterShared, YIELD_PAUSE};

/// Length of the pause after a slice, in units of the slice's duration, and its maximum.
const PAUSE_PER_WORK: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Pause while another snapshot is in progress.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Number of parts that may wait for the connection.
const QUEUE: usize = 16;

/// A part of a snapshot.
pub(in crate::engine::master::server::ha) enum SnapshotPart {
    /// Records. The snapshot contains all changes up to `last`.
    Chunk { last: u64, records: Vec<u8> },
    /// The end, and the cursor for the changes behind it.
    End { last: u64, end: SnapshotEnd, cursor: TailCursor },
}

/// Begins a snapshot of the state that serves in `term`. The parts end early if the term does.
pub(in crate::engine::master::server::ha) fn stream_snapshot<E: Env>(
    shared: Arc<MasterShared<E>>,
    tail: Arc<ChangeTail>,
    term: u64,
    format: DataFormat,
) -> mpsc::Receiver<SnapshotPart> {
    let (parts, receiver) = mpsc::channel(QUEUE);
    // It ends with the receiver.
    drop(tokio::task::spawn_blocking(move || {
        let _ = run(&shared, &tail, term, format, &parts);
    }));
    receiver
}

fn run<E: Env>(
    shared: &MasterShared<E>,
    tail: &Arc<ChangeTail>,
    term: u64,
    format: DataFormat,
    parts: &mpsc::Sender<SnapshotPart>,
) -> Option<()> {
    let (last, cursor) = loop {
        if parts.is_closed() {
            return None;
        }
        let begun = shared.with_guarded(None, |guarded, now, _| {
            if guarded.term != term {
                return Err(());
            }
            // The cursor is set while the state is locked, so no change comes in between.
            Ok(guarded.state.begin_snapshot(now, format).and_then(|last| Some((last, tail.cursor(last)?))))
        });
        match begun.ok()? {
            Some(begun) => break begun,
            None => shared.env.pause_thread(BUSY_PAUSE),
        }
    };
    loop {
        let began = shared.env.now();
        let step = shared.with_guarded(
            None,
            |guarded, _, _| {
                if guarded.term == term { guarded.state.snapshot_slice() } else { None }
            },
        );
        let sent = match step? {
            SnapshotStep::More => Ok(()),
            SnapshotStep::Chunk(records) => parts.blocking_send(SnapshotPart::Chunk { last, records }),
            SnapshotStep::Done(summary) => {
                let end = SnapshotEnd { objects: summary.objects, digest: summary.digest };
                return parts.blocking_send(SnapshotPart::End { last, end, cursor }).ok();
            }
        };
        if sent.is_err() {
            shared.with_guarded(None, |guarded, _, _| {
                if guarded.term == term {
                    guarded.state.cancel_snapshot();
                }
            });
            return None;
        }
        let took = shared.env.now().since(began);
        shared.env.pause_thread((took * PAUSE_PER_WORK).clamp(YIELD_PAUSE, PAUSE_MAX));
    }
}
