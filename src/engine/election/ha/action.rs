//! The actions that the core requires of its caller, and the messages between masters.

use std::time::Duration;

use crate::ha::member::{MemberId, MemberInfo};
use crate::ha::offers::OfferTxn;
use crate::ha::record::{ElectionTxn, HandOverTxn, SyncTxn};

/// An action of the caller. Its result, if it has one, is the [`HaEvent`](super::HaEvent) that is
/// named here. Results may come in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HaAction {
    /// Grant a lease: `LeaseGranted`.
    GrantLease,
    /// Renew this lease: `LeaseRenewed`.
    RenewLease(i64),
    /// Revoke this lease, and so delete the key if it belongs to it. No result.
    RevokeLease(i64, RevokeReason),
    /// Read both keys: `Observed`.
    Observe,
    /// Perform this transaction: `Elected`.
    Elect(ElectionTxn),
    /// Perform this transaction: `Offered`.
    Offer(OfferTxn),
    /// Perform this transaction: `SyncWritten`.
    WriteSync(SyncTxn),
    /// Perform this transaction: `KeyDeleted`.
    DeleteKey(HandOverTxn),
    /// Follow this leader's changes, or none.
    Follow(Option<MemberInfo>),
    /// Send a message over the stream to this member.
    Send(MemberId, HaMessage),
    /// Make the copy ready to serve, but do not answer requests yet: `Prepared`. If `lossy`,
    /// acknowledged changes may be missing, so the copy keeps its segments and clients, and drops
    /// all objects: their memory may belong to other objects. It then gets a new ID. A copy that is
    /// ready may have to be made ready again, with `lossy`.
    Prepare { lossy: bool },
    /// Discard the copy that was made ready, and take a new ID: `Reset`.
    Discard(DiscardReason),
    /// Serve as the leader of this view.
    Serve { view: u64 },
    /// Stop answering, discard the state, and take a new ID: `Reset`.
    StopServing(StopReason),
    /// `true`: hold back requests that change something, and then report `ChangesHeld`. `false`:
    /// let them proceed.
    HoldChanges(bool),
    /// Forward all requests to this leader, which has taken over.
    Forward(MemberId),
    /// The hand-over was not completed. Inform its callers.
    ReportHandOver(HandOverProblem),
    /// Follow again with the copy that is ready to serve, or is being made ready.
    Resume,
}

/// The reason for which a lease is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    /// The leader's process has ended.
    LeaderEnded,
    /// The lease is that of an earlier process of this master.
    EarlierProcess,
    /// This standby has kept the key for a leader that does not respond.
    KeptKey,
    /// The lease is this master's, which takes a new ID or does not lead.
    Own,
}

/// The reason for which a standby discards its copy.
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

/// The reason for which a leader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Another master was elected.
    Superseded,
}

/// An acknowledgement of a standby.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandbyAck {
    /// It acknowledges all changes up to this one. It has applied them, or does so before it
    /// handles another event.
    pub applied: u64,
    /// The stamp of the last ping whose promise it keeps.
    pub echo: Option<u64>,
    /// At this time, on the leader's clock, or later, it found the leader's key in etcd.
    pub key_seen: Option<u64>,
    /// It makes its copy ready to serve, and has made progress with it.
    pub is_preparing: bool,
}

/// The reason for which a hand-over was not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandOverProblem {
    #[error("this master does not lead")]
    NotLeading,
    #[error("no standby is in sync")]
    NoStandby,
    #[error("the connection to the standby ended")]
    StandbyGone,
    #[error("the standby has made no progress for {} ms", .0.as_millis())]
    NoProgress(Duration),
    #[error("the leader's key was created again before the standby was elected")]
    KeyCreatedAgain,
    #[error("a third master was elected")]
    OtherElected,
    #[error("the process has begun to end")]
    Ending,
}

/// A message between a leader and a standby, other than changes and snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaMessage {
    /// Leader: sent at `stamp` on its clock. The standby must not stand for election for `promise`.
    /// `last` is the leader's last change.
    Ping { stamp: u64, promise: Duration, last: u64 },
    /// Standby: acknowledges changes, and answers pings.
    Ack(StandbyAck),
    /// Leader: take over after you have applied change `last`, which is the last one.
    TakeOver { last: u64 },
    /// Standby: ready to serve.
    Ready,
    /// Leader: no longer answers requests; the key is deleted.
    Released,
    /// Leader: keeps leading; the hand-over is cancelled.
    Cancel,
    /// Standby: created the expired key again, with the leader's address. Both records have this
    /// revision.
    Recreated { revision: u64 },
    /// Standby: its process is about to end. Responses need not wait for it once a sync record
    /// without it is written.
    Leave,
}
