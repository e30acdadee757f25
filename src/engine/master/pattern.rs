//! Regular expressions over keys, as upstream's `std::regex_search` finds them: anywhere in the key, with back references.
//!
//! Matching never happens while the state is held, and gives up on a key after [`STEPS_MAX`] steps back: an expression from outside
//! may be one whose search never ends.

use fancy_regex::{Regex, RegexBuilder};

use crate::engine::master::code::Refusal;

/// Steps back that the search in one key may take; a key that needs more does not match.
const STEPS_MAX: usize = 100_000;
/// The longest expression, bytes.
const PATTERN_BYTES_MAX: usize = 64 << 10;
/// Memory that a compiled expression may take, bytes.
const COMPILED_BYTES_MAX: usize = 4 << 20;

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// Compile `text`.
    ///
    /// # Errors
    /// `BadRegex`.
    pub fn new(text: &[u8]) -> Result<Pattern, Refusal> {
        let text = std::str::from_utf8(text).map_err(|_| Refusal::BadRegex)?;
        if text.len() > PATTERN_BYTES_MAX {
            return Err(Refusal::BadRegex);
        }
        let mut builder = RegexBuilder::new(text);
        builder.backtrack_limit(STEPS_MAX).delegate_size_limit(COMPILED_BYTES_MAX);
        builder.build().map(Pattern).map_err(|_| Refusal::BadRegex)
    }

    /// Is the expression found in the key?
    pub fn is_in(&self, key: &[u8]) -> bool {
        self.0.is_match(&*String::from_utf8_lossy(key)).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, key: &str) -> bool {
        Pattern::new(pattern.as_bytes()).expect(pattern).is_in(key.as_bytes())
    }

    #[test]
    fn an_expression_is_searched_for_anywhere_in_the_key() {
        assert!(check("b", "abc"));
        assert!(check("^a.*c$", "abc"));
        assert!(!check("^b", "abc"));
        assert!(check("", "abc"));
        assert!(check(r"(\w)\1", "hello"));
        assert!(check("layer_(1|2)_", "x/layer_2_k"));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for bad in ["[", "(", "*a", r"\"] {
            assert_eq!(Pattern::new(bad.as_bytes()).expect_err(bad), Refusal::BadRegex);
        }
        assert!(Pattern::new(b"\xff").is_err());
    }

    #[test]
    fn a_search_without_end_is_given_up() {
        assert!(!check(r"^(a+)+\1$", &("a".repeat(40) + "b")));
    }
}
