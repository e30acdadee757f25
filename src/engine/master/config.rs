//! A master's settings. The defaults match upstream 0.3.13 (`mooncake_master --help` in the
//! 0.3.13.post1 wheel; store-rpc reference, section 8.1).

use std::time::Duration;

use crate::alloc::placement::Strategy;
use crate::eviction::EvictionPolicyKind;
use mcctl_base::HostPort;
use mcctl_net::rpc::server::{THREADS_MAX, default_threads};
use mcctl_wire::Release;

/// A master's listen address, idle timeout, threads and store policy.
#[derive(Clone, Debug)]
pub struct MasterConfig {
    /// Address of the RPC port; port 0 selects a free one. Upstream: `0.0.0.0:50051`.
    pub listen: HostPort,
    /// Connections that send no request for this long are closed. Upstream:
    /// `--rpc_conn_timeout_seconds`; 0 means never.
    pub idle_timeout: Option<Duration>,
    /// Number of threads that serve connections. With 0, the caller's runtime serves them (for
    /// simulations). Upstream: `--rpc_thread_num`; the default is one per processor, at most 16.
    pub threads: usize,
    /// The release of clients whose calls have not shown it yet. Not in upstream.
    pub client_release: Release,
    pub policy: StorePolicy,
}

impl MasterConfig {
    /// Upstream's default settings, with `listen` as the listen address.
    pub fn new(listen: HostPort) -> MasterConfig {
        MasterConfig {
            listen,
            idle_timeout: None,
            threads: default_threads(THREADS_MAX),
            client_release: Release::LATEST,
            policy: StorePolicy::default(),
        }
    }
}

/// The store's rules for leases, pins, eviction, expiry and placement.
#[derive(Clone, Debug, PartialEq)]
pub struct StorePolicy {
    /// How long an object is protected after a read. Flag `--default_kv_lease_ttl`.
    pub lease_ttl: Duration,
    /// Lifetime of a soft pin if the writer does not set one. Flag `--default_kv_soft_pin_ttl`.
    pub soft_pin_ttl: Duration,
    /// The longest soft pin that a writer may request. Flag `--max_kv_soft_pin_ttl`.
    pub soft_pin_ttl_max: Duration,
    /// Whether soft-pinned objects may be evicted when no other objects are left to evict. Flag
    /// `--allow_evict_soft_pinned_objects`.
    pub evict_soft_pinned: bool,
    /// Fraction of the objects to evict per round. Flag `--eviction_ratio`.
    pub eviction_ratio: f64,
    /// How the next object to evict is chosen. Upstream has only one policy, and no flag.
    pub eviction_policy: EvictionPolicyKind,
    /// Eviction starts when memory usage exceeds this ratio. Flag
    /// `--eviction_high_watermark_ratio`.
    pub watermark: f64,
    /// A client that sends no ping for this long expires. Flag `--client_ttl`.
    pub client_ttl: Duration,
    /// After this time, another client may overwrite an unfinished put. Flag
    /// `--put_start_discard_timeout_sec`.
    pub put_discard_after: Duration,
    /// After this time, the memory of an unfinished put may be reused. Flag
    /// `--put_start_release_timeout_sec`.
    pub put_release_after: Duration,
    /// How segments are chosen. Flag `--allocation_strategy`.
    pub strategy: Strategy,
    /// Seed for all random choices. If it is 0, the server generates one.
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
            eviction_policy: EvictionPolicyKind::default(),
            watermark: 0.90,
            client_ttl: Duration::from_secs(10),
            put_discard_after: Duration::from_secs(30),
            put_release_after: Duration::from_secs(600),
            strategy: Strategy::Random,
            seed: 0,
        }
    }
}
