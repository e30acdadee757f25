//! JSON documents that describe the simulated endpoint.

use serde_json::{Value, json};

use crate::VERSION;
use crate::config::Config;
use crate::counters::SimCounters;
use crate::scheduler::SimGauges;
use crate::token::VOCABULARY;

/// Returns the name and settings of the storage backend, or nulls if there is none.
fn storage(config: &Config) -> (Value, Value) {
    match config.storage {
        true => (json!("mooncake"), json!({"prefetch_threshold": config.prefetch_threshold}).to_string().into()),
        false => (Value::Null, Value::Null),
    }
}

/// Returns the `/server_info` document.
pub(crate) fn server(config: &Config, gauges: &SimGauges, counters: &SimCounters, uptime_s: f64) -> Value {
    let (backend, extra) = storage(config);
    let decode = counters.finished.iter().map(|kind| kind.generation).sum::<u64>();
    let mut all = json!({
        "simulator": true,
        "version": VERSION,
        "model_path": config.model,
        "tokenizer_path": config.model,
        "served_model_name": config.model,
        "context_length": config.context_length,
        "page_size": config.page_size,
        "max_total_tokens": config.device_tokens,
        "max_total_num_tokens": config.device_tokens,
        "max_req_input_len": config.request_tokens_max().saturating_sub(1),
        "max_running_requests": config.running_max,
        "max_queued_requests": config.queue_max,
        "chunked_prefill_size": config.prefill_batch_tokens,
        "enable_hierarchical_cache": config.host_tokens > 0,
        "hicache_ratio": config.host_tokens as f64 / config.device_tokens as f64,
        "hicache_host_total_tokens": config.host_tokens,
        "hicache_write_policy": "write_through",
        "hicache_storage_backend": backend,
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend_extra_config": extra,
        "radix_eviction_policy": "lru",
        "disable_radix_cache": false,
        "enable_metrics": true,
        "enable_cache_report": true,
        "incremental_streaming_output": config.incremental,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "disaggregation_mode": "null",
        "vocab_size": VOCABULARY,
        "status": "ready",
        "uptime_s": uptime_s,
    });
    all["cost_model"] = json!({
        "prefill_tokens_per_s": config.cost.prefill_tokens_per_s,
        "decode_step_ms": config.cost.step.as_secs_f64() * 1e3,
        "decode_step_per_request_ms": config.cost.step_per_request.as_secs_f64() * 1e3,
        "load_back_tokens_per_s": config.cost.load_back_tokens_per_s,
        "storage_tokens_per_s": config.cost.storage_tokens_per_s,
        "bytes_per_token": config.bytes_per_token,
    });
    all["internal_states"] = json!([{
        "simulator": true,
        "last_gen_throughput": decode as f64 / uptime_s.max(1e-9),
        "memory_usage": {"token_capacity": config.device_tokens},
        "max_total_num_tokens": config.device_tokens,
        "effective_max_running_requests_per_dp": config.running_max,
        "num_running_reqs": gauges.running,
        "num_queue_reqs": gauges.queued,
    }]);
    all
}

/// Returns the `/model_info` document.
pub(crate) fn model(config: &Config) -> Value {
    json!({
        "simulator": true,
        "version": VERSION,
        "model_path": config.model,
        "served_model_name": config.model,
        "tokenizer_path": config.model,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": "default",
        "load_format": "none: a simulator",
        "disaggregation_mode": "null",
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": "mcctl-sim",
        "architectures": ["McctlSimulator"],
    })
}

/// Returns the `/v1/models` document.
pub(crate) fn models(config: &Config, started: u64) -> Value {
    json!({"object": "list", "data": [{
        "id": config.model, "object": "model", "created": started, "owned_by": "mcctl-sim", "root": config.model, "parent": null,
        "max_model_len": config.context_length,
    }]})
}

/// Returns the `/hicache/storage-backend` document.
pub(crate) fn backend(config: &Config) -> Value {
    let (backend, extra) = storage(config);
    json!({"hicache_storage_backend": backend, "hicache_storage_backend_extra_config": extra,
        "hicache_storage_prefetch_policy": "wait_complete", "hicache_write_policy": "write_through", "simulator": true})
}
