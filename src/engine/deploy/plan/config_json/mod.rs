//! The geometry of a model's cache, from its `config.json`.
//!
//! The rules are those of SGLang 0.5.23 (`sglang/srt/configs`). The name of the architecture
//! selects them; fields that SGLang does not read have no effect. What mcctl does not recognize
//! is an error with the name of the field, never a guess.

mod architecture;
mod checkpoint;
mod fields;
mod heads;
mod latent;
mod layer_lists;
mod plain_architectures;
mod python_json;
mod staged_architectures;
mod states;
mod windows;

use serde_json::{Map, Value};

use crate::plan::SizingError;
use crate::plan::config_json::architecture::{Family, StateRule, WindowRow, family};
use crate::plan::config_json::fields::Fields;
use crate::plan::config_json::staged_architectures::STAGED;
use crate::plan::geometry::{CompressedShape, Geometry, IndexRow, KeptTokens, Layer, TokenRow};

pub use checkpoint::has_fp8_cache;

/// Maximum size of a config.json, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Parses the cache geometry from the contents of a config.json.
///
/// # Errors
/// The contents are not a JSON object, a field is missing or out of range, or SGLang or mcctl does
/// not know the architecture.
pub fn read(text: &str) -> Result<Geometry, SizingError> {
    of_object(&object(text)?)
}

/// Parses the contents of a JSON file that Python wrote.
fn object(text: &str) -> Result<Map<String, Value>, SizingError> {
    let plain = python_json::without_special_numbers(text);
    match serde_json::from_str(&plain) {
        Ok(Value::Object(top)) => Ok(top),
        Ok(_) => Err(SizingError::ConfigSyntax { found: "the top-level value is not an object".to_owned() }),
        Err(error) => Err(SizingError::ConfigSyntax { found: error.to_string() }),
    }
}

/// Reads the cache geometry from a parsed config.json.
///
/// # Errors
/// The same as [`read`].
pub fn of_object(top: &Map<String, Value>) -> Result<Geometry, SizingError> {
    let top = Fields(top);
    let architecture = match top.get("architectures") {
        Some(Value::Array(names)) => names.first().and_then(Value::as_str),
        _ => None,
    };
    let architecture = architecture.ok_or(SizingError::ConfigField { field: "architectures" })?;
    let model = text_model(top, architecture);
    let refused = |why| SizingError::Architecture { found: architecture.to_owned(), why };
    let mut geometry = match family(architecture).map_err(refused)? {
        Family::Heads => uniform_heads(top, model)?,
        Family::HeadsOrSparseLatent if model.get("kv_lora_rank").is_none() => uniform_heads(top, model)?,
        Family::HeadsOrSparseLatent => sparse_latent(model)?,
        Family::Looped(field) => {
            let passes = model.number(field)?.ok_or(SizingError::ConfigField { field })?;
            Geometry { passes, ..uniform_heads(top, model)? }
        }
        Family::Latent => Geometry::uniform(layer_count(model)?, latent::row(model, false)?),
        Family::LatentUnlessOff if model.get("use_mla") == Some(&Value::Bool(false)) => {
            Geometry::uniform(layer_count(model)?, heads::row(top, model)?)
        }
        Family::LatentUnlessOff => Geometry::uniform(layer_count(model)?, latent::row(model, false)?),
        Family::SparseLatent { passes } => Geometry { passes, ..sparse_latent(model)? },
        Family::Windows { rule, row } => {
            let layers = windows::layers(model, rule)?;
            windowed(top, model, layers, row)?
        }
        Family::States(rule) => {
            let found = states::read(top, model, rule)?;
            // The draft of Qwen3-Next and Qwen3.5 is a layer with attention, without a state.
            let draft = (rule == StateRule::GatedDelta).then_some(KeptTokens::All);
            Geometry { state: found.state, draft, ..Geometry::new(found.layers, found.row) }
        }
        Family::SparseStates => {
            let found = states::glm5_next(model)?;
            let base = Geometry { state: found.state, ..Geometry::new(found.layers, found.row) };
            with_index(model, base)?
        }
        Family::KeyIndex => key_index(top, model)?,
        Family::Compressed => compressed(model)?,
    };
    if geometry.layers.is_empty() {
        return Err(SizingError::ConfigField { field: "num_hidden_layers" });
    }
    let is_key_index = matches!(geometry.index, Some(IndexRow::Keys { .. }));
    geometry.has_stages = STAGED.contains(&architecture) && geometry.passes == 1 && !is_key_index;
    geometry.attention_heads = heads::attention_heads(model)?;
    Ok(geometry)
}

/// The part of the config that describes the language model.
///
/// Source: `sglang/srt/utils/hf_transformers/common.py`, `get_hf_text_config`.
fn text_model<'a>(top: Fields<'a>, architecture: &str) -> Fields<'a> {
    if architecture.starts_with("Llava") && architecture.ends_with("ForCausalLM") {
        return top;
    }
    if let Some(thinker) = top.object("thinker_config") {
        return thinker.object("text_config").unwrap_or(thinker);
    }
    ["llm_config", "language_config", "text_config"].iter().find_map(|field| top.object(field)).unwrap_or(top)
}

/// The number of layers, which some model types call differently.
fn layer_count(model: Fields<'_>) -> Result<u64, SizingError> {
    let names = ["num_hidden_layers", "num_layers", "n_layers", "n_layer"];
    let field = names.into_iter().find(|name| model.get(name).is_some()).unwrap_or("num_hidden_layers");
    model.layers(field)
}

/// Fields that only caches of other kinds have.
const OTHER_KINDS: &[&str] = &[
    "compress_ratios",
    "conv_L_cache",
    "hybrid_override_pattern",
    "index_topk",
    "kv_lora_rank",
    "linear_attn_config",
    "linear_num_key_heads",
    "mamba_d_state",
    "mamba_num_heads",
    "mixer_types",
    "sparse_attention_config",
];

fn uniform_heads(top: Fields<'_>, model: Fields<'_>) -> Result<Geometry, SizingError> {
    // SGLang splits the layers of any architecture with this field.
    if model.is_true("is_hybrid_swa") {
        return Err(SizingError::ConfigField { field: "is_hybrid_swa" });
    }
    // MiniMax-M2 has the field of its predecessors, with full attention (1) in all layers.
    let is_full = |kinds: &Value| kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| *kind == 1));
    if model.get("attn_type_list").is_some_and(|kinds| !is_full(kinds)) {
        return Err(SizingError::ConfigField { field: "attn_type_list" });
    }
    // SGLang would ignore such a field. A file with one was not written for this architecture.
    if let Some(field) = OTHER_KINDS.iter().find(|field| model.get(field).is_some()) {
        return Err(SizingError::ConfigField { field });
    }
    Ok(Geometry::uniform(layer_count(model)?, heads::row(top, model)?))
}

fn sparse_latent(model: Fields<'_>) -> Result<Geometry, SizingError> {
    let is_sparse = model.get("index_topk").is_some();
    let base = Geometry::uniform(layer_count(model)?, latent::row(model, is_sparse)?);
    if is_sparse { with_index(model, base) } else { Ok(base) }
}

/// Adds the index of sparse attention to the layers with attention.
fn with_index(model: Fields<'_>, mut geometry: Geometry) -> Result<Geometry, SizingError> {
    let owns = latent::owns_index(model, geometry.layers.len() as u64)?;
    for (layer, owns) in geometry.layers.iter_mut().zip(owns) {
        layer.has_index = owns && layer.tokens == KeptTokens::All;
    }
    geometry.index = Some(latent::index_row(model)?);
    Ok(geometry)
}

fn windowed(top: Fields<'_>, model: Fields<'_>, layers: Vec<Layer>, row: WindowRow) -> Result<Geometry, SizingError> {
    let base = heads::row(top, model)?;
    let (full, window) = match row {
        WindowRow::Same => (base, heads::same_window_row(base)),
        WindowRow::Own | WindowRow::OwnWithState => (base, heads::own_window_row(model, base)?),
        WindowRow::Base => (heads::global_row(model, base)?, base),
    };
    // MiMo's draft layers have a window. Those of other models are unknown.
    let draft = (row == WindowRow::Own).then_some(KeptTokens::Window);
    let mut geometry = Geometry { window, draft, ..Geometry::new(layers, full) };
    if row == WindowRow::OwnWithState {
        geometry.layers.iter_mut().for_each(|layer| layer.has_state = true);
        geometry.state = Some(states::inkling(model, full, window)?);
        geometry.window_tenths = 1;
        geometry.state_tenths = 1;
    }
    Ok(geometry)
}

/// MiniMax-M3: keys and values per head in all layers, and an index of keys in sparse layers.
///
/// Source: `sglang/srt/mem_cache/memory_pool.py`, `MiniMaxSparseKVPool`.
fn key_index(top: Fields<'_>, model: Fields<'_>) -> Result<Geometry, SizingError> {
    let sparse = model
        .object("sparse_attention_config")
        .or_else(|| top.object("sparse_attention_config"))
        .ok_or(SizingError::ConfigField { field: "sparse_attention_config" })?;
    let is_sparse = sparse.numbers("sparse_attention_freq")?;
    let keys_only = sparse.numbers("sparse_disable_index_value")?;
    let mut geometry = Geometry::uniform(layer_count(model)?, heads::row(top, model)?);
    if is_sparse.len() != geometry.layers.len() || keys_only.len() != is_sparse.len() {
        return Err(SizingError::ConfigField { field: "sparse_attention_freq" });
    }
    for (layer, (sparse, keys_only)) in geometry.layers.iter_mut().zip(is_sparse.into_iter().zip(keys_only)) {
        // HiCache does not support an index with values.
        if sparse != 0 && keys_only == 0 {
            return Err(SizingError::ConfigField { field: "sparse_disable_index_value" });
        }
        layer.has_index = sparse != 0;
    }
    geometry.index = Some(IndexRow::Keys { elements: sparse.required("sparse_index_dim")? });
    Ok(geometry)
}

/// DeepSeek-V4.
fn compressed(model: Fields<'_>) -> Result<Geometry, SizingError> {
    let count = layer_count(model)?;
    let layers = layer_lists::by_number(model, "compress_ratios", count, |ratio| match ratio {
        0 | 4 | 128 => Some(Layer { tokens: KeptTokens::Compressed(ratio), ..Layer::EMPTY }),
        _ => None,
    })?;
    let shape = CompressedShape {
        head_dim: model.required("head_dim")?,
        rope: model.required("qk_rope_head_dim")?,
        index_head_dim: model.required("index_head_dim")?,
    };
    // The layout of the rows is defined for these sizes only (`deepseek_v4_memory_pool.py`).
    if (shape.head_dim, shape.rope) != (512, 64) {
        return Err(SizingError::ConfigField { field: "head_dim" });
    }
    if shape.index_head_dim != 128 {
        return Err(SizingError::ConfigField { field: "index_head_dim" });
    }
    let row = TokenRow::Latent { lora: shape.head_dim - shape.rope, rope: shape.rope, is_scaled: true };
    let draft = Some(KeptTokens::Compressed(0));
    Ok(Geometry { compressed: Some(shape), window_tenths: 1, draft, ..Geometry::new(layers, row) })
}

#[cfg(test)]
mod tests;
