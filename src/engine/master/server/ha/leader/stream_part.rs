//! The parts of a stream before it follows the tail of the changes.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::server::ha::leader::tail::TailCursor;
use mcctl_election::ha::message::SnapshotEnd;

/// Number of parts that may wait for the connection.
const QUEUE: usize = 16;

/// A part of a snapshot or of the log.
pub(in crate::server::ha) enum StreamPart {
    /// Records of a snapshot, which contains all changes up to `last`.
    Snapshot { last: u64, records: Vec<u8> },
    /// The end of a snapshot.
    SnapshotEnd { last: u64, end: SnapshotEnd },
    /// Changes from number `first` on, each with its length, as in a frame.
    Changes { first: u64, changes: Vec<u8> },
    /// The cursor for the following changes. It is the last part.
    Tail(TailCursor),
}

/// Sends parts to the task that owns the connection.
pub(super) struct PartSender {
    parts: mpsc::Sender<StreamPart>,
    /// The part that is sent next.
    unsent: Option<StreamPart>,
}

impl PartSender {
    /// A sender, and the receiver of its parts.
    pub(super) fn new() -> (PartSender, mpsc::Receiver<StreamPart>) {
        let (parts, receiver) = mpsc::channel(QUEUE);
        (PartSender { parts, unsent: None }, receiver)
    }

    /// Keeps a part, which is to be sent next.
    pub(super) fn keep(&mut self, part: Option<StreamPart>) {
        self.unsent = part;
    }

    /// Takes the part that is to be sent next.
    pub(super) fn take_unsent(&mut self) -> Option<StreamPart> {
        self.unsent.take()
    }

    /// Sends a part, or keeps it if the queue has no room and the sender may not wait. Returns
    /// false if the stream to the standby has ended.
    pub(super) fn send(&mut self, part: StreamPart, may_wait: bool) -> bool {
        if may_wait {
            return self.parts.blocking_send(part).is_ok();
        }
        match self.parts.try_send(part) {
            Ok(()) => true,
            Err(TrySendError::Full(part)) => {
                self.unsent = Some(part);
                true
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }

    /// Whether the stream to the standby has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.parts.is_closed()
    }

    /// Whether the last part that was sent is in the queue.
    pub(super) fn has_sent(&self) -> bool {
        self.unsent.is_none()
    }
}
