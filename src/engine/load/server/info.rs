//! Parses `/server_info`. No I/O. All fields are optional.

use serde::Serialize;
use serde_json::Value;

use mcctl_base::text::one_line;

/// Minimum number of tokens for a fetch from L3 if the server does not report it (SGLang 0.5.23,
/// `prefetch_threshold`).
pub const PREFETCH_THRESHOLD: u32 = 256;

/// Server settings that determine what its caches can hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerInfo {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether the server identifies itself as a simulator.
    pub simulator: bool,
    /// Tokens per page. Caches hold only whole pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u32>,
    /// Number of data-parallel replicas, each with its own caches; zero if unknown.
    #[serde(skip_serializing_if = "is_single")]
    pub replicas: u32,
    /// L1 capacity in tokens, of one replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_tokens: Option<u64>,
    /// Whether the server has an L2 (`--enable-hierarchical-cache`).
    pub has_host: bool,
    /// L2 size as a multiple of the L1 size, unless it is set in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_ratio: Option<f64>,
    /// L3 backend, if any: `mooncake`, `file` and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Minimum number of missing tokens for an L3 lookup.
    pub prefetch_threshold: u32,
    /// How long a request waits for L3: `best_effort`, `wait_complete` or `timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch_policy: Option<String>,
    /// When pages are copied from L1 to L2: `write_through`, `write_through_selective` or
    /// `write_back`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_policy: Option<String>,
    /// Bytes of a token in L3; `None` if several ranks share a model, because it is unknown which
    /// of them store a part of it.
    #[serde(skip)]
    pub bytes_per_token: Option<f64>,
}

impl ServerInfo {
    /// Parses the `/server_info` document. Returns `None` if it does not come from SGLang.
    pub fn read(document: &Value) -> Option<ServerInfo> {
        let state = &document["internal_states"][0];
        let member = |name: &str| [&document[name], &state[name]].into_iter().find(|value| !value.is_null());
        let word = |name: &str| member(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(bounded);
        let number = |name: &str| member(name).and_then(Value::as_u64);
        let page_size = number("page_size").and_then(|size| u32::try_from(size).ok()).filter(|size| *size > 0);
        let device_tokens = number("max_total_num_tokens");
        if page_size.is_none() && device_tokens.is_none() {
            return None;
        }
        let has_host = member("enable_hierarchical_cache").and_then(Value::as_bool).unwrap_or(false);
        // Further store settings are a JSON document inside a string.
        let more: Value = match member("hicache_storage_backend_extra_config") {
            Some(Value::String(text)) => serde_json::from_str(text).unwrap_or(Value::Null),
            Some(other) => other.clone(),
            None => Value::Null,
        };
        let is_one_rank = ["tp_size", "pp_size"].iter().all(|name| number(name).is_none_or(|ranks| ranks == 1));
        let gib = state["memory_usage"]["kvcache"].as_f64().zip(device_tokens);
        let of_memory = gib.map(|(gib, tokens)| gib * f64::from(1 << 30) / tokens.max(1) as f64);
        let bytes_per_token = of_memory.or_else(|| document["cost_model"]["bytes_per_token"].as_f64());
        let threshold = more["prefetch_threshold"].as_u64().and_then(|tokens| u32::try_from(tokens).ok());
        Some(ServerInfo {
            version: word("version"),
            simulator: member("simulator").and_then(Value::as_bool).unwrap_or(false),
            page_size,
            replicas: document["internal_states"].as_array().map_or(0, |states| states.len() as u32),
            device_tokens,
            has_host,
            host_ratio: member("hicache_ratio")
                .and_then(Value::as_f64)
                .filter(|_| number("hicache_size").unwrap_or(0) == 0),
            storage: word("hicache_storage_backend").filter(|_| has_host),
            prefetch_threshold: threshold.unwrap_or(PREFETCH_THRESHOLD).max(page_size.unwrap_or(1)),
            prefetch_policy: word("hicache_storage_prefetch_policy"),
            write_policy: word("hicache_write_policy"),
            bytes_per_token: bytes_per_token.filter(|bytes| is_one_rank && *bytes > 0.0),
        })
    }

    /// Returns the L2 capacity in tokens, if it can be derived from the settings.
    pub fn host_tokens(&self) -> Option<u64> {
        let ratio = self.host_ratio.filter(|ratio| self.has_host && ratio.is_finite() && *ratio > 0.0)?;
        Some((self.device_tokens? as f64 * ratio) as u64)
    }
}

fn is_single(replicas: &u32) -> bool {
    *replicas <= 1
}

/// Shortens a string from the server to a single line of limited length.
fn bounded(text: &str) -> String {
    one_line(text, 80)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_found_in_either_place() {
        let document = json!({
            "version": "0.5.23", "page_size": 16, "enable_hierarchical_cache": true, "hicache_ratio": 2.0, "hicache_size": 0,
            "hicache_storage_backend": "mooncake", "hicache_write_policy": "write_through",
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend_extra_config": "{\"prefetch_threshold\": 64}",
            "internal_states": [{"max_total_num_tokens": 4096}],
        });
        let info = ServerInfo::read(&document).expect("SGLang's");
        assert_eq!((info.page_size, info.device_tokens, info.host_tokens()), (Some(16), Some(4096), Some(8192)));
        assert_eq!((info.storage.as_deref(), info.prefetch_threshold), (Some("mooncake"), 64));
        assert!(!info.simulator);
    }

    #[test]
    fn without_hierarchical_cache_l2_and_l3_are_absent() {
        let info = ServerInfo::read(&json!({"page_size": 512, "hicache_storage_backend": "file"})).expect("SGLang's");
        assert_eq!((info.has_host, info.storage, info.prefetch_threshold), (false, None, 512));
    }

    #[test]
    fn documents_of_other_servers_are_rejected() {
        for other in [json!({"object": "list"}), json!([]), json!(null), json!({"page_size": -1})] {
            assert_eq!(ServerInfo::read(&other), None, "{other}");
        }
    }
}
