//! The work of a connection's thread: it sends the node's memory to the client, or copies from the
//! client's buffers.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::shared_memory::codec::{
    ClientMessage, LinkPurpose, LinkReply, LinkRequest, MESSAGE_BYTES_MAX, REGIONS_PER_MESSAGE, RegionMessage, VERSION,
    WriteMessage, WriteOutcome, WriteRequest, encode_outcomes, encode_regions,
};
use crate::shared_memory::received::{ReadableBuffer, ReceivedBuffers};
use crate::shared_memory::server::ServerState;
use mcctl_sys::packet_socket::PacketSocket;
use mcctl_sys::{Memory, Slice, clock};

/// Maximum number of regions that clients receive. Clients access the others over the engine's
/// transport.
const SHARED_REGIONS_MAX: usize = 1024;
/// Number of bytes after which the era and the deadline are checked again.
const COPY_BYTES: usize = 16 << 20;

impl ServerState {
    /// Serves a connection that was accepted in `era` until its client closes it.
    pub(super) fn serve(&self, id: u64, socket: &PacketSocket, era: u64) -> io::Result<()> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX + 1];
        let received = socket.receive(&mut bytes)?;
        let request = LinkRequest::decode(&bytes[..received.len]).filter(|_| !received.truncated);
        let request = request.ok_or_else(|| invalid("the first message is malformed"))?;
        if request.version != VERSION {
            return Err(invalid("the client uses another version"));
        }
        if request.token != self.descriptor.token {
            return Err(invalid("the client uses the token of another process"));
        }
        drop(received);
        socket.limit_receive(None)?;
        if let Some(connection) = self.connections().get_mut(&id) {
            connection.purpose = Some(request.purpose);
        }
        match request.purpose {
            LinkPurpose::Regions => {
                self.send_regions(socket)?;
                // The client sends nothing. Receiving ends when either side closes the connection.
                socket.receive(&mut bytes).map(drop)
            }
            LinkPurpose::Writes => {
                socket.send(&self.reply(self.generation.current(), 0).encode(), &[])?;
                self.serve_writes(socket, &mut bytes, era)
            }
        }
    }

    fn reply(&self, generation: u64, regions: usize) -> LinkReply {
        let monotonic_ns = u64::try_from(clock::monotonic().as_nanos()).unwrap_or(u64::MAX);
        LinkReply { version: VERSION, regions: u32::try_from(regions).unwrap_or(u32::MAX), generation, monotonic_ns }
    }

    fn send_regions(&self, socket: &PacketSocket) -> io::Result<()> {
        // Read before the list. If a region is removed between the two, both the list and the
        // number are outdated.
        let generation = self.generation.current();
        let memories: Vec<Arc<Memory>> = {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            let shared = regions.published().into_iter().filter(|region| region.memory.shared_file().is_some());
            shared.take(SHARED_REGIONS_MAX).map(|region| Arc::clone(&region.memory)).collect()
        };
        let counter = self.generation.file().ok_or_else(|| invalid("the generation counter has no file"))?;
        socket.send(&self.reply(generation, memories.len()).encode(), &[counter])?;
        for group in memories.chunks(REGIONS_PER_MESSAGE) {
            let region =
                |memory: &Arc<Memory>| RegionMessage { address: memory.address(), length: memory.len() as u64 };
            let message = encode_regions(&group.iter().map(region).collect::<Vec<_>>());
            let files: Vec<_> = group.iter().filter_map(|memory| memory.shared_file()).collect();
            socket.send(&message, &files)?;
        }
        Ok(())
    }

    fn serve_writes(&self, socket: &PacketSocket, bytes: &mut [u8], era: u64) -> io::Result<()> {
        let mut buffers = ReceivedBuffers::new(&self.budget);
        loop {
            let mut received = socket.receive(bytes)?;
            if received.len == 0 {
                return Ok(());
            }
            let message = ClientMessage::decode(&bytes[..received.len]).filter(|_| !received.truncated);
            match (message, received.descriptors.pop()) {
                (Some(ClientMessage::Buffer { slot, length }), Some(file)) if received.descriptors.is_empty() => {
                    buffers.set(slot, file, length);
                }
                (Some(ClientMessage::Writes(request)), None) => {
                    let outcomes = self.copy_all(&request, &buffers, era);
                    socket.send(&encode_outcomes(&outcomes), &[])?;
                }
                _ => return Err(invalid("the client sent a malformed message")),
            }
        }
    }

    fn copy_all(&self, request: &WriteRequest, buffers: &ReceivedBuffers, era: u64) -> Vec<WriteOutcome> {
        let readable = buffers.readable();
        let mut writes = 0;
        let mut bytes = 0;
        let copy = |write: &WriteMessage| {
            let buffer = usize::try_from(write.slot).ok().and_then(|slot| readable.get(slot)?.as_ref());
            let outcome = self.copy(write, buffer, request.deadline_ns, era);
            match outcome {
                WriteOutcome::Done => {
                    writes += 1;
                    bytes += write.length;
                }
                WriteOutcome::Refused => drop(self.rejected.fetch_add(1, Ordering::Relaxed)),
                _ => {}
            }
            outcome
        };
        let outcomes = request.writes.iter().map(copy).collect();
        self.meter.wrote(writes, bytes);
        outcomes
    }

    fn copy(
        &self,
        write: &WriteMessage,
        from: Option<&ReadableBuffer<'_>>,
        deadline_ns: u64,
        era: u64,
    ) -> WriteOutcome {
        let Some(from) = from else { return WriteOutcome::Unreadable };
        let into = self.regions.read().unwrap_or_else(PoisonError::into_inner).reach(write.remote, write.length);
        let Some(into) = into else { return WriteOutcome::Refused };
        let mut done = 0;
        while done < into.len() {
            let Ok(part) = into.part(done, (into.len() - done).min(COPY_BYTES)) else { return WriteOutcome::Refused };
            let copied = self
                .eras
                .run(era, || self.copy_in_time(from, write.offset.saturating_add(done as u64), &part, deadline_ns));
            match copied {
                None => return WriteOutcome::Ended,
                Some(WriteOutcome::Done) => done += part.len(),
                Some(failed) => return failed,
            }
        }
        WriteOutcome::Done
    }

    fn copy_in_time(&self, from: &ReadableBuffer<'_>, offset: u64, into: &Slice, deadline_ns: u64) -> WriteOutcome {
        if clock::monotonic() >= Duration::from_nanos(deadline_ns) {
            return WriteOutcome::Late;
        }
        match from.read(offset, into) {
            Ok(()) => WriteOutcome::Done,
            Err(_) => WriteOutcome::Unreadable,
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
