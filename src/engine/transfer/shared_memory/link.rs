//! A client's mappings of a node's memory, and the connection over which it received them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::shared_memory::codec::{LinkPurpose, LinkReply, LinkRequest, MESSAGE_BYTES_MAX, VERSION, decode_regions};
use crate::shared_memory::may_share;
use mcctl_base::Mono;
use mcctl_sys::packet_socket::{PacketSocket, UnixSocketAddress, effective_user};
use mcctl_sys::shared_counter::SharedCounterView;
use mcctl_sys::{SharedView, clock};
use mcctl_wire::json::SHARED_MEMORY_TOKEN_BYTES;

/// Time limit for opening a connection.
const OPEN_LIMIT: Duration = Duration::from_millis(500);
/// Maximum number of regions that are accepted.
const REGIONS_MAX: u32 = 4096;

/// The address of a node's server, and the data that identify the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerIdentity {
    pub(super) address: UnixSocketAddress,
    pub(super) token: [u8; SHARED_MEMORY_TOKEN_BYTES],
}

/// A node's memory in this process.
pub(super) struct MemoryLink {
    /// Ends when the node ends, when it deregisters memory, or when it has more memory to share.
    pub(super) socket: Arc<PacketSocket>,
    /// By address in the node's process.
    regions: Vec<MappedRegion>,
    counter: SharedCounterView,
    /// The generation to which the regions belong.
    pub(super) generation: u64,
    /// Whether the node's monotonic clock is the same as this process's.
    pub(super) is_clock_shared: bool,
    pub(super) opened: Mono,
}

struct MappedRegion {
    address: u64,
    view: SharedView,
}

impl MemoryLink {
    /// Connects to the server and maps the node's memory. `now` is the time on the engine's clock.
    ///
    /// # Errors
    /// `ConnectionRefused` or `NotFound` if the server is not on this host. Otherwise, it is not
    /// usable.
    pub(super) fn open(server: &ServerIdentity, now: Mono) -> io::Result<MemoryLink> {
        let before = clock::monotonic();
        let socket = connect(server, LinkPurpose::Regions)?;
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut received = socket.receive(&mut bytes)?;
        let after = clock::monotonic();
        let reply = accepted(&bytes[..received.len])?;
        let counter = received.descriptors.pop().ok_or_else(|| invalid("the reply has no generation counter"))?;
        let counter = SharedCounterView::map(&counter).map_err(io::Error::other)?;
        if reply.regions > REGIONS_MAX {
            return Err(invalid("the node has too many regions"));
        }
        let mut regions = Vec::new();
        while regions.len() < reply.regions as usize {
            let left = (before + OPEN_LIMIT).saturating_sub(clock::monotonic());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            socket.limit_receive(Some(left))?;
            let received = socket.receive(&mut bytes)?;
            let messages = decode_regions(&bytes[..received.len]).filter(|regions| !regions.is_empty());
            let messages = messages.ok_or_else(|| invalid("the list of regions is malformed"))?;
            if messages.len() != received.descriptors.len() {
                return Err(invalid("a region has no descriptor"));
            }
            for (region, file) in messages.iter().zip(&received.descriptors) {
                let view = SharedView::map(file, region.length).map_err(io::Error::other)?;
                regions.push(MappedRegion { address: region.address, view });
            }
        }
        regions.sort_unstable_by_key(|region| region.address);
        let is_clock_shared = (before..=after).contains(&Duration::from_nanos(reply.monotonic_ns));
        let socket = Arc::new(socket);
        let generation = reply.generation;
        Ok(MemoryLink { socket, regions, counter, generation, is_clock_shared, opened: now })
    }

    /// Whether the bytes that were read through this link so far are those that the node had at
    /// these addresses. False if the node has ended.
    pub(super) fn is_current(&self) -> bool {
        self.counter.current() == Some(self.generation)
    }

    /// Returns the mapping that contains a range of the node's memory, and the range's offset in
    /// it.
    pub(super) fn find(&self, address: u64, length: usize) -> Option<(&SharedView, usize)> {
        let behind = self.regions.partition_point(|region| region.address <= address);
        let region = &self.regions[behind.checked_sub(1)?];
        let offset = usize::try_from(address - region.address).ok()?;
        offset.checked_add(length).filter(|end| *end <= region.view.len()).map(|_| (&region.view, offset))
    }
}

/// Connects to a node's server for `purpose`, and checks that it may share memory with this
/// process. The reply has not been received.
pub(super) fn connect(server: &ServerIdentity, purpose: LinkPurpose) -> io::Result<PacketSocket> {
    let socket = PacketSocket::connect(&server.address, OPEN_LIMIT)?;
    if !may_share(effective_user(), socket.peer_user()?) {
        return Err(invalid("the node belongs to another user"));
    }
    socket.limit_receive(Some(OPEN_LIMIT))?;
    socket.send(&LinkRequest { version: VERSION, purpose, token: server.token }.encode(), &[])?;
    Ok(socket)
}

/// Checks the server's reply. The server closes the connection without a reply if the token is
/// wrong.
pub(super) fn accepted(bytes: &[u8]) -> io::Result<LinkReply> {
    if bytes.is_empty() {
        return Err(invalid("the server refused the connection"));
    }
    let reply = LinkReply::decode(bytes).filter(|reply| reply.version == VERSION);
    reply.ok_or_else(|| invalid("the server's reply is malformed or has another version"))
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
