//! The events of the simulation.

use super::fault::Fault;
use super::request::{Reply, Request};
use super::stream::Packet;
use crate::engine::ha::stage::HaStage;
use crate::engine::ha::{HaAction, MemberId, Observation, TxnOutcome};

/// Something that happens at a time of the simulation.
#[derive(Clone, Debug)]
pub enum Event {
    /// The background work of a node is due.
    Tick {
        node: usize,
        incarnation: u64,
    },
    /// The timeout of a node's core with this number is due.
    Timeout {
        node: usize,
        incarnation: u64,
        number: u64,
    },
    /// A request arrives at etcd.
    Etcd {
        node: usize,
        incarnation: u64,
        action: HaAction,
        sent: u64,
        is_answered: bool,
    },
    EtcdReply {
        node: usize,
        incarnation: u64,
        action: HaAction,
        sent: u64,
        outcome: TxnOutcome,
        lease: Option<i64>,
        /// The records when the request was served.
        seen: Box<Observation>,
    },
    /// The watch of a node reports a change.
    Watch {
        node: usize,
        incarnation: u64,
    },
    Connect {
        node: usize,
        incarnation: u64,
    },
    Packet {
        stream: u64,
        to_leader: bool,
        packet: Packet,
    },
    Closed {
        node: usize,
        incarnation: u64,
        stream: u64,
        process_gone: bool,
    },
    /// The data directory has the changes up to `last` of this copy.
    Stored {
        node: usize,
        incarnation: u64,
        copy: MemberId,
        last: u64,
    },
    Prepared {
        node: usize,
        incarnation: u64,
        lossy: bool,
    },
    ExpireLeases,
    Client(usize),
    Request {
        client: usize,
        call: u64,
        node: usize,
        request: Request,
    },
    CallTimeout {
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
        until: u64,
    },
    Fault,
    /// The fault that was planned for this stage of this node.
    StageFault {
        node: usize,
        stage: HaStage,
        fault: Fault,
    },
    /// No request changes anything any more.
    ChangesHeld {
        node: usize,
        incarnation: u64,
    },
    Heal(Fault),
    EndCutStreams(usize, usize),
    Resume(usize),
    /// A fault that was planned for the next change.
    CrashBusy {
        node: usize,
        incarnation: u64,
    },
    /// The bytes of a put arrive.
    Write {
        client: usize,
        key: String,
        at: u64,
    },
    Start(usize),
}
