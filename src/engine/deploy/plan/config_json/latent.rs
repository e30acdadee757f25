//! Models with a latent row per token (MLA), and the index of sparse attention.

use serde_json::Value;

use crate::plan::SizingError;
use crate::plan::config_json::fields::Fields;
use crate::plan::geometry::{IndexRow, TokenRow};

/// The latent row. `is_scaled`: whether fp8 rows include scales.
pub(super) fn row(model: Fields<'_>, is_scaled: bool) -> Result<TokenRow, SizingError> {
    let lora = model.required("kv_lora_rank")?;
    let has_rope = !model.is_true("use_mla_nope") && model.get("qk_rope_head_dim") != Some(&Value::from(0));
    let rope = if has_rope { model.required("qk_rope_head_dim")? } else { 0 };
    Ok(TokenRow::Latent { lora, rope, is_scaled })
}

/// The row of the index.
pub(super) fn index_row(model: Fields<'_>) -> Result<IndexRow, SizingError> {
    let tokens = model.number("index_kpool")?.unwrap_or(1);
    Ok(IndexRow::Scaled { head_dim: model.required("index_head_dim")?, tokens })
}

/// Whether each of `layers` layers owns an index. The others use that of a layer before them.
///
/// Source: `sglang/srt/configs/model_config.py`, `dsa_layer_skips_topk`.
pub(super) fn owns_index(model: Fields<'_>, layers: u64) -> Result<Vec<bool>, SizingError> {
    if model.get("indexer_types").is_some() {
        let kinds = model.texts("indexer_types")?;
        return Ok((0..layers).map(|layer| item(&kinds, layer) != Some(&"shared")).collect());
    }
    let cli_factor = model.number("cli_factor")?.unwrap_or(1);
    if cli_factor > 1 {
        return Ok((0..layers).map(|layer| layer.is_multiple_of(cli_factor)).collect());
    }
    match model.get("index_topk_pattern") {
        Some(Value::String(pattern)) => {
            let kinds: Vec<char> = pattern.chars().collect();
            return Ok((0..layers).map(|layer| item(&kinds, layer) != Some(&'S')).collect());
        }
        Some(_) => {
            let kinds = model.texts("index_topk_pattern")?;
            return Ok((0..layers).map(|layer| item(&kinds, layer) != Some(&"S")).collect());
        }
        None => {}
    }
    let every = model.number("index_topk_freq")?.unwrap_or(1);
    let first = model.number("index_skip_topk_offset")?;
    let owns = |layer: u64| match first {
        Some(offset) => (layer + 1).saturating_sub(offset).is_multiple_of(every),
        None => layer.saturating_sub(1).is_multiple_of(every),
    };
    Ok((0..layers).map(owns).collect())
}

fn item<T>(items: &[T], layer: u64) -> Option<&T> {
    usize::try_from(layer).ok().and_then(|layer| items.get(layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(config: &str, layers: u64) -> Vec<u64> {
        let Ok(Value::Object(map)) = serde_json::from_str(config) else { panic!("an object") };
        let owns = owns_index(Fields(&map), layers).unwrap();
        owns.iter().zip(0..).filter(|(owns, _)| **owns).map(|(_, layer)| layer).collect()
    }

    #[test]
    fn layers_own_or_share_an_index() {
        assert_eq!(owned("{}", 4), [0, 1, 2, 3]);
        assert_eq!(owned(r#"{"indexer_types": ["full", "shared", "full", "shared"]}"#, 4), [0, 2]);
        assert_eq!(owned(r#"{"cli_factor": 3, "index_topk_freq": 2}"#, 7), [0, 3, 6]);
        assert_eq!(owned(r#"{"index_topk_pattern": "FSSF"}"#, 4), [0, 3]);
        assert_eq!(owned(r#"{"index_topk_freq": 4}"#, 10), [0, 1, 5, 9]);
        assert_eq!(owned(r#"{"index_topk_freq": 4, "index_skip_topk_offset": 3}"#, 12), [0, 1, 2, 6, 10]);
    }
}
