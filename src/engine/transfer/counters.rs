//! Transfer counters: bytes and operations, by peer and direction.

use std::sync::atomic::{AtomicU64, Ordering};

/// One engine's counters since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Reads and writes of this engine's memory by peers.
    pub served: Flow,
    /// Reads and writes of peers' memory by this engine.
    pub issued: Flow,
    /// Reads and writes within this process.
    pub local: Flow,
    /// Peers' requests rejected because the range is not in memory that they may access.
    pub rejected: u64,
    /// Data connections accepted since startup.
    pub connections_accepted: u64,
    /// Data connections from peers that are currently open.
    pub connections_open: u64,
    /// Data connections closed immediately because too many were open.
    pub connections_refused: u64,
    /// Messages from peers that were dropped because the owner did not fetch them in time.
    pub notices_dropped: u64,
}

/// Bytes and operations, by direction. Reads and writes are named from the initiator's point of
/// view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    pub read_bytes: u64,
    pub reads: u64,
    pub written_bytes: u64,
    pub writes: u64,
    pub failures: u64,
}

impl std::ops::Add for Flow {
    type Output = Flow;

    fn add(self, other: Flow) -> Flow {
        Flow {
            read_bytes: self.read_bytes + other.read_bytes,
            reads: self.reads + other.reads,
            written_bytes: self.written_bytes + other.written_bytes,
            writes: self.writes + other.writes,
            failures: self.failures + other.failures,
        }
    }
}

/// Counters for requests that peers sent to this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounters {
    pub flow: Flow,
    /// Requests rejected with an error status.
    pub rejected: u64,
    /// Connections accepted since startup.
    pub accepted: u64,
    pub open: u64,
    /// Connections refused because too many were open.
    pub refused: u64,
}

/// Counters for requests issued to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCounters {
    pub segment: String,
    /// The transport: `tcp`, `rdma`, `shared-memory` for a process on the same host, or `memory`
    /// for this process's own segment.
    pub transport: &'static str,
    pub flow: Flow,
    /// The part of `flow` that moved through shared memory. It may be less than all of it: some
    /// operations cannot use shared memory.
    pub shared: Flow,
    /// Whether the peer is considered down.
    pub down: bool,
}

/// Counters for one of an engine's RDMA devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailCounters {
    pub device: String,
    /// The port in use.
    pub port: u8,
    /// GID index and GID in use.
    pub gid: String,
    /// Whether the device is in use. False while its port is down or after the device failed.
    pub up: bool,
    /// Number of peer devices that have an endpoint here, connected or not.
    pub endpoints: u64,
    /// Connections established since startup.
    pub connected: u64,
    /// Connections closed because they failed, were replaced or were no longer needed.
    pub retired: u64,
    pub requests: u64,
    pub failures: RailFailures,
    /// Bytes read through the device.
    pub read_bytes: u64,
    /// Bytes written through the device.
    pub written_bytes: u64,
}

/// A device's failures, by cause. Requests flushed only because another request on the same
/// connection failed are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailFailures {
    /// Connections that could not be established.
    pub connection: u64,
    /// Requests that the device rejected or could not execute.
    pub device: u64,
    /// Requests that the peer rejected because the range is not in its registered memory.
    pub refused: u64,
    /// Requests to which the peer's device did not respond correctly, and connections that made no
    /// progress.
    pub peer: u64,
}

/// A [`Flow`] that many threads can update.
#[derive(Debug, Default)]
pub(crate) struct FlowMeter {
    read_bytes: AtomicU64,
    reads: AtomicU64,
    written_bytes: AtomicU64,
    writes: AtomicU64,
    failures: AtomicU64,
}

impl FlowMeter {
    pub(crate) fn read(&self, operations: u64, bytes: u64) {
        if operations > 0 {
            self.reads.fetch_add(operations, Ordering::Relaxed);
            self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn wrote(&self, operations: u64, bytes: u64) {
        if operations > 0 {
            self.writes.fetch_add(operations, Ordering::Relaxed);
            self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn failed(&self, operations: u64) {
        if operations > 0 {
            self.failures.fetch_add(operations, Ordering::Relaxed);
        }
    }

    pub(crate) fn flow(&self) -> Flow {
        Flow {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}
