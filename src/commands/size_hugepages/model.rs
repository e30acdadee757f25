//! The model of the command line: its geometry and the type of its cache.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::commands::cli::error::Failure;
use crate::commands::cli::input;
use crate::commands::size_hugepages::Args;
use crate::engine::plan::config_json::{self, CONFIG_BYTES_MAX};
use crate::engine::plan::geometry::{CacheType, Geometry};
use crate::engine::plan::layout::ParallelLayout;
use crate::engine::plan::models;

/// A model, with the source of its geometry.
pub(super) struct SelectedModel {
    pub name: String,
    pub geometry: Geometry,
    pub source: String,
    /// Whether the checkpoint selects an fp8 cache.
    has_fp8_cache: bool,
}

/// Loads the model of the command line by path or name.
///
/// # Errors
/// The file cannot be read, the name is unknown, or the model's cache is unknown.
pub(super) fn selected(args: &Args) -> Result<Option<SelectedModel>, Failure> {
    let Some(text) = args.model.as_deref() else { return Ok(None) };
    let mut model = if is_path(text) {
        from_file(text)?
    } else {
        let is_auto = args.kv_cache_dtype == "auto";
        let known = if is_auto { models::by_name_with_auto_cache(text) } else { models::by_name(text) }?;
        let name = known.names.first().cloned().unwrap_or_default();
        let geometry = known.geometry.clone();
        SelectedModel { name, geometry, source: known.source.clone(), has_fp8_cache: false }
    };
    if let Some(element) = args.pools.mamba_ssm_dtype.as_deref() {
        let temporal = model.geometry.state.as_mut().and_then(|state| state.temporal.as_mut());
        let Some(temporal) = temporal else {
            return Err(Failure::usage("--mamba-ssm-dtype requires a model with a temporal state"));
        };
        temporal.element = if element == "float32" { 4 } else { 2 };
    }
    Ok(Some(model))
}

/// Whether the text is an existing file or directory, or looks like a path.
fn is_path(text: &str) -> bool {
    let path = Path::new(text);
    path.is_dir() || path.is_file() || text.ends_with(".json") || text.starts_with(['.', '/'])
}

fn from_file(text: &str) -> Result<SelectedModel, Failure> {
    let path = Path::new(text);
    let file = if path.is_dir() { path.join("config.json") } else { PathBuf::from(path) };
    let config = read(&file)?;
    let failure = |error| Failure::from(error).tried(file.display().to_string());
    let geometry = config_json::read(&config).map_err(failure)?;
    let second = file.with_file_name("hf_quant_config.json");
    let quantization = if second.is_file() { Some(read(&second)?) } else { None };
    let has_fp8_cache = config_json::has_fp8_cache(&config, quantization.as_deref()).map_err(|error| {
        Failure::usage("the model's hf_quant_config.json is invalid")
            .tried(second.display().to_string())
            .found(error.to_string())
    })?;
    Ok(SelectedModel {
        name: file.display().to_string(),
        geometry,
        source: "its config.json".to_owned(),
        has_fp8_cache,
    })
}

fn read(file: &Path) -> Result<String, Failure> {
    let shown = file.display().to_string();
    let mut text = String::new();
    let bytes = input::open(file).and_then(|open| open.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)).map_err(
        |error| Failure::usage("cannot read a file of the model").tried(shown.clone()).found(error.to_string()),
    )?;
    if bytes as u64 > CONFIG_BYTES_MAX {
        return Err(Failure::usage("the file of the model is larger than 4 MiB").tried(shown));
    }
    Ok(text)
}

/// The element type of the cache.
///
/// # Errors
/// SGLang has no such cache for the model, or mcctl does not know its layout.
pub(super) fn cache_type(args: &Args, model: Option<&SelectedModel>) -> Result<CacheType, Failure> {
    let text = args.kv_cache_dtype.as_str();
    let geometry = model.map(|model| &model.geometry);
    let is_sparse = geometry.is_some_and(Geometry::has_sparse_latent);
    let is_compressed = geometry.is_some_and(|geometry| geometry.compressed.is_some());
    let refused = |why: &str| {
        let text = format!("--kv-cache-dtype {text} is not supported: {why}");
        let types =
            if is_sparse || is_compressed { "auto, bf16 or fp8_e4m3" } else { "auto, bf16, fp8_e4m3 or fp8_e5m2" };
        Err(Failure::usage(text).next(format!("use {types}")))
    };
    let cache = match text {
        "auto" if model.is_some_and(|model| model.has_fp8_cache) => CacheType::Fp8,
        "auto" => geometry.map_or(CacheType::Half, Geometry::auto_cache),
        "bf16" | "bfloat16" => CacheType::Half,
        "fp8_e5m2" if is_sparse || is_compressed => return refused("SGLang has only fp8_e4m3 rows for this model"),
        "fp8_e4m3" | "fp8_e5m2" => CacheType::Fp8,
        "mxfp8" => CacheType::Mxfp8,
        fp4 if fp4.starts_with("fp4") || fp4.starts_with("nvfp4") => {
            return refused("SGLang's host pool rejects FP4 caches with separate scales, except for MiniMax-M3");
        }
        _ => return refused("the layout of SGLang's host pool is unknown for this type"),
    };
    match (args.dsa_fp8_layout.as_str(), cache) {
        ("raw", CacheType::Fp8) if is_sparse => Ok(CacheType::Fp8Plain),
        ("raw", _) => {
            let what = "--dsa-fp8-layout raw requires a model with sparse attention and an fp8 cache";
            Err(Failure::usage(what).next("set --model, or omit the flag"))
        }
        (_, cache) => Ok(cache),
    }
}

/// The geometry of the model's cache, adjusted by the command line.
///
/// # Errors
/// SGLang rejects the combination.
pub(super) fn geometry(
    args: &Args,
    model: Option<&SelectedModel>,
    layout: &ParallelLayout,
) -> Result<Option<Geometry>, Failure> {
    let draft = args.packed_draft_layers;
    let Some(SelectedModel { geometry, .. }) = model else {
        if draft > 0 || layout.dcp() > 1 {
            let what = "--packed-draft-layers and --dcp-size require --model";
            return Err(Failure::usage(what).next("set --model"));
        }
        return Ok(None);
    };
    if layout.dcp() > 1 {
        if !geometry.is_latent() {
            return Err(Failure::usage("--dcp-size above 1 with HiCache requires an MLA model in SGLang"));
        }
        if geometry.is_sparse() || draft > 0 || geometry.check_per_token().is_err() {
            let what = "--dcp-size above 1 is not supported with sparse attention, states or a packed draft";
            return Err(Failure::usage(what).next("SGLang supports only DSPARK drafts with --dcp-size above 1"));
        }
    }
    if draft > 0 && layout.pp() > 1 {
        let what = "--packed-draft-layers is not supported with pipeline stages";
        return Err(Failure::usage(what)
            .next("calculate without --packed-draft-layers, and add the draft's own size, or use --pp-size 1"));
    }
    Ok(Some(geometry.clone().with_draft_layers(draft)?))
}
