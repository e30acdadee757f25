//! The settings of a master, with upstream's defaults of release 0.3.13 (`mooncake_master --help` of the 0.3.13.post1 wheel and
//! store-rpc reference, section 8.1).

use std::time::Duration;

use crate::engine::alloc::placement::Strategy;
use crate::engine::base::HostPort;
use crate::engine::rpc::server::{THREADS_MAX, default_threads};

/// Where a master listens, and the policy of its store.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Address of the RPC port; port 0 selects a free one. Upstream: `0.0.0.0:50051`.
    pub listen: HostPort,
    /// Connections without a request for this time are closed. Upstream: `--rpc_conn_timeout_seconds`, 0 = never.
    pub idle_timeout: Option<Duration>,
    /// Threads that serve connections; 0 serves on the caller's runtime (for simulations). Upstream: `--rpc_thread_num`, one per
    /// processor, at most 16.
    pub threads: usize,
    pub policy: StorePolicy,
}

impl MasterConfig {
    /// Upstream's defaults, listening on `listen`.
    pub fn new(listen: HostPort) -> MasterConfig {
        MasterConfig {
            listen,
            idle_timeout: None,
            threads: default_threads(THREADS_MAX),
            policy: StorePolicy::default(),
        }
    }
}

/// The rules of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StorePolicy {
    /// How long a read protects an object. Flag `--default_kv_lease_ttl`.
    pub lease_ttl: Duration,
    /// Lifetime of a soft pin if the writer does not set one. Flag `--default_kv_soft_pin_ttl`.
    pub soft_pin_ttl: Duration,
    /// The longest soft pin that a writer may request. Flag `--max_kv_soft_pin_ttl`.
    pub soft_pin_ttl_max: Duration,
    /// Whether soft-pinned objects are evicted when no other object is left. Flag `--allow_evict_soft_pinned_objects`.
    pub evict_soft_pinned: bool,
    /// Fraction of the objects that one eviction round evicts. Flag `--eviction_ratio`.
    pub eviction_ratio: f64,
    /// Eviction starts when memory usage exceeds this ratio. Flag `--eviction_high_watermark_ratio`.
    pub watermark: f64,
    /// A client without a ping for this time expires. Flag `--client_ttl`.
    pub client_ttl: Duration,
    /// After this time another client may overwrite an unfinished put. Flag `--put_start_discard_timeout_sec`.
    pub put_discard_after: Duration,
    /// After this time the memory of an unfinished put is reused. Flag `--put_start_release_timeout_sec`.
    pub put_release_after: Duration,
    /// How segments are chosen. Flag `--allocation_strategy`.
    pub strategy: Strategy,
    /// Seed of all random choices. If it is 0, the server generates one.
    pub seed: u64,
}

impl Default for StorePolicy {
    fn default() -> StorePolicy {
        StorePolicy {
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
