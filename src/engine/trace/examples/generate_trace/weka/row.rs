//! The format of `cc-traces-weka-042026`.

use serde::Serialize;

/// A session of `cc-traces-weka-042026`, one JSON object.
///
/// Source: the corpora under `semianalysisai/` on Hugging Face, and `weka_trace` in aiperf. Times
/// are seconds after the start of the session, also inside a subagent. The fields of `totals` are
/// this generator's own.
#[derive(Serialize)]
pub(crate) struct WekaSession {
    pub(crate) id: String,
    pub(crate) models: [&'static str; 1],
    pub(crate) block_size: u64,
    pub(crate) hash_id_scope: &'static str,
    pub(crate) tool_tokens: u64,
    pub(crate) system_tokens: u64,
    pub(crate) requests: Vec<WekaEntry>,
    pub(crate) totals: WekaTotals,
}

#[derive(Default, Serialize)]
pub(crate) struct WekaTotals {
    pub(crate) requests: u64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum WekaEntry {
    Request(WekaRequest),
    Subagent(WekaSubagent),
}

#[derive(Serialize)]
pub(crate) struct WekaRequest {
    pub(crate) t: f64,
    pub(crate) r#type: &'static str,
    pub(crate) model: &'static str,
    pub(crate) r#in: u64,
    pub(crate) out: u64,
    /// The full blocks only.
    pub(crate) hash_ids: Vec<u64>,
    pub(crate) input_types: [&'static str; 1],
    pub(crate) output_types: [&'static str; 2],
    pub(crate) stop: &'static str,
    pub(crate) api_time: f64,
    pub(crate) think_time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft: Option<f64>,
}

#[derive(Serialize)]
pub(crate) struct WekaSubagent {
    pub(crate) t: f64,
    pub(crate) r#type: &'static str,
    pub(crate) agent_id: String,
    pub(crate) subagent_type: &'static str,
    pub(crate) duration_ms: u64,
    pub(crate) total_tokens: u64,
    pub(crate) tool_use_count: usize,
    pub(crate) status: &'static str,
    pub(crate) requests: Vec<WekaRequest>,
    pub(crate) models: [&'static str; 1],
    pub(crate) tool_tokens: u64,
    pub(crate) system_tokens: u64,
}
