//! How many tokens of planned prompts repeat the beginning of another prompt. This is known before
//! anything is sent, from the spans and texts of the prompts and from the lengths of responses.

use crate::workload::dataset::DatasetCaveat;
use crate::workload::{ChatMessage, Conversation, PlannedTurn, TextSpan, TurnContent};

/// Maximum number of requests that are examined.
const REQUESTS_MAX: usize = 200_000;
/// Maximum number of bytes of text that are compared, from the start of a prompt.
const BYTES_MAX: usize = 4096;
/// Maximum number of spans that are compared.
const SPANS_MAX: usize = 64;
/// Bytes of text per token, if the tokens were not counted.
const BYTES_PER_TOKEN: u64 = 4;
/// Share below which the reuse is reported.
const SHARE_MIN: f64 = 0.01;

/// The reuse in the planned prompts of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlannedReuse {
    /// Number of examined requests.
    pub requests: usize,
    /// Whether there are more.
    pub is_part: bool,
    /// Prompt tokens, with responses of the maximum length.
    pub tokens: u64,
    /// Those that repeat the beginning of another prompt, at most. A conversation repeats its
    /// history. If it is 1 % or more of `tokens`, there may be more.
    pub shared: f64,
    /// Whether more may be shared than was compared.
    pub is_cut: bool,
}

/// The order of a span: its kind, its purpose, its number and its tokens.
type SpanKey = (u8, &'static str, u64, u32);

/// The beginning of a prompt that does not continue another one.
#[derive(Debug)]
struct PromptHead<'a> {
    content: &'a TurnContent,
    /// Tokens per byte of the text.
    per_byte: f64,
    /// Whether the prompt or its conversation has more than is compared.
    has_more: bool,
}

fn key(span: TextSpan) -> SpanKey {
    match span {
        TextSpan::Drawn { purpose, number, tokens } => (0, purpose, number, tokens),
        TextSpan::Run { start, tokens } => (1, "", u64::from(start), tokens),
    }
}

/// Returns a message from its content on, without decoding it.
fn content(message: &ChatMessage) -> &str {
    let json = message.json();
    json.split_once("\"content\":").map_or(json, |(_, rest)| rest.trim_start().trim_start_matches('"'))
}

/// Returns the number of bytes of a prompt of text.
fn bytes(of: &TurnContent) -> u64 {
    match of {
        TurnContent::Text(text) => text.len() as u64,
        TurnContent::Messages(messages) => messages.iter().map(|message| content(message).len() as u64).sum(),
        TurnContent::Made(_) => 0,
    }
}

/// Returns the number of tokens that a turn adds. Text is estimated unless it was counted.
fn tokens(turn: &PlannedTurn) -> u64 {
    match (&turn.content, turn.tokens) {
        (TurnContent::Made(spans), _) => u64::from(spans.tokens()),
        (_, Some(tokens)) => u64::from(tokens),
        (of, None) => bytes(of).div_ceil(BYTES_PER_TOKEN),
    }
}

impl<'a> PromptHead<'a> {
    fn of(turn: &'a PlannedTurn, continues: bool) -> PromptHead<'a> {
        let bytes = bytes(&turn.content);
        let is_long = match &turn.content {
            TurnContent::Made(spans) => spans.iter().nth(SPANS_MAX).is_some(),
            _ => bytes > BYTES_MAX as u64,
        };
        let per_byte = tokens(turn) as f64 / bytes.max(1) as f64;
        PromptHead { content: &turn.content, per_byte, has_more: continues || is_long }
    }

    /// Returns the spans, or none for text.
    fn spans(&self) -> impl Iterator<Item = SpanKey> + '_ {
        let spans = match self.content {
            TurnContent::Made(spans) => Some(spans),
            _ => None,
        };
        spans.into_iter().flat_map(|spans| spans.iter().map(key)).take(SPANS_MAX)
    }

    /// Returns the bytes of the text, or none for spans.
    fn text(&self) -> impl Iterator<Item = u8> + '_ {
        let (text, messages) = match self.content {
            TurnContent::Text(text) => (&**text, &[][..]),
            TurnContent::Messages(messages) => ("", &messages[..]),
            TurnContent::Made(_) => ("", &[][..]),
        };
        text.bytes().chain(messages.iter().flat_map(|message| content(message).bytes())).take(BYTES_MAX)
    }

    /// Returns the tokens at the start of both, and whether more may be the same.
    fn shared(&self, other: &PromptHead<'_>) -> (f64, bool) {
        let mut tokens = 0.0;
        for (mine, theirs) in self.spans().zip(other.spans()) {
            if (mine.0, mine.1, mine.2) == (theirs.0, theirs.1, theirs.2) {
                tokens += f64::from(mine.3.min(theirs.3));
            }
            if mine != theirs {
                return (tokens, false);
            }
        }
        let mut theirs = other.text();
        let mut same = 0;
        let mut is_whole = true;
        for byte in self.text() {
            match theirs.next() {
                Some(other) if other == byte => same += 1,
                other => {
                    is_whole = other.is_none();
                    break;
                }
            }
        }
        (tokens + f64::from(same) * self.per_byte, is_whole && self.has_more && other.has_more)
    }
}

impl PlannedReuse {
    /// Examines `conversations`.
    pub fn of(conversations: &[Conversation]) -> PlannedReuse {
        let mut found = PlannedReuse::default();
        let mut heads = Vec::new();
        for conversation in conversations {
            let mut history = 0;
            for (at, turn) in conversation.turns.iter().enumerate() {
                if found.requests == REQUESTS_MAX {
                    found.is_part = true;
                    break;
                }
                found.requests += 1;
                if turn.whole || at == 0 {
                    history = 0;
                    let continues = conversation.turns.get(at + 1).is_some_and(|next| !next.whole);
                    heads.push(PromptHead::of(turn, continues));
                }
                found.shared += history as f64;
                history += tokens(turn);
                found.tokens += history;
                history += u64::from(turn.max_tokens);
            }
        }
        let history = found.shared;
        found.add(&heads);
        if found.share() < SHARE_MIN {
            // In this order, neighbors share the most.
            heads.sort_unstable_by(|a, b| a.spans().cmp(b.spans()).then_with(|| a.text().cmp(b.text())));
            found.shared = history;
            found.add(&heads);
        }
        found
    }

    /// Examines the sessions of `conversations`, of which no two share a prefix.
    pub fn within_sessions(conversations: &[Conversation]) -> PlannedReuse {
        let mut sum = PlannedReuse::default();
        for session in conversations.chunk_by(|_, next| next.continues_session()) {
            let found = PlannedReuse::of(session);
            sum.requests += found.requests;
            sum.tokens += found.tokens;
            sum.shared += found.shared;
            sum.is_cut |= found.is_cut;
            if sum.requests >= REQUESTS_MAX {
                sum.is_part = true;
                break;
            }
        }
        sum
    }

    /// Adds what each of `heads` shares with the one before.
    fn add(&mut self, heads: &[PromptHead<'_>]) {
        for pair in heads.windows(2) {
            let (shared, is_cut) = pair[1].shared(&pair[0]);
            self.shared += shared;
            self.is_cut |= is_cut;
        }
    }

    /// Returns the share of the prompt tokens that a cache can hit at most, 0 to 1.
    pub fn share(&self) -> f64 {
        self.shared / self.tokens.max(1) as f64
    }

    /// Returns a caveat if no cache can hit as much as 1 %.
    pub fn caveat(&self) -> Option<DatasetCaveat> {
        let part = self.is_part.then_some(self.requests);
        (self.tokens > 0 && !self.is_cut && self.share() < SHARE_MIN)
            .then(|| DatasetCaveat::LittleReuse { percent: (1e3 * self.share()).ceil() / 10.0, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::ChatRole;

    fn alone(turns: Vec<PlannedTurn>) -> Conversation {
        Conversation::new(turns)
    }

    fn made(spans: &[(u64, u32)]) -> PlannedTurn {
        let span =
            |(number, tokens): &(u64, u32)| TextSpan::Drawn { purpose: "block", number: *number, tokens: *tokens };
        PlannedTurn::new(TurnContent::made(spans.iter().map(span).collect()), 10)
    }

    fn text(text: &str) -> PlannedTurn {
        PlannedTurn::new(TurnContent::Text(text.into()), 10)
    }

    #[test]
    fn sessions_with_a_prefix_of_their_own_share_nothing() {
        let sessions = [alone(vec![made(&[(1, 16)])]), alone(vec![made(&[(1, 16), (2, 16)])])];
        assert_eq!(PlannedReuse::of(&sessions).shared, 16.0);
        let within = PlannedReuse::within_sessions(&sessions);
        assert_eq!((within.requests, within.shared, within.tokens), (2, 0.0, 48));
        assert!(within.caveat().is_some() && PlannedReuse::of(&sessions).caveat().is_none());
        let one = [alone(vec![made(&[(1, 16)]), made(&[(2, 16)])])];
        assert_eq!(PlannedReuse::within_sessions(&one), PlannedReuse::of(&one));
    }

    #[test]
    fn neighbors_in_order_share_the_most() {
        let turns = [made(&[(1, 16), (2, 16)]), made(&[(1, 8)]), made(&[(1, 16), (2, 10)]), made(&[(1, 16), (3, 16)])];
        let mut heads: Vec<PromptHead<'_>> = turns.iter().map(|turn| PromptHead::of(turn, false)).collect();
        heads.sort_unstable_by(|a, b| a.spans().cmp(b.spans()));
        let mut reuse = PlannedReuse::default();
        reuse.add(&heads);
        // After the shortest one: 8 tokens, then 26, then 16.
        assert_eq!(reuse.shared, 50.0);
    }

    #[test]
    fn shared_blocks_need_no_caveat() {
        let reuse = PlannedReuse::of(&[
            alone(vec![made(&[(1, 16), (2, 16)])]),
            alone(vec![made(&[(9, 16)])]),
            alone(vec![made(&[(1, 16), (3, 16)])]),
            alone(vec![made(&[(1, 8)])]),
            alone(vec![made(&[(1, 16), (2, 10)])]),
        ]);
        assert_eq!((reuse.tokens, reuse.requests), (114, 5));
        assert!(reuse.share() > 0.01);
        assert_eq!(reuse.caveat(), None);
    }

    #[test]
    fn live_conversations_repeat_their_history() {
        let reuse = PlannedReuse::of(&[alone(vec![made(&[(1, 100)]), made(&[(2, 50)]), made(&[(3, 40)])])]);
        assert_eq!((reuse.tokens, reuse.shared), (100 + 160 + 210, 110.0 + 170.0));
        let whole = |number| PlannedTurn { whole: true, ..made(&[(number, 100)]) };
        let reuse = PlannedReuse::of(&[alone(vec![whole(1), whole(2)])]);
        assert_eq!(reuse.caveat(), Some(DatasetCaveat::LittleReuse { percent: 0.0, part: None }));
    }

    #[test]
    fn two_equal_prompts_among_many_are_found() {
        let mut all: Vec<Conversation> = (0..1000).map(|number| alone(vec![made(&[(number, 64)])])).collect();
        all.push(alone(vec![made(&[(0, 64)])]));
        let reuse = PlannedReuse::of(&all);
        assert_eq!(reuse.shared, 64.0);
        assert_eq!(reuse.caveat(), Some(DatasetCaveat::LittleReuse { percent: 0.1, part: None }));
    }

    #[test]
    fn texts_are_compared_from_their_start() {
        let long = |start: &str| text(&format!("{start}{}", "x".repeat(4000)));
        let reuse =
            PlannedReuse::of(&[alone(vec![long("abcdefgh")]), alone(vec![long("abcd")]), alone(vec![long("z")])]);
        assert_eq!((reuse.tokens, reuse.shared), (1002 + 1001 + 1001, 1.0));
        assert_eq!(reuse.caveat(), Some(DatasetCaveat::LittleReuse { percent: 0.1, part: None }));
        // The end of long texts is not compared, so their reuse is unknown.
        let cut = PlannedReuse::of(&vec![alone(vec![text(&"x".repeat(10_000_000))]); 2]);
        assert!(cut.is_cut && cut.caveat().is_none());
        let chat = |text: &str| {
            let messages = vec![ChatMessage::new(ChatRole::System, "system"), ChatMessage::new(ChatRole::User, text)];
            alone(vec![PlannedTurn::whole(TurnContent::Messages(messages), 5)])
        };
        assert!(PlannedReuse::of(&[chat("one"), chat("two")]).share() > 0.1);
        assert_eq!(content(&ChatMessage::new(ChatRole::User, "text")), "text\"}");
    }
}
