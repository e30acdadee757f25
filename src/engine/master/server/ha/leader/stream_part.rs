//! The parts of a stream before it follows the tail of the changes.

use crate::server::ha::leader::tail::TailCursor;
use mcctl_election::ha::message::SnapshotEnd;

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
