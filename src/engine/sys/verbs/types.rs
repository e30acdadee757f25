//! Plain argument types for the verbs.

use std::fmt;
use std::io;

use crate::verbs::attributes::Mtu;

/// Access flags for a memory region. The device may always write to the region on behalf of this
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessFlags {
    /// Whether peers may read and write: REMOTE_READ and REMOTE_WRITE.
    pub remote: bool,
    /// RELAXED_ORDERING: the device may write out of order within a transfer, if the library
    /// supports it. Only completions indicate what has arrived.
    pub relaxed: bool,
}

/// The capabilities of a queue pair: maximum numbers and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// Maximum number of outstanding work requests.
    pub wr: u32,
    /// Maximum number of SGEs per work request.
    pub sge: u32,
    /// Maximum size of an inline WRITE, in bytes.
    pub inline: u32,
}

/// The path to a queue pair's peer. Values that must match on both sides but are not exchanged (PSN
/// 0, retries, timers) are not included: they are fixed to Mooncake's values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PathAttributes {
    /// Local port, numbered from 1.
    pub port: u8,
    /// GID index of the local port.
    pub sgid_index: u8,
    /// Path MTU. Must match on both sides.
    pub mtu: Mtu,
    /// The peer port's GID.
    pub remote_gid: [u8; 16],
    /// The peer port's LID. 0 on Ethernet.
    pub remote_lid: u16,
    /// The peer's QP number.
    pub remote_number: u32,
    /// Hop limit of the packets. Mooncake uses 16.
    pub hop_limit: u8,
    /// Traffic class of the packets.
    pub traffic_class: u8,
    pub service_level: u8,
}

impl fmt::Debug for PathAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "port {}, GID index {}, MTU {}, to GID {}, LID {}, QP {}, hop limit {}, traffic class {}, service level {}",
            self.port,
            self.sgid_index,
            self.mtu,
            std::net::Ipv6Addr::from(self.remote_gid),
            self.remote_lid,
            self.remote_number,
            self.hop_limit,
            self.traffic_class,
            self.service_level
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    Reset,
    /// A port has been assigned to the queue pair.
    Init,
    ReadyToReceive,
    /// The queue pair can also send.
    ReadyToSend,
    /// Every posted request is flushed.
    Error,
    /// Another state. Contains the numeric value that the library returned.
    Other(u32),
}

/// Direction of an RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory to local memory.
    Read,
    /// From local memory to the peer's memory.
    Write,
}

/// One work request, without its memory region.
#[derive(Clone, Copy, Debug)]
pub struct RdmaRequest {
    pub direction: Direction,
    /// Offset in the region, in bytes.
    pub offset: usize,
    pub len: u32,
    /// Address in the peer's process.
    pub remote_address: u64,
    /// The peer's key for the memory.
    pub rkey: u32,
    /// Returned in the completion.
    pub id: u64,
    /// Whether success generates a completion. (Errors always do.)
    pub signaled: bool,
}

/// Not all work requests were posted.
#[derive(Debug, thiserror::Error)]
#[error("ibv_post_send failed after accepting {posted} requests: {source}")]
pub struct PostError {
    /// Number of accepted requests, which will complete. The rest remain in the list.
    pub posted: usize,
    /// Why the next request was rejected.
    pub source: io::Error,
}
