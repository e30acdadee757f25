//! Transfer counters: bytes and operations, by peer and direction.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one engine since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Reads and writes by peers in this engine's memory.
    pub served: Flow,
    /// Reads and writes by this engine in peers' memory.
    pub issued: Flow,
    /// Reads and writes within this process.
    pub local: Flow,
    /// Peers' requests refused because the range is not in memory that they may access.
    pub rejected: u64,
    /// Data connections accepted since the start.
    pub connections_accepted: u64,
    /// Data connections that peers have open.
    pub connections_open: u64,
    /// Data connections closed at once because too many were open.
    pub connections_refused: u64,
    /// Peers' messages dropped because the owner did not fetch them.
    pub notices_dropped: u64,
}

/// Bytes and operations, by direction. A read is one from the initiator's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    pub read_bytes: u64,
    pub reads: u64,
    pub written_bytes: u64,
    pub writes: u64,
    pub failures: u64,
}

/// Counters of requests that peers sent to this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounters {
    pub flow: Flow,
    /// Requests that were refused with an error status.
    pub rejected: u64,
    /// Connections accepted since the start.
    pub accepted: u64,
    pub open: u64,
    /// Connections refused because too many were open.
    pub refused: u64,
}

/// Counters of requests issued to one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCounters {
    pub segment: String,
    /// The transport: `tcp`, `rdma`, or `memory` for this process's own segment.
    pub transport: &'static str,
    pub flow: Flow,
    /// Whether the peer is considered down.
    pub down: bool,
}

/// Counters of one RDMA device of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailCounters {
    pub device: String,
    /// The port in use.
    pub port: u8,
    /// The GID index and the GID.
    pub gid: String,
    /// Whether the device is in use. False while its port is down or after the device failed.
    pub up: bool,
    /// Peer devices with an endpoint, connected or not.
    pub endpoints: u64,
    /// Connections established since the start.
    pub connected: u64,
    /// Connections closed because they failed, were replaced, or were no longer needed.
    pub retired: u64,
    pub requests: u64,
    pub failures: RailFailures,
    /// Bytes read through the device.
    pub read_bytes: u64,
    /// Bytes written through the device.
    pub written_bytes: u64,
}

/// Failures on a device, by cause. Requests that were only flushed because another one on the same connection failed
/// are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailFailures {
    /// Connections that could not be established.
    pub connection: u64,
    /// Requests that the device did not accept or could not execute.
    pub device: u64,
    /// Requests refused by the peer: the range is not in its registered memory.
    pub refused: u64,
    /// Requests that the peer's device did not answer correctly, and connections without progress.
    pub peer: u64,
}

/// A [`Flow`] that many threads update.
#[derive(Debug, Default)]
pub(in crate::engine::transfer) struct FlowMeter {
    read_bytes: AtomicU64,
    reads: AtomicU64,
    written_bytes: AtomicU64,
    writes: AtomicU64,
    failures: AtomicU64,
}

impl FlowMeter {
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
