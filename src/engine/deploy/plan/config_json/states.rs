//! Models in which some layers keep a state per slot: Mamba, gated delta net, KDA, lightning
//! attention, short convolutions.
//!
//! Source: the config classes in `sglang/srt/configs`, `mamba2_cache_params`.

use crate::plan::SizingError;
use crate::plan::config_json::architecture::StateRule;
use crate::plan::config_json::fields::Fields;
use crate::plan::config_json::layer_lists::{by_kind, by_number, numbered};
use crate::plan::config_json::{heads, latent};
use crate::plan::geometry::{Channels, ConvPart, LAYERS_MAX, Layer, StateShape, Temporal, TokenRow};

/// A model's layers, its rows for tokens, and its state.
pub(super) struct StateModel {
    pub(super) layers: Vec<Layer>,
    pub(super) row: TokenRow,
    pub(super) state: Option<StateShape>,
}

/// Size of a float32 element, in bytes.
const FLOAT32: u64 = 4;

/// Reads a model with `rule`.
pub(super) fn read(top: Fields<'_>, model: Fields<'_>, rule: StateRule) -> Result<StateModel, SizingError> {
    match rule {
        StateRule::GatedDelta => gated_delta(top, model),
        StateRule::GigaChat => gigachat(model),
        StateRule::NemotronH => nemotron_h(top, model),
        StateRule::GraniteHybrid => granite_hybrid(top, model),
        StateRule::FalconH1 => falcon_h1(top, model),
        StateRule::ShortConv => short_conv(top, model),
        StateRule::Zaya => zaya(top, model),
        StateRule::JetNemotron => jet_nemotron(top, model),
        StateRule::Kda => kda(model),
        StateRule::Bailing => bailing(model),
    }
}

/// Size of an element of the temporal state: the model's `mamba_ssm_dtype`, float32 by default.
///
/// Source: `sglang/srt/configs/mamba_utils.py`, `mamba2_state_dtype`.
fn element(model: Fields<'_>) -> u64 {
    match model.text("mamba_ssm_dtype") {
        Some("bfloat16" | "float16") => 2,
        _ => FLOAT32,
    }
}

/// Every `every`th layer has full attention, and the others a state.
fn one_in(count: u64, every: u64) -> Vec<Layer> {
    (1..=count).map(|layer| if layer.is_multiple_of(every) { Layer::FULL } else { Layer::STATE }).collect()
}

fn grouped(inner: u64, groups: u64, state: u64, kernel: u64) -> ConvPart {
    ConvPart { channels: Channels::Grouped { inner, groups, state }, window: kernel - 1 }
}

fn product(field: &'static str, a: u64, b: u64) -> Result<u64, SizingError> {
    // Both are at most `DIMENSION_MAX`.
    a.checked_mul(b).ok_or(SizingError::ConfigField { field })
}

/// The state of a gated delta net.
fn gated_delta_state(model: Fields<'_>) -> Result<StateShape, SizingError> {
    let rows = model.required("linear_value_head_dim")?;
    let columns = model.required("linear_key_head_dim")?;
    let value_heads = model.required("linear_num_value_heads")?;
    let inner = product("linear_num_value_heads", rows, value_heads)?;
    let groups = model.required("linear_num_key_heads")?;
    let kernel = model.required("linear_conv_kernel_dim")?;
    Ok(StateShape {
        conv: vec![grouped(inner, groups, columns, kernel)],
        temporal: Some(Temporal { heads: value_heads, rows, columns, element: element(model) }),
    })
}

/// Qwen3-Next and Qwen3.5: every fourth layer has attention. SGLang does not read `layer_types`.
fn gated_delta(top: Fields<'_>, model: Fields<'_>) -> Result<StateModel, SizingError> {
    let every = model.number("full_attention_interval")?.unwrap_or(4);
    let layers = one_in(model.layers("num_hidden_layers")?, every);
    Ok(StateModel { layers, row: heads::row(top, model)?, state: Some(gated_delta_state(model)?) })
}

/// GigaChat 3.5: layers with MLA or a gated delta net.
fn gigachat(model: Fields<'_>) -> Result<StateModel, SizingError> {
    let layers = by_kind(model, "layer_types", Some(model.layers("num_hidden_layers")?), |kind| match kind {
        "linear_attention" => Some(Layer::STATE),
        "full_attention" => Some(Layer::FULL),
        _ => None,
    })?;
    Ok(StateModel { layers, row: latent::row(model, false)?, state: Some(gated_delta_state(model)?) })
}

/// ZAYA1: attention in every other layer, which also keeps the inputs of its convolutions and a
/// hidden state.
fn zaya(top: Fields<'_>, model: Fields<'_>) -> Result<StateModel, SizingError> {
    let count = model.layers("num_hidden_layers")?;
    let both = Layer { has_state: true, ..Layer::FULL };
    let of = |is_attention| if is_attention { both } else { Layer::EMPTY };
    let layers = if model.get("zaya_layers").is_some() {
        let kinds = model.list("zaya_layers")?.iter().map(|kind| of(kind.as_str() == Some("a")));
        let layers: Vec<Layer> = kinds.take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
        if (layers.len() as u64) < count {
            return Err(SizingError::ConfigField { field: "zaya_layers" });
        }
        layers
    } else {
        (0..count).map(|layer| of(layer.is_multiple_of(2))).collect()
    };
    let row = heads::row(top, model)?;
    let TokenRow::Heads { kv_heads, head_dim, .. } = row else {
        return Err(SizingError::ConfigField { field: "head_dim" });
    };
    let all = model.required("num_attention_heads")?.saturating_add(kv_heads);
    let channels = Channels::Split(product("head_dim", all, head_dim)?);
    let window = model.required("cca_time0")? + model.required("cca_time1")? - 2;
    let hidden = ConvPart { channels: Channels::Whole(model.required("hidden_size")?), window: 1 };
    let state = StateShape { conv: vec![ConvPart { channels, window }, hidden], temporal: None };
    Ok(StateModel { layers, row, state: Some(state) })
}

/// The state of Inkling's convolutions, in every layer.
pub(super) fn inkling(model: Fields<'_>, full: TokenRow, window: TokenRow) -> Result<StateShape, SizingError> {
    let length = model.required("sconv_kernel_size")? - 1;
    let of = |row| match row {
        TokenRow::Heads { kv_heads, head_dim, .. } => Channels::Heads { heads: kv_heads, dim: head_dim },
        TokenRow::Latent { lora, .. } => Channels::Whole(lora),
    };
    let stream = Channels::Whole(model.required("hidden_size")?);
    let parts = [of(full), of(full), of(window), of(window), stream, stream];
    Ok(StateShape { conv: parts.map(|channels| ConvPart { channels, window: length }).to_vec(), temporal: None })
}

/// Nemotron-H and Nemotron 3: Mamba-2, attention and feed-forward layers.
fn nemotron_h(top: Fields<'_>, model: Fields<'_>) -> Result<StateModel, SizingError> {
    let field = "hybrid_override_pattern";
    let layers = match model.text(field) {
        Some(pattern) if model.get("layers_block_type").is_none() => {
            let layer = |kind| match kind {
                'M' => Some(Layer::STATE),
                '*' => Some(Layer::FULL),
                '-' | 'E' => Some(Layer::EMPTY),
                _ => None,
            };
            let layers: Option<Vec<Layer>> = pattern.chars().map(layer).collect();
            let is_valid = |layers: &Vec<Layer>| (1..=LAYERS_MAX).contains(&(layers.len() as u64));
            layers.filter(is_valid).ok_or(SizingError::ConfigField { field })?
        }
        _ => by_kind(model, "layers_block_type", None, |kind| match kind {
            "mamba" => Some(Layer::STATE),
            "attention" => Some(Layer::FULL),
            "mlp" | "moe" => Some(Layer::EMPTY),
            _ => None,
        })?,
    };
    let (count, dim) = (model.required("mamba_num_heads")?, model.required("mamba_head_dim")?);
    let columns = model.required("ssm_state_size")?;
    let inner = product("mamba_num_heads", count, dim)?;
    let state = StateShape {
        conv: vec![grouped(inner, model.required("n_groups")?, columns, model.required("conv_kernel")?)],
        temporal: Some(Temporal { heads: count, rows: dim, columns, element: element(model) }),
    };
    Ok(StateModel { layers, row: heads::row(top, model)?, state: Some(state) })
}

/// The Mamba-2 state of Granite and Falcon-H1, which name its dimensions alike.
fn mamba2(model: Fields<'_>, inner: u64, element: u64) -> Result<StateShape, SizingError> {
    let count = model.required("mamba_n_heads")?;
    let columns = model.required("mamba_d_state")?;
    let dim = if model.text("mamba_d_head") == Some("auto") { None } else { model.number("mamba_d_head")? };
    let dim = dim.unwrap_or(inner / count);
    if dim.checked_mul(count) != Some(inner) {
        return Err(SizingError::ConfigField { field: "mamba_d_head" });
    }
    Ok(StateShape {
        conv: vec![grouped(inner, model.required("mamba_n_groups")?, columns, model.required("mamba_d_conv")?)],
        temporal: Some(Temporal { heads: count, rows: dim, columns, element }),
    })
}

/// `mamba_expand` times the hidden size.
fn expanded(model: Fields<'_>) -> Result<u64, SizingError> {
    product("mamba_expand", model.required("mamba_expand")?, model.required("hidden_size")?)
}

/// Granite 4: layers with attention or Mamba-2; some models have attention only. SGLang does not
/// read the state's type from the config.
fn granite_hybrid(top: Fields<'_>, model: Fields<'_>) -> Result<StateModel, SizingError> {
    let layers = by_kind(model, "layer_types", Some(model.layers("num_hidden_layers")?), |kind| match kind {
        "mamba" => Some(Layer::STATE),
        "attention" => Some(Layer::FULL),
        _ => None,
    })?;
    let has_state = layers.iter().any(|layer| layer.has_state);
    let state = if has_state { Some(mamba2(model, expanded(model)?, FLOAT32)?) } else { None };
    Ok(StateModel { layers, row: heads::row(top, model)?, state })
}

/// Falcon-H1: every layer has attention and Mamba-2.
fn falcon_h1(top: Fields<'_>, model: Fields<'_>) -> Result<StateModel, SizingError> {
    let inner = match model.number("mamba_d_ssm")? {
        Some(inner) => inner,
        None => expanded(model)?,
    };
    let both = Layer { has_state: true, ..Layer::FULL };
    let layers = (0..model.layers("num_hidden_layers")?).map(|_| both).collect();
    let state = Some(mamba2(model, inner, element(model))?);
    Ok(StateModel { layers, row: heads::row(top, model)?, state })
}

/// LFM2: layers with attention or a short convolution. Most files list the numbers of the layers
/// with attention, from 0, and no `layer_types`; the config class in transformers accepts both.
fn short_conv(top: Fields<'_>, model: Fields<'_>) -> Result<StateModel, SizingError> {
    let count = model.layers("num_hidden_layers")?;
    let layers = if model.get("layer_types").is_none() && model.get("full_attn_idxs").is_some() {
        let of = |is_full| if is_full { Layer::FULL } else { Layer::STATE };
        numbered(model, "full_attn_idxs", 0, count)?.into_iter().map(of).collect()
    } else {
        by_kind(model, "layer_types", Some(count), |kind| match kind {
            "conv" | "short_conv" => Some(Layer::STATE),
            "full_attention" => Some(Layer::FULL),
            _ => None,
        })?
    };
    let window = model.required("conv_L_cache")? - 1;
    let conv = vec![ConvPart { channels: Channels::Split(model.required("hidden_size")?), window }];
    Ok(StateModel { layers, row: heads::row(top, model)?, state: Some(StateShape { conv, temporal: None }) })
}

/// The state of KDA: one convolution for queries, keys and values.
fn kda_state(count: u64, dim: u64, kernel: u64) -> Result<StateShape, SizingError> {
    let channels = Channels::Split(product("num_heads", 3 * count, dim)?);
    Ok(StateShape {
        conv: vec![ConvPart { channels, window: kernel - 1 }],
        temporal: Some(Temporal { heads: count, rows: dim, columns: dim, element: FLOAT32 }),
    })
}

/// Kimi-Linear and Kimi-K3: layers with MLA or KDA, which are numbered from 1.
fn kda(model: Fields<'_>) -> Result<StateModel, SizingError> {
    let linear = model.object("linear_attn_config").ok_or(SizingError::ConfigField { field: "linear_attn_config" })?;
    let count = model.layers("num_hidden_layers")?;
    let of = |has_state| if has_state { Layer::STATE } else { Layer::FULL };
    let layers = numbered(linear, "kda_layers", 1, count)?.into_iter().map(of).collect();
    let state = kda_state(
        linear.required("num_heads")?,
        linear.required("head_dim")?,
        linear.required("short_conv_kernel_size")?,
    )?;
    Ok(StateModel { layers, row: latent::row(model, false)?, state: Some(state) })
}

/// GLM-5-Next (GLM-5.3-Flash): layers with sparse MLA or KDA.
pub(super) fn glm5_next(model: Fields<'_>) -> Result<StateModel, SizingError> {
    let layers = by_kind(model, "layer_types", Some(model.layers("num_hidden_layers")?), |kind| match kind {
        "linear_attention" => Some(Layer::STATE),
        "full_attention" | "indexed_attention" => Some(Layer::FULL),
        _ => None,
    })?;
    let state = kda_state(
        model.required("linear_num_heads")?,
        model.required("linear_head_dim")?,
        model.required("linear_conv_kernel_dim")?,
    )?;
    Ok(StateModel { layers, row: latent::row(model, true)?, state: Some(state) })
}

/// Jet-Nemotron: layers with attention (with or without a window, in one pool) or a gated delta
/// net.
fn jet_nemotron(top: Fields<'_>, model: Fields<'_>) -> Result<StateModel, SizingError> {
    let layers = by_kind(model, "layer_types", Some(model.layers("num_hidden_layers")?), |kind| match kind {
        "jet" => Some(Layer::STATE),
        "attn" | "swa" => Some(Layer::FULL),
        _ => None,
    })?;
    let field = "efficient_attention_config.jet";
    let jet = model.object("efficient_attention_config").and_then(|config| config.object("jet"));
    let jet = jet.ok_or(SizingError::ConfigField { field })?;
    let (count, columns) = (jet.required("num_heads")?, jet.required("head_dim")?);
    let expand = jet.get("expand_v").and_then(serde_json::Value::as_f64);
    let expand = expand.filter(|expand| (1.0..=64.0).contains(expand)).ok_or(SizingError::ConfigField { field })?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and below 2^30")]
    let rows = (columns as f64 * expand) as u64;
    let state = StateShape {
        conv: vec![grouped(product(field, count, rows)?, count, columns, jet.required("conv_size")?)],
        temporal: Some(Temporal { heads: count, rows, columns, element: element(model) }),
    };
    Ok(StateModel { layers, row: heads::row(top, model)?, state: Some(state) })
}

/// Ling and Ring 2.5 (lightning attention) and 3.0 (KDA), the others with MLA.
fn bailing(model: Fields<'_>) -> Result<StateModel, SizingError> {
    let count = model.layers("num_hidden_layers")?;
    let layers = if model.get("layer_group_size").is_some_and(serde_json::Value::is_array) {
        by_number(model, "layer_group_size", count, |kind| Some(if kind == 1 { Layer::STATE } else { Layer::FULL }))?
    } else {
        one_in(count, model.required("layer_group_size")?)
    };
    let heads = model.required("num_attention_heads")?;
    let dim = model.required("head_dim")?;
    let state = match model.number("short_conv_kernel_size")? {
        Some(kernel) => kda_state(heads, dim, kernel)?,
        None => StateShape {
            conv: Vec::new(),
            temporal: Some(Temporal { heads, rows: dim, columns: dim, element: FLOAT32 }),
        },
    };
    Ok(StateModel { layers, row: latent::row(model, false)?, state: Some(state) })
}
