//! Regular expressions on keys, with the semantics of upstream's `std::regex_search`: a match
//! anywhere in the key, with backreferences.
//!
//! Matching never runs with the state locked. The search in one key stops after [`STEPS_MAX`]
//! backtracking steps. The whole search stops after [`HARD_KEYS_MAX`] keys have exceeded this
//! limit, or when it exceeds its [`budget`]. These limits are needed because clients choose the
//! expressions, and matching one could take practically forever.

use std::cell::Cell;
use std::time::Duration;

use fancy_regex::{Regex, RegexBuilder};

use crate::refusal::MasterRefusal;

/// Backtracking steps allowed per key. A key that needs more steps is treated as not matching.
const STEPS_MAX: usize = 10_000;
/// Number of keys that may exceed [`STEPS_MAX`]. The search fails at the next such key, because its
/// thread serves other callers, too.
const HARD_KEYS_MAX: usize = 256;
/// Maximum length of an expression, in bytes.
const PATTERN_BYTES_MAX: usize = 64 << 10;
/// Memory limit of a compiled expression, in bytes.
const COMPILED_BYTES_MAX: usize = 4 << 20;

/// Base time budget of every search.
const SEARCH_TIME: Duration = Duration::from_secs(2);
/// Additional time budget per key in the store. An expression without look-around or backreferences
/// needs a third of this time, so a search for it succeeds in a store of any size.
const SEARCH_TIME_PER_KEY: Duration = Duration::from_micros(2);

/// Time budget for a search through `keys` keys.
pub(super) fn budget(keys: u32) -> Duration {
    SEARCH_TIME + SEARCH_TIME_PER_KEY * keys
}

#[derive(Debug)]
pub(super) struct KeyPattern {
    regex: Regex,
    hard_keys: Cell<usize>,
}

impl KeyPattern {
    /// Compiles `text`.
    ///
    /// # Errors
    /// `BadRegex` if `text` is invalid or too long.
    pub(crate) fn new(text: &[u8]) -> Result<KeyPattern, MasterRefusal> {
        let text = std::str::from_utf8(text).map_err(|_| MasterRefusal::BadRegex)?;
        if text.len() > PATTERN_BYTES_MAX {
            return Err(MasterRefusal::BadRegex);
        }
        let mut builder = RegexBuilder::new(text);
        builder.backtrack_limit(STEPS_MAX).delegate_size_limit(COMPILED_BYTES_MAX);
        let regex = builder.build().map_err(|_| MasterRefusal::BadRegex)?;
        Ok(KeyPattern { regex, hard_keys: Cell::new(0) })
    }

    /// Returns true if the expression matches anywhere in the key.
    pub(crate) fn matches(&self, key: &[u8]) -> bool {
        self.regex.is_match(&*String::from_utf8_lossy(key)).unwrap_or_else(|_| {
            self.hard_keys.set(self.hard_keys.get() + 1);
            false
        })
    }

    /// Returns true if too many keys have exceeded the step limit and the search should stop.
    pub(crate) fn exceeds_hard_keys(&self) -> bool {
        self.hard_keys.get() > HARD_KEYS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, key: &str) -> bool {
        KeyPattern::new(pattern.as_bytes()).expect(pattern).matches(key.as_bytes())
    }

    #[test]
    fn a_search_stops_after_too_many_hard_keys() {
        let pattern = KeyPattern::new(br"^(\w+\w+)+\1!$").unwrap();
        let key = [b'a'; 64];
        let searched = (0..10_000).take_while(|_| !pattern.matches(&key) && !pattern.exceeds_hard_keys()).count();
        assert_eq!(searched, HARD_KEYS_MAX);
        assert!(!KeyPattern::new(b"b").unwrap().exceeds_hard_keys());
    }

    #[test]
    fn an_expression_matches_anywhere_in_the_key() {
        assert!(check("b", "abc"));
        assert!(check("^a.*c$", "abc"));
        assert!(!check("^b", "abc"));
        assert!(check("", "abc"));
        assert!(check(r"(\w)\1", "hello"));
        assert!(check("layer_(1|2)_", "x/layer_2_k"));
    }

    #[test]
    fn an_invalid_expression_is_refused() {
        for bad in ["[", "(", "*a", r"\"] {
            assert_eq!(KeyPattern::new(bad.as_bytes()).expect_err(bad), MasterRefusal::BadRegex);
        }
        assert!(KeyPattern::new(b"\xff").is_err());
    }

    #[test]
    fn a_search_that_exceeds_the_step_limit_does_not_match() {
        assert!(!check(r"^(a+)+\1$", &("a".repeat(40) + "b")));
    }
}
