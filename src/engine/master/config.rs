//! What can be set, with upstream's defaults of release 0.3.13 (`mooncake_master --help` of the 0.3.13.post1 wheel and store-rpc
//! reference, section 8.1).

use std::time::Duration;

use crate::engine::alloc::placement::Strategy;
use crate::engine::base::HostPort;
use crate::engine::rpc::server::{THREADS_MAX, default_threads};

/// A master: where it listens and by which rules it keeps the store.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Where the RPC port is opened; port 0 takes a free one. Upstream: `0.0.0.0:50051`.
    pub listen: HostPort,
    /// Connections without a request for so long are closed. Upstream: `--rpc_conn_timeout_seconds`, 0 = never.
    pub idle_timeout: Option<Duration>,
    /// Threads that serve connections; 0 serves on the caller's runtime (for simulations). Upstream: `--rpc_thread_num`, one per
    /// processor, at most 16.
    pub threads: usize,
    /// The rules.
    pub policy: Policy,
}

impl MasterConfig {
    /// Upstream's defaults on `listen`.
    pub fn new(listen: HostPort) -> MasterConfig {
        MasterConfig { listen, idle_timeout: None, threads: default_threads(THREADS_MAX), policy: Policy::default() }
    }
}

/// The rules of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// How long a read protects an object. `--default_kv_lease_ttl`.
    pub lease_ttl: Duration,
    /// A soft pin's life when the writer does not say. `--default_kv_soft_pin_ttl`.
    pub soft_pin_ttl: Duration,
    /// The longest life that a writer may ask for. `--max_kv_soft_pin_ttl`.
    pub soft_pin_ttl_max: Duration,
    /// Whether soft-pinned objects go when nothing else is left. `--allow_evict_soft_pinned_objects`.
    pub evict_soft_pinned: bool,
    /// The share of the objects that a round of eviction aims at. `--eviction_ratio`.
    pub eviction_ratio: f64,
    /// Eviction begins above this use of the memory. `--eviction_high_watermark_ratio`.
    pub watermark: f64,
    /// A client that is not heard of for so long is gone. `--client_ttl`.
    pub client_ttl: Duration,
    /// Another client may displace an unfinished put after this. `--put_start_discard_timeout_sec`.
    pub put_discard_after: Duration,
    /// An unfinished put's memory is used again after this. `--put_start_release_timeout_sec`.
    pub put_release_after: Duration,
    /// How segments are chosen. `--allocation_strategy`.
    pub strategy: Strategy,
    /// From which all random choices follow; the server draws one when this is 0.
    pub seed: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            lease_ttl: Duration::from_secs(10),
            soft_pin_ttl: Duration::from_secs(30 * 60),
            soft_pin_ttl_max: Duration::from_secs(24 * 3600),
            evict_soft_pinned: true,
            eviction_ratio: 0.05,
            watermark: 0.90,
            client_ttl: Duration::from_secs(10),
            put_discard_after: Duration::from_secs(30),
            put_release_after: Duration::from_secs(600),
            strategy: Strategy::Random,
            seed: 0,
        }
    }
}
