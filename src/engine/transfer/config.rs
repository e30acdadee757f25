//! Transfer engine configuration: what the owner passes, and Mooncake's `MC_*` variables.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::options::TransportOptions;
use crate::shared_memory::SharedMemorySettings;
use crate::transports::{TransferProtocol, TransportSettings};
use crate::variables::VariableReader;
use mcctl_metadata::{CallLimits, HttpCredentials, MetadataUri};

/// The configuration with which a transfer engine is started.
#[derive(Clone, Debug)]
pub struct TransferConfig {
    /// The segment's name. With `P2PHANDSHAKE`, peers also use the host in the name to reach this
    /// engine, and the port in the name is ignored.
    pub local_server_name: String,
    /// URI of the metadata service, or `P2PHANDSHAKE`.
    pub metadata: MetadataUri,
    pub protocol: TransferProtocol,
    /// The host announced to peers when a metadata service is used. `None` means
    /// `MC_TCP_BIND_ADDRESS` if set, else the first LAN address.
    pub announce_host: Option<String>,
    pub transport: TransportOptions,
    /// Settings from `MC_*` variables.
    pub settings: TransferSettings,
}

/// Settings read from the environment, and a few that only the owner sets. The defaults match
/// upstream 0.3.13.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSettings {
    /// `MC_METADATA_CLUSTER_ID`: included in every metadata key.
    pub cluster_id: Option<String>,
    /// `MC_TCP_BIND_ADDRESS`: the announced host. Despite its name, nothing is bound to it.
    pub bind_address: Option<String>,
    /// `MC_LEGACY_RPC_PORT_BINDING`: announce and bind the host and port of `local_server_name`.
    pub legacy_port_binding: bool,
    /// `MC_MIN_RPC_PORT`, `MC_MAX_RPC_PORT`: range from which the handshake and data ports are
    /// chosen.
    pub ports: RangeInclusive<u16>,
    /// `MC_HANDSHAKE_PORT`: port to use if a segment name has none.
    pub handshake_port: u16,
    /// `MC_HANDSHAKE_CONNECT_TIMEOUT`: timeout for connecting to a peer.
    pub handshake_connect: Duration,
    /// `MC_HANDSHAKE_MAX_LENGTH`: maximum size of a handshake message, in bytes.
    pub handshake_bytes_max: usize,
    /// `MC_USE_IPV6`: make the handshake port listen on IPv6.
    pub ipv6: bool,
    /// Maximum age of a cached descriptor. Zero with `MC_DISABLE_METACACHE`, else
    /// `MC_TE_METADATA_REFRESH_INTERVAL_SECONDS`. `None` means no limit.
    pub descriptor_age_max: Option<Duration>,
    /// Limits for a call to the metadata service. Upstream has no setting for them.
    pub metadata: CallLimits,
    /// What this engine shows to a metadata service over HTTP. Set by the owner: upstream's engine
    /// has no credentials.
    pub credentials: HttpCredentials,
    /// The address that the handshake and data ports listen on. `None`: the loopback address if the
    /// announced host is one, else all addresses. Set by the owner: upstream has no setting for it.
    pub listen_on: Option<IpAddr>,
    /// `MCCTL_SHARED_MEMORY`, `MCCTL_SHARED_MEMORY_SOCKET`: how memory is shared with processes on
    /// the same host. Upstream has no setting for it.
    pub shared_memory: SharedMemorySettings,
    pub transports: TransportSettings,
}

impl Default for TransferSettings {
    fn default() -> TransferSettings {
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
            metadata: CallLimits::default(),
            credentials: HttpCredentials::default(),
            listen_on: None,
            shared_memory: SharedMemorySettings::default(),
            transports: TransportSettings::default(),
        }
    }
}

/// Range from which the data port is chosen (upstream's default).
const PORTS: RangeInclusive<u16> = 15_000..=17_000;
/// The kernel's default ephemeral port range. Upstream rejects a port range that overlaps it.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

impl TransferSettings {
    /// Reads the variables through `lookup`. Returns the settings, and a warning for each invalid
    /// value. Invalid values are ignored.
    pub fn from_env(lookup: &dyn Fn(&str) -> Option<String>) -> (TransferSettings, Vec<String>) {
        let mut read = VariableReader::new(lookup);
        let base = TransferSettings::default();
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
            metadata: base.metadata,
            credentials: base.credentials,
            listen_on: base.listen_on,
            shared_memory: SharedMemorySettings {
                enabled: read.switch("MCCTL_SHARED_MEMORY", base.shared_memory.enabled),
                directory: lookup("MCCTL_SHARED_MEMORY_SOCKET")
                    .and_then(|text| SharedMemorySettings::directory_from(&text)),
            },
            transports: TransportSettings::read(&mut read),
        };
        // Upstream's listen backlog has no counterpart in this engine, but an invalid value still
        // causes a warning.
        read.number(&["MC_HANDSHAKE_LISTEN_BACKLOG"], 1..=65_535, 128);
        (settings, read.warnings)
    }
}

/// Returns the port range, or the default range if either end is invalid. Upstream's misspelled
/// names are accepted too.
fn ports(read: &mut VariableReader<'_>) -> RangeInclusive<u16> {
    let before = read.warnings.len();
    let first = read.number(&["MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT"], 1024..=65_535, *PORTS.start());
    let last = read.number(&["MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT"], 1024..=65_535, *PORTS.end());
    if read.warnings.len() > before {
        return PORTS;
    }
    if first > last {
        read.warnings
            .push(format!("MC_MIN_RPC_PORT={first} is greater than MC_MAX_RPC_PORT={last}; using 15000..17000"));
        return PORTS;
    }
    if first <= *EPHEMERAL.end() && last >= *EPHEMERAL.start() {
        let a = EPHEMERAL.start();
        let b = EPHEMERAL.end();
        read.warnings.push(format!(
            "MC_MIN_RPC_PORT={first}..MC_MAX_RPC_PORT={last} overlaps the kernel's ephemeral port range {a}..{b}; using 15000..17000"
        ));
        return PORTS;
    }
    first..=last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{Framing, TcpSettings};

    fn read(vars: &[(&str, &str)]) -> (TransferSettings, Vec<String>) {
        TransferSettings::from_env(&|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn an_empty_environment_gives_upstreams_defaults() {
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
            ("MCCTL_SHARED_MEMORY", "0"),
            ("MCCTL_SHARED_MEMORY_SOCKET", "/run/shared"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let tcp = TcpSettings {
            keep_connections: false,
            connections_per_peer: 7,
            status: Duration::from_secs(2),
            progress: Duration::from_secs(3),
            admission: Duration::from_millis(5),
            framing: Framing::V1,
            ..TcpSettings::default()
        };
        let expected = TransferSettings {
            cluster_id: Some("blue".into()),
            bind_address: Some("10.0.0.1".into()),
            legacy_port_binding: true,
            ports: 20_000..=20_010,
            handshake_port: 9,
            ipv6: true,
            descriptor_age_max: Some(Duration::from_secs(60)),
            shared_memory: SharedMemorySettings { enabled: false, directory: Some("/run/shared".into()) },
            transports: TransportSettings { tcp, ..TransportSettings::default() },
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
