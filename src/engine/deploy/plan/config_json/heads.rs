//! Models with keys and values per head.

use crate::plan::SizingError;
use crate::plan::config_json::fields::Fields;
use crate::plan::geometry::TokenRow;

/// Fields with the number of KV heads, in SGLang's order (`sglang/srt/configs/model_config.py`,
/// `get_total_num_kv_heads`).
const KV_HEADS: [&str; 5] =
    ["n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups"];

/// The number of attention heads; GPT-2 style configs call it `n_head`.
pub(super) fn attention_heads(model: Fields<'_>) -> Result<Option<u64>, SizingError> {
    match model.number("num_attention_heads")? {
        None => model.number("n_head"),
        found => Ok(found),
    }
}

/// The number of KV heads.
fn kv_heads(top: Fields<'_>, model: Fields<'_>) -> Result<u64, SizingError> {
    let kind = top.text("model_type").unwrap_or_default();
    let is_falcon = ["falcon", "RefinedWeb", "RefinedWebModel"].contains(&kind);
    let is_new_falcon = is_falcon && top.is_true("new_decoder_architecture");
    if model.is_true("multi_query") && !is_new_falcon {
        return Ok(1);
    }
    if ["mpt", "dbrx"].contains(&kind) {
        // Their heads are in a nested object.
        let nested = top.object("attn_config").map(|nested| nested.number("kv_n_heads")).transpose()?.flatten();
        return nested.ok_or(SizingError::ConfigField { field: "attn_config.kv_n_heads" });
    }
    if kind == "nemotron-nas" {
        return heads_of_blocks(top);
    }
    for field in KV_HEADS {
        if let Some(count) = model.number(field)? {
            return Ok(count);
        }
    }
    let own = model.text("model_type").unwrap_or(kind);
    if CONSTANT_KV_HEADS.contains(&own) {
        return Err(SizingError::ConfigField { field: "num_key_value_heads" });
    }
    attention_heads(model)?.ok_or(SizingError::ConfigField { field: "num_key_value_heads" })
}

/// Config classes whose number of KV heads has a default of its own, so that it does not follow
/// from the number of attention heads. Files of such models state it.
///
/// Source: the config classes of these model types in transformers 5.19 and SGLang 0.5.23.
const CONSTANT_KV_HEADS: &[&str] = &[
    "beam",
    "bitnet",
    "cwm",
    "ernie4_5",
    "ernie4_5_moe",
    "ernie4_5_vl_moe_text",
    "exaone4",
    "exaone_moe",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4v_moe_text",
    "glm4v_text",
    "gpt_oss",
    "granite_swa",
    "hy_v3",
    "inkling_model",
    "inkling_text",
    "iquest_q1",
    "laguna",
    "lfm2",
    "lfm2_moe",
    "llama4_text",
    "mellum",
    "mimo_v2_flash",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral3",
    "mistral",
    "mixtral",
    "muse_glimmer_text",
    "nemotron_h",
    "paddleocr_vl_text",
    "phi4_multimodal",
    "phimoe",
    "qwen2",
    "qwen2_5_vl_text",
    "qwen2_moe",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_omni_moe_text",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
    "seed_oss",
    "solar_open",
    "stablelm",
    "starcoder2",
    "step3p5",
    "zaya",
];

/// The number of KV heads of Llama-Nemotron, whose blocks have attention or none. SGLang supports
/// only models with the same number in all blocks with attention.
fn heads_of_blocks(top: Fields<'_>) -> Result<u64, SizingError> {
    let field = "block_configs";
    let heads = attention_heads(top)?.ok_or(SizingError::ConfigField { field: "num_attention_heads" })?;
    let mut found = None;
    for block in top.list(field)? {
        let attention = block.get("attention").and_then(serde_json::Value::as_object).map(Fields);
        let attention = attention.ok_or(SizingError::ConfigField { field })?;
        if attention.is_true("no_op") {
            continue;
        }
        let own = heads / attention.required("n_heads_in_group")?;
        if own == 0 || found.replace(own).is_some_and(|before| before != own) {
            return Err(SizingError::ConfigField { field });
        }
    }
    found.ok_or(SizingError::ConfigField { field })
}

/// Default of `head_dim` in config classes that do not derive it from the hidden size.
///
/// Source: the config classes of these model types in transformers 5.19 and SGLang 0.5.23.
const HEAD_DIM_DEFAULTS: &[(&str, u64)] = &[
    ("cohere2_moe", 128),
    ("ernie4_5", 128),
    ("gemma", 256),
    ("gemma2", 256),
    ("gemma3_text", 256),
    ("gemma3n_text", 256),
    ("glm", 128),
    ("glm4", 128),
    ("gpt_oss", 64),
    ("hy_v3", 128),
    ("laguna", 128),
    ("llama4_text", 128),
    ("mellum", 128),
    ("minimax_m2", 128),
    ("minimax_m3_vl_text", 128),
    ("ministral3", 128),
    ("nemotron_h", 128),
    ("paddleocr_vl_text", 128),
    ("qwen3", 128),
    ("qwen3_5_moe_text", 256),
    ("qwen3_5_text", 256),
    ("qwen3_next", 256),
    ("qwen3_vl_text", 128),
    ("seed_oss", 128),
    ("step3p5", 128),
];

/// The size of a head.
fn head_dim(model: Fields<'_>) -> Result<u64, SizingError> {
    if let Some(dim) = model.number("head_dim")? {
        return Ok(dim);
    }
    let kind = model.text("model_type").unwrap_or_default();
    if let Some((_, dim)) = HEAD_DIM_DEFAULTS.iter().find(|(name, _)| *name == kind) {
        return Ok(*dim);
    }
    let heads = attention_heads(model)?.ok_or(SizingError::ConfigField { field: "head_dim" })?;
    let hidden = match model.number("hidden_size")? {
        Some(hidden) => hidden,
        None => model.number("n_embd")?.ok_or(SizingError::ConfigField { field: "hidden_size" })?,
    };
    // A head has at least one element, so a hidden size below the number of heads is invalid.
    Some(hidden / heads).filter(|dim| *dim > 0).ok_or(SizingError::ConfigField { field: "hidden_size" })
}

/// The row of a full attention layer.
///
/// Source: `sglang/srt/configs/model_config.py`, `_derive_model_shapes`.
pub(super) fn row(top: Fields<'_>, model: Fields<'_>) -> Result<TokenRow, SizingError> {
    let head_dim = head_dim(model)?;
    let v_head_dim = model.number_or_zero("v_head_dim")?.unwrap_or(head_dim);
    Ok(TokenRow::Heads { kv_heads: kv_heads(top, model)?, head_dim, v_head_dim })
}

/// The row of a window layer, in architectures where it differs from that of a full attention
/// layer.
///
/// Source: `get_swa_num_kv_heads` and `is_hybrid_swa_compress` in the same file.
pub(super) fn own_window_row(model: Fields<'_>, full: TokenRow) -> Result<TokenRow, SizingError> {
    let TokenRow::Heads { kv_heads, head_dim, .. } = full else { return Ok(full) };
    let kv_heads = model.number("swa_num_key_value_heads")?.unwrap_or(kv_heads);
    let head_dim = model.number("swa_head_dim")?.unwrap_or(head_dim);
    let v_head_dim = model.number("swa_v_head_dim")?.unwrap_or(head_dim);
    Ok(TokenRow::Heads { kv_heads, head_dim, v_head_dim })
}

/// The row of a window layer in all other architectures: values have the size of keys.
///
/// Source: `sglang/srt/mem_cache/kv_cache_configurator.py`, the construction of `SWAKVPool`.
pub(super) fn same_window_row(full: TokenRow) -> TokenRow {
    match full {
        TokenRow::Heads { kv_heads, head_dim, .. } => TokenRow::Heads { kv_heads, head_dim, v_head_dim: head_dim },
        latent @ TokenRow::Latent { .. } => latent,
    }
}

/// The row of a full attention layer of Gemma 4, whose base fields describe the window layers.
///
/// Source: `sglang/srt/utils/hf_transformers/config.py`, `_apply_gemma4_attention_overrides`.
pub(super) fn global_row(model: Fields<'_>, window: TokenRow) -> Result<TokenRow, SizingError> {
    let TokenRow::Heads { kv_heads, .. } = window else { return Ok(window) };
    let kv_heads = model.number("num_global_key_value_heads")?.unwrap_or(kv_heads);
    let head_dim = model.required("global_head_dim")?;
    Ok(TokenRow::Heads { kv_heads, head_dim, v_head_dim: head_dim })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value};

    fn config(text: &str) -> Map<String, Value> {
        let Ok(Value::Object(map)) = serde_json::from_str(text) else { panic!("an object") };
        map
    }

    fn read(text: &str) -> Result<TokenRow, SizingError> {
        let map = config(text);
        row(Fields(&map), Fields(&map))
    }

    fn heads(kv_heads: u64, head_dim: u64) -> TokenRow {
        TokenRow::Heads { kv_heads, head_dim, v_head_dim: head_dim }
    }

    #[test]
    fn kv_heads_have_several_names() {
        let of = |fields: &str| read(&format!(r#"{{"num_attention_heads": 32, "hidden_size": 4096, {fields}}}"#));
        assert_eq!(of(r#""n_head_kv": 4, "num_key_value_heads": 8"#), Ok(heads(4, 128)));
        assert_eq!(of(r#""num_attention_groups": 8"#), Ok(heads(8, 128)));
        assert_eq!(of(r#""multi_query": true"#), Ok(heads(1, 128)));
        let falcon =
            r#""model_type": "falcon", "new_decoder_architecture": true, "multi_query": true, "num_kv_heads": 8"#;
        assert_eq!(of(falcon), Ok(heads(8, 128)));
        assert_eq!(of(r#""model_type": "dbrx", "attn_config": {"kv_n_heads": 8}"#), Ok(heads(8, 128)));
        assert_eq!(of(r#""v_head_dim": 0"#), Ok(heads(32, 128)));
    }

    #[test]
    fn defaults_are_those_of_the_config_classes() {
        let missing = |field| Err(SizingError::ConfigField { field });
        let of = |kind: &str| {
            read(&format!(r#"{{"model_type": "{kind}", "num_attention_heads": 64, "hidden_size": 5120}}"#))
        };
        assert_eq!(of("llama"), Ok(heads(64, 80)));
        assert_eq!(of("qwen2"), missing("num_key_value_heads"));
        let qwen3 =
            r#"{"model_type": "qwen3", "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 5120}"#;
        assert_eq!(read(qwen3), Ok(heads(8, 128)));
        assert_eq!(read(r#"{"num_attention_heads": 64}"#), missing("hidden_size"));
        assert_eq!(read(r#"{"num_attention_heads": 64, "hidden_size": 63}"#), missing("hidden_size"));
    }
}
