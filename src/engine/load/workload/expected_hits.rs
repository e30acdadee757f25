//! A workload that adds to each request the number of tokens that should be cached. The number is
//! based on the prompts and responses that each server has processed since its caches were emptied.
//!
//! Token-ID prompts are tracked page by page, so their expected hits are exact. For text and chat
//! prompts, only the server has the tokens, so their expected hits are approximate. Entire prompts
//! of generated text are tracked like token IDs, with IDs in place of the server's tokens. For
//! other text, a turn should hit the previous prompt and response of its conversation, and a
//! repeated prompt should be cached in full. Both are measured in tokens as counted by the server.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::answer::CachedTokens;
use crate::cache_model::{CacheModel, ExpectedHit, PageHashes};
use crate::ceiling::{AllowedHits, CeilingCounts, PossibleHits, RequestHits, TextUses, TierReach};
use crate::measure::expected::Expectation;
use crate::measure::reuse::ReuseHistogram;
use crate::workload::{LoadWorkload, TurnPrompt, TurnRequest};
use crate::{ModelAnswer, Script, Turn};

/// Maximum number of text prompts tracked per server.
const TEXTS_MAX: usize = 1 << 20;

/// A prompt in flight.
#[derive(Debug)]
struct InFlightPrompt {
    /// Page hashes, for token-ID prompts and for text prompts with IDs in place of tokens.
    hashes: Option<PageHashes>,
    /// Whether the prompt is text.
    is_text: bool,
    /// Hash of the prompt, for text prompts.
    name: u64,
    expected: ExpectedHit,
    /// Hits that the sizes of the caches allow.
    allowed: AllowedHits,
    /// For text prompts, the conversation whose beginning should be hit.
    owner: u64,
}

impl InFlightPrompt {
    /// Limits the hits to `tokens` tokens.
    fn limit(&mut self, tokens: u32) {
        let expected = &mut self.expected;
        expected.possible = expected.possible.min(tokens);
        expected.tokens = expected.tokens.min(tokens);
        let mut left = expected.tokens;
        for (part, _) in &mut expected.parts {
            *part = (*part).min(left);
            left -= *part;
        }
        let AllowedHits { device, memory, all } = &mut self.allowed;
        [device, memory, all].into_iter().for_each(|hits| *hits = (*hits).min(u64::from(tokens)));
    }
}

/// Cache model and statistics for one server.
#[derive(Debug)]
struct ServerModel {
    model: CacheModel,
    /// Text prompts, and conversations after their last turn, by hash.
    texts: HashMap<u64, TextUnit>,
    text_uses: TextUses,
    noted: HitStatistics,
}

/// A text prompt or a conversation that the server has processed.
#[derive(Clone, Copy, Debug)]
struct TextUnit {
    tokens: u32,
    /// The conversation that sent it last.
    owner: u64,
}

/// Cache-hit statistics for a server's responses.
#[derive(Clone, Debug, Default)]
pub struct HitStatistics {
    /// Expected and actual hits.
    pub expectation: Expectation,
    /// Hits by reuse distance.
    pub reuse: ReuseHistogram,
    /// Most hits that were possible, and those that the sizes of the caches allow.
    pub ceiling: CeilingCounts,
    /// Cached tokens that this run had never sent.
    pub warm: u64,
    /// Whether any prompts were text. Expected hits are approximate for text prompts.
    pub is_near: bool,
}

/// Cache models for all servers in a session. [`CacheModels::select`] chooses the server for the
/// next requests.
#[derive(Debug, Default)]
pub struct CacheModels {
    sides: Vec<Option<ServerModel>>,
    on: usize,
    pending: HashMap<u32, InFlightPrompt>,
}

impl CacheModels {
    /// Adds the server `target` with `page` tokens per page and empty caches. It has an L3 if
    /// `has_storage` is set.
    pub fn add_server(&mut self, target: usize, page: u32, has_storage: bool) {
        if self.sides.len() <= target {
            self.sides.resize_with(target + 1, || None);
        }
        let model = CacheModel::new(page, has_storage);
        self.sides[target] = Some(ServerModel {
            model,
            texts: HashMap::new(),
            text_uses: TextUses::default(),
            noted: HitStatistics::default(),
        });
    }

    /// Sets the sizes of the caches of `target`.
    pub fn set_reach(&mut self, target: usize, reach: TierReach) {
        if let Some(Some(side)) = self.sides.get_mut(target) {
            side.model.set_reach(reach);
        }
    }

    /// Returns the sizes of the caches of `target`, if known.
    pub fn reach(&self, target: usize) -> Option<TierReach> {
        self.sides.get(target)?.as_ref()?.model.reach()
    }

    /// Selects the server for the next requests.
    pub fn select(&mut self, target: usize) {
        self.on = target;
        self.pending.clear();
    }

    /// Records a flush of L1 and L2 on `target`.
    pub fn flush(&mut self, target: usize) {
        if let Some(Some(side)) = self.sides.get_mut(target) {
            side.model.flush();
            side.text_uses.flush(side.model.has_storage());
        }
    }

    /// Records that L3 on `target` was cleared.
    pub fn clear_storage(&mut self, target: usize) {
        if let Some(Some(side)) = self.sides.get_mut(target) {
            side.model.clear_storage();
        }
    }

    /// Records `tokens` tokens from untracked requests to `target`.
    pub fn advance(&mut self, target: usize, tokens: u64) {
        if let Some(Some(side)) = self.sides.get_mut(target) {
            side.model.advance(tokens);
            side.text_uses.advance(tokens);
        }
    }

    /// Returns the statistics for `target` since the last call, or `None` if it is not tracked.
    pub fn take_statistics(&mut self, target: usize) -> Option<HitStatistics> {
        let side = self.sides.get_mut(target)?.as_mut()?;
        Some(std::mem::take(&mut side.noted))
    }

    /// Returns whether `target` used more pages or texts than can be tracked.
    pub fn is_full(&self, target: usize) -> bool {
        let Some(Some(side)) = self.sides.get(target) else { return false };
        side.model.is_full() || side.texts.len() >= TEXTS_MAX
    }

    fn on_request(&mut self, turn: Turn, ask: &TurnRequest) -> Option<PossibleHits> {
        let side = self.sides.get_mut(self.on)?.as_mut()?;
        let ids = match (&ask.prompt, &ask.stand_ins) {
            (TurnPrompt::Ids(ids), _) | (_, Some(ids)) => Some(ids),
            _ => None,
        };
        let is_text = !matches!(ask.prompt, TurnPrompt::Ids(_));
        let pending = match ids {
            Some(ids) => {
                let mut hashes = PageHashes::new(side.model.page());
                hashes.extend(ids);
                let (expected, allowed) = side.model.record_sent(&hashes);
                InFlightPrompt { name: 0, expected, hashes: Some(hashes), is_text, allowed, owner: 0 }
            }
            None => {
                let words = &ask.prompt;
                let name = name_of(words);
                let conversation = conversation_name(turn.conversation);
                let known = side.texts.get(&name);
                let whole = known.map_or(0, |text| side.model.max_cached(text.tokens));
                let itself = side.model.expected_hit_named(name, whole);
                let before = match side.texts.get(&conversation) {
                    Some(text) if turn.index > 0 => side.model.expected_hit_named(conversation, text.tokens),
                    _ => ExpectedHit::default(),
                };
                let (expected, owner) = match known {
                    Some(text) if itself.tokens >= before.tokens => (itself, text.owner),
                    _ => (before, conversation),
                };
                let allowed = side
                    .model
                    .reach()
                    .map(|reach| side.text_uses.allowed(side.model.page(), reach, owner, expected.tokens));
                InFlightPrompt { hashes: None, is_text, name, expected, allowed: allowed.unwrap_or_default(), owner }
            }
        };
        let possible = PossibleHits {
            ceiling: pending.expected.possible,
            expected: pending.expected.tokens,
            allowed: side.model.reach().map(|_| u32::try_from(pending.allowed.all).unwrap_or(u32::MAX)),
        };
        self.pending.insert(turn.conversation, pending);
        Some(possible)
    }

    /// The server has not processed the prompt of `turn`.
    fn on_failure(&mut self, turn: Turn) {
        let Some(Some(side)) = self.sides.get_mut(self.on) else { return };
        if let Some(InFlightPrompt { hashes: Some(hashes), .. }) = self.pending.remove(&turn.conversation) {
            let others = self.pending.values().filter_map(|other| other.hashes.as_ref());
            side.model.forget(&hashes, others);
        }
    }

    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        let Some(Some(side)) = self.sides.get_mut(self.on) else { return };
        let Some(mut pending) = self.pending.remove(&turn.conversation) else { return };
        if pending.is_text {
            // The server may count fewer tokens than were expected.
            pending.limit(side.model.max_cached(answer.prompt_tokens.unwrap_or(0)));
        }
        let [device, host, storage, somewhere] = answer.cached_by_tier();
        let cached = answer.cached.as_ref().map_or(somewhere, CachedTokens::tokens);
        let expected = &pending.expected;
        side.noted.reuse.add(&expected.parts, device, host, storage, somewhere);
        side.noted.expectation.add(turn.index, answer.prompt_tokens.unwrap_or(0), expected.tokens, cached);
        side.noted.ceiling.add(&RequestHits {
            prompt: answer.prompt_tokens.unwrap_or(0),
            possible: expected.possible,
            expected: expected.tokens,
            allowed: side.model.reach().map(|_| pending.allowed),
            measured: [device, host, storage, somewhere],
        });
        side.noted.is_near |= pending.is_text;
        // It is unknown which parts of text prompts are shared (templates, system prompts).
        if turn.index == 0 && !pending.is_text {
            side.noted.warm += u64::from(cached.saturating_sub(expected.possible));
        }
        let completion = answer.completion_tokens.unwrap_or(0);
        match pending.hashes {
            Some(mut hashes) => {
                let prompt = hashes.tokens();
                // An entire text prompt does not contain the response to the one before.
                let output_ids = if pending.is_text { &[][..] } else { &answer.output_ids };
                // The last token was never processed as input, so it is not in any cache.
                let computed_ids = output_ids.len().saturating_sub(1);
                hashes.extend(&output_ids[..computed_ids]);
                let computed = answer.output_ids.len().max(completion as usize);
                side.model.record_answer(&hashes, u64::from(prompt) + computed as u64);
            }
            None => {
                let Some(prompt) = answer.prompt_tokens else { return };
                if side.texts.len() < TEXTS_MAX {
                    let conversation = conversation_name(turn.conversation);
                    let tokens = prompt.saturating_add(completion).saturating_sub(1);
                    let shared = u64::from(pending.expected.tokens);
                    side.texts.insert(pending.name, TextUnit { tokens: prompt, owner: conversation });
                    side.texts.insert(conversation, TextUnit { tokens, owner: conversation });
                    side.text_uses.record(conversation, u64::from(tokens), pending.owner, shared);
                    side.model.record_answer_named(pending.name, u64::from(prompt) + u64::from(completion));
                    side.model.record_answer_named(conversation, 0);
                }
            }
        }
    }
}

fn name_of(prompt: &TurnPrompt) -> u64 {
    let mut hasher = DefaultHasher::new();
    prompt.hash(&mut hasher);
    hasher.finish()
}

fn conversation_name(conversation: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("conversation", conversation).hash(&mut hasher);
    hasher.finish()
}

/// Wraps the workload `inner` and adds expected hits from `book` to each request.
#[derive(Debug)]
pub struct WithExpectedHits<'a, W: ?Sized> {
    inner: &'a mut W,
    book: &'a mut CacheModels,
}

impl<'a, W: LoadWorkload + ?Sized> WithExpectedHits<'a, W> {
    /// Wraps `inner` with the cache models in `book`.
    pub fn new(inner: &'a mut W, book: &'a mut CacheModels) -> WithExpectedHits<'a, W> {
        WithExpectedHits { inner, book }
    }
}

impl<W: LoadWorkload + ?Sized> LoadWorkload for WithExpectedHits<'_, W> {
    fn scripts(&self) -> Vec<Script> {
        self.inner.scripts()
    }

    fn request(&mut self, turn: Turn) -> TurnRequest {
        let mut ask = self.inner.request(turn);
        ask.possible = self.book.on_request(turn, &ask);
        ask
    }

    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        self.book.on_response(turn, answer);
        self.inner.on_response(turn, answer);
    }

    fn on_conversation_end(&mut self, turn: Turn) {
        self.book.pending.remove(&turn.conversation);
        self.inner.on_conversation_end(turn);
    }

    fn on_failure(&mut self, turn: Turn) {
        self.book.on_failure(turn);
        self.inner.on_failure(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::HitCeiling;
    use crate::plan::UnknownSizes;
    use crate::workload::{Conversation, PlannedTurn, PromptForm, Replay, TextGenerator, TextSpan, TurnContent};
    use crate::workload::{Synthetic, SyntheticPrompt};
    use crate::{Distribution, Seed};

    const PAGE: u32 = 16;

    fn made(words: SyntheticPrompt) -> Synthetic {
        let constant = Distribution::Constant;
        let mut made = Synthetic::new(2, constant(2.0), constant(40.0), constant(10.0), Seed(1));
        made.words = words;
        made
    }

    fn turn(conversation: u32, index: u32) -> Turn {
        Turn { conversation, index }
    }

    fn answer(prompt: u32, device: u32) -> ModelAnswer {
        ModelAnswer {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(10),
            output_ids: (1..=10).collect(),
            cached_tokens: Some(device),
            cached: Some(CachedTokens { device, ..CachedTokens::default() }),
            ..ModelAnswer::default()
        }
    }

    /// Returns the expected hits of a request.
    fn expected(request: TurnRequest) -> Option<u32> {
        request.possible.map(|possible| possible.expected)
    }

    #[test]
    fn turn_expects_its_history_in_whole_pages() {
        let mut inner = made(SyntheticPrompt::Ids { vocabulary: 30_000 });
        let mut book = CacheModels::default();
        book.add_server(0, PAGE, false);
        let mut asked = WithExpectedHits::new(&mut inner, &mut book);
        assert_eq!(expected(asked.request(turn(0, 0))), Some(0));
        asked.on_response(turn(0, 0), &answer(40, 0));
        // 40 prompt tokens and 10 output tokens, of which the last is not cached: 49 tokens, or
        // three pages.
        assert_eq!(expected(asked.request(turn(0, 1))), Some(48));
        asked.on_response(turn(0, 1), &answer(90, 32));
        asked.on_conversation_end(turn(0, 1));
        let noted = book.take_statistics(0).expect("tracked");
        assert_eq!((noted.expectation.turns[1].short, noted.expectation.turns[1].short_tokens), (1, 16));
        assert_eq!((noted.warm, noted.is_near), (0, false));
        let rows = noted.reuse.rows();
        assert_eq!((rows.len(), rows[0].expected, rows[0].device, rows[0].missed), (1, 48, 32, 16));
    }

    #[test]
    fn repeated_prompt_is_expected_until_the_caches_are_emptied() {
        let mut inner = made(SyntheticPrompt::Ids { vocabulary: 30_000 });
        let mut book = CacheModels::default();
        book.add_server(0, PAGE, true);
        let mut again = |book: &mut CacheModels| {
            let mut asked = WithExpectedHits::new(&mut inner, book);
            let expected = expected(asked.request(turn(0, 0)));
            asked.on_response(turn(0, 0), &answer(40, 0));
            asked.on_conversation_end(turn(0, 0));
            expected
        };
        assert_eq!([again(&mut book), again(&mut book)], [Some(0), Some(32)]);
        book.flush(0);
        assert_eq!(again(&mut book), Some(32), "from L3");
        book.clear_storage(0);
        book.flush(0);
        assert_eq!(again(&mut book), Some(0));
        book.select(1);
        assert_eq!(again(&mut book), None, "another server is not tracked");
    }

    #[test]
    fn unexpected_hit_of_a_first_turn_shows_a_warm_cache() {
        let mut inner = made(SyntheticPrompt::Ids { vocabulary: 30_000 });
        let mut book = CacheModels::default();
        book.add_server(0, PAGE, false);
        let mut asked = WithExpectedHits::new(&mut inner, &mut book);
        asked.request(turn(0, 0));
        asked.on_response(turn(0, 0), &answer(40, 32));
        assert_eq!(book.take_statistics(0).expect("tracked").warm, 32);
        assert_eq!(book.take_statistics(0).expect("tracked").warm, 0, "statistics were reset");
    }

    #[test]
    fn entire_chat_prompt_expects_the_tokens_that_it_shares() {
        let turn_of = |spans: &[(u64, u32)]| {
            let span =
                |(number, tokens): &(u64, u32)| TextSpan::Drawn { purpose: "block", number: *number, tokens: *tokens };
            PlannedTurn::whole(TurnContent::made(spans.iter().map(span).collect()), 10)
        };
        // A compaction, and another conversation with the same beginning.
        let first = Conversation::new(vec![turn_of(&[(1, 64), (2, 64)]), turn_of(&[(1, 64), (3, 16)])]);
        let second = Conversation::new(vec![turn_of(&[(1, 64), (4, 64)])]);
        let generator = TextGenerator { seed: Seed(1), vocabulary: 30_000, tokenizer: None };
        let mut inner = Replay::new(vec![first, second], PromptForm::Chat, generator);
        let mut book = CacheModels::default();
        book.add_server(0, PAGE, false);
        let mut asked = WithExpectedHits::new(&mut inner, &mut book);
        assert_eq!(expected(asked.request(turn(0, 0))), Some(0));
        asked.on_response(turn(0, 0), &answer(128, 0));
        assert_eq!(expected(asked.request(turn(0, 1))), Some(64));
        // The server counts fewer tokens.
        asked.on_response(turn(0, 1), &answer(50, 48));
        assert_eq!(expected(asked.request(turn(1, 0))), Some(64), "the beginning of another conversation");
        asked.on_response(turn(1, 0), &answer(128, 64));
        let noted = book.take_statistics(0).expect("tracked");
        assert!(noted.is_near);
        let found = HitCeiling::of(&noted.ceiling, Err(UnknownSizes::NoDevice)).expect("requests");
        assert_eq!((found.ceiling, found.measured.all, found.excess), (48 + 64, 48 + 64, 0));
    }

    #[test]
    fn prompt_that_was_not_processed_is_no_longer_expected() {
        let mut inner = made(SyntheticPrompt::Ids { vocabulary: 30_000 });
        let mut book = CacheModels::default();
        book.add_server(0, PAGE, false);
        let mut asked = WithExpectedHits::new(&mut inner, &mut book);
        let fail = |asked: &mut WithExpectedHits<'_, Synthetic>| {
            asked.request(turn(0, 0));
            asked.on_failure(turn(0, 0));
            asked.on_conversation_end(turn(0, 0));
        };
        fail(&mut asked);
        assert_eq!(asked.request(turn(0, 0)).possible.map(|possible| possible.ceiling), Some(0));
        asked.on_response(turn(0, 0), &answer(40, 0));
        asked.on_conversation_end(turn(0, 0));
        fail(&mut asked);
        let possible = asked.request(turn(0, 0)).possible;
        assert_eq!(possible.map(|possible| possible.ceiling), Some(32), "an earlier request has completed");
    }

    #[test]
    fn chat_turn_expects_the_server_count_of_the_previous_turn() {
        let mut inner = made(SyntheticPrompt::Chat);
        let mut book = CacheModels::default();
        book.add_server(0, PAGE, false);
        let mut asked = WithExpectedHits::new(&mut inner, &mut book);
        assert_eq!(expected(asked.request(turn(1, 0))), Some(0));
        asked.on_response(turn(1, 0), &answer(100, 0));
        assert_eq!(expected(asked.request(turn(1, 1))), Some(96));
        asked.on_conversation_end(turn(1, 1));
        assert_eq!(expected(asked.request(turn(1, 0))), Some(96), "the same text of 100 tokens");
        let noted = book.take_statistics(0).expect("tracked");
        assert!(noted.is_near && noted.warm == 0);
    }
}
