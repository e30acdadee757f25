//! A client's configuration: the master, the client's name and memory, the transfer engine, and
//! time limits.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::client_metrics::ClientMetrics;
use crate::name;
use mcctl_base::upstream::checksum::{self, ChecksumSwitch};
use mcctl_base::{ByteSize, HostPort};
use mcctl_metadata::MetadataUri;
use mcctl_net::rpc::{ServerAddress, Timeouts};
use mcctl_sys::pages::MemoryPolicy;
use mcctl_transfer::{TransferConfig, TransferProtocol, TransferSettings, TransportOptions};

/// Upstream's name for "no tenant".
pub const DEFAULT_TENANT: &str = "default";

/// Configuration of a client, alone or in a node.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The master's RPC address. If `leader` is set, the leader's when this client starts.
    pub master: HostPort,
    /// With several masters: the RPC address of the one that leads, which this client follows.
    pub leader: Option<ServerAddress>,
    /// The host on which peers reach this process, with or without a port.
    pub local_hostname: String,
    /// Port range for the client's name, used if `local_hostname` has no port.
    pub name_ports: (u16, u16),
    /// Size of the registered buffer for callers without registered memory of their own, in bytes;
    /// 0 for none.
    pub local_buffer_bytes: ByteSize,
    /// How memory is allocated.
    pub memory: MemoryPolicy,
    /// Transfer engine settings; the client sets `local_server_name`.
    pub engine: TransferConfig,
    /// Timeouts for calls to the master.
    pub timeouts: Timeouts,
    /// Time limit for the transfers of one batch.
    pub transfer_deadline: Duration,
    /// Which threads run the transfers.
    pub transfer_threads: TransferThreads,
    /// How long to wait for the metadata service, and then for the master, if they are not
    /// available at startup.
    pub max_wait: Duration,
    /// Portion of `max_wait` that has already passed, for example during name resolution.
    pub waited: Duration,
    /// The tenant that owns the objects. Masters without multi-tenancy ignore it.
    pub tenant: String,
    /// The writer's host, reported to masters that place objects near their writer. Empty if
    /// unknown.
    pub host_id: String,
    /// Whether checksums of objects are computed, sent and verified.
    pub checksums: bool,
    /// What happens to a replica whose bytes are wrong.
    pub on_corruption: OnCorruption,
    /// If set, counts calls and transfers.
    pub metrics: Option<Arc<ClientMetrics>>,
}

/// What a client does with a replica whose bytes do not have the object's checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCorruption {
    /// Removes the object if it is its only replica, at most ten per minute.
    #[default]
    Withdraw,
    /// Reports the replica, and leaves the object unchanged.
    Report,
}

/// The text is neither `withdraw` nor `report`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not 'withdraw' or 'report'")]
pub struct UnknownAction(String);

impl FromStr for OnCorruption {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<OnCorruption, UnknownAction> {
        match text {
            "withdraw" => Ok(OnCorruption::Withdraw),
            "report" => Ok(OnCorruption::Report),
            _ => Err(UnknownAction(text.to_owned())),
        }
    }
}

/// What the Python client does with a replica whose bytes are wrong.
pub const ON_CORRUPTION_VARIABLE: &str = "MCCTL_ON_CORRUPTION";

/// Which threads run a client's transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferThreads {
    /// The runtime's threads for blocking work. The runtime does other work meanwhile.
    #[default]
    Blocking,
    /// If a batch goes to a single node, the thread that polls the operation. This saves two
    /// changes of threads, and stops other work of that thread meanwhile. For a runtime of its own
    /// per calling thread.
    Caller,
}

/// Minimum timeout for a connection attempt, if `max_wait` limits it.
const CONNECT_MIN: Duration = Duration::from_millis(100);

impl ClientConfig {
    /// Returns the default settings for the master at `master`: TCP, P2PHANDSHAKE, no local buffer,
    /// no waiting, and the name `localhost`, which is valid only if the master is on this host.
    pub fn new(master: HostPort) -> ClientConfig {
        ClientConfig {
            master,
            leader: None,
            local_hostname: "localhost".to_owned(),
            name_ports: name::PORTS,
            local_buffer_bytes: ByteSize(0),
            memory: MemoryPolicy::default(),
            engine: TransferConfig {
                local_server_name: String::new(),
                metadata: MetadataUri::P2p,
                protocol: TransferProtocol::Tcp,
                announce_host: None,
                transport: TransportOptions::default(),
                settings: TransferSettings::default(),
            },
            timeouts: Timeouts::default(),
            transfer_deadline: Duration::from_secs(30),
            transfer_threads: TransferThreads::default(),
            max_wait: Duration::ZERO,
            waited: Duration::ZERO,
            tenant: DEFAULT_TENANT.to_owned(),
            host_id: String::new(),
            checksums: true,
            on_corruption: OnCorruption::default(),
            metrics: None,
        }
    }

    /// The server to which this client connects.
    pub fn server(&self) -> ServerAddress {
        self.leader.clone().unwrap_or_else(|| self.master.clone().into())
    }

    /// Applies Mooncake's environment variables, read through `lookup`: memory, the transfer
    /// engine, the port range for names, and the host ID. Set `local_hostname` and
    /// `engine.announce_host` first, because they affect the result. Returns a warning for each
    /// variable that does not parse.
    pub fn apply_variables(&mut self, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        let (memory, mut warnings) = MemoryPolicy::from_env(lookup);
        let (settings, more) = TransferSettings::from_env(lookup);
        warnings.extend(more);
        self.memory = memory;
        self.name_ports = name::ports_from_env(lookup, &mut warnings);
        if let Some(text) = lookup(checksum::VARIABLE) {
            match checksum::in_wheel(&text) {
                ChecksumSwitch::On => {}
                ChecksumSwitch::Off => self.checksums = false,
                ChecksumSwitch::Invalid if text.is_empty() => {}
                ChecksumSwitch::Invalid => {
                    warnings.push(format!(
                        "{}='{text}' is neither 0 nor 1, nor false, true, off, on, no or yes; checksums are on",
                        checksum::VARIABLE
                    ));
                }
            }
        }
        if let Some(text) = lookup(ON_CORRUPTION_VARIABLE).filter(|text| !text.is_empty()) {
            match text.parse() {
                Ok(on_corruption) => self.on_corruption = on_corruption,
                // The value may be a misspelled `report`, so objects are not removed.
                Err(why) => {
                    self.on_corruption = OnCorruption::Report;
                    warnings.push(format!("{ON_CORRUPTION_VARIABLE}: {why}; damaged objects are only reported"));
                }
            }
        }
        self.host_id = name::host_id(&self.local_hostname, lookup("MOONCAKE_HOST_ID").as_deref());
        let bind_address = self.engine.announce_host.clone().or(settings.bind_address.clone());
        self.engine.settings = TransferSettings { bind_address, ..settings };
        warnings
    }

    /// Waits at most `max_wait` for services at startup, of which `waited` has already passed. A
    /// connection attempt takes no longer than the rest.
    pub fn wait_at_most(&mut self, max_wait: Duration, waited: Duration) {
        self.max_wait = max_wait;
        self.waited = waited;
        self.timeouts.connect = self.timeouts.connect.min(self.wait_left()).max(CONNECT_MIN);
    }

    /// How this client allocates memory. Without shared memory, no other process can map it.
    pub fn memory_policy(&self) -> MemoryPolicy {
        MemoryPolicy { private: !self.engine.settings.shared_memory.enabled, ..self.memory }
    }

    /// The time left to wait for services at startup.
    pub fn wait_left(&self) -> Duration {
        self.max_wait.saturating_sub(self.waited)
    }

    /// The handshake port, if it is fixed by `MC_LEGACY_RPC_PORT_BINDING`.
    pub fn fixed_handshake_port(&self) -> Option<u16> {
        let settings = &self.engine.settings;
        if !settings.legacy_port_binding || self.engine.metadata == MetadataUri::P2p {
            return None;
        }
        match HostPort::split(&self.local_hostname) {
            Ok((_, Some(port))) => Some(port),
            _ => Some(settings.handshake_port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ClientConfig {
        ClientConfig::new(HostPort::new("127.0.0.1", 1))
    }

    #[test]
    fn time_spent_resolving_shortens_the_wait() {
        let left = |waited| {
            let mut config = config();
            config.wait_at_most(Duration::from_secs(10), Duration::from_secs(waited));
            config.wait_left()
        };
        assert_eq!([left(0), left(3), left(11)].map(|left| left.as_secs()), [10, 7, 0]);
    }

    #[test]
    fn the_announced_host_overrides_the_variable() {
        let lookup = |name: &str| (name == "MC_TCP_BIND_ADDRESS").then(|| "10.0.0.1".to_owned());
        let bind_address = |announce: Option<&str>| {
            let mut config = config();
            config.engine.announce_host = announce.map(str::to_owned);
            assert_eq!(config.apply_variables(&lookup), [""; 0]);
            config.engine.settings.bind_address
        };
        assert_eq!(bind_address(None).as_deref(), Some("10.0.0.1"));
        assert_eq!(bind_address(Some("10.0.0.2")).as_deref(), Some("10.0.0.2"));
    }

    #[test]
    fn the_handshake_port_is_fixed_only_with_a_metadata_service() {
        let port = |metadata: &str, name: &str| {
            let mut config = config();
            config.local_hostname = name.to_owned();
            config.engine.metadata = metadata.parse().expect("a mode");
            config.engine.settings.legacy_port_binding = true;
            config.fixed_handshake_port()
        };
        assert_eq!(port("P2PHANDSHAKE", "h:7"), None);
        assert_eq!(port("http://m:1/metadata", "h:7"), Some(7));
        assert_eq!(port("http://m:1/metadata", "h"), Some(12_001));
    }
}
