//! The events that the core handles.

use crate::ha::action::HaMessage;
use crate::ha::member::{HistoryId, MemberId};
use crate::ha::offers::CandidateOffer;
use crate::ha::record::{ElectionTxn, Observation, SyncTxn, TxnOutcome};
use mcctl_base::Mono;

/// Something that happened at a master. The result of each request to etcd is an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HaEvent {
    /// The time that [`next_timeout`](super::HaCore::next_timeout) returned has come.
    Timeout,
    /// The port for standbys is open.
    ListensOn { port: u16 },
    /// The result of [`GrantLease`](super::HaAction::GrantLease), which was sent at `sent`. `None`:
    /// etcd did not grant a lease.
    LeaseGranted { sent: Mono, lease: Option<i64> },
    /// The result of [`RenewLease`](super::HaAction::RenewLease), which was sent at `sent`.
    /// `Some(false)`: the lease no longer exists. `None`: no response was received.
    LeaseRenewed { sent: Mono, lease: i64, renewed: Option<bool> },
    /// The result of [`Observe`](super::HaAction::Observe), which was sent at `sent`.
    Observed { sent: Mono, seen: Observation },
    /// The result of [`Elect`](super::HaAction::Elect). A successful transaction was written at the
    /// revision in `outcome`.
    Elected { txn: ElectionTxn, outcome: TxnOutcome },
    /// The result of [`Offer`](super::HaAction::Offer): the offers of the other candidates. `None`:
    /// no response was received.
    Offered { offers: Option<Vec<(MemberId, CandidateOffer)>> },
    /// The result of [`WriteSync`](super::HaAction::WriteSync).
    SyncWritten { txn: SyncTxn, outcome: TxnOutcome },
    /// The result of [`DeleteKey`](super::HaAction::DeleteKey).
    KeyDeleted { outcome: TxnOutcome },
    /// The state was discarded. This master now has an empty copy with this ID.
    Reset { id: MemberId },
    /// A message from `from` was received over its stream.
    Received { from: MemberId, message: HaMessage },

    /// Standby: the stream from this leader opened. `is_replacing`: it is for a new copy with
    /// another ID, and this copy is kept until that one is complete: `Replaced`.
    StreamOpened { leader: MemberId, is_replacing: bool },
    /// Standby: a snapshot of the leader has replaced the copy. The new copy has this ID.
    Replaced { id: MemberId },
    /// Standby: the stream from the leader ended. `process_gone`: it was reset, and the leader's
    /// RPC port refuses connections, so its process has ended.
    StreamClosed { process_gone: bool },
    /// Standby: all changes of the leader up to `last` were received, and will be applied before
    /// anything else happens. They are acknowledged.
    ChangesReceived { last: u64 },
    /// Standby: the copy contains all changes of the leader up to `last`. They are acknowledged,
    /// unless they already were.
    Applied { last: u64 },
    /// Standby: the copy is damaged.
    CopyDamaged,
    /// Standby: making the copy ready to serve has made progress.
    Preparing,
    /// Standby: the copy is ready to serve, or cannot be used: the result of
    /// [`Prepare`](super::HaAction::Prepare). It has this ID, which is a new one if changes may be
    /// missing. Its own changes will belong to this history.
    Prepared { ready: bool, id: MemberId, history: HistoryId },
    /// Standby: this process is about to end. The leader need not wait for it.
    Leave,

    /// Leader: a standby connected. It has all changes up to `applied`, or 0 if it gets a snapshot
    /// first.
    StandbyConnected { id: MemberId, applied: u64 },
    /// Leader: the stream to a standby ended.
    StandbyDisconnected { id: MemberId },
    /// Leader: hand over to a standby in sync, if there is one. `is_ending`: this process is about
    /// to end. Ends with the action [`Forward`](super::HaAction::Forward) or
    /// [`ReportHandOver`](super::HaAction::ReportHandOver).
    StepDown { is_ending: bool },
    /// Leader: something waits for the removal of the barrier from the sync record.
    BarrierRemovalNeeded,
    /// Leader: changes are held, and the last change is number `last`: the result of
    /// [`HoldChanges`](super::HaAction::HoldChanges).
    ChangesHeld { last: u64 },
}
