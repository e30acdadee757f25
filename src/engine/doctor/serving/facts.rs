//! The observed facts of SGLang servers. They are plain values.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::Fact;
use mcctl_base::HostPort;
use mcctl_base::upstream::python_client;
use mcctl_net::http::Samples;

/// All facts of the servers.
#[derive(Clone, Debug)]
pub struct ServingFacts {
    /// The servers, in the order specified.
    pub instances: Vec<Instance>,
    /// The master that is checked in the same run.
    pub master: Option<HostPort>,
    pub counters: Option<Samples>,
    /// The results of sending the same prompt twice; `None` if not requested.
    pub probe: Option<Vec<L3Probe>>,
}

#[derive(Clone, Debug)]
pub struct Instance {
    /// The URL, as specified by the user.
    pub url: String,
    /// `/server_info`.
    pub info: Fact<ServerSettings>,
    /// `/metrics`.
    pub metrics: Option<Samples>,
    /// The common prefix of the server's keys in the store, if reported
    /// (`/get_hicache_l3_cache_layout`).
    pub key_prefix: Option<String>,
    /// Whether its keys are the same for every tensor-parallel rank (MLA).
    pub is_mla: Option<bool>,
    /// Total latency of the requests.
    pub took: Duration,
}

/// A server's settings as it reports them: every argument as resolved by the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerSettings(pub Map<String, Value>);

impl ServerSettings {
    /// A setting as a string; `None` if it is not set.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// A setting that is a non-negative integer.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_u64()
    }

    /// A boolean setting; `false` if absent.
    pub fn is_on(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The storage backend's extra settings, if they are specified in the flag itself (not in a
    /// file).
    pub fn extra(&self) -> Map<String, Value> {
        match self.0.get("hicache_storage_backend_extra_config") {
            Some(Value::Object(map)) => map.clone(),
            Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
            _ => Map::new(),
        }
    }

    /// Whether the storage backend is Mooncake: SGLang's own, or mcctl's client as a dynamic
    /// backend.
    pub fn has_mooncake_backend(&self) -> bool {
        match self.text("hicache_storage_backend").as_deref() {
            Some("dynamic") => {
                self.extra().get("module_path").and_then(Value::as_str) == Some(python_client::BACKEND_MODULE)
            }
            backend => backend == Some("mooncake"),
        }
    }

    /// How many tokens one page of the KV cache holds.
    pub fn page_size(&self) -> u64 {
        self.number("page_size").unwrap_or(1)
    }

    /// The minimum number of uncached tokens for which L3 is queried.
    pub fn threshold(&self) -> u64 {
        let query_one = self.extra().get("prefetch_threshold").and_then(Value::as_u64);
        query_one.unwrap_or(THRESHOLD).max(self.page_size())
    }

    /// Whether it is a decode server of a prefill-decode pair; the prefill server reads L3.
    pub fn is_decode(&self) -> bool {
        self.text("disaggregation_mode").as_deref() == Some("decode")
    }

    /// Whether it serves complete requests (no prefill-decode disaggregation).
    pub fn is_unified(&self) -> bool {
        matches!(self.text("disaggregation_mode").as_deref(), None | Some("null" | ""))
    }
}

pub const THRESHOLD: u64 = 256;

/// The result of the L3 probe on one server.
#[derive(Clone, Debug, PartialEq)]
pub struct L3Probe {
    pub url: String,
    /// Length of the prompt, in tokens.
    pub tokens: u64,
    pub end: Fact<L3Read>,
}

/// The second request with the same prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct L3Read {
    /// Whether another server wrote the pages.
    pub by_another: bool,
    /// Tokens written to L3 between the two requests, as reported by the server; `None` without
    /// metrics.
    pub written: Option<f64>,
    /// Cached tokens by tier.
    pub cached: CachedTierTokens,
    /// Whether both requests generated the same tokens.
    pub is_same: bool,
    /// Durations of the first and the second request.
    pub times: (Duration, Duration),
    /// Tokens found in L3 but not used, by the reason that the server reports.
    pub unfulfilled: Vec<(String, f64)>,
}

/// `cached_tokens_details`: cached tokens by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedTierTokens {
    pub device: u64,
    pub host: u64,
    pub storage: u64,
}
