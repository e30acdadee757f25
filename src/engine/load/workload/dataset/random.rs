//! Random prompts of specified lengths: consecutive IDs, random words, or documents from a corpus.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::Seed;
use crate::workload::{Conversation, PlannedTurn, TextSpan, Tokenizer, TokenizerError, TurnContent};

/// Parameters for single requests with random lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomIds {
    pub requests: u32,
    /// Maximum prompt length in tokens.
    pub input: u32,
    /// Maximum output length in tokens.
    pub output: u32,
    /// Lower bound for lengths, as a share of the maximum.
    pub range_ratio: f64,
    /// Upper bound (exclusive) for token IDs.
    pub vocabulary: u32,
    /// Whether texts include the special tokens of a corpus, as in `sglang.bench_serving`.
    pub as_bench_serving: bool,
    /// Tokens by which prompts are shorter than sampled, because the server adds them.
    pub special: u32,
}

impl RandomIds {
    /// Returns the prompt and output length of every request.
    fn lengths(&self, seed: Seed) -> Vec<(u32, u32)> {
        let both = |request| {
            let mut rng = seed.generator("random-lengths", u64::from(request));
            let input = length(self.input, self.range_ratio, &mut rng);
            (input.saturating_sub(self.special).max(1), length(self.output, self.range_ratio, &mut rng).max(1))
        };
        (0..self.requests).map(both).collect()
    }
}

/// Samples an integer uniformly from `ratio` x `most` (at least one) to `most`.
pub(super) fn length(most: u32, ratio: f64, rng: &mut impl Rng) -> u32 {
    if most == 0 {
        return 0;
    }
    let least = ((f64::from(most) * ratio) as u32).clamp(1, most);
    rng.random_range(least..=most)
}

/// Creates requests whose prompts count up from a random ID. Prompts share a prefix only by chance.
pub fn random_ids(shape: &RandomIds, seed: Seed) -> Vec<Conversation> {
    let vocabulary = shape.vocabulary.max(2);
    let request = |(number, (tokens, output)): (u32, (u32, u32))| {
        let offset = seed.generator("random-starts", u64::from(number)).random_range(0..vocabulary);
        let start = ((u64::from(offset) + u64::from(number)) % u64::from(vocabulary)) as u32;
        let turns = vec![PlannedTurn::new(TurnContent::made(vec![TextSpan::Run { start, tokens }]), output)];
        Conversation::new(turns)
    };
    (0..shape.requests).zip(shape.lengths(seed)).map(request).collect()
}

/// Creates requests whose prompts consist of random words.
pub fn random_words(shape: &RandomIds, seed: Seed) -> Vec<Conversation> {
    let request = |(number, (tokens, output)): (u32, (u32, u32))| {
        let words = TextSpan::Drawn { purpose: "random-words", number: u64::from(number), tokens };
        Conversation::new(vec![PlannedTurn::new(TurnContent::made(vec![words]), output)])
    };
    (0..shape.requests).zip(shape.lengths(seed)).map(request).collect()
}

/// Creates requests whose prompts are documents from `corpus`, repeated or cut to length. The
/// number of requests is at most the number of documents.
///
/// # Errors
/// The tokenizer cannot decode one of the documents.
pub fn random_texts(
    shape: &RandomIds,
    corpus: &Corpus,
    tokenizer: &Tokenizer,
    seed: Seed,
) -> Result<Vec<Conversation>, TokenizerError> {
    let request = |((tokens, output), ids): ((u32, u32), &Vec<u32>)| {
        let ids = repeated(ids, tokens);
        let text = if shape.as_bench_serving { tokenizer.full_text(&ids)? } else { tokenizer.text(&ids)? };
        Ok(Conversation::new(vec![PlannedTurn::new(TurnContent::Text(text.into()), output)]))
    };
    shape.lengths(seed).into_iter().zip(corpus.texts.iter()).map(request).collect()
}

/// Documents, stored as token IDs, from which questions are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    texts: Vec<Vec<u32>>,
}

impl Corpus {
    /// Creates a corpus from documents given as token IDs. Empty documents are dropped.
    pub fn new(texts: Vec<Vec<u32>>) -> Corpus {
        Corpus { texts: texts.into_iter().filter(|ids| !ids.is_empty()).collect() }
    }

    /// Creates a corpus from the first questions in `conversations`. If `special` is set, documents
    /// include the special tokens around a prompt.
    ///
    /// # Errors
    /// The tokenizer cannot encode one of the documents.
    pub fn of(conversations: &[Conversation], tokenizer: &Tokenizer, special: bool) -> Result<Corpus, TokenizerError> {
        let mut texts = Vec::with_capacity(conversations.len());
        for conversation in conversations {
            if let Some(PlannedTurn { content: TurnContent::Text(text), .. }) = conversation.turns.first() {
                texts.push(if special { tokenizer.full_ids(text)? } else { tokenizer.ids(text)? });
            }
        }
        Ok(Corpus::new(texts))
    }

    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether the corpus is empty.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Returns a random document, repeated or cut to `tokens` IDs.
    pub fn cut(&self, tokens: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
        if self.texts.is_empty() {
            return Vec::new();
        }
        repeated(&self.texts[rng.random_range(0..self.texts.len())], tokens)
    }
}

fn repeated(ids: &[u32], tokens: u32) -> Vec<u32> {
    ids.iter().copied().cycle().take(tokens as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tokenizer::tests::small;

    const SHAPE: RandomIds = RandomIds {
        requests: 200,
        input: 40,
        output: 8,
        range_ratio: 0.0,
        vocabulary: 1000,
        as_bench_serving: false,
        special: 0,
    };

    #[test]
    fn lengths_range_from_the_ratio_to_the_maximum() {
        let lengths = |ratio| {
            let made = random_ids(&RandomIds { range_ratio: ratio, ..SHAPE }, Seed(3));
            let length = |made: &Conversation| match &made.turns[0].content {
                TurnContent::Made(passages) => passages.tokens(),
                other => panic!("{other:?}"),
            };
            let lengths: Vec<u32> = made.iter().map(length).collect();
            (lengths.iter().copied().min().expect("some"), lengths.iter().copied().max().expect("some"))
        };
        assert_eq!((lengths(1.0), lengths(0.5)), ((40, 40), (20, 40)));
        assert!(lengths(0.0).0 <= 3 && lengths(0.0).1 >= 38);
        assert_eq!(random_ids(&SHAPE, Seed(3)), random_ids(&SHAPE, Seed(3)));
        assert_ne!(random_ids(&SHAPE, Seed(3)), random_ids(&SHAPE, Seed(4)));
    }

    #[test]
    fn texts_are_repeated_or_cut_to_length() {
        let tokenizer = small();
        let ids = tokenizer.ids(" ab cd ef").expect("ids");
        let corpus = Corpus::new(vec![ids.clone(), Vec::new(), ids]);
        assert_eq!(corpus.len(), 2);
        let shape = RandomIds { range_ratio: 1.0, input: 5, requests: 9, ..SHAPE };
        let made = random_texts(&shape, &corpus, &tokenizer, Seed(1)).expect("texts");
        assert_eq!(made.len(), 2);
        assert_eq!(made[0].turns[0].content, TurnContent::Text(" ab cd ef ab cd".into()));
        let mut rng = Seed(1).generator("test", 0);
        assert_eq!((corpus.cut(2, &mut rng).len(), Corpus::default().cut(2, &mut rng).len()), (2, 0));
    }
}
