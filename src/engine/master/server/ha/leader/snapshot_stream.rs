//! A snapshot of the leader's state for a standby, taken slice by slice while the leader serves.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::SnapshotStep;
use crate::record::DataFormat;
use crate::server::ha::leader::stream_part::{PartSender, StreamPart};
use crate::server::ha::leader::tail::{ChangeTail, TailCursor};
use crate::server::shared::{MasterShared, YIELD_PAUSE};
use mcctl_election::ha::message::SnapshotEnd;
use mcctl_sys::env::{Env, ThreadWork};

/// Length of the pause after a slice, in units of the slice's duration, and its maximum.
const PAUSE_PER_WORK: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_millis(2);
/// Pause while another snapshot is in progress.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// The thread that takes a snapshot of the state that serves in `term`. The parts end early if the
/// term does.
pub(in crate::server::ha) struct SnapshotStream<E: Env> {
    shared: Arc<MasterShared<E>>,
    tail: Arc<ChangeTail>,
    term: u64,
    format: DataFormat,
    parts: PartSender,
    /// The snapshot in progress: its last change, and the cursor after it.
    begun: Option<(u64, TailCursor)>,
    /// The cursor after the snapshot, which is sent after its end.
    cursor: Option<TailCursor>,
}

impl<E: Env> SnapshotStream<E> {
    /// A snapshot that begins with the thread's first step, and its parts.
    pub(crate) fn new(
        shared: Arc<MasterShared<E>>,
        tail: Arc<ChangeTail>,
        term: u64,
        format: DataFormat,
    ) -> (SnapshotStream<E>, mpsc::Receiver<StreamPart>) {
        let (parts, receiver) = PartSender::new();
        (SnapshotStream { shared, tail, term, format, parts, begun: None, cursor: None }, receiver)
    }

    /// Begins the snapshot. Returns false if the term has ended.
    fn begin(&mut self) -> bool {
        let begun = self.shared.with_guarded(|guarded, now, _| {
            if guarded.term != self.term {
                return Err(());
            }
            // The cursor is set while the state is locked, so no change is missing between the two.
            let begun = guarded.state.begin_snapshot(now, self.format);
            Ok(begun.and_then(|last| Some((last, self.tail.cursor(last)?))))
        });
        let Ok(begun) = begun else { return false };
        if begun.is_none() {
            self.shared.env.pause_thread(BUSY_PAUSE);
        }
        self.begun = begun;
        true
    }

    /// Takes the next slice. Returns false if the term has ended.
    fn slice(&mut self) -> bool {
        let env = &self.shared.env;
        let began = env.now();
        let step =
            self.shared.with_guarded(
                |guarded, _, _| {
                    if guarded.term == self.term { guarded.state.snapshot_slice() } else { None }
                },
            );
        let part = match step {
            None => return false,
            Some(SnapshotStep::More) => None,
            Some(SnapshotStep::Chunk(records)) => {
                self.begun.as_ref().map(|(last, _)| StreamPart::Snapshot { last: *last, records })
            }
            Some(SnapshotStep::Done(summary)) => {
                let end = SnapshotEnd { objects: summary.objects, digest: summary.digest };
                self.begun.take().map(|(last, cursor)| {
                    self.cursor = Some(cursor);
                    StreamPart::SnapshotEnd { last, end }
                })
            }
        };
        self.parts.keep(part);
        let took = env.now().since(began);
        if self.begun.is_some() {
            env.pause_thread((took * PAUSE_PER_WORK).clamp(YIELD_PAUSE, PAUSE_MAX));
        }
        true
    }

    /// Sends a part. Returns false after the last one, or if the stream to the standby has ended.
    fn send(&mut self, part: StreamPart, may_wait: bool) -> bool {
        let is_last = matches!(part, StreamPart::Tail(_));
        let sent = self.parts.send(part, may_wait);
        if !sent && self.begun.is_some() {
            self.shared.with_guarded(|guarded, _, _| {
                if guarded.term == self.term {
                    guarded.state.cancel_snapshot();
                }
            });
        }
        sent && !(is_last && self.parts.has_sent())
    }
}

impl<E: Env> ThreadWork for SnapshotStream<E> {
    fn step(&mut self, may_wait: bool) -> bool {
        let part = self.parts.take_unsent().or_else(|| self.cursor.take().map(StreamPart::Tail));
        match part {
            Some(part) => self.send(part, may_wait),
            None if self.begun.is_some() => self.slice(),
            None => !self.parts.is_closed() && self.begin(),
        }
    }
}
