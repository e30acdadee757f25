//! Object keys on the command line.

use crate::commands::cli::args::ValueError;

/// Parses `text` as a key.
///
/// # Errors
/// The string is empty. Masters reject empty keys.
pub(super) fn parse(text: &str) -> Result<String, ValueError> {
    match text {
        "" => Err(ValueError::EmptyKey),
        text => Ok(text.to_owned()),
    }
}
