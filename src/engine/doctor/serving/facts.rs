//! What was seen of SGLang servers. Plain values.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::engine::base::HostPort;
use crate::engine::doctor::Asked;
use crate::engine::http::Samples;

/// All of it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The servers, in the order they were named.
    pub instances: Vec<Instance>,
    /// The master that was checked beside them.
    pub master: Option<HostPort>,
    pub counters: Option<Samples>,
    /// What came of sending the same prompt twice; `None` when it was not asked for.
    pub probe: Option<Vec<Probe>>,
}

/// One server.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its URL, as given.
    pub url: String,
    /// `/server_info`.
    pub info: Asked<Info>,
    /// `/metrics`.
    pub metrics: Option<Samples>,
    /// What all its keys in the store begin with, where it tells (`/get_hicache_l3_cache_layout`).
    pub key_prefix: Option<String>,
    /// Are its keys the same for every tensor-parallel rank (MLA)?
    pub is_mla: Option<bool>,
    /// How long the questions took.
    pub took: Duration,
}

/// What a server says of its own settings: every server argument after its own resolution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Info(pub Map<String, Value>);

impl Info {
    /// A setting as text; `None` when it is not set.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.0.get(name)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.as_u64()
    }

    /// A switch; `false` when it is not there.
    pub fn is_on(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The storage backend's extra settings, when they stand in the flag itself (not in a file).
    pub fn extra(&self) -> Map<String, Value> {
        match self.0.get("hicache_storage_backend_extra_config") {
            Some(Value::Object(map)) => map.clone(),
            Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
            _ => Map::new(),
        }
    }

    /// Tokens of a page.
    pub fn page_size(&self) -> u64 {
        self.number("page_size").unwrap_or(1)
    }

    /// The fewest uncached tokens for which the third tier is asked.
    pub fn threshold(&self) -> u64 {
        let asked = self.extra().get("prefetch_threshold").and_then(Value::as_u64);
        asked.unwrap_or(THRESHOLD).max(self.page_size())
    }

    /// Is this half of a pair whose other half does the reading?
    pub fn is_decode(&self) -> bool {
        self.text("disaggregation_mode").as_deref() == Some("decode")
    }

    /// Does it take whole requests, not halves?
    pub fn is_unified(&self) -> bool {
        matches!(self.text("disaggregation_mode").as_deref(), None | Some("null" | ""))
    }
}

/// SGLang's own `prefetch_threshold`.
pub const THRESHOLD: u64 = 256;

/// What came of one server's part in the probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    pub url: String,
    /// Tokens of the prompt.
    pub tokens: u64,
    pub end: Asked<Reading>,
}

/// The second sending of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Did another server write the pages?
    pub by_another: bool,
    /// Tokens that the server says it wrote to the third tier in between; `None` without metrics.
    pub written: Option<f64>,
    /// Cached tokens by tier.
    pub cached: Cached,
    /// Were the same tokens generated?
    pub is_same: bool,
    /// Time of the first sending and of the second.
    pub times: (Duration, Duration),
    /// Tokens that were found in the third tier and not used, by the server's own reason.
    pub unfulfilled: Vec<(String, f64)>,
}

/// `cached_tokens_details`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// In the GPU's memory.
    pub device: u64,
    /// In the host's memory.
    pub host: u64,
    /// In the third tier.
    pub storage: u64,
}
