//! A leader's snapshot that a standby has received.

use crate::apply::StandbyState;
use mcctl_election::ha::message::SnapshotEnd;

/// A snapshot of the leader that was compared with its digest.
pub(in crate::server::ha) struct CheckedSnapshot {
    /// The number of the stream over which it came.
    pub stream: u64,
    /// The last change that it contains.
    pub last: u64,
    pub objects: u64,
    /// `None`: it differs from the leader's state.
    pub snapshot: Option<Box<StandbyState>>,
}

/// Compares a snapshot with the digest at its end. Computing the digest takes long.
pub(in crate::server::ha) fn check_snapshot(
    snapshot: Box<StandbyState>,
    end: SnapshotEnd,
    stream: u64,
    last: u64,
) -> CheckedSnapshot {
    let is_intact = snapshot.objects() == end.objects && snapshot.snapshot_digest() == end.digest;
    CheckedSnapshot { stream, last, objects: end.objects, snapshot: is_intact.then_some(snapshot) }
}
