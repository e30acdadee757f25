//! TCP transport configuration: Mooncake's `MC_TCP_*` variables.

use std::time::Duration;

use crate::variables::VariableReader;
use mcctl_sys::env::processors;

/// The version of the TCP framing that the initiator uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The newest version that the peer supports.
    Newest,
    /// Version 1 (`MC_TCP_PROTO=1`), without acknowledgements.
    V1,
}

/// Settings read from the environment. The defaults match upstream 0.3.13.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// `MC_TCP_ENABLE_CONNECTION_POOL`: keep connections open.
    pub keep_connections: bool,
    /// `MC_TCP_LANES_PER_PEER`: maximum number of connections to a peer.
    pub connections_per_peer: usize,
    /// `MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER`: maximum number of batches that may wait for a
    /// connection until their own deadline.
    pub queued_per_peer: usize,
    /// `MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER`: maximum number of additional batches, which wait
    /// for at most `admission`.
    pub pending_per_peer: usize,
    /// `MC_TCP_ADMISSION_TIMEOUT_MS`: how long an additional batch may wait.
    pub admission: Duration,
    /// `MC_TCP_STATUS_TIMEOUT_SEC`: timeout for a response.
    pub status: Duration,
    /// `MC_TCP_PROGRESS_TIMEOUT_SEC`: how long a transfer may go without moving a byte.
    pub progress: Duration,
    /// `MC_TCP_PROTO`: the TCP framing version.
    pub framing: Framing,
    /// Number of connections over which one thread sends small requests to a target on the same
    /// host. Limited because the target's threads share the host's processors. Derived from the
    /// number of processors. Upstream has no equivalent setting.
    pub connections_nearby: usize,
    /// Number of threads that move the bytes of one large batch, including the calling thread.
    /// Derived from the number of processors. Upstream has no equivalent setting.
    pub movers_per_batch: usize,
}

impl Default for TcpSettings {
    fn default() -> TcpSettings {
        let processors = processors();
        TcpSettings {
            keep_connections: true,
            connections_per_peer: 4,
            queued_per_peer: 1024,
            pending_per_peer: 1024,
            admission: Duration::from_secs(1),
            status: Duration::from_secs(30),
            progress: Duration::from_secs(30),
            framing: Framing::Newest,
            connections_nearby: processors.clamp(2, 4),
            movers_per_batch: (processors / 2).clamp(1, 4),
        }
    }
}

impl TcpSettings {
    /// Reads the TCP transport's `MC_*` variables. Invalid values are ignored with a warning.
    pub(crate) fn read(read: &mut VariableReader<'_>) -> TcpSettings {
        let base = TcpSettings::default();
        let framing = match read.number(&["MC_TCP_PROTO"], 1..=2, 2) {
            1 => Framing::V1,
            _ => Framing::Newest,
        };
        let connections = ["MC_TCP_LANES_PER_PEER", "MC_TCP_MAX_CONNECTIONS_PER_PEER"];
        let settings = TcpSettings {
            keep_connections: read.switch("MC_TCP_ENABLE_CONNECTION_POOL", base.keep_connections),
            connections_per_peer: read.number(&connections, 1..=16, base.connections_per_peer),
            queued_per_peer: read.number(&["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"], 1..=65_535, base.queued_per_peer),
            pending_per_peer: read.number(
                &["MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"],
                1..=65_535,
                base.pending_per_peer,
            ),
            admission: Duration::from_millis(read.number(&["MC_TCP_ADMISSION_TIMEOUT_MS"], 1..=600_000, 1000)),
            status: read.seconds("MC_TCP_STATUS_TIMEOUT_SEC", 1..=3600, base.status),
            progress: read.seconds("MC_TCP_PROGRESS_TIMEOUT_SEC", 1..=3600, base.progress),
            framing,
            connections_nearby: base.connections_nearby,
            movers_per_batch: base.movers_per_batch,
        };
        // Upstream's chunk size has no counterpart in this engine, but an invalid value still
        // causes a warning.
        read.number(&["MC_TCP_SLICE_SIZE"], 1..=u64::MAX, 65_536);
        settings
    }
}
