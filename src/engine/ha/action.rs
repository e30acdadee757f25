//! The actions that the core requires of its caller, and the messages between masters.

use std::time::Duration;

use crate::engine::ha::member::{MemberId, MemberInfo};
use crate::engine::ha::record::{ElectionTxn, SyncTxn};

/// An action of the caller. Its result, if it has one, is the [`HaEvent`](super::HaEvent) that is named here. Results
/// may come in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HaAction {
    /// Grant a lease: `LeaseGranted`.
    GrantLease,
    /// Renew this lease: `LeaseRenewed`.
    RenewLease(i64),
    /// Revoke this lease, and so delete the key if it belongs to it. No result.
    RevokeLease(i64),
    /// Read both keys: `Observed`.
    Observe,
    /// Perform this transaction: `Elected`.
    Elect(ElectionTxn),
    /// Perform this transaction: `SyncWritten`.
    WriteSync(SyncTxn),
    /// Delete the leader's key, if it has this view and address: `KeyDeleted`.
    DeleteKey { view: u64, address: String },
    /// Follow this leader's changes, or none.
    Follow(Option<MemberInfo>),
    /// Send a message over the stream to this member.
    Send(MemberId, HaMessage),
    /// Make the copy ready to serve, without answering: `Prepared`. If `lossy`, acknowledged changes may be missing.
    Prepare { lossy: bool },
    /// Discard the copy that was made ready, and take a new ID: `Reset`.
    Discard(DiscardReason),
    /// Serve as the leader of this view.
    Serve { view: u64 },
    /// Stop answering, discard the state, and take a new ID: `Reset`.
    StopServing(StopReason),
    /// Hold requests that change something back (`true`), and then report `ChangesHeld`, or let them proceed.
    HoldChanges(bool),
    /// Forward all requests to this leader, which has taken over.
    Forward(MemberId),
}

/// Why a standby discards its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscardReason {
    #[error("the copy is damaged")]
    Damaged,
    #[error("the leader's address differs from the one in the sync record")]
    UnknownLeader,
    #[error("another master was elected, and this copy may lack changes")]
    Outdated,
    #[error("another running master has the same ID, so one of the data directories is a copy of the other")]
    SameId,
}

/// Why a leader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Another master was elected.
    Superseded,
}

/// A message between a leader and a standby, other than changes and snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaMessage {
    /// Leader: sent at `stamp` on its clock. The standby must not stand for election for `promise`. `last` is the
    /// leader's last change.
    Ping { stamp: u64, promise: Duration, last: u64 },
    /// Standby: acknowledges all changes up to `applied`. It has applied them, or does so before it handles another event.
    /// `echo` is the stamp of the last ping whose promise it keeps.
    /// At `key_seen`, on the leader's clock, or later, it found the leader's key in etcd.
    Ack { applied: u64, echo: Option<u64>, key_seen: Option<u64> },
    /// Leader: take over after you have applied change `last`, which is the last one.
    TakeOver { last: u64 },
    /// Standby: ready to serve.
    Ready,
    /// Leader: does not answer any more; the key is deleted.
    Released,
    /// Leader: keeps leading; the hand-over is cancelled.
    Cancel,
    /// Standby: created the expired key again, with the leader's address. Both records have this revision.
    Recreated { revision: u64 },
    /// Standby: its process is about to end. Responses need not wait for it once a sync record without it is written.
    Leave,
}
