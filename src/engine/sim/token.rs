//! A simple rule used instead of a tokenizer: a token is up to five bytes long, and whitespace
//! starts a new one. English text has about four bytes per token.
//!
//! An output token is a space and two syllables, which the rule maps back to the same token. A
//! response that is part of the next prompt is therefore found in the cache, as is nearly always
//! the case with a real tokenizer.

use crate::page::mixed;

/// Upper bound (exclusive) on token IDs.
pub const VOCABULARY: u32 = 32_000;
/// Maximum length of a token in bytes.
const PIECE_BYTES_MAX: usize = 5;
/// First ID of the output tokens.
const WORDS_FROM: u32 = 100;
const CONSONANTS: &[u8; 14] = b"bdfgklmnprstvz";
const VOWELS: &[u8; 5] = b"aeiou";
const SYLLABLES: u32 = (CONSONANTS.len() * VOWELS.len()) as u32;
/// Number of distinct output tokens.
const WORDS: u32 = SYLLABLES * SYLLABLES;

/// Splits a string into tokens.
pub fn tokens(text: &str) -> Vec<u32> {
    let bytes = text.as_bytes();
    let mut ids = Vec::with_capacity(bytes.len() / 4 + 1);
    let mut from = 0;
    for at in 1..=bytes.len() {
        if at == bytes.len() || at - from == PIECE_BYTES_MAX || bytes[at].is_ascii_whitespace() {
            ids.push(id(&bytes[from..at]));
            from = at;
        }
    }
    ids
}

/// Returns the text of an output token. Other IDs are hashes and have no text.
pub fn text(id: u32) -> String {
    let Some(word) = id.checked_sub(WORDS_FROM).filter(|word| *word < WORDS) else { return "\u{fffd}".to_owned() };
    let mut text = String::with_capacity(PIECE_BYTES_MAX);
    text.push(' ');
    for syllable in [word / SYLLABLES, word % SYLLABLES] {
        text.push(char::from(CONSONANTS[(syllable / 5) as usize]));
        text.push(char::from(VOWELS[(syllable % 5) as usize]));
    }
    text
}

/// Returns output token number `at` of the response to a prompt with hash `seed`.
pub fn answered(seed: u64, at: u32) -> u32 {
    WORDS_FROM + (mixed(seed ^ mixed(u64::from(at))) % u64::from(WORDS)) as u32
}

fn id(piece: &[u8]) -> u32 {
    let syllable = |pair: &[u8]| {
        let consonant = CONSONANTS.iter().position(|c| *c == pair[0])?;
        let vowel = VOWELS.iter().position(|v| *v == pair[1])?;
        Some((consonant * VOWELS.len() + vowel) as u32)
    };
    if let [b' ', rest @ ..] = piece
        && rest.len() == 4
        && let (Some(first), Some(second)) = (syllable(&rest[..2]), syllable(&rest[2..]))
    {
        return WORDS_FROM + first * SYLLABLES + second;
    }
    let hash = piece.iter().fold(piece.len() as u64, |hash, byte| mixed(hash ^ u64::from(*byte)));
    let others = VOCABULARY - WORDS_FROM - WORDS;
    WORDS_FROM + WORDS + (hash % u64::from(others)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn answer_text_maps_back_to_the_same_tokens() {
        let ids: Vec<u32> = (0..200).map(|at| answered(7, at)).collect();
        let answer: String = ids.iter().map(|id| text(*id)).collect();
        assert_eq!(tokens(&answer), ids);
        let question = "What is it that you said?";
        let all = tokens(&format!("{question}{answer}next"));
        let before = tokens(question).len();
        assert_eq!((&all[..before], &all[before..before + ids.len()]), (&tokens(question)[..], &ids[..]));
        assert_eq!(text(5), "\u{fffd}");
    }

    #[test]
    fn every_answer_token_has_a_unique_text() {
        let texts: std::collections::HashSet<String> = (0..WORDS).map(|word| text(WORDS_FROM + word)).collect();
        assert_eq!(texts.len(), WORDS as usize);
    }

    proptest! {
        #[test]
        fn prefix_that_ends_before_a_space_keeps_its_tokens(one in ".{0,60}", other in ".{0,60}") {
            let first = tokens(&one);
            let all = tokens(&format!("{one} {other}"));
            prop_assert_eq!(&all[..first.len()], &first[..]);
            prop_assert!(all.iter().all(|id| *id < VOCABULARY));
        }
    }
}
