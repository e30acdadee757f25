//! Made-up words: so many tokens from a place in the seed, as ids or as text.

use std::sync::Arc;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::engine::load::Seed;
use crate::engine::load::workload::Tokenizer;

/// The form in which prompts are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Token ids.
    Ids,
    /// One text.
    Text,
    /// A chat.
    Chat,
}

/// A passage of made-up words. The same passage is the same words wherever it stands, and a shorter one is the beginning of the
/// longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Passage {
    /// Drawn from the seed, by a purpose and a number.
    Drawn {
        /// What for.
        purpose: &'static str,
        /// Which.
        number: u64,
        /// How many tokens.
        tokens: u32,
    },
    /// Ids one after the other from `start`, round the end of the vocabulary.
    Run {
        /// The first.
        start: u32,
        /// How many.
        tokens: u32,
    },
}

/// The purpose of system prompts that conversations share.
pub(super) const SHARED: &str = "gsp-system";

impl Passage {
    /// Is it a system prompt that conversations share?
    pub fn is_shared(self) -> bool {
        matches!(self, Passage::Drawn { purpose: SHARED, .. })
    }

    /// How many tokens.
    pub const fn tokens(self) -> u32 {
        match self {
            Passage::Drawn { tokens, .. } | Passage::Run { tokens, .. } => tokens,
        }
    }
}

/// Says passages.
#[derive(Clone, Debug)]
pub struct Speech {
    /// Where the words come from.
    pub seed: Seed,
    /// Ids are below this.
    pub vocabulary: u32,
    /// With it, a text of words that are one token each can be made, and texts become ids.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

impl Speech {
    /// The ids of `passage`, put behind `ids`.
    pub fn ids(&self, passage: Passage, ids: &mut Vec<u32>) {
        let vocabulary = self.vocabulary.max(2);
        match passage {
            Passage::Drawn { purpose, number, tokens } => {
                let mut rng = self.seed.generator(purpose, number);
                ids.extend((0..tokens).map(|_| rng.random_range(1..vocabulary)));
            }
            Passage::Run { start, tokens } => {
                let id = |step| (u64::from(start) + u64::from(step)) % u64::from(vocabulary);
                ids.extend((0..tokens).map(|step| u32::try_from(id(step)).unwrap_or(0)));
            }
        }
    }

    /// The text of `passage`, put behind `text`. With a tokenizer that has words of one token each, it is of exactly so many
    /// tokens; without, of so many words.
    pub fn text(&self, passage: Passage, text: &mut String) {
        match passage {
            Passage::Drawn { purpose, number, tokens } => {
                self.sentence(tokens, &mut self.seed.generator(purpose, number), text);
            }
            Passage::Run { start, tokens } => {
                let mut ids = Vec::new();
                self.ids(passage, &mut ids);
                match self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.text(&ids).ok()) {
                    Some(decoded) => text.push_str(&decoded),
                    None => self.sentence(tokens, &mut self.seed.generator("run", u64::from(start)), text),
                }
            }
        }
    }

    /// `length` words, a blank before each.
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

/// Syllables of made-up words.
const SYLLABLES: [&str; 16] =
    ["ba", "den", "fi", "gor", "ha", "jun", "ki", "lem", "mo", "nar", "pe", "ro", "sil", "ta", "ven", "zu"];

/// A blank and a made-up word of up to three syllables.
fn word(rng: &mut ChaCha8Rng, text: &mut String) {
    text.push(' ');
    for _ in 0..rng.random_range(1..=3) {
        text.push_str(SYLLABLES[rng.random_range(0..SYLLABLES.len())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::workload::tokenizer::tests::small;

    fn speech(tokenizer: Option<Tokenizer>) -> Speech {
        let vocabulary = tokenizer.as_ref().map_or(1000, Tokenizer::vocabulary);
        Speech { seed: Seed(4), vocabulary, tokenizer: tokenizer.map(Arc::new) }
    }

    fn block(number: u64, tokens: u32) -> Passage {
        Passage::Drawn { purpose: "block", number, tokens }
    }

    #[test]
    fn a_shorter_passage_is_the_beginning_of_the_longer_one_and_another_number_another_passage() {
        for made in [speech(None), speech(Some(small()))] {
            let (mut long, mut short, mut other) = (Vec::new(), Vec::new(), Vec::new());
            made.ids(block(7, 512), &mut long);
            made.ids(block(7, 100), &mut short);
            made.ids(block(8, 512), &mut other);
            assert_eq!((long.len(), &long[..100]), (512, &short[..]));
            assert_ne!(long, other);
            let (mut long, mut short) = (String::new(), String::new());
            made.text(block(7, 512), &mut long);
            made.text(block(7, 100), &mut short);
            assert!(long.starts_with(&short) && long.len() > short.len());
        }
    }

    #[test]
    fn with_a_tokenizer_a_text_has_as_many_tokens_as_were_asked_for() {
        let made = speech(Some(small()));
        let mut text = String::new();
        made.text(block(1, 30), &mut text);
        made.text(block(2, 11), &mut text);
        assert_eq!(small().count(&text, false), Ok(41));
    }

    #[test]
    fn a_run_goes_round_the_end_of_the_vocabulary() {
        let mut ids = Vec::new();
        Speech { vocabulary: 10, ..speech(None) }.ids(Passage::Run { start: 7, tokens: 5 }, &mut ids);
        assert_eq!(ids, [7, 8, 9, 0, 1]);
    }
}
