//! The plain values that verbs take.

use std::fmt;
use std::io;

use crate::engine::sys::verbs::attributes::Mtu;

/// Who may do what to a region. The device may always write it for us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Peers may read and write it.
    pub remote: bool,
    /// The device may write out of order within a transfer (PCIe relaxed ordering), where the library knows of it. Only completions
    /// tell what has arrived.
    pub relaxed: bool,
}

/// How much a pair can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Work requests at a time.
    pub wr: u32,
    /// Stretches of memory in one.
    pub sge: u32,
    /// Bytes of a WRITE that are taken along at once, not read from memory later.
    pub inline: u32,
}

/// How a pair gets to its peer. The numbers that both sides must have alike and nobody exchanges (PSN 0, retries, timers) are not
/// here: they are Mooncake's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Local port, from 1.
    pub port: u8,
    /// Row of the local port's GID table.
    pub sgid_index: u8,
    /// Path MTU: both sides' must be alike.
    pub mtu: Mtu,
    /// The peer port's GID.
    pub remote_gid: [u8; 16],
    /// The peer port's LID; 0 on Ethernet.
    pub remote_lid: u16,
    /// The number of the peer's pair.
    pub remote_number: u32,
    /// How often the packets may be routed on; Mooncake's is 16.
    pub hop_limit: u8,
    /// Traffic class of the packets.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "port {}, GID row {}, MTU {}, to GID {}, LID {}, pair {}, hop limit {}, traffic class {}, service level {}",
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

/// State of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairState {
    /// New.
    Reset,
    /// It has a port.
    Init,
    /// It can receive.
    ReadyToReceive,
    /// It can send, too.
    ReadyToSend,
    /// All that is posted ends as flushed.
    Error,
    /// None of these.
    Other(u32),
}

/// Which way the bytes of an operation go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory to ours.
    Read,
    /// From ours to the peer's.
    Write,
}

/// One work request, but for the region that it is about.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Which way.
    pub direction: Direction,
    /// Where in the region, bytes from its beginning.
    pub offset: usize,
    /// How many bytes.
    pub len: u32,
    /// Where at the peer: an address of its process.
    pub remote_address: u64,
    /// The peer's key for it.
    pub rkey: u32,
    /// Comes back in the completion.
    pub id: u64,
    /// Is there to be a completion when all goes well? (Errors always have one.)
    pub signaled: bool,
}

/// A chain was not posted, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error("ibv_post_send took {posted} requests: {source}")]
pub struct Refused {
    /// So many went out, and will complete. The rest is still in the chain.
    pub posted: usize,
    /// Why the next did not.
    pub source: io::Error,
}
