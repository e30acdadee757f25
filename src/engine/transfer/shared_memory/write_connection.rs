//! A connection over which a node is requested to copy from this process's buffers.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::shared_memory::codec::{
    BUFFERS_MAX, ClientMessage, LinkPurpose, MESSAGE_BYTES_MAX, WRITES_MAX, WriteMessage, WriteOutcome, WriteRequest,
    decode_outcomes,
};
use crate::shared_memory::link::{ServerIdentity, accepted, connect, invalid};
use crate::types::Op;
use mcctl_sys::Memory;
use mcctl_sys::packet_socket::PacketSocket;

/// A connection for writes, and the buffers that the node holds for it.
pub(super) struct WriteConnection {
    socket: PacketSocket,
    /// The node's generation when the connection was opened.
    pub(super) generation: u64,
    /// By slot. Weak, because the node keeps the buffers' memory.
    buffers: Vec<Weak<Memory>>,
    next_slot: usize,
    received: Vec<u8>,
}

/// The reason for which a request has no outcomes.
#[derive(Debug)]
pub(super) enum WriteFault {
    /// The node has not received the request.
    Unsent(io::Error),
    /// The node may carry out the request.
    Unanswered(io::Error),
}

impl WriteConnection {
    /// Connects to a node's server.
    pub(super) fn open(server: &ServerIdentity) -> io::Result<WriteConnection> {
        let socket = connect(server, LinkPurpose::Writes)?;
        let mut received = vec![0; MESSAGE_BYTES_MAX];
        let reply = socket.receive(&mut received)?;
        let generation = accepted(&received[..reply.len])?.generation;
        Ok(WriteConnection { socket, generation, buffers: Vec::new(), next_slot: 0, received })
    }

    /// Whether the node holds a buffer that this process has released.
    pub(super) fn is_outdated(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.strong_count() == 0)
    }

    /// Requests the first of `ops`, up to the limits of one request. They are writes from memory in
    /// a memfd. `deadline` is on the monotonic clock, and `left` is the time until then. Returns
    /// their outcomes, at least one.
    pub(super) fn write(
        &mut self,
        ops: &[&Op],
        deadline: Duration,
        left: Duration,
    ) -> Result<Vec<WriteOutcome>, WriteFault> {
        let mut used = [false; BUFFERS_MAX as usize];
        let mut writes = Vec::with_capacity(ops.len().min(WRITES_MAX));
        for op in ops.iter().take(WRITES_MAX) {
            let memory = op.local.memory();
            let Some(slot) = self.slot_of(memory, &used) else { break };
            if self.buffers.get(slot).is_none_or(|known| !is_same(known, memory)) {
                self.send_buffer(slot, memory).map_err(WriteFault::Unsent)?;
            }
            used[slot] = true;
            let length = op.local.len() as u64;
            let offset = op.local.offset() as u64;
            let slot = u32::try_from(slot).unwrap_or(u32::MAX);
            writes.push(WriteMessage { remote: op.remote.0, length, slot, offset });
        }
        let count = writes.len();
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        let message = ClientMessage::Writes(WriteRequest { deadline_ns, writes }).encode();
        self.socket.limit_receive(Some(left)).map_err(WriteFault::Unsent)?;
        self.socket.send(&message, &[]).map_err(WriteFault::Unsent)?;
        self.receive(count).map_err(WriteFault::Unanswered)
    }

    /// The slot that holds `memory`, or one for it: empty, or with a buffer that this request does
    /// not use.
    fn slot_of(&mut self, memory: &Arc<Memory>, used: &[bool]) -> Option<usize> {
        if let Some(known) = self.buffers.iter().position(|known| is_same(known, memory)) {
            return Some(known);
        }
        if self.buffers.len() < used.len() {
            return Some(self.buffers.len());
        }
        let slot = (0..used.len()).map(|step| (self.next_slot + step) % used.len()).find(|slot| !used[*slot])?;
        self.next_slot = (slot + 1) % used.len();
        Some(slot)
    }

    fn send_buffer(&mut self, slot: usize, memory: &Arc<Memory>) -> io::Result<()> {
        let file = memory.shared_file().ok_or_else(|| invalid("the buffer is not in a memfd"))?;
        let number = u32::try_from(slot).unwrap_or(u32::MAX);
        let message = ClientMessage::Buffer { slot: number, length: memory.len() as u64 };
        self.socket.send(&message.encode(), &[file])?;
        let memory = Arc::downgrade(memory);
        match self.buffers.get_mut(slot) {
            Some(known) => *known = memory,
            None => self.buffers.push(memory),
        }
        Ok(())
    }

    fn receive(&mut self, count: usize) -> io::Result<Vec<WriteOutcome>> {
        let received = self.socket.receive(&mut self.received)?;
        if received.len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let outcomes = decode_outcomes(&self.received[..received.len], count).filter(|_| !received.truncated);
        outcomes.ok_or_else(|| invalid("the node's reply is malformed"))
    }
}

fn is_same(known: &Weak<Memory>, memory: &Arc<Memory>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(memory))
}
