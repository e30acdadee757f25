//! Keys on the command line.

/// `text` as a key.
///
/// # Errors
/// It is empty, which no master takes.
pub(super) fn parse(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a key has at least one character".to_owned()),
        text => Ok(text.to_owned()),
    }
}
