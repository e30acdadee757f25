//! The cache type that a quantized checkpoint selects.

use serde_json::{Map, Value};

use crate::plan::SizingError;
use crate::plan::config_json::fields::Fields;
use crate::plan::config_json::object;

/// Whether SGLang's `--kv-cache-dtype auto` selects fp8 for a checkpoint with this config.json and,
/// if present, this hf_quant_config.json.
///
/// Source: `sglang/srt/mem_cache/kv_cache_dtype.py`, `configure_kv_cache_dtype`;
/// `layers/quantization/modelopt_quant.py` and `fp8.py`, `from_config`.
///
/// # Errors
/// A file is not a JSON object.
pub fn has_fp8_cache(config: &str, hf_quant_config: Option<&str>) -> Result<bool, SizingError> {
    let top = object(config)?;
    let embedded = Fields(&top).object("quantization_config").or_else(|| {
        let text = ["text_config", "llm_config", "language_config"];
        text.iter().find_map(|field| Fields(&top).object(field)?.object("quantization_config"))
    });
    if let Some(quantization) = embedded {
        return Ok(is_fp8(quantization));
    }
    let separate: Option<Map<String, Value>> = hf_quant_config.map(object).transpose()?;
    Ok(separate.is_some_and(|quantization| is_fp8(Fields(&quantization))))
}

fn is_fp8(quantization: Fields<'_>) -> bool {
    // With other methods, SGLang does not read the type of the cache.
    let method = quantization.text("quant_method").unwrap_or("modelopt");
    if !method.starts_with("modelopt") && method != "fp8" {
        return false;
    }
    if method != "fp8" && quantization.text("kv_cache_scheme").is_some_and(is_named_fp8) {
        return true;
    }
    let scheme = quantization.object("kv_cache_scheme").filter(|_| method != "fp8");
    if let Some(scheme) = scheme {
        return scheme.text("type") == Some("float") && scheme.get("num_bits").and_then(Value::as_u64) == Some(8);
    }
    let named = |fields: Fields<'_>| fields.text("kv_cache_quant_algo").is_some_and(is_named_fp8);
    named(quantization) || quantization.object("quantization").is_some_and(named)
}

fn is_named_fp8(text: &str) -> bool {
    text.eq_ignore_ascii_case("fp8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_select_an_fp8_cache() {
        let of = |config, quantization| has_fp8_cache(config, quantization).unwrap();
        let separate = r#"{"producer": {}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}"#;
        assert!(of("{}", Some(separate)));
        assert!(!of("{}", None));
        let scheme = r#"{"quantization_config": {"quant_method": "modelopt",
                         "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"}}}"#;
        assert!(of(scheme, None));
        // Block-wise fp8 weights, as in Qwen3-8B-FP8, and other methods leave the cache alone.
        assert!(!of(r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#, None));
        let other = r#"{"quantization_config": {"quant_method": "compressed-tensors",
                        "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}"#;
        assert!(!of(other, Some(separate)));
    }
}
