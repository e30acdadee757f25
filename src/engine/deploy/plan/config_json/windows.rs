//! Which layers keep a window of tokens in a pool of its own.
//!
//! Source: `sglang/srt/configs/model_config.py`, `get_hybrid_layer_ids`.

use crate::plan::SizingError;
use crate::plan::config_json::architecture::WindowRule;
use crate::plan::config_json::fields::Fields;
use crate::plan::geometry::Layer;

/// The kind of each of the model's layers.
pub(super) fn layers(model: Fields<'_>, rule: WindowRule) -> Result<Vec<Layer>, SizingError> {
    let count = model.layers("num_hidden_layers")?;
    let of = |is_window: bool| if is_window { Layer::WINDOW } else { Layer::FULL };
    match rule {
        WindowRule::EveryFourth => Ok((1..=count).map(|layer| of(!layer.is_multiple_of(4))).collect()),
        WindowRule::LayerTypes => {
            let kinds = model.texts("layer_types")?;
            let layer = |kind: &&str| match *kind {
                "sliding_attention" => Ok(Layer::WINDOW),
                "full_attention" => Ok(Layer::FULL),
                _ => Err(SizingError::ConfigField { field: "layer_types" }),
            };
            same_length("layer_types", count, kinds.iter().map(layer).collect::<Result<_, _>>()?)
        }
        WindowRule::Pattern => {
            let field = "hybrid_layer_pattern";
            let layer = |kind: u64| match kind {
                0 => Ok(Layer::FULL),
                1 => Ok(Layer::WINDOW),
                _ => Err(SizingError::ConfigField { field }),
            };
            same_length(field, count, model.numbers(field)?.into_iter().map(layer).collect::<Result<_, _>>()?)
        }
        WindowRule::LocalLayers => {
            let local = model.numbers("local_layer_ids")?;
            if local.iter().any(|layer| *layer >= count) {
                return Err(SizingError::ConfigField { field: "local_layer_ids" });
            }
            Ok((0..count).map(|layer| of(local.contains(&layer))).collect())
        }
    }
}

/// The first `count` of `layers`; there must be as many. Some files list draft layers after them.
pub(super) fn same_length(field: &'static str, count: u64, mut layers: Vec<Layer>) -> Result<Vec<Layer>, SizingError> {
    let count = usize::try_from(count).map_err(|_| SizingError::ConfigField { field })?;
    if layers.len() < count {
        return Err(SizingError::ConfigField { field });
    }
    layers.truncate(count);
    Ok(layers)
}
