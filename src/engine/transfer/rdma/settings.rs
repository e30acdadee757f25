//! RDMA transport configuration: Mooncake's `MC_*` variables.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::topology::DeviceSelection;
use crate::variables::VariableReader;
use mcctl_wire::json::PAIRS_MAX;

/// Settings read from the environment. The defaults match upstream 0.3.13.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaSettings {
    /// Port, device filter and GID index: `MC_IB_PORT`, `MC_TE_FILTERS` and `MC_GID_INDEX`. If the
    /// last one is unset, `NCCL_IB_GID_INDEX` is used.
    pub choice: DeviceSelection,
    /// `MC_PKEY_INDEX`: partition key (P_Key) index.
    pub pkey_index: u16,
    /// `MC_MTU`: maximum path MTU, in bytes.
    pub mtu: u32,
    /// `MC_IB_TC`: traffic class, 0 if unset.
    pub traffic_class: u8,
    /// `MC_IB_SL`: service level, 0 if unset.
    pub service_level: u8,
    /// `MC_AUTO_GID_MAX_RETRIES`: how many other GID indices to try if a queue pair cannot be
    /// connected with the first one.
    pub gid_retries: u32,
    /// `MC_NUM_QP_PER_EP`: queue pairs per endpoint. Must match on both ends.
    pub pairs_per_endpoint: usize,
    /// `MC_MAX_EP_PER_CTX`: maximum number of endpoints per device.
    pub endpoints_max: usize,
    /// `MC_MAX_WR`: maximum number of outstanding work requests per queue pair.
    pub requests_per_pair: u32,
    /// `MC_MAX_SGE`: maximum number of scatter-gather entries (SGEs) per work request.
    pub sge: u32,
    /// `MC_MAX_INLINE`: writes of at most this many bytes are sent inline.
    pub inline_bytes: u32,
    /// `MC_MAX_CQE_PER_CTX`: number of entries in a device's completion queue, and so the maximum
    /// number of outstanding work requests on the device.
    pub completions: u32,
    /// `MC_SLICE_SIZE`: bytes per work request.
    pub slice_bytes: u64,
    /// `MC_FRAGMENT_RATIO`: a remainder of at most `slice_bytes / fragment_ratio` bytes is sent
    /// with the last slice.
    pub fragment_ratio: u64,
    /// `MC_RETRY_CNT`: how many times a slice is retried, each time on the next path.
    pub retries: u32,
    /// `MC_SLICE_TIMEOUT`: how long a slice may take.
    pub slice_limit: Option<Duration>,
    /// `MC_MAX_MR_SIZE`: largest memory region to register at once, in bytes.
    pub region_bytes_max: u64,
    /// `MC_ENABLE_PARALLEL_REG_MR`: register on all devices in parallel. `None` means for large
    /// regions only.
    pub register_in_parallel: Option<bool>,
    /// `MC_MAX_CONCURRENT_REG_MR`: maximum number of threads that register in parallel. `None`
    /// means no limit.
    pub registering_threads: Option<usize>,
    /// `MC_IB_PCI_RELAXED_ORDERING`: use PCI relaxed ordering, unless the variable is 0.
    pub relaxed_ordering: bool,
    /// `MC_RDMA_RAIL_PAUSE_SECONDS`: how long a failed path is paused.
    pub rail_pause: Duration,
    /// `MC_CONN_PAUSE_TTL_MS`: how long to wait after a failed connection before dialing the peer
    /// again. Zero means no pause.
    pub dial_pause: Duration,
    /// `MC_PATH_ROUNDROBIN`: choose devices in round-robin order instead of at random.
    pub round_robin: bool,
    /// `MC_ENABLE_DEST_DEVICE_AFFINITY`: prefer the peer's device with the same name as ours.
    pub same_name: bool,
    /// `MC_ENABLE_HCA_PEER_AFFINITY` with `MC_NIC_PEER_AFFINITY`: the peer's devices to use for
    /// each of ours.
    pub peers_of: BTreeMap<String, Vec<String>>,
    /// `MC_RDMA_BIND_ADDRESS`: the host in our endpoint paths.
    pub bind_address: Option<String>,
    /// `MC_CUSTOM_TOPO_JSON`: file that contains the topology matrix.
    pub topology_file: Option<String>,
}

impl Default for RdmaSettings {
    fn default() -> RdmaSettings {
        RdmaSettings {
            choice: DeviceSelection::default(),
            pkey_index: 0,
            mtu: 4096,
            traffic_class: 0,
            service_level: 0,
            gid_retries: 2,
            pairs_per_endpoint: 2,
            endpoints_max: 65_536,
            requests_per_pair: 256,
            sge: 4,
            inline_bytes: 64,
            completions: 4096,
            slice_bytes: 65_536,
            fragment_ratio: 4,
            retries: 9,
            slice_limit: None,
            region_bytes_max: 1 << 40,
            register_in_parallel: None,
            registering_threads: None,
            relaxed_ordering: true,
            rail_pause: Duration::from_secs(30),
            dial_pause: Duration::ZERO,
            round_robin: false,
            same_name: false,
            peers_of: BTreeMap::new(),
            bind_address: None,
            topology_file: None,
        }
    }
}

/// Variables that this engine ignores, each with the reason.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("MC_MLX5_QP_UDP_SPORTS", "it requires the mlx5 provider library"),
    ("MC_MLX5_QP_LAG_PORT_BALANCE", "it requires the mlx5 provider library"),
    ("MC_USE_RDMA_TWOSIDED", "messages are sent through the handshake port"),
];

impl RdmaSettings {
    /// Reads the RDMA transport's `MC_*` variables. Invalid values are ignored with a warning.
    pub(crate) fn read(read: &mut VariableReader<'_>) -> RdmaSettings {
        let base = RdmaSettings::default();
        let (choice, warnings) = DeviceSelection::from_env(read.lookup);
        read.warnings.extend(warnings);
        let (same_name, peers_of) = affinity(read);
        let settings = RdmaSettings {
            choice,
            pkey_index: read.number(&["MC_PKEY_INDEX"], 0..=65_535, base.pkey_index),
            mtu: mtu(read, base.mtu),
            traffic_class: unless_minus_one(read, "MC_IB_TC", 255),
            service_level: unless_minus_one(read, "MC_IB_SL", 15),
            gid_retries: read.number(&["MC_AUTO_GID_MAX_RETRIES"], 0..=16, base.gid_retries),
            pairs_per_endpoint: read.number(&["MC_NUM_QP_PER_EP"], 1..=PAIRS_MAX, base.pairs_per_endpoint),
            endpoints_max: read.number(&["MC_MAX_EP_PER_CTX"], 1..=65_536, base.endpoints_max),
            requests_per_pair: read.number(&["MC_MAX_WR"], 1..=65_535, base.requests_per_pair),
            sge: read.number(&["MC_MAX_SGE"], 1..=65_535, base.sge),
            inline_bytes: read.number(&["MC_MAX_INLINE"], 0..=65_535, base.inline_bytes),
            completions: read.number(&["MC_MAX_CQE_PER_CTX"], 1..=4_194_303, base.completions),
            slice_bytes: read.number(&["MC_SLICE_SIZE"], 1..=1 << 30, base.slice_bytes),
            fragment_ratio: read.number(&["MC_FRAGMENT_RATIO"], 1..=1 << 30, base.fragment_ratio),
            retries: read.number(&["MC_RETRY_CNT"], 1..=127, base.retries),
            slice_limit: match read.number(&["MC_SLICE_TIMEOUT"], -1..=86_400, -1i64) {
                seconds @ 1.. => Some(Duration::from_secs(seconds.unsigned_abs())),
                _ => None,
            },
            region_bytes_max: read.number(&["MC_MAX_MR_SIZE"], 4096..=u64::MAX, base.region_bytes_max),
            register_in_parallel: match read.number(&["MC_ENABLE_PARALLEL_REG_MR"], -1..=1, -1i8) {
                -1 => None,
                flag => Some(flag == 1),
            },
            registering_threads: match read.number(&["MC_MAX_CONCURRENT_REG_MR"], 0..=1024, 0) {
                0 => None,
                threads => Some(threads),
            },
            relaxed_ordering: read.number(&["MC_IB_PCI_RELAXED_ORDERING"], 0..=2, 1u8) != 0,
            rail_pause: read.seconds("MC_RDMA_RAIL_PAUSE_SECONDS", 1..=3599, base.rail_pause),
            dial_pause: Duration::from_millis(read.number(&["MC_CONN_PAUSE_TTL_MS"], 0..=600_000, 0)),
            round_robin: read.switch("MC_PATH_ROUNDROBIN", base.round_robin),
            same_name,
            peers_of,
            bind_address: text(read, "MC_RDMA_BIND_ADDRESS"),
            topology_file: text(read, "MC_CUSTOM_TOPO_JSON"),
        };
        // These variables have no counterpart in this engine, but an invalid value still causes a
        // warning.
        read.number(&["MC_NUM_CQ_PER_CTX"], 1..=255, 1u16);
        read.number(&["MC_NUM_COMP_CHANNELS_PER_CTX"], 1..=255, 1u16);
        read.number(&["MC_WORKERS_PER_CTX"], 1..=8, 2u16);
        if let Some(word) = text(read, "MC_ENDPOINT_STORE_TYPE").filter(|w| !matches!(w.trim(), "SIEVE" | "FIFO")) {
            read.warnings.push(format!("MC_ENDPOINT_STORE_TYPE={word} is neither SIEVE nor FIFO; ignored"));
        }
        for (name, why) in WITHOUT_EFFECT {
            if text(read, name).is_some_and(|t| t.trim() != "0") {
                read.warnings.push(format!("{name} has no effect: {why}"));
            }
        }
        settings
    }
}

/// Returns the variable's value, unless it is blank.
fn text(read: &VariableReader<'_>, name: &str) -> Option<String> {
    (read.lookup)(name).filter(|text| !text.trim().is_empty())
}

/// Reads a number for which upstream uses -1 as "unset". Returns 0 if unset.
fn unless_minus_one(read: &mut VariableReader<'_>, name: &str, most: i16) -> u8 {
    u8::try_from(read.number(&[name], -1..=most, -1)).unwrap_or(0)
}

fn mtu(read: &mut VariableReader<'_>, otherwise: u32) -> u32 {
    let Some(text) = (read.lookup)("MC_MTU") else { return otherwise };
    match text.trim() {
        "512" => 512,
        "1024" => 1024,
        "2048" => 2048,
        "4096" => 4096,
        _ => {
            read.warnings.push(format!("MC_MTU={text} is not 512, 1024, 2048 or 4096; using {otherwise}"));
            otherwise
        }
    }
}

/// Reads the two variables that select the peer's device. Upstream disables both if both are set.
fn affinity(read: &mut VariableReader<'_>) -> (bool, BTreeMap<String, Vec<String>>) {
    let same_name = read.switch("MC_ENABLE_DEST_DEVICE_AFFINITY", false);
    let by_list = read.switch("MC_ENABLE_HCA_PEER_AFFINITY", false);
    if same_name && by_list {
        read.warnings.push(
            "MC_ENABLE_DEST_DEVICE_AFFINITY and MC_ENABLE_HCA_PEER_AFFINITY are mutually exclusive; both are ignored"
                .to_owned(),
        );
        return (false, BTreeMap::new());
    }
    let list = (read.lookup)("MC_NIC_PEER_AFFINITY").unwrap_or_default();
    if !by_list {
        return (same_name, BTreeMap::new());
    }
    let mut peers_of = BTreeMap::new();
    for entry in list.split(';').map(str::trim).filter(|e| !e.is_empty()) {
        let (local, peers) = entry.split_once('=').unwrap_or((entry, ""));
        let local = local.trim();
        let peers = names(peers);
        if local.is_empty() || peers.is_empty() {
            read.warnings
                .push(format!("MC_NIC_PEER_AFFINITY: '{entry}' is not of the form device=device,...; ignored"));
        } else {
            peers_of.insert(local.to_owned(), peers);
        }
    }
    (false, peers_of)
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> (RdmaSettings, Vec<String>) {
        let lookup = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let mut reader = VariableReader::new(&lookup);
        let settings = RdmaSettings::read(&mut reader);
        (settings, reader.warnings)
    }

    #[test]
    fn an_empty_environment_gives_upstreams_defaults() {
        assert_eq!(read(&[]), (RdmaSettings::default(), Vec::new()));
    }

    #[test]
    fn every_variable_has_its_effect() {
        let (settings, warnings) = read(&[
            ("MC_IB_PORT", "2"),
            ("MC_TE_FILTERS", "a,b"),
            ("NCCL_IB_GID_INDEX", "5"),
            ("MC_PKEY_INDEX", "7"),
            ("MC_MTU", "1024"),
            ("MC_IB_TC", "106"),
            ("MC_IB_SL", "3"),
            ("MC_AUTO_GID_MAX_RETRIES", "0"),
            ("MC_NUM_QP_PER_EP", "4"),
            ("MC_MAX_EP_PER_CTX", "16"),
            ("MC_MAX_WR", "64"),
            ("MC_MAX_SGE", "1"),
            ("MC_MAX_INLINE", "0"),
            ("MC_MAX_CQE_PER_CTX", "512"),
            ("MC_SLICE_SIZE", "131072"),
            ("MC_FRAGMENT_RATIO", "8"),
            ("MC_RETRY_CNT", "1"),
            ("MC_SLICE_TIMEOUT", "5"),
            ("MC_MAX_MR_SIZE", "1048576"),
            ("MC_ENABLE_PARALLEL_REG_MR", "0"),
            ("MC_MAX_CONCURRENT_REG_MR", "3"),
            ("MC_IB_PCI_RELAXED_ORDERING", "0"),
            ("MC_RDMA_RAIL_PAUSE_SECONDS", "1"),
            ("MC_CONN_PAUSE_TTL_MS", "250"),
            ("MC_PATH_ROUNDROBIN", "1"),
            ("MC_ENABLE_DEST_DEVICE_AFFINITY", "1"),
            ("MC_RDMA_BIND_ADDRESS", "10.0.0.1"),
            ("MC_CUSTOM_TOPO_JSON", "/etc/topology.json"),
            ("MC_WORKERS_PER_CTX", "1"),
            ("MC_ENDPOINT_STORE_TYPE", "FIFO"),
        ]);
        assert_eq!(warnings, Vec::<String>::new());
        let choice = DeviceSelection {
            port: 2,
            filter: Some(vec!["a".into(), "b".into()]),
            gid_index: Some(("NCCL_IB_GID_INDEX", 5)),
        };
        let expected = RdmaSettings {
            choice,
            pkey_index: 7,
            mtu: 1024,
            traffic_class: 106,
            service_level: 3,
            gid_retries: 0,
            pairs_per_endpoint: 4,
            endpoints_max: 16,
            requests_per_pair: 64,
            sge: 1,
            inline_bytes: 0,
            completions: 512,
            slice_bytes: 131_072,
            fragment_ratio: 8,
            retries: 1,
            slice_limit: Some(Duration::from_secs(5)),
            region_bytes_max: 1 << 20,
            register_in_parallel: Some(false),
            registering_threads: Some(3),
            relaxed_ordering: false,
            rail_pause: Duration::from_secs(1),
            dial_pause: Duration::from_millis(250),
            round_robin: true,
            same_name: true,
            peers_of: BTreeMap::new(),
            bind_address: Some("10.0.0.1".into()),
            topology_file: Some("/etc/topology.json".into()),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn a_value_out_of_range_is_ignored_with_a_warning() {
        for (name, value) in [
            ("MC_MTU", "9000"),
            ("MC_MTU", "256"),
            ("MC_IB_TC", "256"),
            ("MC_IB_SL", "16"),
            ("MC_IB_PORT", "0"),
            ("MC_GID_INDEX", "three"),
            ("MC_NUM_QP_PER_EP", "0"),
            ("MC_NUM_QP_PER_EP", "256"),
            ("MC_SLICE_SIZE", "0"),
            ("MC_RETRY_CNT", "128"),
            ("MC_MAX_MR_SIZE", "1"),
            ("MC_WORKERS_PER_CTX", "9"),
            ("MC_ENDPOINT_STORE_TYPE", "LRU"),
            ("MC_USE_RDMA_TWOSIDED", "1"),
            ("MC_MLX5_QP_UDP_SPORTS", "1,2"),
        ] {
            let (settings, warnings) = read(&[(name, value)]);
            assert_eq!((settings, warnings.len()), (RdmaSettings::default(), 1), "{name}={value}: {warnings:?}");
        }
        assert_eq!(
            read(&[("MC_IB_TC", "-1"), ("MC_GID_INDEX", "-1"), ("MC_SLICE_TIMEOUT", "-1")]).1,
            Vec::<String>::new()
        );
    }

    #[test]
    fn peer_lists_are_parsed_and_exclude_same_name_affinity() {
        let list = ("MC_NIC_PEER_AFFINITY", " mlx5_0 = mlx5_2, mlx5_3; mlx5_1=mlx5_4;;what");
        let (settings, warnings) = read(&[("MC_ENABLE_HCA_PEER_AFFINITY", "1"), list]);
        let of = |name: &str| settings.peers_of.get(name).map(|peers| peers.join(" "));
        assert_eq!((of("mlx5_0").unwrap().as_str(), of("mlx5_1").unwrap().as_str()), ("mlx5_2 mlx5_3", "mlx5_4"));
        assert_eq!(warnings, ["MC_NIC_PEER_AFFINITY: 'what' is not of the form device=device,...; ignored"]);
        assert!(read(&[list]).0.peers_of.is_empty());
        let both = [("MC_ENABLE_HCA_PEER_AFFINITY", "1"), ("MC_ENABLE_DEST_DEVICE_AFFINITY", "1"), list];
        let (settings, warnings) = read(&both);
        assert_eq!((settings, warnings.len()), (RdmaSettings::default(), 1));
    }
}
