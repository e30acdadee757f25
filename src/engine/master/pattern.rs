//! Regular expressions over keys, as upstream's `std::regex_search` finds them: anywhere in the key, with back references.
//!
//! Matching never happens while the state is held. It gives up on a key after [`STEPS_MAX`] steps back, and altogether after
//! [`HARD_KEYS_MAX`] such keys or when the whole search exceeds its [`budget`]: an expression from outside may be one whose search
//! never ends.

use std::cell::Cell;
use std::time::Duration;

use fancy_regex::{Regex, RegexBuilder};

use crate::engine::master::code::Refusal;

/// Steps back that the search in one key may take; a key that needs more does not match.
const STEPS_MAX: usize = 10_000;
/// Keys that may need more; with one more the expression is refused, for the thread that searches has other callers.
const HARD_KEYS_MAX: usize = 256;
/// The longest expression, bytes.
const PATTERN_BYTES_MAX: usize = 64 << 10;
/// Memory that a compiled expression may take, bytes.
const COMPILED_BYTES_MAX: usize = 4 << 20;

/// Time that any search may take.
const SEARCH_TIME: Duration = Duration::from_secs(2);
/// Time that it may take besides for each key of the store: three times what an expression without look-around or back reference
/// needs, which therefore succeeds in a store of any size.
const SEARCH_TIME_PER_KEY: Duration = Duration::from_micros(2);

/// How long a search through `keys` keys may take.
pub(super) fn budget(keys: u32) -> Duration {
    SEARCH_TIME + SEARCH_TIME_PER_KEY * keys
}

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    hard_keys: Cell<usize>,
}

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
        let regex = builder.build().map_err(|_| Refusal::BadRegex)?;
        Ok(Pattern { regex, hard_keys: Cell::new(0) })
    }

    /// Is the expression found in the key?
    pub fn is_in(&self, key: &[u8]) -> bool {
        self.regex.is_match(&*String::from_utf8_lossy(key)).unwrap_or_else(|_| {
            self.hard_keys.set(self.hard_keys.get() + 1);
            false
        })
    }

    /// Have so many keys been too hard that the search should end?
    pub fn is_too_hard(&self) -> bool {
        self.hard_keys.get() > HARD_KEYS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, key: &str) -> bool {
        Pattern::new(pattern.as_bytes()).expect(pattern).is_in(key.as_bytes())
    }

    #[test]
    fn an_expression_that_is_too_hard_for_many_keys_is_given_up() {
        let pattern = Pattern::new(br"^(\w+\w+)+\1!$").unwrap();
        let key = [b'a'; 64];
        let searched = (0..10_000).take_while(|_| !pattern.is_in(&key) && !pattern.is_too_hard()).count();
        assert_eq!(searched, HARD_KEYS_MAX);
        assert!(!Pattern::new(b"b").unwrap().is_too_hard());
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
