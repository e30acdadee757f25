//! Random prompts of given lengths: runs of ids, or passages of a corpus.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::engine::load::Seed;
use crate::engine::load::workload::{Conversation, Passage, Planned, Says, Tokenizer};

/// Single requests of random lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomIds {
    /// How many.
    pub requests: u32,
    /// Tokens of a prompt, at most.
    pub input: u32,
    /// Tokens of an answer, at most.
    pub output: u32,
    /// Lengths are whole numbers between this part of them and all of it.
    pub range_ratio: f64,
    /// Ids are below this.
    pub vocabulary: u32,
}

impl RandomIds {
    fn lengths(&self, seed: Seed, request: u32) -> (u32, u32) {
        let mut rng = seed.generator("random-lengths", u64::from(request));
        let input = length(self.input, self.range_ratio, &mut rng).max(1);
        (input, length(self.output, self.range_ratio, &mut rng).max(1))
    }
}

/// A whole number from `ratio` of `most` (at least one) up to `most`, each as likely.
pub(super) fn length(most: u32, ratio: f64, rng: &mut impl Rng) -> u32 {
    if most == 0 {
        return 0;
    }
    let least = ((f64::from(most) * ratio) as u32).clamp(1, most);
    rng.random_range(least..=most)
}

/// Each prompt counts upwards from an id of its own: no two share a beginning, but for chance.
pub fn random_ids(shape: &RandomIds, seed: Seed) -> Vec<Conversation> {
    let vocabulary = shape.vocabulary.max(2);
    let request = |number| {
        let (tokens, output) = shape.lengths(seed, number);
        let offset = seed.generator("random-starts", u64::from(number)).random_range(0..vocabulary);
        let start = ((u64::from(offset) + u64::from(number)) % u64::from(vocabulary)) as u32;
        let turns = vec![Planned::new(Says::Made(vec![Passage::Run { start, tokens }]), output)];
        Conversation { turns, routing_key: None }
    };
    (0..shape.requests).map(request).collect()
}

/// Prompts of random words, no two alike.
pub fn random_words(shape: &RandomIds, seed: Seed) -> Vec<Conversation> {
    let request = |number| {
        let (tokens, output) = shape.lengths(seed, number);
        let words = Passage::Drawn { purpose: "random-words", number: u64::from(number), tokens };
        Conversation { turns: vec![Planned::new(Says::Made(vec![words]), output)], routing_key: None }
    };
    (0..shape.requests).map(request).collect()
}

/// Each prompt is one of `corpus`, repeated or cut to its length. `shape.requests` is a bound; there are no more than texts.
///
/// # Errors
/// The tokenizer cannot say one; in its words.
pub fn random_texts(
    shape: &RandomIds,
    corpus: &Corpus,
    tokenizer: &Tokenizer,
    seed: Seed,
) -> Result<Vec<Conversation>, String> {
    let request = |(number, ids): (u32, &Vec<u32>)| {
        let (tokens, output) = shape.lengths(seed, number);
        let text = tokenizer.text(&repeated(ids, tokens))?;
        Ok(Conversation { turns: vec![Planned::new(Says::Text(text.into()), output)], routing_key: None })
    };
    (0..shape.requests).zip(corpus.texts.iter()).map(request).collect()
}

/// Texts as ids, to cut questions from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus {
    texts: Vec<Vec<u32>>,
}

impl Corpus {
    /// From the ids of texts; empty ones are dropped.
    pub fn new(texts: Vec<Vec<u32>>) -> Corpus {
        Corpus { texts: texts.into_iter().filter(|ids| !ids.is_empty()).collect() }
    }

    /// The first questions of `conversations`, as ids.
    ///
    /// # Errors
    /// The tokenizer cannot say one; in its words.
    pub fn of(conversations: &[Conversation], tokenizer: &Tokenizer) -> Result<Corpus, String> {
        let mut texts = Vec::with_capacity(conversations.len());
        for conversation in conversations {
            if let Some(Planned { says: Says::Text(text), .. }) = conversation.turns.first() {
                texts.push(tokenizer.ids(text)?);
            }
        }
        Ok(Corpus::new(texts))
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Any of them, repeated or cut to `tokens`.
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
    use crate::engine::load::workload::tokenizer::tests::small;

    const SHAPE: RandomIds = RandomIds { requests: 200, input: 40, output: 8, range_ratio: 0.0, vocabulary: 1000 };

    #[test]
    fn lengths_go_from_one_or_the_ratio_to_the_most() {
        let lengths = |ratio| {
            let made = random_ids(&RandomIds { range_ratio: ratio, ..SHAPE }, Seed(3));
            let length = |made: &Conversation| match &made.turns[0].says {
                Says::Made(passages) => passages[0].tokens(),
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
    fn texts_are_repeated_or_cut_to_their_length() {
        let tokenizer = small();
        let ids = tokenizer.ids(" ab cd ef").expect("ids");
        let corpus = Corpus::new(vec![ids.clone(), Vec::new(), ids]);
        assert_eq!(corpus.len(), 2);
        let shape = RandomIds { range_ratio: 1.0, input: 5, requests: 9, ..SHAPE };
        let made = random_texts(&shape, &corpus, &tokenizer, Seed(1)).expect("texts");
        assert_eq!(made.len(), 2);
        assert_eq!(made[0].turns[0].says, Says::Text(" ab cd ef ab cd".into()));
        let mut rng = Seed(1).generator("test", 0);
        assert_eq!((corpus.cut(2, &mut rng).len(), Corpus::default().cut(2, &mut rng).len()), (2, 0));
    }
}
