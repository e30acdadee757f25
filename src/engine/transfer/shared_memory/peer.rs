//! A node on this host as a peer: operations that can use shared memory do, and the others use the
//! engine's transport.

use std::io;
use std::sync::Arc;

use crate::shared_memory::SharedMemorySettings;
use crate::shared_memory::bound_peer::BoundPeer;
use crate::shared_memory::codec::WriteOutcome;
use crate::shared_memory::link::{MemoryLink, ServerIdentity};
use crate::shared_memory::link_slot::LinkSlot;
use crate::shared_memory::write_connection::WriteFault;
use crate::shared_memory::write_pool::NoConnection;
use crate::transport::{DataPeer, FaultClass, OpCompletion, PendingOps, TransferFault};
use crate::types::{BatchRules, Deadline, Op, OpKind};
use crate::{MonoClock, TransferError, TransferStep};
use mcctl_sys::clock;
use mcctl_wire::json::{SegmentDescriptor, SharedMemoryDescriptor};

/// A peer that announces shared memory. The first use determines whether it is on this host.
pub struct SharedMemoryPeer {
    /// The same process over the engine's transport.
    transport: Arc<dyn DataPeer>,
    descriptor: SharedMemoryDescriptor,
    segment: String,
    clock: MonoClock,
    pub(super) slot: Arc<LinkSlot>,
}

impl SharedMemoryPeer {
    /// Creates a peer for the process that `transport` reaches, and whose segment is `segment`.
    /// Does not open a connection yet.
    pub fn new(
        transport: Arc<dyn DataPeer>,
        descriptor: SharedMemoryDescriptor,
        segment: String,
        settings: &SharedMemorySettings,
        clock: MonoClock,
    ) -> SharedMemoryPeer {
        let server = ServerIdentity { address: settings.address_of(&descriptor), token: descriptor.token };
        let slot = LinkSlot::new(server, segment.clone(), Arc::clone(&clock));
        SharedMemoryPeer { transport, descriptor, segment, clock, slot }
    }

    /// Copies from the node's memory. If the node ends transfers in the meantime, the copying
    /// stops, and all reads have failed.
    fn read(&self, link: &MemoryLink, ops: &[&Op], deadline: Deadline) -> Vec<Result<(), TransferFault>> {
        let read = |op: &&Op| {
            if !link.is_current() {
                return Err(self.ended());
            }
            if (self.clock)() >= deadline.until {
                return Err(self.late(TransferStep::Body, deadline));
            }
            let copied = link.find(op.remote.0, op.local.len()).map(|(view, offset)| view.read(offset, &op.local));
            if matches!(copied, Some(Ok(()))) { Ok(()) } else { Err(self.refused(op)) }
        };
        let results = ops.iter().map(read).collect();
        if link.is_current() {
            return results;
        }
        ops.iter().map(|_| Err(self.ended())).collect()
    }

    /// Requests writes. `None` for a write that has not been sent, and that the transport can carry
    /// out.
    fn write(&self, link: &MemoryLink, ops: &[&Op], deadline: Deadline) -> Vec<Option<Result<(), TransferFault>>> {
        let pool = &self.slot.writes;
        let server = &self.slot.server;
        let mut results = Vec::with_capacity(ops.len());
        let mut taken = pool.take(server, link.generation, (self.clock)());
        let mut replaced = false;
        while let Ok(mut connection) = taken {
            taken = Err(NoConnection::Unavailable);
            // The order matters: a process that is stopped between the two calculates an earlier
            // deadline.
            let monotonic = clock::monotonic();
            let now = (self.clock)();
            let left = deadline.left(now);
            if left.is_zero() {
                results.extend(ops[results.len()..].iter().map(|_| Some(Err(self.late(TransferStep::Lane, deadline)))));
                pool.put(connection);
                break;
            }
            match connection.write(&ops[results.len()..], monotonic + left, left) {
                Ok(outcomes) => {
                    let unreadable = outcomes.contains(&WriteOutcome::Unreadable);
                    let first = results.len();
                    results.extend(outcomes.iter().zip(&ops[first..]).map(|(one, op)| self.result(*one, op, deadline)));
                    if unreadable {
                        pool.discard();
                        pool.pause(now);
                        break;
                    }
                    if results.len() == ops.len() {
                        pool.put(connection);
                        break;
                    }
                    taken = Ok(connection);
                }
                // The node closes connections when it ends transfers, also those that are not in
                // use.
                Err(WriteFault::Unsent(error)) if !replaced => {
                    tracing::debug!(segment = %self.segment, %error, "the node has closed a connection for writes");
                    replaced = true;
                    taken = pool.replace(connection, server, now);
                }
                Err(WriteFault::Unsent(_)) => {
                    pool.discard();
                    break;
                }
                Err(WriteFault::Unanswered(error)) => {
                    pool.discard();
                    let fault = self.unanswered(error, deadline);
                    let sent = ops.len() - results.len();
                    results.extend((0..sent).map(|_| Some(Err(fault.clone()))));
                    break;
                }
            }
        }
        if taken.is_err_and(|reason| reason == NoConnection::Ended) {
            results.resize_with(ops.len(), || Some(Err(self.ended())));
        }
        results.resize_with(ops.len(), || None);
        results
    }

    fn result(&self, outcome: WriteOutcome, op: &Op, deadline: Deadline) -> Option<Result<(), TransferFault>> {
        match outcome {
            WriteOutcome::Done => Some(Ok(())),
            WriteOutcome::Refused => Some(Err(self.refused(op))),
            WriteOutcome::Ended => Some(Err(self.interrupted())),
            WriteOutcome::Late => Some(Err(self.late(TransferStep::Body, deadline))),
            WriteOutcome::Unreadable => None,
        }
    }

    fn refused(&self, op: &Op) -> TransferFault {
        let segment = self.segment.clone();
        let address = op.remote.0;
        let length = op.local.len() as u64;
        let code = u32::from(WriteOutcome::Refused.code());
        TransferFault { error: TransferError::Rejected { segment, address, length, code }, class: FaultClass::Refused }
    }

    /// The fault of a read, or of a write that was not sent, if the node has ended transfers.
    pub(super) fn ended(&self) -> TransferFault {
        TransferFault { error: TransferError::Ended { segment: self.segment.clone() }, class: FaultClass::Ended }
    }

    /// The fault of a write that the node has received, if it has ended transfers.
    fn interrupted(&self) -> TransferFault {
        let source = io::Error::new(io::ErrorKind::ConnectionAborted, "the node has ended the transfers in progress");
        TransferFault { class: FaultClass::Ended, ..self.lost(source) }
    }

    fn lost(&self, source: io::Error) -> TransferFault {
        let peer = self.segment.clone();
        let step = TransferStep::Status;
        TransferFault { error: TransferError::Lost { peer, step, source: Arc::new(source) }, class: FaultClass::Gone }
    }

    fn late(&self, step: TransferStep, deadline: Deadline) -> TransferFault {
        let error = TransferError::Timeout { peer: self.segment.clone(), step, limit: deadline.allowed };
        TransferFault { error, class: FaultClass::Late }
    }

    fn unanswered(&self, error: io::Error, deadline: Deadline) -> TransferFault {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.late(TransferStep::Status, deadline),
            _ => self.lost(error),
        }
    }
}

impl SharedMemoryPeer {
    /// Submits `ops`: those that can use `link` do, and the others use the transport.
    pub(super) fn submit_over(
        self: Arc<Self>,
        link: Arc<MemoryLink>,
        ops: Vec<Op>,
        rules: BatchRules,
    ) -> Box<dyn PendingOps> {
        let may_share = |op: &Op| {
            let length = op.local.len();
            let is_mapped = length > 0 && link.find(op.remote.0, length).is_some();
            let is_readable = || link.is_clock_shared && op.local.memory().shared_file().is_some();
            is_mapped && (op.kind == OpKind::Read || is_readable())
        };
        let routes: Vec<bool> = ops.iter().map(may_share).collect();
        let (shared, others): (Vec<_>, Vec<_>) = ops.into_iter().zip(&routes).partition(|(_, shared)| **shared);
        let strip = |list: Vec<(Op, &bool)>| list.into_iter().map(|(op, _)| op).collect::<Vec<Op>>();
        let shared = strip(shared);
        let others = strip(others);
        let pending = (!others.is_empty()).then(|| Arc::clone(&self.transport).submit(others, rules));
        Box::new(SharedPendingOps { peer: self, link, shared, pending, routes, rules })
    }
}

impl DataPeer for SharedMemoryPeer {
    fn submit(self: Arc<Self>, ops: Vec<Op>, rules: BatchRules) -> Box<dyn PendingOps> {
        match self.slot.acquire() {
            Some(link) => self.submit_over(link, ops, rules),
            None => Arc::clone(&self.transport).submit(ops, rules),
        }
    }

    fn transport(&self) -> Option<&'static str> {
        self.slot.current().map(|_| "shared-memory")
    }

    fn reaches(&self, descriptor: &SegmentDescriptor) -> bool {
        descriptor.shared_memory.as_ref() == Some(&self.descriptor) && self.transport.reaches(descriptor)
    }

    fn probe(&self, descriptor: &SegmentDescriptor, deadline: Deadline) -> Result<(), TransferError> {
        self.transport.probe(descriptor, deadline)
    }

    fn forget(&self) {
        self.slot.writes.close_idle();
        self.transport.forget();
    }

    fn bound(self: Arc<Self>) -> Option<Arc<dyn DataPeer>> {
        let link = self.slot.current()?;
        Some(Arc::new(BoundPeer { peer: self, link }))
    }
}

struct SharedPendingOps {
    peer: Arc<SharedMemoryPeer>,
    link: Arc<MemoryLink>,
    /// The operations that use shared memory, in order.
    shared: Vec<Op>,
    /// The other operations, which the transport has accepted. `None` if there are none.
    pending: Option<Box<dyn PendingOps>>,
    /// Whether each operation of the batch uses shared memory.
    routes: Vec<bool>,
    rules: BatchRules,
}

impl PendingOps for SharedPendingOps {
    fn wait(self: Box<Self>) -> Vec<OpCompletion> {
        let SharedPendingOps { peer, link, shared, pending, routes, rules } = *self;
        let (reads, writes): (Vec<&Op>, Vec<&Op>) = shared.iter().partition(|op| op.kind == OpKind::Read);
        let mut written =
            if writes.is_empty() { Vec::new() } else { peer.write(&link, &writes, rules.deadline) }.into_iter();
        let mut read = peer.read(&link, &reads, rules.deadline).into_iter().map(Some);
        drop((reads, writes));
        // A write that was submitted in this generation must not be carried into the next one.
        let has_ended = !link.is_current();
        drop(link);
        let mut unsent = Vec::new();
        let mut done = Vec::with_capacity(shared.len());
        for op in shared {
            let result = if op.kind == OpKind::Read { read.next() } else { written.next() };
            match result.flatten().or_else(|| has_ended.then(|| Err(peer.ended()))) {
                Some(result) => done.push(Some(OpCompletion { op, shared: true, result })),
                None => {
                    unsent.push(op);
                    done.push(None);
                }
            }
        }
        let mut others = pending.map(PendingOps::wait).unwrap_or_default().into_iter();
        let again = (!unsent.is_empty()).then(|| Arc::clone(&peer.transport).submit(unsent, rules));
        let mut again = again.map(PendingOps::wait).unwrap_or_default().into_iter();
        let mut done = done.into_iter();
        let complete = |is_shared: bool| if is_shared { done.next()?.or_else(|| again.next()) } else { others.next() };
        routes.into_iter().filter_map(complete).collect()
    }
}
