//! A tokenizer from a local file: how long a text is, what its ids are, and words that are one token each.

use std::fmt;
use std::sync::OnceLock;

use md5::{Digest, Md5};

/// At most so many words are collected for made-up texts.
const WORDS_MAX: usize = 4096;
/// Fewer words than this make texts that repeat themselves.
const WORDS_MIN: usize = 32;

/// A tokenizer of the `tokenizer.json` kind.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    digest: String,
    words: OnceLock<Vec<String>>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// From the bytes of a `tokenizer.json`. Its own truncation and padding are switched off: lengths are those of the texts.
    ///
    /// # Errors
    /// It is none; in the parser's words.
    pub fn from_bytes(bytes: &[u8]) -> Result<Tokenizer, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string())?;
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        inner.with_padding(None);
        let digest = Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Tokenizer { inner, digest, words: OnceLock::new() })
    }

    /// A digest of the bytes that it came from.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The ids of `text`, without special tokens around them.
    ///
    /// # Errors
    /// The tokenizer cannot say it; in its words.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// How many tokens `text` has; with `special` those that the tokenizer puts around a prompt are counted, too.
    ///
    /// # Errors
    /// The tokenizer cannot say it; in its words.
    pub fn count(&self, text: &str, special: bool) -> Result<usize, String> {
        self.inner.encode_fast(text, special).map(|encoding| encoding.len()).map_err(|error| error.to_string())
    }

    /// The text of `ids`, special tokens left out.
    ///
    /// # Errors
    /// The tokenizer cannot say it; in its words.
    pub fn text(&self, ids: &[u32]) -> Result<String, String> {
        self.inner.decode(ids, true).map_err(|error| error.to_string())
    }

    /// Ids are below this.
    pub fn vocabulary(&self) -> u32 {
        u32::try_from(self.inner.get_vocab_size(true)).unwrap_or(u32::MAX).max(2)
    }

    /// Words with a blank before them that are one token each, alone and one after the other: a text of n of them has n tokens.
    /// `None` where the vocabulary has too few.
    pub fn words(&self) -> Option<&[String]> {
        let words = self.words.get_or_init(|| self.find_words());
        (words.len() >= WORDS_MIN).then_some(words)
    }

    fn find_words(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for id in 0..self.vocabulary() {
            let Ok(text) = self.text(&[id]) else { continue };
            let letters = text.trim_start();
            if !(2..=12).contains(&letters.len()) || !letters.bytes().all(|byte| byte.is_ascii_lowercase()) {
                continue;
            }
            // Decoders of the sentencepiece kind drop the first blank: it is put back, and the length is what decides.
            let word = format!(" {letters}");
            if self.ids(&word).is_ok_and(|ids| ids.len() == 1) && !found.contains(&word) {
                found.push(word);
            }
            if found.len() == WORDS_MAX {
                break;
            }
        }
        // Two words that would merge are seen here; then lengths cannot be promised.
        let joined: String = found.concat();
        if self.ids(&joined).is_ok_and(|ids| ids.len() == found.len()) { found } else { Vec::new() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// A tokenizer of words between blanks: `w0` to `w99` with a blank before, some English ones, and single letters.
    pub(in crate::engine::load::workload) fn small() -> Tokenizer {
        let mut vocabulary = serde_json::Map::new();
        let mut add = |token: String| {
            let id = vocabulary.len();
            vocabulary.entry(token).or_insert(json!(id));
        };
        add("[unk]".to_owned());
        for first in b'a'..=b'h' {
            for second in b'a'..=b'h' {
                add(format!("\u{120}{}{}", char::from(first), char::from(second)));
            }
        }
        for byte in b'a'..=b'z' {
            add(char::from(byte).to_string());
        }
        add("\u{120}".to_owned());
        let document = json!({
            "version": "1.0", "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
            "padding": null,
            "added_tokens": [{"id": vocabulary.len(), "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [vocabulary.len()], "tokens": ["<s>"]}}},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                "vocab": vocabulary, "merges": []},
        });
        Tokenizer::from_bytes(document.to_string().as_bytes()).expect("a tokenizer")
    }

    #[test]
    fn lengths_are_those_of_the_whole_text_with_and_without_what_surrounds_a_prompt() {
        let small = small();
        assert_eq!(small.count(" ab cd ef ab ab", false), Ok(5));
        assert_eq!(small.count(" ab cd ef ab ab", true), Ok(6));
        let ids = small.ids(" ab cd").expect("ids");
        assert_eq!((ids.len(), small.text(&ids).as_deref()), (2, Ok(" ab cd")));
    }

    #[test]
    fn so_many_words_are_so_many_tokens() {
        let small = small();
        let words = small.words().expect("enough of them");
        assert_eq!(words.len(), 64);
        assert_eq!(small.count(&words[..40].concat(), false), Ok(40));
    }

    #[test]
    fn what_is_no_tokenizer_is_refused_in_the_parsers_words() {
        for bad in [&b""[..], b"{}", b"\xff", b"{\"model\":{\"type\":\"BPE\"}}"] {
            assert!(Tokenizer::from_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
