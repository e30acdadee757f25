//! Object keys on the command line.

use crate::commands::args::ValueError;

/// Parse `text` as a key.
///
/// # Errors
/// The text is empty. Masters refuse empty keys.
pub(super) fn parse(text: &str) -> Result<String, ValueError> {
    match text {
        "" => Err(ValueError::EmptyKey),
        text => Ok(text.to_owned()),
    }
}
