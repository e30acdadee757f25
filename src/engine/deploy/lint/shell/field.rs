//! A word after expansion.

use crate::lint::model::LocatedValue;
use mcctl_base::check::SourceLocation;

/// A word after expansion, an element of an array, or a part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShellField {
    pub located: LocatedValue,
    /// An unknown value without quotes: it may be several words, or none.
    pub may_split: bool,
    /// An unknown list: any number of words.
    pub is_list: bool,
}

impl ShellField {
    /// A word whose value is known.
    pub(super) fn new(text: impl Into<String>, place: SourceLocation) -> ShellField {
        ShellField { located: LocatedValue::new(text, place), may_split: false, is_list: false }
    }

    /// The value. It contains a `$` if it is not known.
    pub(super) fn text(&self) -> &str {
        &self.located.text
    }
}

impl From<LocatedValue> for ShellField {
    fn from(located: LocatedValue) -> ShellField {
        ShellField { located, may_split: false, is_list: false }
    }
}

/// The texts of all fields.
pub(super) fn joined(fields: &[ShellField], separator: &str) -> String {
    fields.iter().map(ShellField::text).collect::<Vec<_>>().join(separator)
}
