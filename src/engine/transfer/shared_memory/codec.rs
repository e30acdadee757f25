//! The messages between a node and a client on the same host. Pure.
//!
//! Each message is one packet of a Unix socket. Numbers are little-endian. The first message in
//! each direction contains the version. A peer closes the connection after a message that it cannot
//! decode.

use mcctl_wire::json::SHARED_MEMORY_TOKEN_BYTES;

/// A peer that receives another version closes the connection.
pub const VERSION: u32 = 1;
/// `MCSM`, the first four bytes of both first messages.
const MAGIC: u32 = u32::from_le_bytes(*b"MCSM");
/// Maximum number of writes in a request.
pub const WRITES_MAX: usize = 1024;
/// Number of a client's buffers that a connection holds at once.
pub const BUFFERS_MAX: u32 = 16;
/// Maximum number of regions in a message.
pub const REGIONS_PER_MESSAGE: usize = mcctl_sys::packet_socket::DESCRIPTORS_MAX;
/// Size of a message that holds any valid one.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + WRITES_MAX * WRITE_BYTES;

const HEADER_BYTES: usize = 16;
const WRITE_BYTES: usize = 32;
const REGION_BYTES: usize = 16;

const REGIONS: u32 = 1;
const BUFFER: u32 = 2;
const WRITES: u32 = 3;
const OUTCOMES: u32 = 4;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPurpose {
    /// To receive the node's regions, and to notice its end.
    Regions,
    /// To have the node copy from the client's buffers.
    Writes,
}

/// The first message, from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRequest {
    pub version: u32,
    pub purpose: LinkPurpose,
    /// The token in the node's segment descriptor.
    pub token: [u8; SHARED_MEMORY_TOKEN_BYTES],
}

/// The node's response to a [`LinkRequest`]. For [`LinkPurpose::Regions`], the descriptor of its
/// generation counter is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReply {
    pub version: u32,
    /// Number of regions in the messages that follow. 0 for [`LinkPurpose::Writes`].
    pub regions: u32,
    /// The generation to which the regions belong.
    pub generation: u64,
    /// The node's monotonic clock in nanoseconds.
    pub monotonic_ns: u64,
}

/// A region of the node. Its descriptor is attached at the same position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionMessage {
    /// Address in the node's process.
    pub address: u64,
    pub length: u64,
}

/// A message from the client after its [`LinkRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientMessage {
    /// Replaces the buffer in a slot. Its descriptor is attached.
    Buffer {
        slot: u32,
        length: u64,
    },
    Writes(WriteRequest),
}

/// Requests copies, each of which begins only before the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// On the monotonic clock, in nanoseconds.
    pub deadline_ns: u64,
    pub writes: Vec<WriteMessage>,
}

/// A copy from one of the client's buffers to the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMessage {
    /// Address in the node's process.
    pub remote: u64,
    pub length: u64,
    /// Slot of the buffer, less than [`BUFFERS_MAX`].
    pub slot: u32,
    /// In bytes, from the start of the buffer.
    pub offset: u64,
}

/// The result of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// The range is not in memory that peers may access.
    Refused,
    /// The node has ended the transfers of the connection. No byte was written, or not all of them.
    Ended,
    /// The deadline has passed. No byte was written, or not all of them.
    Late,
    /// The node cannot read the buffer.
    Unreadable,
}

impl WriteOutcome {
    const ALL: [WriteOutcome; 5] =
        [WriteOutcome::Done, WriteOutcome::Refused, WriteOutcome::Ended, WriteOutcome::Late, WriteOutcome::Unreadable];

    /// The value on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    fn from_code(code: u8) -> Option<WriteOutcome> {
        WriteOutcome::ALL.get(usize::from(code)).copied()
    }
}

impl LinkRequest {
    /// Encodes the message in 32 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let purpose = match self.purpose {
            LinkPurpose::Regions => 1u32,
            LinkPurpose::Writes => 2,
        };
        let mut bytes = Vec::new();
        [MAGIC, self.version, purpose, 0].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(self.token);
        bytes
    }

    /// Decodes the message. Returns `None` if it is malformed. Later versions may append fields.
    pub fn decode(bytes: &[u8]) -> Option<LinkRequest> {
        let mut at = MessageCursor(bytes);
        (at.u32()? == MAGIC).then_some(())?;
        let version = at.u32()?;
        let purpose = match at.u32()? {
            1 => LinkPurpose::Regions,
            2 => LinkPurpose::Writes,
            _ => return None,
        };
        at.u32()?;
        Some(LinkRequest { version, purpose, token: at.array()? })
    }
}

impl LinkReply {
    /// Encodes the message in 32 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        [MAGIC, self.version, self.regions, 0].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        [self.generation, self.monotonic_ns].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes
    }

    /// Decodes the message. Returns `None` if it is malformed. Later versions may append fields.
    pub fn decode(bytes: &[u8]) -> Option<LinkReply> {
        let mut at = MessageCursor(bytes);
        (at.u32()? == MAGIC).then_some(())?;
        let (version, regions, _) = (at.u32()?, at.u32()?, at.u32()?);
        Some(LinkReply { version, regions, generation: at.u64()?, monotonic_ns: at.u64()? })
    }
}

/// Encodes at most [`REGIONS_PER_MESSAGE`] regions.
pub fn encode_regions(regions: &[RegionMessage]) -> Vec<u8> {
    let mut bytes = header(REGIONS, regions.len(), 0);
    for region in regions {
        [region.address, region.length].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    }
    bytes
}

/// Decodes regions. Returns `None` if the message is malformed, or if a region is empty or exceeds
/// the address space.
pub fn decode_regions(bytes: &[u8]) -> Option<Vec<RegionMessage>> {
    let (mut at, count, _) = body(bytes, REGIONS, REGION_BYTES, REGIONS_PER_MESSAGE)?;
    let mut region = || {
        let region = RegionMessage { address: at.u64()?, length: at.u64()? };
        region.address.checked_add(region.length).filter(|_| region.length > 0).map(|_| region)
    };
    (0..count).map(|_| region()).collect()
}

impl ClientMessage {
    /// Encodes the message. A request has at most [`WRITES_MAX`] writes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ClientMessage::Buffer { slot, length } => {
                let mut bytes = header(BUFFER, 1, 0);
                bytes.extend(u64::from(*slot).to_le_bytes());
                bytes.extend(length.to_le_bytes());
                bytes
            }
            ClientMessage::Writes(request) => {
                let mut bytes = header(WRITES, request.writes.len(), request.deadline_ns);
                for write in &request.writes {
                    let slot = u64::from(write.slot);
                    [write.remote, write.length, slot, write.offset].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
                }
                bytes
            }
        }
    }

    /// Decodes a message. Returns `None` if it is malformed, or if a slot is out of range.
    pub fn decode(bytes: &[u8]) -> Option<ClientMessage> {
        let slot = |n: u64| u32::try_from(n).ok().filter(|slot| *slot < BUFFERS_MAX);
        match MessageCursor(bytes).u32()? {
            BUFFER => {
                let (mut at, count, _) = body(bytes, BUFFER, REGION_BYTES, 1)?;
                (count == 1).then_some(())?;
                Some(ClientMessage::Buffer { slot: slot(at.u64()?)?, length: at.u64()? })
            }
            WRITES => {
                let (mut at, count, deadline_ns) = body(bytes, WRITES, WRITE_BYTES, WRITES_MAX)?;
                let mut write = || {
                    let remote = at.u64()?;
                    let length = at.u64()?;
                    Some(WriteMessage { remote, length, slot: slot(at.u64()?)?, offset: at.u64()? })
                };
                let writes = (0..count).map(|_| write()).collect::<Option<_>>()?;
                Some(ClientMessage::Writes(WriteRequest { deadline_ns, writes }))
            }
            _ => None,
        }
    }
}

/// Encodes the results of a [`WriteRequest`], in the order of its writes.
pub fn encode_outcomes(outcomes: &[WriteOutcome]) -> Vec<u8> {
    let mut bytes = header(OUTCOMES, outcomes.len(), 0);
    bytes.extend(outcomes.iter().map(|outcome| outcome.code()));
    bytes
}

/// Decodes `count` results. Returns `None` if the message is malformed, or has another number of
/// results.
pub fn decode_outcomes(bytes: &[u8], count: usize) -> Option<Vec<WriteOutcome>> {
    let (at, found, _) = body(bytes, OUTCOMES, 1, WRITES_MAX)?;
    (found == count).then_some(())?;
    at.0.iter().map(|code| WriteOutcome::from_code(*code)).collect()
}

fn header(kind: u32, count: usize, value: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + count * WRITE_BYTES);
    bytes.extend(kind.to_le_bytes());
    bytes.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

/// Returns the elements of a message, their number, and the value in its header.
fn body(bytes: &[u8], kind: u32, element: usize, max: usize) -> Option<(MessageCursor<'_>, usize, u64)> {
    let mut at = MessageCursor(bytes);
    (at.u32()? == kind).then_some(())?;
    let count = usize::try_from(at.u32()?).ok().filter(|count| *count <= max)?;
    let value = at.u64()?;
    (at.0.len() == count * element).then_some((at, count, value))
}

/// The part of a message that has not been decoded.
struct MessageCursor<'a>(&'a [u8]);

impl MessageCursor<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn writes(count: usize) -> ClientMessage {
        let write = WriteMessage { remote: 1 << 40, length: 65_536, slot: 15, offset: 7 };
        ClientMessage::Writes(WriteRequest { deadline_ns: 99, writes: vec![write; count] })
    }

    #[test]
    fn the_first_messages_round_trip_and_may_be_longer_in_later_versions() {
        for purpose in [LinkPurpose::Regions, LinkPurpose::Writes] {
            let request = LinkRequest { version: 7, purpose, token: [9; 16] };
            let mut bytes = request.encode();
            assert_eq!(LinkRequest::decode(&bytes), Some(request));
            assert_eq!(LinkRequest::decode(&bytes[..bytes.len() - 1]), None);
            bytes.push(1);
            assert_eq!(LinkRequest::decode(&bytes), Some(request));
            bytes[0] ^= 1;
            assert_eq!(LinkRequest::decode(&bytes), None);
        }
        let reply = LinkReply { version: 1, regions: 3, generation: 5, monotonic_ns: u64::MAX };
        assert_eq!(LinkReply::decode(&reply.encode()), Some(reply));
        assert_eq!(LinkReply::decode(&reply.encode()[..31]), None);
    }

    #[test]
    fn limits_on_counts_and_slots_are_enforced() {
        let most = writes(WRITES_MAX);
        assert_eq!(most.encode().len(), MESSAGE_BYTES_MAX);
        assert_eq!(ClientMessage::decode(&most.encode()), Some(most));
        assert_eq!(ClientMessage::decode(&writes(WRITES_MAX + 1).encode()), None);
        let buffer = |slot| ClientMessage::Buffer { slot, length: 5 };
        assert_eq!(ClientMessage::decode(&buffer(15).encode()), Some(buffer(15)));
        assert_eq!(ClientMessage::decode(&buffer(16).encode()), None);
        let region = |address, length| RegionMessage { address, length };
        let full = vec![region(1, 2); REGIONS_PER_MESSAGE];
        assert_eq!(decode_regions(&encode_regions(&full)), Some(full.clone()));
        assert_eq!(decode_regions(&encode_regions(&[&full[..], &full[..1]].concat())), None);
        for invalid in [region(1, 0), region(u64::MAX, 2)] {
            assert_eq!(decode_regions(&encode_regions(&[invalid])), None);
        }
    }

    #[test]
    fn outcomes_round_trip_and_must_match_the_request() {
        let bytes = encode_outcomes(&WriteOutcome::ALL);
        assert_eq!(decode_outcomes(&bytes, 5).unwrap(), WriteOutcome::ALL);
        assert_eq!(decode_outcomes(&bytes, 4), None);
        let mut unknown = bytes.clone();
        *unknown.last_mut().unwrap() = 5;
        assert_eq!(decode_outcomes(&unknown, 5), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..6, count in 0u8..8) {
            for _ in 0..2 {
                let _ = (LinkRequest::decode(&bytes), LinkReply::decode(&bytes), decode_regions(&bytes));
                let _ = (ClientMessage::decode(&bytes), decode_outcomes(&bytes, 3));
                if bytes.len() >= 8 {
                    bytes[..8].copy_from_slice(&[kind, 0, 0, 0, count, 0, 0, 0]);
                }
            }
        }

        #[test]
        fn a_request_round_trips_and_a_truncated_one_is_refused(
            deadline_ns: u64, list in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u32..16, any::<u64>()), 1..20), cut in 1usize..16,
        ) {
            let writes =
                list.into_iter().map(|(remote, length, slot, offset)| WriteMessage { remote, length, slot, offset }).collect();
            let request = ClientMessage::Writes(WriteRequest { deadline_ns, writes });
            let bytes = request.encode();
            prop_assert_eq!(ClientMessage::decode(&bytes[..bytes.len() - cut]), None);
            prop_assert_eq!(ClientMessage::decode(&bytes), Some(request));
        }
    }
}
