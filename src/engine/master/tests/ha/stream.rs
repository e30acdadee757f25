//! Streams between masters: ordered, and delayed or held by the network.

use crate::engine::ha::{HaMessage, HistoryId, MemberId};

/// A change in the leader's log.
#[derive(Clone, Debug)]
pub struct Change {
    pub sequence: u64,
    pub payload: Vec<u8>,
}

/// What travels over a stream.
#[derive(Clone, Debug)]
pub enum Packet {
    Ha(HaMessage),
    Changes(Vec<Change>),
    /// A copy of the leader's state after change `last`.
    Snapshot {
        history: HistoryId,
        last: u64,
        chunks: Vec<Vec<u8>>,
    },
}

/// A connection from a standby to its leader.
#[derive(Clone, Debug)]
pub struct Stream {
    pub standby: usize,
    pub leader: usize,
    pub standby_id: MemberId,
    pub leader_id: MemberId,
    /// When the last packet arrives: towards the leader, towards the standby.
    pub last: [u64; 2],
    /// Packets that a cut holds, with their direction: true towards the leader.
    pub held: Vec<(bool, Packet)>,
    /// The number of the cut that ends the stream, if it lasts.
    pub is_cut: bool,
}
