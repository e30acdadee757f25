//! What was moved, by whom and which way.

use std::sync::atomic::{AtomicU64, Ordering};

/// Figures of one engine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// What peers read from our memory and wrote into it.
    pub served: Flow,
    /// What we read from peers' memory and wrote into it.
    pub issued: Flow,
    /// What we read and wrote within this process.
    pub local: Flow,
    /// Requests of peers that were refused: not in memory that they may reach.
    pub rejected: u64,
    /// Data connections that peers opened.
    pub connections_accepted: u64,
    /// Data connections that peers have open.
    pub connections_open: u64,
    /// Data connections that were turned away because too many were open.
    pub connections_refused: u64,
    /// Messages of peers that were dropped because nobody fetched them.
    pub notices_dropped: u64,
}

/// Bytes and operations, each way. Read and written are as the initiator sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes read.
    pub read_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Write operations.
    pub writes: u64,
    /// Operations that failed.
    pub failures: u64,
}

/// What peers did to a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetFigures {
    /// Bytes and operations.
    pub flow: Flow,
    /// Requests that were refused.
    pub rejected: u64,
    /// Connections since the start.
    pub accepted: u64,
    /// Connections now.
    pub open: u64,
    /// Connections that were one too many.
    pub refused: u64,
}

/// What was issued to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCounters {
    /// The segment's name.
    pub segment: String,
    /// What its bytes are moved over: `tcp`, `rdma`, or `memory` for this process's own.
    pub over: &'static str,
    /// What was moved.
    pub flow: Flow,
    /// Is it taken for dead?
    pub down: bool,
}

/// One RDMA device of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailFigures {
    /// Its name.
    pub device: String,
    /// The port in use.
    pub port: u8,
    /// Its address, and the row of the table.
    pub gid: String,
    /// Is it used? Not while its port is down, or when it failed.
    pub up: bool,
    /// Peers' devices that it has a connection to, or is to have.
    pub endpoints: u64,
    /// Connections that were made.
    pub connected: u64,
    /// Connections that were given up: failed, replaced or no longer needed.
    pub retired: u64,
    /// Work requests posted.
    pub requests: u64,
    /// What failed.
    pub failures: RailFailures,
    /// Bytes that we read by it.
    pub read_bytes: u64,
    /// Bytes that we wrote by it.
    pub written_bytes: u64,
}

/// What failed on a device, by whose it was. What failed only because something else on its connection did is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailFailures {
    /// Connections that could not be made.
    pub connection: u64,
    /// Requests that the device did not take or could not carry out.
    pub device: u64,
    /// Requests that the peer refused: not in memory that it has registered.
    pub refused: u64,
    /// Requests that the peer's device did not answer, or not as it should, and connections on which nothing moved.
    pub peer: u64,
}

/// [`Flow`] that many threads count into.
#[derive(Debug, Default)]
pub(in crate::engine::transfer) struct Meter {
    read_bytes: AtomicU64,
    reads: AtomicU64,
    written_bytes: AtomicU64,
    writes: AtomicU64,
    failures: AtomicU64,
}

impl Meter {
    pub(in crate::engine::transfer) fn read(&self, operations: u64, bytes: u64) {
        if operations > 0 {
            self.reads.fetch_add(operations, Ordering::Relaxed);
            self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(in crate::engine::transfer) fn wrote(&self, operations: u64, bytes: u64) {
        if operations > 0 {
            self.writes.fetch_add(operations, Ordering::Relaxed);
            self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(in crate::engine::transfer) fn failed(&self, operations: u64) {
        if operations > 0 {
            self.failures.fetch_add(operations, Ordering::Relaxed);
        }
    }

    pub(in crate::engine::transfer) fn flow(&self) -> Flow {
        Flow {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}
