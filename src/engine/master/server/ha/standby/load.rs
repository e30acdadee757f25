//! A leader's snapshot that a standby has received.

use crate::apply::StandbyState;
use mcctl_base::Mono;
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

/// Compares a snapshot with the digest at its end, and prepares it to follow the leader at `now`.
/// Both take long.
pub(in crate::server::ha) fn check_snapshot(
    mut snapshot: Box<StandbyState>,
    end: SnapshotEnd,
    stream: u64,
    last: u64,
    now: Mono,
) -> CheckedSnapshot {
    let mut is_intact = snapshot.objects() == end.objects && snapshot.snapshot_digest() == end.digest;
    if is_intact && let Err(error) = snapshot.follow(now) {
        tracing::error!(%error, "the snapshot cannot be used");
        is_intact = false;
    }
    CheckedSnapshot { stream, last, objects: end.objects, snapshot: is_intact.then_some(snapshot) }
}
