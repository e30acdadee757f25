//! Typed access to the fields of a config.json. An error names the field.

use serde_json::{Map, Value};

use crate::plan::SizingError;
use crate::plan::geometry::{DIMENSION_MAX, LAYERS_MAX};

/// An object of a config.json.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The value of `field`; `None` if it is absent or null.
    pub(super) fn get(self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    /// The object `field`.
    pub(super) fn object(self, field: &str) -> Option<Fields<'a>> {
        self.get(field).and_then(Value::as_object).map(Fields)
    }

    /// The number `field`, from 1 to [`DIMENSION_MAX`].
    pub(super) fn number(self, field: &'static str) -> Result<Option<u64>, SizingError> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => match whole(value) {
                Some(n) if (1..=DIMENSION_MAX).contains(&n) => Ok(Some(n)),
                _ => Err(SizingError::ConfigField { field }),
            },
        }
    }

    /// Like [`Fields::number`], but 0 counts as absent.
    pub(super) fn number_or_zero(self, field: &'static str) -> Result<Option<u64>, SizingError> {
        if self.get(field).and_then(whole) == Some(0) { Ok(None) } else { self.number(field) }
    }

    /// Like [`Fields::number`], for a field that must be present.
    pub(super) fn required(self, field: &'static str) -> Result<u64, SizingError> {
        self.number(field)?.ok_or(SizingError::ConfigField { field })
    }

    /// The number of layers in `field`.
    pub(super) fn layers(self, field: &'static str) -> Result<u64, SizingError> {
        let layers = self.required(field)?;
        if layers > LAYERS_MAX { Err(SizingError::ConfigField { field }) } else { Ok(layers) }
    }

    /// Whether `field` is true.
    pub(super) fn is_true(self, field: &str) -> bool {
        self.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// The list `field`, which must be present.
    pub(super) fn list(self, field: &'static str) -> Result<&'a [Value], SizingError> {
        self.get(field).and_then(Value::as_array).map(Vec::as_slice).ok_or(SizingError::ConfigField { field })
    }

    /// The list of whole numbers `field`, which must be present.
    pub(super) fn numbers(self, field: &'static str) -> Result<Vec<u64>, SizingError> {
        let items = self.list(field)?.iter().map(whole);
        items.map(|item| item.ok_or(SizingError::ConfigField { field })).collect()
    }

    /// The list of strings `field`, which must be present.
    pub(super) fn texts(self, field: &'static str) -> Result<Vec<&'a str>, SizingError> {
        let items = self.list(field)?.iter().map(Value::as_str);
        items.map(|item| item.ok_or(SizingError::ConfigField { field })).collect()
    }

    /// The string `field`.
    pub(super) fn text(self, field: &str) -> Option<&'a str> {
        self.get(field).and_then(Value::as_str)
    }
}

/// A whole number, which may be written with a fraction of 0 (`2.0`).
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=DIMENSION_MAX as f64).contains(n))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and within the range")]
        Some(number as u64)
    })
}
