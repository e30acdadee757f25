//! What an engine is told: by its owner, and by Mooncake's `MC_*` variables.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::engine::env::processors;
use crate::engine::metadata::{CallLimits, MetadataUri};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::rdma::{RdmaSettings, RdmaWish};
use crate::engine::transfer::variables::Reader;

/// What an engine is told by its owner.
#[derive(Clone, Debug)]
pub struct TransferConfig {
    /// The segment's name, and with `P2PHANDSHAKE` the host that peers find us at (its port is not used then).
    pub local_server_name: String,
    /// Where segments are found.
    pub metadata: MetadataUri,
    /// How bytes are moved.
    pub protocol: Protocol,
    /// The host that is announced to peers with an HTTP metadata service. `None` = `MC_TCP_BIND_ADDRESS`, or else the first LAN
    /// address.
    pub announce_host: Option<String>,
    /// What to use of the host's RDMA devices; only read with [`Protocol::Rdma`].
    pub rdma: RdmaWish,
    /// What the environment says.
    pub settings: TransferSettings,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// RDMA verbs. Never TCP in disguise: see [`RdmaWish::tcp_instead`].
    Rdma,
}

impl FromStr for Protocol {
    type Err = TransferError;
    fn from_str(text: &str) -> Result<Protocol, TransferError> {
        match text {
            "tcp" => Ok(Protocol::Tcp),
            "rdma" => Ok(Protocol::Rdma),
            other => Err(TransferError::Protocol { protocol: other.to_owned() }),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Rdma => "rdma",
        })
    }
}

/// Which version of the TCP framing to speak as initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The newest that the peer offers.
    Newest,
    /// Version 1 (`MC_TCP_PROTO=1`), without acknowledgements.
    V1,
}

/// What the environment says. `Default` is upstream's 0.3.13.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSettings {
    /// `MC_METADATA_CLUSTER_ID`: part of every metadata key.
    pub cluster_id: Option<String>,
    /// `MC_TCP_BIND_ADDRESS`: the host that is announced; it binds nothing.
    pub bind_address: Option<String>,
    /// `MC_LEGACY_RPC_PORT_BINDING`: announce and bind host and port of `local_server_name`.
    pub legacy_port_binding: bool,
    /// `MC_MIN_RPC_PORT`, `MC_MAX_RPC_PORT`: where the handshake and data ports are drawn from.
    pub ports: RangeInclusive<u16>,
    /// `MC_HANDSHAKE_PORT`: the port of a name without one.
    pub handshake_port: u16,
    /// `MC_HANDSHAKE_CONNECT_TIMEOUT`: how long connecting to a handshake port may take.
    pub handshake_connect: Duration,
    /// `MC_HANDSHAKE_MAX_LENGTH`: longest handshake message, bytes.
    pub handshake_bytes_max: usize,
    /// `MC_USE_IPV6`: the handshake port listens on IPv6.
    pub ipv6: bool,
    /// How old a cached descriptor may be: zero with `MC_DISABLE_METACACHE`, `MC_TE_METADATA_REFRESH_INTERVAL_SECONDS`, or any.
    pub descriptor_age_max: Option<Duration>,
    /// `MC_TCP_ENABLE_CONNECTION_POOL`: keep connections open.
    pub keep_lanes: bool,
    /// `MC_TCP_LANES_PER_PEER`: most connections to a peer.
    pub lanes_per_peer: usize,
    /// `MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER`: most batches that wait for a lane as long as they may take.
    pub queued_per_peer: usize,
    /// `MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER`: most that wait beyond those, for `admission`.
    pub pending_per_peer: usize,
    /// `MC_TCP_ADMISSION_TIMEOUT_MS`.
    pub admission: Duration,
    /// `MC_TCP_STATUS_TIMEOUT_SEC`: how long an answer may be waited for.
    pub status: Duration,
    /// `MC_TCP_PROGRESS_TIMEOUT_SEC`: how long no byte may move.
    pub progress: Duration,
    /// `MC_TCP_PROTO`.
    pub framing: Framing,
    /// How long a call to the metadata service may take. Not upstream's to choose.
    pub metadata: CallLimits,
    /// On how many lanes at a time one thread sends small requests to a target on the same host, where the target's threads need the
    /// processors too. Not upstream's; by the number of processors.
    pub lanes_nearby: usize,
    /// How many threads move the bytes of one large batch, ours included. Not upstream's; by the number of processors.
    pub movers_per_batch: usize,
    /// What concerns RDMA.
    pub rdma: RdmaSettings,
}

impl Default for TransferSettings {
    fn default() -> TransferSettings {
        let processors = processors();
        TransferSettings {
            cluster_id: None,
            bind_address: None,
            legacy_port_binding: false,
            ports: PORTS,
            handshake_port: 12_001,
            handshake_connect: Duration::from_secs(5),
            handshake_bytes_max: 1 << 20,
            ipv6: false,
            descriptor_age_max: None,
            keep_lanes: true,
            lanes_per_peer: 4,
            queued_per_peer: 1024,
            pending_per_peer: 1024,
            admission: Duration::from_secs(1),
            status: Duration::from_secs(30),
            progress: Duration::from_secs(30),
            framing: Framing::Newest,
            metadata: CallLimits::default(),
            lanes_nearby: processors.clamp(2, 4),
            movers_per_batch: (processors / 2).clamp(1, 4),
            rdma: RdmaSettings::default(),
        }
    }
}

/// Upstream's default range.
const PORTS: RangeInclusive<u16> = 15_000..=17_000;
/// Where the kernel draws the ports of outgoing connections from; upstream refuses a range that touches it.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

impl TransferSettings {
    /// What the variables that `lookup` finds ask for, and a warning for each that is not understood and so ignored.
    pub fn from_env(lookup: &dyn Fn(&str) -> Option<String>) -> (TransferSettings, Vec<String>) {
        let mut read = Reader::new(lookup);
        let base = TransferSettings::default();
        let framing = match read.number(&["MC_TCP_PROTO"], 1..=2, 2) {
            1 => Framing::V1,
            _ => Framing::Newest,
        };
        let lanes = ["MC_TCP_LANES_PER_PEER", "MC_TCP_MAX_CONNECTIONS_PER_PEER"];
        let refresh = read.number(&["MC_TE_METADATA_REFRESH_INTERVAL_SECONDS"], 0..=86_400, 0);
        let cached = lookup("MC_DISABLE_METACACHE").is_none();
        let settings = TransferSettings {
            cluster_id: lookup("MC_METADATA_CLUSTER_ID").filter(|t| !t.is_empty()),
            bind_address: lookup("MC_TCP_BIND_ADDRESS").filter(|t| !t.is_empty()),
            legacy_port_binding: lookup("MC_LEGACY_RPC_PORT_BINDING").is_some(),
            ports: ports(&mut read),
            handshake_port: read.number(&["MC_HANDSHAKE_PORT"], 1..=65_535, base.handshake_port),
            handshake_connect: read.seconds("MC_HANDSHAKE_CONNECT_TIMEOUT", 1..=3600, base.handshake_connect),
            handshake_bytes_max: read.number(
                &["MC_HANDSHAKE_MAX_LENGTH"],
                1 << 20..=128 << 20,
                base.handshake_bytes_max,
            ),
            ipv6: lookup("MC_USE_IPV6").is_some(),
            descriptor_age_max: match (cached, refresh) {
                (false, _) => Some(Duration::ZERO),
                (true, 0u64) => None,
                (true, seconds) => Some(Duration::from_secs(seconds)),
            },
            keep_lanes: read.switch("MC_TCP_ENABLE_CONNECTION_POOL", base.keep_lanes),
            lanes_per_peer: read.number(&lanes, 1..=16, base.lanes_per_peer),
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
            metadata: base.metadata,
            lanes_nearby: base.lanes_nearby,
            movers_per_batch: base.movers_per_batch,
            rdma: RdmaSettings::read(&mut read),
        };
        // Upstream's listen backlog and chunk size need no counterpart here, but a wrong value is worth a word.
        read.number(&["MC_HANDSHAKE_LISTEN_BACKLOG"], 1..=65_535, 128);
        read.number(&["MC_TCP_SLICE_SIZE"], 1..=u64::MAX, 65_536);
        (settings, read.warnings)
    }
}

/// The port range, whole or not at all; upstream's misspelt names count too.
fn ports(read: &mut Reader<'_>) -> RangeInclusive<u16> {
    let before = read.warnings.len();
    let first = read.number(&["MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT"], 1024..=65_535, *PORTS.start());
    let last = read.number(&["MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT"], 1024..=65_535, *PORTS.end());
    if read.warnings.len() > before {
        return PORTS;
    }
    if first > last {
        read.warnings.push(format!("MC_MIN_RPC_PORT={first} is above MC_MAX_RPC_PORT={last}; using 15000..17000"));
        return PORTS;
    }
    if first <= *EPHEMERAL.end() && last >= *EPHEMERAL.start() {
        let (a, b) = (EPHEMERAL.start(), EPHEMERAL.end());
        read.warnings.push(format!(
            "MC_MIN_RPC_PORT={first}..MC_MAX_RPC_PORT={last} touches {a}..{b}, where the kernel takes ports for outgoing \
             connections; using 15000..17000"
        ));
        return PORTS;
    }
    first..=last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> (TransferSettings, Vec<String>) {
        TransferSettings::from_env(&|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn an_empty_environment_is_upstreams_default() {
        assert_eq!(read(&[]), (TransferSettings::default(), Vec::new()));
    }

    #[test]
    fn every_variable_has_its_effect() {
        let (settings, warnings) = read(&[
            ("MC_METADATA_CLUSTER_ID", "blue"),
            ("MC_TCP_BIND_ADDRESS", "10.0.0.1"),
            ("MC_LEGACY_RPC_PORT_BINDING", ""),
            ("MC_MIN_PRC_PORT", "20000"),
            ("MC_MAX_RPC_PORT", "20010"),
            ("MC_HANDSHAKE_PORT", "9"),
            ("MC_USE_IPV6", "0"),
            ("MC_TCP_ENABLE_CONNECTION_POOL", "false"),
            ("MC_TCP_MAX_CONNECTIONS_PER_PEER", "7"),
            ("MC_TCP_STATUS_TIMEOUT_SEC", "2"),
            ("MC_TCP_PROGRESS_TIMEOUT_SEC", "3"),
            ("MC_TCP_ADMISSION_TIMEOUT_MS", "5"),
            ("MC_TCP_PROTO", "1"),
            ("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", "60"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let expected = TransferSettings {
            cluster_id: Some("blue".into()),
            bind_address: Some("10.0.0.1".into()),
            legacy_port_binding: true,
            ports: 20_000..=20_010,
            handshake_port: 9,
            ipv6: true,
            keep_lanes: false,
            lanes_per_peer: 7,
            status: Duration::from_secs(2),
            progress: Duration::from_secs(3),
            admission: Duration::from_millis(5),
            framing: Framing::V1,
            descriptor_age_max: Some(Duration::from_secs(60)),
            ..TransferSettings::default()
        };
        assert_eq!(settings, expected);
        assert_eq!(read(&[("MC_DISABLE_METACACHE", "")]).0.descriptor_age_max, Some(Duration::ZERO));
    }

    #[test]
    fn a_value_out_of_range_is_ignored_with_a_warning() {
        for (name, value) in [
            ("MC_TCP_LANES_PER_PEER", "17"),
            ("MC_TCP_LANES_PER_PEER", "many"),
            ("MC_HANDSHAKE_MAX_LENGTH", "1000"),
            ("MC_TCP_STATUS_TIMEOUT_SEC", "0"),
            ("MC_MIN_RPC_PORT", "80"),
            ("MC_MIN_RPC_PORT", "17001"),
            ("MC_MAX_RPC_PORT", "33000"),
            ("MC_TCP_PROTO", "7"),
            ("MC_TCP_PROTO", "v1"),
            ("MC_TCP_ENABLE_CONNECTION_POOL", "perhaps"),
        ] {
            let (settings, warnings) = read(&[(name, value)]);
            assert_eq!((settings, warnings.len()), (TransferSettings::default(), 1), "{name}={value}: {warnings:?}");
        }
    }
}
