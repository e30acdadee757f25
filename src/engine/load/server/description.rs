//! What a server reports about itself: model, engine, hardware, cache sizes and settings. Parses
//! the documents of SGLang and vLLM. No I/O.
//!
//! All fields are optional. Settings are read by name from a fixed list, so a server's keys and
//! passwords never reach a report.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::server::{ServerCounters, StoreCounters};
use mcctl_base::text::one_line;
use mcctl_net::http::Samples;

/// Settings of SGLang (`/server_info`) that affect latency or the caches, in report order.
const SGLANG_SETTINGS: [&str; 28] = [
    "tp_size",
    "pp_size",
    "dp_size",
    "ep_size",
    "device",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "enable_deterministic_inference",
    "context_length",
    "max_running_requests",
    "chunked_prefill_size",
    "mem_fraction_static",
    "schedule_policy",
    "speculative_algorithm",
    "disaggregation_mode",
    "disable_radix_cache",
    "disable_cuda_graph",
    "disable_overlap_schedule",
    "enable_hierarchical_cache",
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "hicache_io_backend",
    "hicache_mem_layout",
    "hicache_storage_backend",
    "hicache_storage_prefetch_policy",
];

/// Labels of `vllm:cache_config_info` that affect the cache, in report order.
const VLLM_SETTINGS: [&str; 6] = [
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "num_cpu_blocks",
    "cpu_offload_gb",
    "swap_space",
];

/// The engines that a description may name.
const ENGINES: [&str; 3] = ["SGLang", "vLLM", "mcctl simulator"];

/// SGLang reports memory in units of 2^30 bytes.
const GIB: f64 = (1_u64 << 30) as f64;
/// `hicache_size` is in units of 10^9 bytes.
const GB: f64 = 1e9;

/// The size of a cache tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCapacity {
    /// Capacity in tokens, per data-parallel rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Capacity in bytes, per tensor- and pipeline-parallel rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The store behind L3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageTier {
    /// `mooncake`, `file` and so on.
    pub backend: String,
    /// Capacity of all segments in bytes, from the Mooncake master.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Bytes in use when the run started, from the Mooncake master.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
}

/// What a server reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerDescription {
    /// Model path or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// `SGLang`, `vLLM` or `mcctl simulator`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Product name of the accelerator, e.g. `NVIDIA H20`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Accelerators per data-parallel rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<u64>,
    /// Page size of the cache, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u64>,
    /// Size of L1, the device memory.
    pub device: CacheCapacity,
    /// L2; `None` if the server has none.
    pub host: Option<CacheCapacity>,
    /// L3; `None` if the server has none.
    pub storage: Option<StorageTier>,
    /// Names and values, in report order.
    #[serde(serialize_with = "as_object")]
    pub settings: Vec<(&'static str, Value)>,
}

impl ServerDescription {
    /// Parses SGLang's `/server_info`. Returns `None` if the document is not from SGLang.
    pub fn of_sglang(document: &Value) -> Option<ServerDescription> {
        let state = &document["internal_states"][0];
        let member = |name: &str| [&document[name], &state[name]].into_iter().find(|value| !value.is_null());
        let word = |name: &str| member(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(bounded);
        let number = |name: &str| member(name).and_then(Value::as_u64).filter(|n| *n > 0);
        let page_size = number("page_size");
        let tokens = number("max_total_num_tokens");
        if page_size.is_none() && tokens.is_none() {
            return None;
        }
        let is_simulator = member("simulator").and_then(Value::as_bool).unwrap_or(false);
        let per_token = document["cost_model"]["bytes_per_token"].as_u64().filter(|_| is_simulator);
        let reported = state["memory_usage"]["kvcache"].as_f64().filter(|gib| *gib > 0.0).map(|gib| bytes(gib * GIB));
        let device = CacheCapacity {
            tokens,
            bytes: reported.or_else(|| Some(tokens?.saturating_mul(per_token.filter(|n| *n > 0)?))),
        };
        let has_host = member("enable_hierarchical_cache").and_then(Value::as_bool).unwrap_or(false);
        let size = member("hicache_size").and_then(Value::as_f64).filter(|size| *size > 0.0);
        let ratio = member("hicache_ratio").and_then(Value::as_f64).filter(|ratio| *ratio > 0.0 && size.is_none());
        let by_ratio = tokens.zip(ratio).map(|(tokens, ratio)| (tokens as f64 * ratio) as u64);
        let mut host = CacheCapacity { tokens: number("hicache_host_total_tokens").or(by_ratio), bytes: None };
        host.bytes = size.map(|size| bytes(size * GB)).or_else(|| device.scaled(host.tokens?));
        let storage = word("hicache_storage_backend").filter(|_| has_host);
        let mut settings = Vec::new();
        // Without an L2, its settings have no effect.
        let applies = |name: &&str| has_host || !name.starts_with("hicache_");
        for name in SGLANG_SETTINGS.into_iter().filter(applies) {
            if let Some(value) = member(name).and_then(setting) {
                settings.push((name, value));
            }
        }
        if let Some(threshold) =
            storage.as_ref().and_then(|_| prefetch_threshold(member("hicache_storage_backend_extra_config")))
        {
            settings.push(("prefetch_threshold", threshold.into()));
        }
        Some(ServerDescription {
            model: word("served_model_name").or_else(|| word("model_path")),
            engine: Some(if is_simulator { "mcctl simulator" } else { "SGLang" }),
            version: word("version"),
            accelerator: None,
            accelerators: None,
            page_size,
            device,
            host: has_host.then_some(host),
            storage: storage.map(|backend| StorageTier { backend, ..StorageTier::default() }),
            settings,
        })
    }

    /// Returns whether a metrics page is from vLLM.
    pub fn is_vllm_page(page: &Samples) -> bool {
        page.names().any(|name| name.starts_with("vllm:"))
    }

    /// Parses vLLM's metrics page and its `/version` document.
    pub fn of_vllm(page: &Samples, version: Option<&Value>) -> ServerDescription {
        let mut described = ServerDescription {
            engine: Some("vLLM"),
            version: version.and_then(|document| document["version"].as_str()).map(bounded),
            ..ServerDescription::default()
        };
        let Some((labels, _)) = page.samples("vllm:cache_config_info").next() else { return described };
        let label = |name: &str| labels.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let number = |name: &str| label(name).and_then(|text| text.parse::<u64>().ok()).filter(|n| *n > 0);
        described.page_size = number("block_size");
        let by_blocks = || number("num_gpu_blocks")?.checked_mul(described.page_size?);
        described.device = CacheCapacity {
            tokens: number("kv_cache_size_tokens").or_else(by_blocks),
            bytes: number("kv_cache_memory_bytes"),
        };
        for name in VLLM_SETTINGS {
            if let Some(value) = label(name).filter(|value| !["", "None", "0"].contains(value)) {
                described.settings.push((name, bounded(value).into()));
            }
        }
        described
    }

    /// Returns the L2 capacity in tokens on SGLang's metrics page; 0 if it is not known.
    pub fn host_tokens(page: &Samples) -> u64 {
        ServerCounters::read(page).map_or(0, |counters| counters.now.host_total)
    }

    /// Adds the accelerator from SGLang's `/v1/loads`.
    pub fn add_accelerator(&mut self, document: &Value) {
        self.accelerator = document["accelerator"].as_str().filter(|name| !name.is_empty()).map(bounded);
        self.accelerators = document["num_accelerators"].as_u64().filter(|n| *n > 0);
    }

    /// Sets the L2 capacity to `total` tokens (0: not known), from SGLang's metrics page. It is
    /// exact, unlike one derived from settings.
    pub fn add_host_tokens(&mut self, total: u64) {
        let device = self.device;
        if let Some(host) = self.host.as_mut().filter(|_| total > 0) {
            host.tokens = Some(total);
            host.bytes = device.scaled(total).or(host.bytes);
        }
    }

    /// Adds the L3 capacity from the Mooncake master.
    pub fn add_store(&mut self, master: &StoreCounters) {
        if let Some(storage) = &mut self.storage {
            storage.capacity_bytes = Some(master.capacity_bytes);
            storage.used_bytes = Some(master.allocated_bytes);
        }
    }

    /// Returns a size setting such as `tp_size`; 1 if the server does not report it.
    pub fn size_of(&self, name: &str) -> u64 {
        let found = self.settings.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value.as_u64()).unwrap_or(1).max(1)
    }
}

impl CacheCapacity {
    /// Returns the size in bytes of `tokens` tokens in a cache with as many bytes per token as this
    /// one.
    fn scaled(&self, tokens: u64) -> Option<u64> {
        let own = self.tokens.filter(|own| *own > 0)?;
        Some(bytes(self.bytes? as f64 / own as f64 * tokens as f64))
    }
}

/// Serializes settings as an object.
/// A description in a file. Unknown engines and settings are skipped.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredDescription {
    model: Option<String>,
    engine: Option<String>,
    version: Option<String>,
    accelerator: Option<String>,
    accelerators: Option<u64>,
    page_size: Option<u64>,
    device: CacheCapacity,
    host: Option<CacheCapacity>,
    storage: Option<StorageTier>,
    settings: serde_json::Map<String, Value>,
}

impl<'de> Deserialize<'de> for ServerDescription {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ServerDescription, D::Error> {
        let mut stored = StoredDescription::deserialize(from)?;
        let names = SGLANG_SETTINGS.into_iter().chain(VLLM_SETTINGS);
        let settings = names.filter_map(|name| stored.settings.remove(name).map(|value| (name, value)));
        Ok(ServerDescription {
            settings: settings.collect(),
            engine: ENGINES.into_iter().find(|known| stored.engine.as_deref() == Some(*known)),
            model: stored.model,
            version: stored.version,
            accelerator: stored.accelerator,
            accelerators: stored.accelerators,
            page_size: stored.page_size,
            device: stored.device,
            host: stored.host,
            storage: stored.storage,
        })
    }
}

fn as_object<S: Serializer>(settings: &[(&'static str, Value)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(settings.iter().map(|(name, value)| (name, value)))
}

/// Returns the value to report for a setting; `None` for unset values, switches that are off, and
/// nested documents.
fn setting(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(true) | Value::Number(_) => Some(value.clone()),
        Value::String(text) if !text.is_empty() && text != "null" => Some(bounded(text).into()),
        _ => None,
    }
}

/// Returns the minimum number of tokens for a fetch from L3, from a JSON document or from a string
/// that contains one.
fn prefetch_threshold(config: Option<&Value>) -> Option<u64> {
    match config? {
        Value::String(text) => serde_json::from_str::<Value>(text).ok()?["prefetch_threshold"].as_u64(),
        document => document["prefetch_threshold"].as_u64(),
    }
}

/// Rounds a size to whole bytes.
fn bytes(size: f64) -> u64 {
    size.max(0.0).round() as u64
}

/// Shortens a string from the server to a single line of limited length.
fn bounded(text: &str) -> String {
    one_line(text, 120)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sglang() -> Value {
        json!({
            "version": "0.5.23", "model_path": "/models/Qwen3-8B", "served_model_name": "Qwen3-8B", "page_size": 64, "tp_size": 2,
            "dp_size": 1, "attention_backend": "fa3", "quantization": null, "disable_radix_cache": false, "api_key": "secret",
            "enable_hierarchical_cache": true, "hicache_ratio": 2.0, "hicache_size": 0, "hicache_storage_backend": "mooncake",
            "hicache_storage_backend_extra_config": "{\"prefetch_threshold\": 64, \"token\": \"secret\"}",
            "disaggregation_mode": "null",
            "internal_states": [{"max_total_num_tokens": 1024, "memory_usage": {"kvcache": 0.5, "token_capacity": 1024}}],
        })
    }

    #[test]
    fn sglang_settings_and_cache_sizes_are_read() {
        let mut found = ServerDescription::of_sglang(&sglang()).expect("SGLang's");
        assert_eq!(
            (found.model.as_deref(), found.engine, found.page_size),
            (Some("Qwen3-8B"), Some("SGLang"), Some(64))
        );
        assert_eq!(found.device, CacheCapacity { tokens: Some(1024), bytes: Some(1 << 29) });
        assert_eq!(found.host, Some(CacheCapacity { tokens: Some(2048), bytes: Some(1 << 30) }));
        let names: Vec<&str> = found.settings.iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&"attention_backend") && names.contains(&"prefetch_threshold"), "{names:?}");
        assert!(!names.contains(&"disable_radix_cache") && !names.contains(&"disaggregation_mode"), "{names:?}");
        found.add_host_tokens(4096);
        found.add_store(&StoreCounters { capacity_bytes: 9, allocated_bytes: 4, ..StoreCounters::default() });
        found.add_accelerator(&json!({"accelerator": "NVIDIA H20", "num_accelerators": 2}));
        assert_eq!(found.host.and_then(|host| host.bytes), Some(2 << 30));
        assert_eq!(found.storage.as_ref().and_then(|storage| storage.capacity_bytes), Some(9));
        assert_eq!((found.accelerators, found.size_of("tp_size"), found.size_of("pp_size")), (Some(2), 2, 1));
        assert!(!serde_json::to_string(&found).expect("a document").contains("secret"));
    }

    #[test]
    fn a_size_in_bytes_takes_precedence_over_the_ratio() {
        let mut document = sglang();
        document["hicache_size"] = json!(4);
        let host = ServerDescription::of_sglang(&document).and_then(|found| found.host);
        assert_eq!(host, Some(CacheCapacity { tokens: None, bytes: Some(4_000_000_000) }));
        document["enable_hierarchical_cache"] = json!(false);
        let found = ServerDescription::of_sglang(&document).expect("SGLang's");
        assert_eq!((found.host, found.storage), (None, None));
        assert!(found.settings.iter().all(|(name, _)| !name.contains("hicache") && *name != "prefetch_threshold"));
    }

    #[test]
    fn vllm_is_described_by_its_metrics() {
        let page = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\",cache_dtype=\"auto\",swap_space=\"0\"} 1\n";
        let version = json!({"version": "0.11.0"});
        let found = ServerDescription::of_vllm(&Samples::parse(page), Some(&version));
        assert_eq!((found.engine, found.version.as_deref()), (Some("vLLM"), Some("0.11.0")));
        assert_eq!((found.page_size, found.device.tokens, found.host), (Some(16), Some(1600), None));
        assert_eq!(found.settings, [("cache_dtype", json!("auto"))]);
        assert!(!ServerDescription::is_vllm_page(&Samples::parse("sglang:x 1\n")));
    }

    #[test]
    fn documents_with_unexpected_types_are_not_errors() {
        for other in [json!({"object": "list"}), json!([]), json!(null), json!({"page_size": -1})] {
            assert_eq!(ServerDescription::of_sglang(&other), None, "{other}");
        }
        let odd = json!({"page_size": 1, "hicache_ratio": "x", "enable_hierarchical_cache": 3, "tp_size": [], "cost_model": 7});
        let found = ServerDescription::of_sglang(&odd).expect("SGLang's");
        assert_eq!((found.device, found.size_of("tp_size")), (CacheCapacity::default(), 1));
    }
}
