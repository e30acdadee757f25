//! Lists with one entry per layer, and lists of the numbers of layers.

use crate::plan::SizingError;
use crate::plan::config_json::fields::Fields;
use crate::plan::geometry::{LAYERS_MAX, Layer};

/// The layers that the list of strings `field` describes, by the kinds that `layer_of` knows. With
/// `count`, the first `count`: some files list draft layers after them.
///
/// # Errors
/// The field is missing or too short or too long, or has an unknown kind.
pub(super) fn by_kind(
    model: Fields<'_>,
    field: &'static str,
    count: Option<u64>,
    layer_of: impl Fn(&str) -> Option<Layer>,
) -> Result<Vec<Layer>, SizingError> {
    let invalid = || SizingError::ConfigField { field };
    let kinds = model.texts(field)?;
    let layers: Option<Vec<Layer>> = kinds.into_iter().take(limit(count)).map(layer_of).collect();
    of_length(field, count, layers.ok_or_else(invalid)?)
}

/// Like [`by_kind`], for a list of numbers.
///
/// # Errors
/// The same.
pub(super) fn by_number(
    model: Fields<'_>,
    field: &'static str,
    count: u64,
    layer_of: impl Fn(u64) -> Option<Layer>,
) -> Result<Vec<Layer>, SizingError> {
    let numbers = model.numbers(field)?;
    let layers: Option<Vec<Layer>> = numbers.into_iter().take(limit(Some(count))).map(layer_of).collect();
    of_length(field, Some(count), layers.ok_or(SizingError::ConfigField { field })?)
}

/// Whether each of `count` layers is in the list of layer numbers `field`, which are counted from
/// `first`.
///
/// # Errors
/// The field is missing, or has a number outside the model's layers.
pub(super) fn numbered(
    model: Fields<'_>,
    field: &'static str,
    first: u64,
    count: u64,
) -> Result<Vec<bool>, SizingError> {
    let invalid = || SizingError::ConfigField { field };
    let mut listed = vec![false; usize::try_from(count).map_err(|_| invalid())?];
    for number in model.numbers(field)? {
        let layer = number.checked_sub(first).and_then(|layer| usize::try_from(layer).ok());
        *layer.and_then(|layer| listed.get_mut(layer)).ok_or_else(invalid)? = true;
    }
    Ok(listed)
}

/// The number of entries to read: one more than the limit shows that there are too many.
fn limit(count: Option<u64>) -> usize {
    usize::try_from(count.unwrap_or(LAYERS_MAX + 1)).unwrap_or(usize::MAX)
}

fn of_length(field: &'static str, count: Option<u64>, layers: Vec<Layer>) -> Result<Vec<Layer>, SizingError> {
    let length = layers.len() as u64;
    if length == 0 || length > LAYERS_MAX || count.is_some_and(|count| length < count) {
        return Err(SizingError::ConfigField { field });
    }
    Ok(layers)
}
