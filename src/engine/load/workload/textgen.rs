//! Generated text: a specified number of tokens, as IDs or text, determined by the seed.

use std::sync::Arc;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::Seed;
use crate::workload::Tokenizer;

/// The form in which prompts are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptForm {
    Ids,
    Text,
    Chat,
}

/// A span of generated text. Identical spans produce the same text wherever they occur. A shorter
/// span is a prefix of a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextSpan {
    /// Derived from the seed, a purpose and a number.
    Drawn { purpose: &'static str, number: u64, tokens: u32 },
    /// Consecutive IDs from `start`, wrapping around at the end of the vocabulary.
    Run { start: u32, tokens: u32 },
}

/// Purpose for shared system prompts.
pub(super) const SHARED: &str = "gsp-system";

impl TextSpan {
    /// Whether the span is a shared system prompt.
    pub fn is_shared(self) -> bool {
        matches!(self, TextSpan::Drawn { purpose: SHARED, .. })
    }

    /// Returns the span with `tokens` tokens instead.
    #[must_use]
    pub const fn with_tokens(self, tokens: u32) -> TextSpan {
        match self {
            TextSpan::Drawn { purpose, number, .. } => TextSpan::Drawn { purpose, number, tokens },
            TextSpan::Run { start, .. } => TextSpan::Run { start, tokens },
        }
    }

    /// Returns the number of tokens.
    pub const fn tokens(self) -> u32 {
        match self {
            TextSpan::Drawn { tokens, .. } | TextSpan::Run { tokens, .. } => tokens,
        }
    }
}

/// Generates the text for spans.
#[derive(Clone, Debug)]
pub struct TextGenerator {
    /// Seed of the text.
    pub seed: Seed,
    /// Upper bound (exclusive) for token IDs.
    pub vocabulary: u32,
    /// Used to generate text with an exact number of tokens, and to convert text to IDs.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

impl TextGenerator {
    /// Appends the IDs of `passage` to `ids`.
    pub fn ids(&self, passage: TextSpan, ids: &mut Vec<u32>) {
        let vocabulary = self.vocabulary.max(2);
        match passage {
            TextSpan::Drawn { purpose, number, tokens } => {
                let mut rng = self.seed.generator(purpose, number);
                ids.extend((0..tokens).map(|_| rng.random_range(1..vocabulary)));
            }
            TextSpan::Run { start, tokens } => {
                let id = |step| (u64::from(start) + u64::from(step)) % u64::from(vocabulary);
                ids.extend((0..tokens).map(|step| u32::try_from(id(step)).unwrap_or(0)));
            }
        }
    }

    /// Appends the text of `passage` to `text`. If the tokenizer has single-token words, the length
    /// in tokens is exact. Otherwise the length is the number of words.
    pub fn text(&self, passage: TextSpan, text: &mut String) {
        match passage {
            TextSpan::Drawn { purpose, number, tokens } => {
                self.sentence(tokens, &mut self.seed.generator(purpose, number), text);
            }
            TextSpan::Run { start, tokens } => {
                let mut ids = Vec::new();
                self.ids(passage, &mut ids);
                match self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.full_text(&ids).ok()) {
                    Some(decoded) => text.push_str(&decoded),
                    None => self.sentence(tokens, &mut self.seed.generator("run", u64::from(start)), text),
                }
            }
        }
    }

    /// Appends `length` words, each with a leading space.
    pub fn sentence(&self, length: u32, rng: &mut ChaCha8Rng, text: &mut String) {
        let counted = self.tokenizer.as_deref().and_then(Tokenizer::words);
        text.reserve(length as usize * 6);
        for _ in 0..length {
            match counted {
                Some(words) => text.push_str(&words[rng.random_range(0..words.len())]),
                None => word(rng, text),
            }
        }
    }
}

const SYLLABLES: [&str; 16] =
    ["ba", "den", "fi", "gor", "ha", "jun", "ki", "lem", "mo", "nar", "pe", "ro", "sil", "ta", "ven", "zu"];

/// Appends a space and a word of up to three syllables.
fn word(rng: &mut ChaCha8Rng, text: &mut String) {
    text.push(' ');
    for _ in 0..rng.random_range(1..=3) {
        text.push_str(SYLLABLES[rng.random_range(0..SYLLABLES.len())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tokenizer::tests::small;

    fn generator(tokenizer: Option<Tokenizer>) -> TextGenerator {
        let vocabulary = tokenizer.as_ref().map_or(1000, Tokenizer::vocabulary);
        TextGenerator { seed: Seed(4), vocabulary, tokenizer: tokenizer.map(Arc::new) }
    }

    fn block(number: u64, tokens: u32) -> TextSpan {
        TextSpan::Drawn { purpose: "block", number, tokens }
    }

    #[test]
    fn shorter_span_is_a_prefix_and_numbers_differ() {
        for made in [generator(None), generator(Some(small()))] {
            let mut long = Vec::new();
            let mut short = Vec::new();
            let mut other = Vec::new();
            made.ids(block(7, 512), &mut long);
            made.ids(block(7, 100), &mut short);
            made.ids(block(8, 512), &mut other);
            assert_eq!((long.len(), &long[..100]), (512, &short[..]));
            assert_ne!(long, other);
            let mut long = String::new();
            let mut short = String::new();
            made.text(block(7, 512), &mut long);
            made.text(block(7, 100), &mut short);
            assert!(long.starts_with(&short) && long.len() > short.len());
        }
    }

    #[test]
    fn text_has_the_requested_token_count_with_a_tokenizer() {
        let made = generator(Some(small()));
        let mut text = String::new();
        made.text(block(1, 30), &mut text);
        made.text(block(2, 11), &mut text);
        assert_eq!(small().count(&text, false), Ok(41));
    }

    #[test]
    fn run_wraps_around_at_the_end_of_the_vocabulary() {
        let mut ids = Vec::new();
        TextGenerator { vocabulary: 10, ..generator(None) }.ids(TextSpan::Run { start: 7, tokens: 5 }, &mut ids);
        assert_eq!(ids, [7, 8, 9, 0, 1]);
    }
}
