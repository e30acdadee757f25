//! The rule that stands in for a tokenizer, stated so that anybody can count: a token is up to five bytes, and white space begins a
//! new one. Some four bytes of English a token.
//!
//! An answer's token is a blank and two syllables, which the rule reads back as the very same token: an answer that comes back in the
//! next prompt is found in the cache, as it is with a real tokenizer (nearly always).

use crate::engine::sim::page::mixed;

/// Ids below this are all that there are.
pub const VOCABULARY: u32 = 32_000;
/// Bytes of the longest token.
const PIECE_BYTES_MAX: usize = 5;
/// The first id of an answer's words.
const WORDS_FROM: u32 = 100;
const CONSONANTS: &[u8; 14] = b"bdfgklmnprstvz";
const VOWELS: &[u8; 5] = b"aeiou";
const SYLLABLES: u32 = (CONSONANTS.len() * VOWELS.len()) as u32;
/// How many words there are.
const WORDS: u32 = SYLLABLES * SYLLABLES;

/// The tokens of a text.
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

/// The text of an answer's token. Others have none: they are the hash of what they stand for.
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

/// The answer to a prompt whose hash is `seed`: token number `at`.
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
    fn an_answer_that_comes_back_is_the_same_tokens_whatever_stands_around_it() {
        let ids: Vec<u32> = (0..200).map(|at| answered(7, at)).collect();
        let said: String = ids.iter().map(|id| text(*id)).collect();
        assert_eq!(tokens(&said), ids);
        let question = "What is it that you said?";
        let all = tokens(&format!("{question}{said}next"));
        let before = tokens(question).len();
        assert_eq!((&all[..before], &all[before..before + ids.len()]), (&tokens(question)[..], &ids[..]));
        assert_eq!(text(5), "\u{fffd}");
    }

    #[test]
    fn every_word_has_a_text_of_its_own() {
        let texts: std::collections::HashSet<String> = (0..WORDS).map(|word| text(WORDS_FROM + word)).collect();
        assert_eq!(texts.len(), WORDS as usize);
    }

    proptest! {
        #[test]
        fn a_text_that_begins_another_at_a_blank_is_its_first_tokens(one in ".{0,60}", other in ".{0,60}") {
            let (first, all) = (tokens(&one), tokens(&format!("{one} {other}")));
            prop_assert_eq!(&all[..first.len()], &first[..]);
            prop_assert!(all.iter().all(|id| *id < VOCABULARY));
        }
    }
}
