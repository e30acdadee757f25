//! A workload whose requests say what of them should be cached: what each server was sent and answered since its caches were emptied.
//!
//! Prompts of token ids are followed page by page, so that their expectation is exact. Of texts and chats only the server knows the
//! tokens: a turn is expected to find what its conversation had before (its prompt and answer, by the server's counts), and a prompt
//! that was sent before, word by word, to find itself; that is near the truth, no more.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::engine::load::answer::Cached;
use crate::engine::load::known::{Chain, Foreseen as Expected, Known};
use crate::engine::load::measure::expected::Expectation;
use crate::engine::load::measure::reuse::Reuse;
use crate::engine::load::workload::{Ask, Prompt, Workload};
use crate::engine::load::{Answer, Script, Turn};

/// Prompts of text that are known again at most.
const TEXTS_MAX: usize = 1 << 20;

/// What is in flight.
#[derive(Debug)]
struct Pending {
    /// The prompt, when it is of ids.
    chain: Option<Chain>,
    /// The prompt's own name, when it is of text.
    name: u64,
    expected: Expected,
}

/// What is known of one server.
#[derive(Debug)]
struct Side {
    known: Known,
    /// Prompts of text, and what each conversation had at its last turn: tokens by name.
    lengths: HashMap<u64, u32>,
    noted: Noted,
}

/// What was noted of a server's answers.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// What should have been cached beside what was.
    pub expectation: Expectation,
    /// Hits by how far back a prefix was used.
    pub reuse: Reuse,
    /// Tokens that were cached though nobody here ever sent them.
    pub warm: u64,
    /// Are there prompts of text among them, whose expectation is near the truth only?
    pub is_near: bool,
}

/// See the module. One of it goes with all servers of a session: [`Book::on`] says which is next.
#[derive(Debug, Default)]
pub struct Book {
    sides: Vec<Option<Side>>,
    on: usize,
    pending: HashMap<u32, Pending>,
}

impl Book {
    /// The server `target` has pages of `page` tokens; an L3 when `has_storage`. Its caches are taken for empty.
    pub fn know(&mut self, target: usize, page: u32, has_storage: bool) {
        if self.sides.len() <= target {
            self.sides.resize_with(target + 1, || None);
        }
        let known = Known::new(page, has_storage);
        self.sides[target] = Some(Side { known, lengths: HashMap::new(), noted: Noted::default() });
    }

    /// The next requests go to `target`.
    pub fn on(&mut self, target: usize) {
        self.on = target;
        self.pending.clear();
    }

    /// L1 and L2 of `target` were emptied.
    pub fn flushed(&mut self, target: usize) {
        if let Some(Some(side)) = self.sides.get_mut(target) {
            side.known.flushed();
        }
    }

    /// L3 of `target` was emptied.
    pub fn cleared(&mut self, target: usize) {
        if let Some(Some(side)) = self.sides.get_mut(target) {
            side.known.cleared();
        }
    }

    /// `target` answered so many tokens of others.
    pub fn passed(&mut self, target: usize, tokens: u64) {
        if let Some(Some(side)) = self.sides.get_mut(target) {
            side.known.passed(tokens);
        }
    }

    /// What was noted of `target` since the last time that this was asked; nothing where nobody keeps count.
    pub fn noted(&mut self, target: usize) -> Option<Noted> {
        let side = self.sides.get_mut(target)?.as_mut()?;
        Some(std::mem::take(&mut side.noted))
    }

    /// Were there more pages than are followed?
    pub fn is_full(&self, target: usize) -> bool {
        self.sides.get(target).is_some_and(|side| side.as_ref().is_some_and(|side| side.known.is_full()))
    }

    fn asked(&mut self, turn: Turn, ask: &Ask) -> Option<u32> {
        let side = self.sides.get_mut(self.on)?.as_mut()?;
        let pending = match &ask.prompt {
            Prompt::Ids(ids) => {
                let mut chain = Chain::new(side.known.page());
                chain.extend(ids);
                let expected = side.known.foresee(&chain);
                side.known.sent(&chain);
                Pending { name: 0, expected, chain: Some(chain) }
            }
            words => {
                let name = name_of(words);
                let whole = side.lengths.get(&name).map_or(0, |tokens| side.known.most(*tokens));
                let itself = side.known.foresee_named(name, whole);
                let conversation = conversation_name(turn.conversation);
                let before = match side.lengths.get(&conversation) {
                    Some(tokens) if turn.index > 0 => side.known.foresee_named(conversation, *tokens),
                    _ => Expected::default(),
                };
                let expected = if itself.tokens >= before.tokens { itself } else { before };
                Pending { chain: None, name, expected }
            }
        };
        let tokens = pending.expected.tokens;
        self.pending.insert(turn.conversation, pending);
        Some(tokens)
    }

    fn heard(&mut self, turn: Turn, answer: &Answer) {
        let Some(Some(side)) = self.sides.get_mut(self.on) else { return };
        let Some(pending) = self.pending.remove(&turn.conversation) else { return };
        let (device, host, storage, somewhere) = match &answer.cached {
            Some(cached) => (cached.device, cached.host, cached.storage, 0),
            None => (0, 0, 0, answer.cached_tokens.unwrap_or(0)),
        };
        let cached = answer.cached.as_ref().map_or(somewhere, Cached::tokens);
        let expected = &pending.expected;
        side.noted.reuse.add(&expected.parts, device, host, storage, somewhere);
        side.noted.expectation.add(turn.index, answer.prompt_tokens.unwrap_or(0), expected.tokens, cached);
        side.noted.is_near |= pending.chain.is_none();
        // Of texts nobody knows here what they share: templates, system prompts.
        if turn.index == 0 && pending.chain.is_some() {
            side.noted.warm += u64::from(cached.saturating_sub(expected.possible));
        }
        let completion = answer.completion_tokens.unwrap_or(0);
        match pending.chain {
            Some(mut chain) => {
                let prompt = chain.tokens();
                // The last token was never computed on: nothing of it is in a cache.
                let said = answer.output_ids.len().saturating_sub(1);
                chain.extend(&answer.output_ids[..said]);
                side.known.learn(&chain, u64::from(prompt) + answer.output_ids.len() as u64);
            }
            None => {
                let Some(prompt) = answer.prompt_tokens else { return };
                if side.lengths.len() < TEXTS_MAX {
                    side.lengths.insert(pending.name, prompt);
                    side.lengths.insert(
                        conversation_name(turn.conversation),
                        prompt.saturating_add(completion).saturating_sub(1),
                    );
                    side.known.learn_named(pending.name, u64::from(prompt) + u64::from(completion));
                    side.known.learn_named(conversation_name(turn.conversation), 0);
                }
            }
        }
    }
}

fn name_of(prompt: &Prompt) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{prompt:?}").hash(&mut hasher);
    hasher.finish()
}

fn conversation_name(conversation: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("conversation", conversation).hash(&mut hasher);
    hasher.finish()
}

/// `inner`, with what `book` expects of each request.
#[derive(Debug)]
pub struct Foreseen<'a, W: ?Sized> {
    inner: &'a mut W,
    book: &'a mut Book,
}

impl<'a, W: Workload + ?Sized> Foreseen<'a, W> {
    /// See the type.
    pub fn new(inner: &'a mut W, book: &'a mut Book) -> Foreseen<'a, W> {
        Foreseen { inner, book }
    }
}

impl<W: Workload + ?Sized> Workload for Foreseen<'_, W> {
    fn scripts(&self) -> Vec<Script> {
        self.inner.scripts()
    }

    fn ask(&mut self, turn: Turn) -> Ask {
        let mut ask = self.inner.ask(turn);
        ask.expected = self.book.asked(turn, &ask);
        ask
    }

    fn heard(&mut self, turn: Turn, answer: &Answer) {
        self.book.heard(turn, answer);
        self.inner.heard(turn, answer);
    }

    fn over(&mut self, turn: Turn) {
        self.book.pending.remove(&turn.conversation);
        self.inner.over(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::workload::{Synthetic, Words};
    use crate::engine::load::{Distribution, Seed};

    const PAGE: u32 = 16;

    fn made(words: Words) -> Synthetic {
        let constant = Distribution::Constant;
        let mut made = Synthetic::new(2, constant(2.0), constant(40.0), constant(10.0), Seed(1));
        made.words = words;
        made
    }

    fn turn(conversation: u32, index: u32) -> Turn {
        Turn { conversation, index }
    }

    fn answer(prompt: u32, device: u32) -> Answer {
        Answer {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(10),
            output_ids: (1..=10).collect(),
            cached_tokens: Some(device),
            cached: Some(Cached { device, ..Cached::default() }),
            ..Answer::default()
        }
    }

    #[test]
    fn a_turn_should_find_all_before_it_but_its_last_token_in_whole_pages() {
        let (mut inner, mut book) = (made(Words::Ids { vocabulary: 30_000 }), Book::default());
        book.know(0, PAGE, false);
        let mut asked = Foreseen::new(&mut inner, &mut book);
        assert_eq!(asked.ask(turn(0, 0)).expected, Some(0));
        asked.heard(turn(0, 0), &answer(40, 0));
        // 40 and 10 tokens, of which the last is not computed on: 49, three pages.
        assert_eq!(asked.ask(turn(0, 1)).expected, Some(48));
        asked.heard(turn(0, 1), &answer(90, 32));
        asked.over(turn(0, 1));
        let noted = book.noted(0).expect("it is kept count of");
        assert_eq!((noted.expectation.turns[1].short, noted.expectation.turns[1].short_tokens), (1, 16));
        assert_eq!((noted.warm, noted.is_near), (0, false));
        let rows = noted.reuse.rows();
        assert_eq!((rows.len(), rows[0].expected, rows[0].device, rows[0].missed), (1, 48, 32, 16));
    }

    #[test]
    fn the_same_again_is_expected_whole_until_the_caches_are_emptied() {
        let (mut inner, mut book) = (made(Words::Ids { vocabulary: 30_000 }), Book::default());
        book.know(0, PAGE, true);
        let mut again = |book: &mut Book| {
            let mut asked = Foreseen::new(&mut inner, book);
            let expected = asked.ask(turn(0, 0)).expected;
            asked.heard(turn(0, 0), &answer(40, 0));
            asked.over(turn(0, 0));
            expected
        };
        assert_eq!([again(&mut book), again(&mut book)], [Some(0), Some(32)]);
        book.flushed(0);
        assert_eq!(again(&mut book), Some(32), "from L3");
        book.cleared(0);
        book.flushed(0);
        assert_eq!(again(&mut book), Some(0));
        book.on(1);
        assert_eq!(again(&mut book), None, "of another server nothing is known");
    }

    #[test]
    fn a_first_turn_that_is_cached_though_nobody_sent_it_shows_a_warm_cache() {
        let (mut inner, mut book) = (made(Words::Ids { vocabulary: 30_000 }), Book::default());
        book.know(0, PAGE, false);
        let mut asked = Foreseen::new(&mut inner, &mut book);
        asked.ask(turn(0, 0));
        asked.heard(turn(0, 0), &answer(40, 32));
        assert_eq!(book.noted(0).expect("it is kept count of").warm, 32);
        assert_eq!(book.noted(0).expect("it is kept count of").warm, 0, "it was taken");
    }

    #[test]
    fn of_a_chat_a_turn_should_find_what_the_server_counted_before() {
        let (mut inner, mut book) = (made(Words::Chat), Book::default());
        book.know(0, PAGE, false);
        let mut asked = Foreseen::new(&mut inner, &mut book);
        assert_eq!(asked.ask(turn(1, 0)).expected, Some(0));
        asked.heard(turn(1, 0), &answer(100, 0));
        assert_eq!(asked.ask(turn(1, 1)).expected, Some(96));
        asked.over(turn(1, 1));
        assert_eq!(asked.ask(turn(1, 0)).expected, Some(96), "the very same text, 100 tokens long");
        let noted = book.noted(0).expect("it is kept count of");
        assert!(noted.is_near && noted.warm == 0);
    }
}
