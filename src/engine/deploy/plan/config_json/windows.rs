//! Which layers keep a window of tokens in a pool of its own.
//!
//! Source: `sglang/srt/configs/model_config.py`, `get_hybrid_layer_ids`.

use crate::plan::SizingError;
use crate::plan::config_json::architecture::WindowRule;
use crate::plan::config_json::fields::Fields;
use crate::plan::config_json::layer_lists::{by_kind, by_number, numbered};
use crate::plan::geometry::Layer;

/// The kind of each of the model's layers.
pub(super) fn layers(model: Fields<'_>, rule: WindowRule) -> Result<Vec<Layer>, SizingError> {
    let count = model.layers("num_hidden_layers")?;
    let of = |is_window: bool| if is_window { Layer::WINDOW } else { Layer::FULL };
    match rule {
        WindowRule::EveryFourth => Ok((1..=count).map(|layer| of(!layer.is_multiple_of(4))).collect()),
        WindowRule::LayerTypes => by_kind(model, "layer_types", Some(count), |kind| match kind {
            "sliding_attention" => Some(Layer::WINDOW),
            "full_attention" => Some(Layer::FULL),
            _ => None,
        }),
        WindowRule::Pattern => by_number(model, "hybrid_layer_pattern", count, |kind| match kind {
            0 => Some(Layer::FULL),
            1 => Some(Layer::WINDOW),
            _ => None,
        }),
        WindowRule::LocalLayers => Ok(numbered(model, "local_layer_ids", 0, count)?.into_iter().map(of).collect()),
    }
}
