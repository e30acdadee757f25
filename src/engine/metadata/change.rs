//! Changes of the metadata table.

use std::borrow::Cow;

/// A step of a write. It states a result, so that another table needs no rules and no probe to repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataChange<'a> {
    /// A record was created or replaced.
    Put { key: Cow<'a, [u8]>, value: Cow<'a, [u8]> },
    /// A record that existed was removed.
    Remove { key: Cow<'a, [u8]> },
}
