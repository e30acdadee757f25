//! The fields in a model's `config.json` that determine the model's cache size.
//!
//! The rules match SGLang (`sglang/srt/configs/model_config.py`). `text_config` is used if present.
//! The number of KV heads defaults to the number of attention heads. `kv_lora_rank` selects MLA;
//! `index_head_dim` additionally selects sparse attention.

use serde_json::{Map, Value};

use crate::plan::SizingError;
use crate::plan::error::{COMPRESSED, LINEAR, MAMBA};
use crate::plan::geometry::{Attention, DIMENSION_MAX, Geometry, Indexer};

/// Maximum size of a config.json, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Parses the cache geometry from the contents of a config.json.
///
/// # Errors
/// The contents are not a JSON object, a field is missing or out of range, or the model keeps state
/// that cannot be sized.
pub fn read(text: &str) -> Result<Geometry, SizingError> {
    let value: Value = serde_json::from_str(text).map_err(|e| SizingError::ConfigSyntax { found: e.to_string() })?;
    let Value::Object(top) = value else {
        return Err(SizingError::ConfigSyntax { found: "the top-level value is not an object".to_owned() });
    };
    let model = match top.get("text_config") {
        Some(Value::Object(inner)) => inner,
        _ => &top,
    };
    refuse_other_state(model)?;
    let layers = required(model, "num_hidden_layers")?;
    if let Some(lora) = dimension(model, "kv_lora_rank")? {
        let rope = required(model, "qk_rope_head_dim")?;
        let indexer = dimension(model, "index_head_dim")?.map(|head_dim| Indexer { head_dim });
        return Ok(Geometry { layers, window_layers: 0, attention: Attention::Latent { lora, rope, indexer } });
    }
    let heads = dimension(model, "num_attention_heads")?;
    let kv_heads = match dimension(model, "num_key_value_heads")?.or(heads) {
        Some(count) => count,
        None => return Err(SizingError::ConfigField { field: "num_key_value_heads" }),
    };
    let head_dim = match dimension(model, "head_dim")? {
        Some(dim) => dim,
        None => {
            let heads = heads.ok_or(SizingError::ConfigField { field: "head_dim" })?;
            let hidden = required(model, "hidden_size")?;
            // A head has at least one element, so a hidden size below the number of heads is
            // invalid.
            Some(hidden / heads).filter(|dim| *dim > 0).ok_or(SizingError::ConfigField { field: "hidden_size" })?
        }
    };
    let v_head_dim = dimension(model, "v_head_dim")?.unwrap_or(head_dim);
    let window_layers = window_layers(model, layers)?;
    let attention = Attention::Heads { kv_heads, head_dim, v_head_dim };
    Ok(Geometry { layers: layers - window_layers, window_layers, attention })
}

/// Number of layers that keep only a window of tokens, according to `layer_types`. A model may
/// define a window but have no sliding-window layers.
fn window_layers(model: &Map<String, Value>, layers: u64) -> Result<u64, SizingError> {
    let Some(Value::Array(kinds)) = model.get("layer_types") else { return Ok(0) };
    let count = kinds.iter().filter(|kind| kind.as_str() == Some("sliding_attention")).count() as u64;
    // Models with `max_window_layers` (Qwen) also list layer types, but keep all tokens unless the
    // window is enabled.
    if model.get("use_sliding_window") == Some(&Value::Bool(false)) {
        return Ok(0);
    }
    if count > layers { Err(SizingError::ConfigField { field: "layer_types" }) } else { Ok(count) }
}

/// Rejects models whose cache keeps state per slot instead of per token.
fn refuse_other_state(model: &Map<String, Value>) -> Result<(), SizingError> {
    for (field, what) in [
        ("linear_num_key_heads", LINEAR),
        ("linear_attn_config", LINEAR),
        ("mamba_num_heads", MAMBA),
        ("mamba_d_state", MAMBA),
        ("compress_ratios", COMPRESSED),
    ] {
        if model.get(field).is_some_and(|value| !value.is_null()) {
            return Err(SizingError::Unsupported { what });
        }
    }
    Ok(())
}

fn dimension(model: &Map<String, Value>, field: &'static str) -> Result<Option<u64>, SizingError> {
    match model.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(n) if (1..=DIMENSION_MAX).contains(&n) => Ok(Some(n)),
            _ => Err(SizingError::ConfigField { field }),
        },
    }
}

fn required(model: &Map<String, Value>, field: &'static str) -> Result<u64, SizingError> {
    dimension(model, field)?.ok_or(SizingError::ConfigField { field })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heads(layers: u64, kv_heads: u64, dim: u64) -> Geometry {
        Geometry { layers, window_layers: 0, attention: Attention::Heads { kv_heads, head_dim: dim, v_head_dim: dim } }
    }

    #[test]
    fn heads_and_head_size_have_defaults() {
        let full = r#"{"num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}"#;
        assert_eq!(read(full), Ok(heads(64, 8, 128)));
        let old = r#"{"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}"#;
        assert_eq!(read(old), Ok(heads(32, 32, 128)));
        let nested = format!(r#"{{"num_hidden_layers": 1, "text_config": {full}}}"#);
        assert_eq!(read(&nested), Ok(heads(64, 8, 128)));
    }

    #[test]
    fn a_lora_rank_selects_latent_attention() {
        let text = r#"{"num_hidden_layers": 61, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                       "index_head_dim": 128}"#;
        let indexer = Some(Indexer { head_dim: 128 });
        let attention = Attention::Latent { lora: 512, rope: 64, indexer };
        assert_eq!(read(text), Ok(Geometry { layers: 61, window_layers: 0, attention }));
    }

    #[test]
    fn sliding_layers_are_counted_separately() {
        let text = r#"{"num_hidden_layers": 4, "num_key_value_heads": 8, "head_dim": 64,
                       "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}"#;
        let model = read(text).unwrap();
        assert_eq!((model.layers, model.window_layers), (2, 2));
    }

    #[test]
    fn missing_and_invalid_fields_are_named() {
        let lacks = |field| Err(SizingError::ConfigField { field });
        assert_eq!(read(r#"{"num_attention_heads": 8}"#), lacks("num_hidden_layers"));
        assert_eq!(read(r#"{"num_hidden_layers": -1}"#), lacks("num_hidden_layers"));
        assert_eq!(read(r#"{"num_hidden_layers": 2, "num_attention_heads": 8}"#), lacks("hidden_size"));
        assert_eq!(read(r#"{"num_hidden_layers": 2, "kv_lora_rank": 512}"#), lacks("qk_rope_head_dim"));
        assert_eq!(read(r#"{"num_hidden_layers": 99999999999}"#), lacks("num_hidden_layers"));
        assert!(matches!(read("[]"), Err(SizingError::ConfigSyntax { .. })));
        assert!(matches!(read("{"), Err(SizingError::ConfigSyntax { .. })));
        let linear = r#"{"num_hidden_layers": 48, "linear_num_key_heads": 16}"#;
        assert_eq!(read(linear), Err(SizingError::Unsupported { what: LINEAR }));
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,200}") {
            let _ = read(&text);
        }

        #[test]
        fn arbitrary_numbers_do_not_panic(a: i64, b: i64, c: i64, d: i64) {
            let text = format!(
                r#"{{"num_hidden_layers": {a}, "num_attention_heads": {b}, "hidden_size": {c}, "kv_lora_rank": {d}}}"#
            );
            let _ = read(&text);
        }
    }
}
