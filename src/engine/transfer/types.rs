//! The values that transports and the engine exchange: operations, deadlines, and registered
//! regions with their keys.

use std::time::Duration;

use mcctl_base::Mono;
use mcctl_sys::{Memory, Slice};
use mcctl_wire::json::RegionDescriptor;

/// A virtual address in a peer's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddr(pub u64);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// From the peer's memory to ours.
    Read,
    /// From our memory to the peer's.
    Write,
}

/// A one-sided operation on `local.len()` bytes.
#[derive(Clone, Debug)]
pub struct Op {
    pub kind: OpKind,
    /// The local bytes. The slice keeps the memory alive until the operation ends.
    pub local: Slice,
    /// Address of the first byte in the peer's memory.
    pub remote: RemoteAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub until: Mono,
    /// The total time allowed, for error messages.
    pub allowed: Duration,
}

impl Deadline {
    /// Returns the deadline that is `allowed` after `now`.
    pub fn after(now: Mono, allowed: Duration) -> Deadline {
        Deadline { until: now + allowed, allowed }
    }

    /// Returns the time left at `now`.
    pub fn left(&self, now: Mono) -> Duration {
        self.until.since(now)
    }
}

/// Whether a write may be sent again over another connection after some of its bytes have been
/// sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteRetry {
    #[default]
    Allowed,
    /// The peer may close its connections because it uses its memory for something else from then
    /// on. RDMA still sends a write again over another path.
    Forbidden,
}

/// The rules for a batch of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRules {
    pub deadline: Deadline,
    pub write_retry: WriteRetry,
    /// Whether the waiting thread polls for a response before it sleeps.
    pub busy_wait: bool,
}

impl BatchRules {
    /// Rules without restrictions on retries.
    pub fn until(deadline: Deadline) -> BatchRules {
        BatchRules { deadline, write_retry: WriteRetry::default(), busy_wait: false }
    }

    /// Whether an operation of this kind may be sent again after some of its bytes have been sent.
    pub fn may_send_again(&self, kind: OpKind) -> bool {
        kind == OpKind::Read || self.write_retry == WriteRetry::Allowed
    }
}

/// Which processes may access a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Peers may read and write the region. It is listed in the segment document.
    Remote,
    /// Only this process may access the region. Used for staging buffers, for example.
    Local,
}

/// What the segment document announces about a registered region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionKeys {
    /// Location of the memory (`cpu:0`, `*`), which peers use to choose a device. `None` means the
    /// segment's name, as with TCP.
    pub location: Option<String>,
    /// The pieces in which the region is registered, in order and without gaps. There is more than
    /// one if the region exceeds what a device can register at once. An empty list means one piece
    /// without keys.
    pub pieces: Vec<PieceKeys>,
}

/// A piece of a registered region with its memory keys, one per device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PieceKeys {
    /// Offset in the region, in bytes.
    pub offset: usize,
    pub len: usize,
    /// Keys for access by peers (`rkey`), one per device.
    pub remote: Vec<u32>,
    /// Keys for local access (`lkey`), one per device.
    pub local: Vec<u32>,
}

impl RegionKeys {
    /// Returns the entries for `memory` in the document of `segment`.
    pub fn buffers(&self, segment: &str, memory: &Memory) -> Vec<RegionDescriptor> {
        let name = self.location.as_deref().unwrap_or(segment);
        let whole = [PieceKeys { len: memory.len(), ..PieceKeys::default() }];
        let pieces = if self.pieces.is_empty() { &whole[..] } else { &self.pieces };
        let buffer = |piece: &PieceKeys| RegionDescriptor {
            name: name.to_owned(),
            address: memory.address() + piece.offset as u64,
            length: piece.len as u64,
            rkey: piece.remote.clone(),
            lkey: piece.local.clone(),
        };
        pieces.iter().map(buffer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_without_keys_are_one_buffer_and_pieces_several() {
        let memory = Memory::from_vec(vec![0; 100]);
        let plain = RegionKeys::default().buffers("me:1", &memory);
        let whole = RegionDescriptor {
            name: "me:1".into(),
            address: memory.address(),
            length: 100,
            ..RegionDescriptor::default()
        };
        assert_eq!(plain, [whole]);
        let piece = |offset, len, key| PieceKeys { offset, len, remote: vec![key], local: vec![key + 1] };
        let keys = RegionKeys { location: Some("cpu:0".into()), pieces: vec![piece(0, 64, 7), piece(64, 36, 9)] };
        let found = keys.buffers("me:1", &memory);
        let described: Vec<_> =
            found.iter().map(|b| (b.address - memory.address(), b.length, b.rkey[0], b.lkey[0])).collect();
        assert_eq!(described, [(0, 64, 7, 8), (64, 36, 9, 10)]);
        assert!(found.iter().all(|b| b.name == "cpu:0"));
    }
}
