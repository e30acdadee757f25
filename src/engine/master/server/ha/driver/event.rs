//! The events of the driver: the results of its tasks, and requests of other threads.

use tokio::sync::{mpsc, oneshot};

use crate::StandbyState;
use crate::server::ha::handshake::{HandshakeError, Hello, Welcome};
use crate::server::ha::leader::replication::StreamSource;
use crate::server::ha::standby::connection::Opening;
use crate::server::ha::standby::copy::StandbyCopy;
use crate::server::ha::standby::copy_to_store::CopyToStore;
use crate::server::ha::standby::load::CheckedSnapshot;
use crate::server::ha::standby::preparation::PreparedCopy;
use crate::server::ha::stream::StreamError;
use mcctl_base::Mono;
use mcctl_election::ElectionError;
use mcctl_election::ha::{ElectionTxn, HaEvent, Observation, SyncTxn, TxnOutcome};
use mcctl_journal::JournalError;
use mcctl_sys::env::{Env, Net};

/// The driver's queue. It is short: each task adds one event or two, and the number of tasks is
/// limited.
pub(in crate::server::ha) type DriverEvents<E> = mpsc::UnboundedSender<DriverEvent<<<E as Env>::Net as Net>::Stream>>;

/// An event of a driver whose connections are of type `S`.
pub(in crate::server::ha) enum DriverEvent<S> {
    /// The result of a request to etcd, without anything to log.
    Core(HaEvent),
    /// A request for the lease ended, perhaps with an error.
    LeaseRequested {
        event: HaEvent,
        error: Option<ElectionError>,
    },
    /// The records in etcd were read; the request was sent at `sent`.
    RecordsRead {
        sent: Mono,
        seen: Result<Observation, ElectionError>,
    },
    /// The records in etcd may have changed.
    RecordsChanged,
    Elected {
        txn: ElectionTxn,
        outcome: TxnOutcome,
    },
    SyncWritten {
        txn: SyncTxn,
        outcome: TxnOutcome,
    },

    /// An attempt to connect to the leader has ended: with a problem, or with a stream on which
    /// both have agreed how to continue.
    Connected {
        attempt: u64,
        result: Result<Opening<S>, String>,
    },
    /// The data directory has stored the history of the following changes.
    HistoryNoted {
        attempt: u64,
        opening: Opening<S>,
        result: Result<(), JournalError>,
    },
    /// A stream from the leader ended with this problem, and its port was probed.
    Probed {
        attempt: u64,
        is_gone: bool,
        problem: String,
    },
    /// The leader's snapshot was checked.
    SnapshotChecked(CheckedSnapshot),
    /// A copy that has replaced another one was stored, or its storing was cancelled.
    CopyStored {
        copy: CopyToStore,
        result: Result<(), JournalError>,
    },
    /// The copy was made ready to serve, or cannot be used.
    CopyPrepared(Box<PreparedCopy>),
    /// The copy with this number can follow again.
    CopyResumed {
        generation: u64,
        standby: Box<StandbyState>,
    },
    /// Work of another thread on the copy, which must be short.
    UseCopy(Box<dyn FnOnce(&mut StandbyCopy) + Send>),

    /// A connection to the port for standbys failed.
    HandshakeFailed {
        peer: String,
        error: HandshakeError,
    },
    /// A standby has sent its hello. `answer` receives how it catches up.
    StandbyAsked {
        peer: String,
        hello: Hello,
        answer: oneshot::Sender<Acceptance>,
    },
    /// A standby has received the answer.
    StandbyAnswered(Box<AnsweredStandby<S>>),
    /// The sending of changes over this stream to a standby ended.
    StandbyEnded {
        stream: u64,
        error: StreamError,
    },
}

/// The answer to a standby: how it catches up, and the source of its frames if it is to receive
/// some.
pub(in crate::server::ha) struct Acceptance {
    pub welcome: Welcome,
    pub opened: Option<OpenedSource>,
}

/// The source of the frames for a standby, and the term in which it began.
pub(in crate::server::ha) struct OpenedSource {
    pub source: StreamSource,
    pub term: u64,
}

/// A standby after its handshake.
pub(in crate::server::ha) struct AnsweredStandby<S> {
    pub peer: String,
    pub hello: Hello,
    pub acceptance: Acceptance,
    pub stream: S,
}
