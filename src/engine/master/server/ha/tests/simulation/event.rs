//! The events of the simulation.

use super::fault::Fault;
use super::operation::{Reply, Request};
use super::records::RecordRead;
use mcctl_election::ha::stage::HaStage;
use mcctl_election::ha::{
    CandidateOffer, ElectionTxn, HandOverProblem, HandOverTxn, MemberId, Observation, OfferTxn, SyncTxn, TxnOutcome,
};
use mcctl_metadata::backend::NotServed;

/// A request of a master to etcd.
#[derive(Clone, Debug)]
pub(super) enum EtcdRequest {
    Grant,
    Renew(i64),
    Revoke(i64),
    Observe,
    Elect(ElectionTxn),
    Offer(OfferTxn),
    WriteSync(SyncTxn),
    DeleteKey(HandOverTxn),
}

/// A reply of etcd, or the end of the time limit.
#[derive(Clone, Debug)]
pub(super) struct EtcdReply {
    /// `Unknown` after the time limit, for every request.
    pub outcome: TxnOutcome,
    pub lease: Option<i64>,
    /// The records when the request was served.
    pub seen: Option<Observation>,
    /// The offers of other candidates.
    pub offers: Vec<(MemberId, CandidateOffer)>,
}

impl EtcdReply {
    /// No response came within the limit.
    pub(super) fn unknown() -> EtcdReply {
        EtcdReply { outcome: TxnOutcome::Unknown, lease: None, seen: None, offers: Vec::new() }
    }
}

/// Something that happens at a time of the simulation.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A timer of a process ends.
    Timer {
        node: usize,
        incarnation: u64,
        number: u64,
    },
    /// A process connects to a port of another host.
    Connect {
        node: usize,
        incarnation: u64,
        attempt: u64,
        to: usize,
        port: u16,
    },
    /// The attempt arrives at the other host.
    Connecting {
        node: usize,
        incarnation: u64,
        attempt: u64,
        to: usize,
        port: u16,
    },
    /// The connecting process receives the result: the connection's number, or a refusal.
    Connected {
        node: usize,
        attempt: u64,
        connection: Option<u64>,
    },
    /// The next packet of a connection arrives at this side.
    Packet {
        connection: u64,
        side: usize,
        losses: u64,
    },
    /// A process sends a request to etcd.
    EtcdSend {
        node: usize,
        number: u64,
        request: EtcdRequest,
    },
    /// A request arrives at etcd.
    Etcd {
        node: usize,
        number: u64,
        request: EtcdRequest,
        is_answered: bool,
    },
    /// A reply of etcd arrives at the process that has sent the request.
    EtcdReply {
        node: usize,
        number: u64,
        reply: Box<EtcdReply>,
    },
    /// The watch of a node reports a change.
    Watch {
        node: usize,
    },
    ExpireLeases,
    Client(usize),
    /// The next operation on the record of the metadata service.
    Records,
    RecordWritten {
        value: u64,
        result: Result<(), NotServed>,
    },
    RecordRead {
        read: RecordRead,
        found: Option<u64>,
    },
    Request {
        client: usize,
        call: u64,
        node: usize,
        /// The number of the process that the connection leads to.
        incarnation: u64,
        request: Request,
    },
    /// A leader has processed a call that may change something.
    Changed {
        node: usize,
    },
    /// A leader has allocated memory that belongs to another object.
    AllocatedTwice {
        node: usize,
        key: String,
    },
    /// A connection was forwarded to the successor, with this request on it.
    Forwarded {
        client: usize,
        call: u64,
        address: String,
        request: Request,
    },
    /// A master sends a response, as the leader of this view. `None`: it has handed over in the
    /// meantime.
    Answered {
        node: usize,
        client: usize,
        call: u64,
        reply: Reply,
        view: Option<u64>,
    },
    /// A master has closed a client's connection: before it processed the call, or afterward.
    Closed {
        client: usize,
        call: u64,
        was_processed: bool,
    },
    Timeout {
        client: usize,
        call: u64,
    },
    Reply {
        client: usize,
        call: u64,
        reply: Reply,
    },
    /// A reader copies the bytes at an address.
    Copy {
        key: String,
        at: u64,
        /// The oldest write whose bytes may be read.
        oldest: u32,
        until: u64,
    },
    Fault,
    /// The fault that was planned for this stage of this node.
    StageFault {
        node: usize,
        stage: HaStage,
        fault: Fault,
    },
    /// A hand-over was requested, and ended. `is_ending`: its process ends now.
    SteppedDown {
        node: usize,
        is_ending: bool,
        result: Result<(), HandOverProblem>,
    },
    /// A process that has received a request to end does so.
    EndProcess {
        node: usize,
        incarnation: u64,
    },
    /// A hand-over is requested after a time without faults. It must succeed.
    LastHandOver,
    Heal(Fault),
    /// A fault that belongs to an earlier one.
    FollowUp(Fault),
    Resume(usize),
    /// A fault that was planned for the next change.
    CrashBusy {
        node: usize,
        incarnation: u64,
    },
    /// The bytes arrive of the write that this call has started.
    Write {
        client: usize,
        call: u64,
        until: u64,
    },
    Start(usize),
}
