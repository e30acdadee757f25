//! A tokenizer loaded from a local file. It provides text lengths, token IDs and single-token
//! words.

use std::fmt;
use std::sync::OnceLock;

use md5::{Digest, Md5};
use tokenizers::PostProcessor;

/// Estimated tokens per word, used without a tokenizer.
pub const TOKENS_PER_WORD: f64 = 1.3;

/// Estimates the number of tokens in `text` without a tokenizer.
pub(crate) fn estimated_tokens(text: &str) -> u32 {
    (text.split_whitespace().count() as f64 * TOKENS_PER_WORD).ceil() as u32
}

/// Maximum number of words collected for generated text.
const WORDS_MAX: usize = 4096;
/// With fewer words than this, generated text would be repetitive.
const WORDS_MIN: usize = 32;

/// An error from the tokenizer library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenizerError(String);

impl From<tokenizers::Error> for TokenizerError {
    fn from(error: tokenizers::Error) -> TokenizerError {
        TokenizerError(error.to_string())
    }
}

/// A tokenizer in `tokenizer.json` format.
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
    /// Loads a tokenizer from the bytes of a `tokenizer.json`. Its truncation and padding are
    /// disabled, so that lengths reflect the full text.
    ///
    /// # Errors
    /// The bytes are not a valid tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(TokenizerError::from)?;
        inner.with_truncation(None).map_err(TokenizerError::from)?;
        inner.with_padding(None);
        let digest = Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Tokenizer { inner, digest, words: OnceLock::new() })
    }

    /// Returns a digest of the file.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the IDs for `text`, without special tokens.
    ///
    /// # Errors
    /// The tokenizer cannot encode `text`.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, false).map_err(TokenizerError::from)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the number of tokens in `text`. If `special` is set, special tokens around a prompt
    /// are also counted.
    ///
    /// # Errors
    /// The tokenizer cannot encode `text`.
    pub fn count(&self, text: &str, special: bool) -> Result<usize, TokenizerError> {
        self.inner.encode_fast(text, special).map(|encoding| encoding.len()).map_err(TokenizerError::from)
    }

    /// Returns the text for `ids`, without special tokens.
    ///
    /// # Errors
    /// The tokenizer cannot decode `ids`.
    pub fn text(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(ids, true).map_err(TokenizerError::from)
    }

    /// Returns the text for `ids`, including special tokens, like `decode` of the Python library
    /// `transformers`.
    ///
    /// # Errors
    /// The tokenizer cannot decode `ids`.
    pub fn full_text(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(ids, false).map_err(TokenizerError::from)
    }

    /// Returns the IDs for `text`, including special tokens around a prompt.
    ///
    /// # Errors
    /// The tokenizer cannot encode `text`.
    pub fn full_ids(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, true).map_err(TokenizerError::from)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the number of special tokens around a prompt.
    pub fn special_tokens(&self) -> u32 {
        let added = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        u32::try_from(added).unwrap_or(0)
    }

    /// Returns the vocabulary size without added tokens.
    pub fn base_vocabulary(&self) -> u32 {
        u32::try_from(self.inner.get_vocab_size(false)).unwrap_or(u32::MAX).max(2)
    }

    /// Returns the vocabulary size, which is an upper bound (exclusive) for token IDs.
    pub fn vocabulary(&self) -> u32 {
        u32::try_from(self.inner.get_vocab_size(true)).unwrap_or(u32::MAX).max(2)
    }

    /// Returns words that have a leading space and are one token each, alone and in sequence. Text
    /// that consists of n of these words has n tokens. `None` if the vocabulary contains too few.
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
            // SentencePiece decoders drop the leading space. Restore it, and keep the word if the
            // result is a single token.
            let word = format!(" {letters}");
            if self.ids(&word).is_ok_and(|ids| ids.len() == 1) && !found.contains(&word) {
                found.push(word);
            }
            if found.len() == WORDS_MAX {
                break;
            }
        }
        // Detect words that merge with adjacent words. In that case, exact lengths are impossible.
        let joined: String = found.concat();
        if self.ids(&joined).is_ok_and(|ids| ids.len() == found.len()) { found } else { Vec::new() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Creates a tokenizer with 64 two-letter words that have a leading space, and single letters.
    pub(in crate::workload) fn small() -> Tokenizer {
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
    fn lengths_cover_the_whole_text_with_and_without_special_tokens() {
        let small = small();
        assert_eq!(small.count(" ab cd ef ab ab", false), Ok(5));
        assert_eq!(small.count(" ab cd ef ab ab", true), Ok(6));
        let ids = small.ids(" ab cd").expect("ids");
        assert_eq!((ids.len(), small.text(&ids).as_deref()), (2, Ok(" ab cd")));
        let full = small.full_ids(" ab cd").expect("ids");
        assert_eq!((full.len(), small.full_text(&full).as_deref()), (3, Ok("<s> ab cd")));
        assert_eq!((small.special_tokens(), small.vocabulary() - small.base_vocabulary()), (1, 1));
    }

    #[test]
    fn n_words_have_n_tokens() {
        let small = small();
        let words = small.words().expect("enough words");
        assert_eq!(words.len(), 64);
        assert_eq!(small.count(&words[..40].concat(), false), Ok(40));
    }

    #[test]
    fn invalid_tokenizer_files_are_refused() {
        for bad in [&b""[..], b"{}", b"\xff", b"{\"model\":{\"type\":\"BPE\"}}"] {
            assert!(Tokenizer::from_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
