//! Recorded requests as JSONL: Mooncake traces, and the rows that aiperf derives from them.
//!
//! A `hash_ids` row describes an entire prompt. Each ID identifies one block of fixed text, which
//! depends only on the ID. Blocks with the same ID are therefore identical, and prompts share
//! exactly the same prefixes as when they were recorded. The last block is cut to `input_length`.
//! Rows with the same `session_id` form one conversation. (The sizing commands have their own
//! reader, which handles huge traces and needs only the hashes.)

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

use crate::workload::dataset::gather::{choose, rows};
use crate::workload::dataset::openai::{cut, messages, tokens};
use crate::workload::dataset::{Dataset, DatasetError, DatasetOptions, RowLayout, TOKENS_MAX};
use crate::workload::{ChatMessage, Conversation, Members, PlannedTurn, RowError, TextSpan, TurnContent, json_text};

/// Tokens per block in the traces published by Mooncake.
pub const BLOCK_TOKENS: u32 = 512;
/// Default output length in tokens, for rows with messages or text.
const OUTPUT: u32 = 256;
/// Maximum timestamp: ten years, in milliseconds.
const TIME_MAX: f64 = 315_576_000_000.0;

enum RowPrompt {
    Blocks(Vec<u64>),
    Made(u32),
    Text(String),
    Messages(Vec<ChatMessage>),
}

struct TraceRow {
    asks: RowPrompt,
    output: Option<u32>,
    input: Option<u32>,
    at: Option<f64>,
    delay: Option<f64>,
    session: Option<String>,
    delta: bool,
    extra: Vec<(String, String)>,
    tools: Option<String>,
}

fn parse(text: &str) -> Result<TraceRow, RowError> {
    let mut blocks = None;
    let mut chat = None;
    let mut plain = None;
    let mut input = None;
    let mut output = None;
    let mut at = None;
    let mut delay = None;
    let mut session = None;
    let mut delta = false;
    let mut extra = Vec::new();
    let mut tools = None;
    for (name, value) in json_text::members(text)? {
        if value == "null" {
            continue;
        }
        match name.as_str() {
            "hash_ids" => {
                let ids: Vec<u64> =
                    serde_json::from_str(value).map_err(|error| RowError::from(error).in_member("hash_ids"))?;
                blocks = Some(ids);
            }
            "messages" => chat = Some(messages(value)?),
            "text_input" => {
                plain =
                    Some(serde_json::from_str(value).map_err(|error| RowError::from(error).in_member("text_input"))?)
            }
            "input_length" => input = tokens(&name, value)?,
            // Some responses in traces have no tokens. In that case, one token is requested.
            "output_length" => output = if value == "0" { Some(1) } else { tokens(&name, value)? },
            "timestamp" => at = Some(time(&name, value)?),
            "delay" => delay = Some(time(&name, value)?),
            "session_id" => session = Some(value.to_owned()),
            "message_mode" => {
                delta = match value {
                    "\"delta\"" => true,
                    "\"history\"" => false,
                    other => return Err(RowError::InvalidMessageMode(cut(other))),
                };
            }
            "extra" => {
                let members = json_text::members(value).map_err(|error| error.in_member("extra"))?;
                extra = members.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
            }
            "tools" => tools = Some(value.to_owned()),
            _ => {}
        }
    }
    let asks = match (blocks, chat, plain, input) {
        (None, Some(chat), None, None) => RowPrompt::Messages(chat),
        (None, None, Some(plain), None) => RowPrompt::Text(plain),
        (Some(blocks), None, None, _) if !blocks.is_empty() => RowPrompt::Blocks(blocks),
        (_, None, None, Some(input)) => RowPrompt::Made(input),
        (None, None, None, None) => {
            return Err(RowError::NoPrompt);
        }
        (Some(_), None, None, None) => return Err(RowError::EmptyPrompt),
        _ => return Err(RowError::SeveralPrompts),
    };
    if delta && !matches!(asks, RowPrompt::Messages(_)) {
        return Err(RowError::ModeWithoutMessages);
    }
    if delta && extra.iter().any(|(name, _)| name == "messages") {
        return Err(RowError::ExtraMessages);
    }
    Ok(TraceRow { asks, output, input, at, delay, session, delta, extra, tools })
}

/// Parses a time in milliseconds.
fn time(name: &str, text: &str) -> Result<f64, RowError> {
    let time = serde_json::from_str(text).ok().filter(|time| (0.0..=TIME_MAX).contains(time));
    time.ok_or_else(|| RowError::InvalidTime { name: name.to_owned(), value: cut(text) })
}

/// Returns the blocks of a prompt with `input` tokens.
fn passages(blocks: &[u64], input: Option<u32>, block: u32) -> Result<Vec<TextSpan>, RowError> {
    let full = u32::try_from(blocks.len() as u64 * u64::from(block)).unwrap_or(u32::MAX);
    let input = input.unwrap_or(full);
    if input > TOKENS_MAX {
        return Err(RowError::TooManyBlocks { blocks: blocks.len(), block });
    }
    if input.div_ceil(block) as usize != blocks.len() {
        return Err(RowError::BlockMismatch { tokens: input, blocks: blocks.len(), block });
    }
    let passage = |(at, id): (usize, &u64)| TextSpan::Drawn {
        purpose: "block",
        number: *id,
        tokens: (input - at as u32 * block).min(block),
    };
    Ok(blocks.iter().enumerate().map(passage).collect())
}

/// A conversation whose rows are being read.
#[derive(Default)]
struct TraceSession {
    line: u64,
    conversation: Conversation,
    /// Whether rows with messages contain only new messages.
    delta: Option<bool>,
    /// Tools from the last row that had any.
    tools: Option<String>,
    /// Whether the conversation has reached its maximum length. Further rows are dropped.
    closed: bool,
}

impl TraceSession {
    /// Adds `row`, which was read from `line`, as the next turn.
    fn add(&mut self, row: TraceRow, line: u64, reading: &DatasetOptions) -> Result<(), RowError> {
        let (content, whole, prompt, output) = match row.asks {
            RowPrompt::Blocks(blocks) => {
                let passages = passages(&blocks, row.input, reading.block_tokens.max(1))?;
                let prompt = passages.iter().map(|passage| passage.tokens()).sum();
                (TurnContent::Made(passages), true, prompt, 1)
            }
            RowPrompt::Made(tokens) => {
                (TurnContent::Made(vec![TextSpan::Drawn { purpose: "row", number: line, tokens }]), false, tokens, 1)
            }
            RowPrompt::Text(text) => {
                let prompt = if reading.context.is_some() { reading.tokens(&text, false)? } else { 0 };
                (TurnContent::Text(text.into()), false, prompt, OUTPUT)
            }
            RowPrompt::Messages(messages) => {
                if *self.delta.get_or_insert(row.delta) != row.delta {
                    return Err(RowError::MixedMessageModes { line: self.line });
                }
                (TurnContent::Messages(messages), !row.delta, 0, OUTPUT)
            }
        };
        if row.tools.is_some() {
            if !matches!(content, TurnContent::Messages(_)) {
                return Err(RowError::ToolsWithoutMessages);
            }
            self.tools = row.tools;
        }
        let max_tokens = reading.output.or(row.output).unwrap_or(output);
        let turns = &mut self.conversation.turns;
        self.closed |= reading.context.is_some_and(|most| prompt.saturating_add(max_tokens) > most)
            || reading.max_turns.is_some_and(|most| turns.len() >= most as usize);
        if self.closed {
            return Ok(());
        }
        // The tools of a delta row stay in effect until another row sets new ones.
        let tools = if row.delta { self.tools.clone() } else { self.tools.take() };
        let members = tools.map(|tools| ("tools".to_owned(), tools)).into_iter().chain(row.extra);
        turns.push(PlannedTurn {
            content,
            whole,
            max_tokens,
            extra: Members::new(members),
            at: row.at.map(|at| Duration::from_secs_f64(at / 1e3)),
            delay: Duration::from_secs_f64(row.delay.unwrap_or_default() / 1e3),
            tokens: None,
        });
        Ok(())
    }
}

pub(super) fn read(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    let mut dataset = Dataset::default();
    let mut sessions: Vec<TraceSession> = Vec::new();
    let mut named: HashMap<String, usize> = HashMap::new();
    // Without sessions and in file order, reading can stop after the last required row. A session
    // may continue anywhere.
    let all = reading.limit == 0 || reading.shuffle;
    let enough = if all { usize::MAX } else { reading.limit.saturating_add(reading.offset) };
    rows(input, file, RowLayout::Lines, reading, &mut dataset, |text, line| {
        let row = parse(text)?;
        let at = row.session.as_ref().and_then(|session| named.get(session).copied());
        match at {
            Some(at) => sessions[at].add(row, line, reading)?,
            None => {
                let mut session = TraceSession { line, ..TraceSession::default() };
                let name = row.session.clone();
                session.add(row, line, reading)?;
                named.extend(name.map(|name| (name, sessions.len())));
                sessions.push(session);
            }
        }
        Ok(sessions.len() < enough || !named.is_empty())
    })?;
    let mut conversations: Vec<Conversation> =
        sessions.into_iter().map(|session| session.conversation).filter(|made| !made.turns.is_empty()).collect();
    // Not all traces are sorted by time.
    conversations.sort_by_key(|conversation| conversation.turns[0].at);
    dataset.left_out = dataset.rows
        - dataset.skipped
        - conversations.iter().map(|conversation| conversation.turns.len() as u64).sum::<u64>();
    for conversation in &mut conversations {
        conversation.turns = rounds(std::mem::take(&mut conversation.turns), reading.rounds);
    }
    dataset.passed_over = conversations.len().min(reading.offset);
    dataset.conversations = choose(conversations, reading);
    dataset.estimated = reading.context.is_some() && reading.tokenizer.is_none();
    retime(&mut dataset.conversations, reading.slowdown);
    Ok(dataset)
}

/// Repeats each recorded prompt `rounds` times. Each repetition follows the responses so far, and
/// is sent as soon as the previous response ends.
fn rounds(turns: Vec<PlannedTurn>, rounds: u32) -> Vec<PlannedTurn> {
    let more = |turn: PlannedTurn| {
        let recorded = turn.whole && matches!(turn.content, TurnContent::Made(_));
        let again = PlannedTurn { whole: false, at: None, delay: Duration::ZERO, ..turn.clone() };
        let count = if recorded { rounds.saturating_sub(1) as usize } else { 0 };
        std::iter::once(turn).chain(std::iter::repeat_n(again, count))
    };
    turns.into_iter().flat_map(more).collect()
}

/// Shifts times so that they start at zero, and scales them.
fn retime(conversations: &mut [Conversation], slowdown: f64) {
    let turns = || conversations.iter().flat_map(|conversation| &conversation.turns);
    let first = turns().filter_map(|turn| turn.at).min().unwrap_or_default();
    for turn in conversations.iter_mut().flat_map(|conversation| &mut conversation.turns) {
        // The result is bounded, because times are at most ten years and the command line limits
        // the factor.
        turn.at = turn.at.map(|at| (at - first).mul_f64(slowdown));
        turn.delay = turn.delay.mul_f64(slowdown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(text: &str, reading: &DatasetOptions) -> Dataset {
        read(text.as_bytes(), "t", reading).expect("a trace")
    }

    fn reason(text: &str) -> RowError {
        match read(text.as_bytes(), "t", &DatasetOptions::default()) {
            Err(DatasetError::Row { bad, .. }) => bad.reason,
            other => panic!("{other:?}"),
        }
    }

    const PLAIN: &str = r#"{"timestamp": 2500, "input_length": 1100, "output_length": 52, "hash_ids": [7, 8, 9]}
{"timestamp": 500, "input_length": 512, "output_length": 0, "hash_ids": [7]}
{"timestamp": 500.5, "hash_ids": [7, 8]}
"#;

    #[test]
    fn each_id_is_one_block_and_the_last_one_is_cut() {
        let read = dataset(PLAIN, &DatasetOptions::default());
        let turns: Vec<&PlannedTurn> = read.conversations.iter().map(|conversation| &conversation.turns[0]).collect();
        let block = |number, tokens| TextSpan::Drawn { purpose: "block", number, tokens };
        assert_eq!(turns[0].content, TurnContent::Made(vec![block(7, 512)]));
        assert_eq!(turns[1].content, TurnContent::Made(vec![block(7, 512), block(8, 512)]));
        assert_eq!(turns[2].content, TurnContent::Made(vec![block(7, 512), block(8, 512), block(9, 76)]));
        assert_eq!(turns.iter().map(|turn| turn.max_tokens).collect::<Vec<_>>(), [1, 1, 52]);
        assert!(turns.iter().all(|turn| turn.whole));
        let small = dataset(
            "{\"input_length\": 40, \"hash_ids\": [1, 2, 3]}",
            &DatasetOptions { block_tokens: 16, ..DatasetOptions::default() },
        );
        assert_eq!(
            small.conversations[0].turns[0].content,
            TurnContent::Made(vec![block(1, 16), block(2, 16), block(3, 8)])
        );
    }

    #[test]
    fn further_rounds_repeat_the_prompt_after_the_answers() {
        let read = dataset(PLAIN, &DatasetOptions { rounds: 3, ..DatasetOptions::default() });
        let turns = &read.conversations[2].turns;
        assert_eq!(
            turns.iter().map(|turn| (turn.whole, turn.max_tokens)).collect::<Vec<_>>(),
            [(true, 52), (false, 52), (false, 52)]
        );
        assert_eq!((turns[0].at.is_some(), turns[1].at, &turns[1].content), (true, None, &turns[0].content));
        assert_eq!((read.rows, read.left_out), (3, 0));
    }

    #[test]
    fn request_times_are_relative_to_the_first() {
        let at = |slowdown| {
            let read = dataset(PLAIN, &DatasetOptions { slowdown, ..DatasetOptions::default() });
            let at = |conversation: &Conversation| conversation.turns[0].at.expect("a time").as_secs_f64() * 1e3;
            read.conversations.iter().map(at).collect::<Vec<_>>()
        };
        assert_eq!(at(1.0), [0.0, 0.5, 2000.0]);
        assert_eq!(at(0.5), [0.0, 0.25, 1000.0]);
    }

    #[test]
    fn session_rows_form_one_conversation_of_whole_or_delta_turns() {
        let text = r#"{"session_id": "a", "messages": [{"role": "user", "content": "x"}], "timestamp": 0, "output_length": 5}
{"session_id": 2, "message_mode": "delta", "messages": [{"role": "user", "content": "q"}], "tools": [{"b": 1, "a": 2}]}
{"session_id": "a", "messages": [{"role": "user", "content": "y"}], "delay": 1500, "extra": {"top_p": 0.5}}
{"session_id": 2, "message_mode": "delta", "messages": [{"role": "user", "content": "r"}]}
"#;
        let read = dataset(text, &DatasetOptions::default());
        let shape = |conversation: &Conversation| conversation.turns.iter().map(|turn| turn.whole).collect::<Vec<_>>();
        let mut shapes: Vec<Vec<bool>> = read.conversations.iter().map(shape).collect();
        shapes.sort();
        assert_eq!(shapes, [[false, false], [true, true]]);
        let whole = read.conversations.iter().find(|found| found.turns[0].whole).expect("a whole conversation");
        assert_eq!((whole.turns[0].max_tokens, whole.turns[1].delay), (5, Duration::from_millis(1500)));
        assert_eq!(whole.turns[1].extra.iter().collect::<Vec<_>>(), [("top_p", "0.5")]);
        let news = read.conversations.iter().find(|found| !found.turns[0].whole).expect("a delta conversation");
        assert_eq!(news.turns[1].extra.iter().collect::<Vec<_>>(), [("tools", r#"[{"b": 1, "a": 2}]"#)]);
    }

    #[test]
    fn text_and_length_rows_continue_the_conversation() {
        let text = "{\"session_id\": 1, \"text_input\": \"hi\"}\n{\"session_id\": 1, \"input_length\": 9, \"output_length\": 3}";
        let turns = dataset(text, &DatasetOptions::default()).conversations.remove(0).turns;
        assert_eq!((&turns[0].content, turns[0].max_tokens), (&TurnContent::Text("hi".into()), 256));
        assert_eq!(turns[1].content, TurnContent::Made(vec![TextSpan::Drawn { purpose: "row", number: 2, tokens: 9 }]));
        assert!(!turns[1].whole && turns[1].max_tokens == 3);
    }

    #[test]
    fn contradictory_rows_are_refused() {
        use RowError as E;
        type Expected = fn(&RowError) -> bool;
        let cases: [(&str, Expected); 13] = [
            ("{}", |e| matches!(e, E::NoPrompt)),
            ("{\"hash_ids\": []}", |e| matches!(e, E::EmptyPrompt)),
            ("{\"hash_ids\": [1, 2], \"input_length\": 512}", |e| {
                matches!(e, E::BlockMismatch { tokens: 512, blocks: 2, block: 512 })
            }),
            ("{\"hash_ids\": [-1]}", |e| matches!(e, E::Member { name: "hash_ids", .. })),
            ("{\"hash_ids\": [99999999999999999999999]}", |e| matches!(e, E::Member { name: "hash_ids", .. })),
            ("{\"hash_ids\": [1], \"timestamp\": -5}", |e| matches!(e, E::InvalidTime { value, .. } if value == "-5")),
            ("{\"hash_ids\": [1], \"timestamp\": 1e300}", |e| matches!(e, E::InvalidTime { .. })),
            ("{\"hash_ids\": [1], \"text_input\": \"x\"}", |e| matches!(e, E::SeveralPrompts)),
            ("{\"input_length\": 99999999999}", |e| matches!(e, E::InvalidTokens { .. })),
            ("{\"text_input\": \"x\", \"message_mode\": \"delta\"}", |e| matches!(e, E::ModeWithoutMessages)),
            ("{\"text_input\": \"x\", \"message_mode\": \"both\"}", |e| matches!(e, E::InvalidMessageMode(_))),
            ("{\"text_input\": \"x\", \"tools\": []}", |e| matches!(e, E::ToolsWithoutMessages)),
            ("[1]", |e| matches!(e, E::NotAnObject)),
        ];
        for (text, expected) in cases {
            assert!(expected(&reason(text)), "{text}: {}", reason(text));
        }
        let mixed = r#"{"session_id": 1, "messages": [{"role": "user"}]}
{"session_id": 1, "messages": [{"role": "user"}], "message_mode": "delta"}"#;
        assert_eq!(reason(mixed), RowError::MixedMessageModes { line: 1 });
    }

    #[test]
    fn limit_stops_reading_and_context_skips_long_rows() {
        let cut = format!("{PLAIN}oops");
        assert_eq!(dataset(&cut, &DatasetOptions { limit: 2, ..DatasetOptions::default() }).conversations.len(), 2);
        let read = dataset(PLAIN, &DatasetOptions { context: Some(600), ..DatasetOptions::default() });
        assert_eq!((read.conversations.len(), read.left_out), (1, 2));
        let read = dataset(&cut, &DatasetOptions { skip_bad: true, ..DatasetOptions::default() });
        assert_eq!((read.conversations.len(), read.skipped, read.first_bad.expect("kept").line), (3, 1, 4));
    }
}
