//! Models known by name, which do not require a config.json.
//!
//! `models.jsonl` has, per model, its names, the fields of its config.json that determine its
//! cache, and where they were published. The geometry is computed from these fields, as from a
//! file.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::plan::geometry::Geometry;
use crate::plan::model_name::{may_have_fp8_cache, plain};
use crate::plan::{SizingError, config_json};

/// A model that is known by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// The model's names. All are accepted; the first one is displayed.
    pub names: Vec<String>,
    pub geometry: Geometry,
    /// Where the fields of the config.json were published.
    pub source: String,
}

/// A line of the file.
#[derive(serde::Deserialize)]
struct ModelLine {
    names: Vec<String>,
    source: String,
    config: Map<String, Value>,
}

static MODELS: LazyLock<Vec<KnownModel>> = LazyLock::new(|| {
    let line = |text: &str| {
        let ModelLine { names, source, config } = serde_json::from_str(text).ok()?;
        // A test reads all lines, so none is skipped.
        Some(KnownModel { names, geometry: config_json::of_object(&config).ok()?, source })
    };
    include_str!("models.jsonl").lines().filter_map(line).collect()
});

/// All known models.
pub fn models() -> &'static [KnownModel] {
    &MODELS
}

/// Number of suggestions in an error message.
const NEAREST: usize = 3;

/// Finds a model by name. Ignores case, an owner such as `Qwen/`, dates, and suffixes such as
/// `-Instruct` and `-FP8`. `_` is equivalent to `-`.
///
/// # Errors
/// The name is unknown (the error contains the most similar names).
pub fn by_name(name: &str) -> Result<&'static KnownModel, SizingError> {
    let wanted = plain(name);
    let found = MODELS.iter().find(|model| model.names.iter().any(|known| plain(known) == wanted));
    found.ok_or_else(|| {
        let names = MODELS.iter().flat_map(|model| &model.names);
        let mut names: Vec<(usize, &String)> =
            names.map(|known| (strsim::levenshtein(&plain(known), &wanted), known)).collect();
        // The sort is stable, so ties keep the table's order.
        names.sort_by_key(|(distance, _)| *distance);
        // Names that differ in more than half of their length are not similar.
        let similar = names.into_iter().filter(|(distance, _)| distance * 2 <= wanted.chars().count());
        let nearest = similar.take(NEAREST).map(|(_, known)| known.clone()).collect();
        SizingError::UnknownModel { name: name.to_owned(), nearest }
    })
}

/// Like [`by_name`], for `--kv-cache-dtype auto`: the type that SGLang selects must be known.
///
/// # Errors
/// The name is unknown, or the checkpoint may select an fp8 cache.
pub fn by_name_with_auto_cache(name: &str) -> Result<&'static KnownModel, SizingError> {
    let found = by_name(name)?;
    if may_have_fp8_cache(name) {
        return Err(SizingError::CacheTypeUnknown { name: name.to_owned() });
    }
    Ok(found)
}

#[cfg(test)]
#[path = "models_tests.rs"]
mod tests;
