//! Recorded requests, JSONL: Mooncake's traces, and the rows that aiperf makes of them.
//!
//! A `hash_ids` row is a whole prompt: each id is one block of fixed words that come from the id alone, so that equal ids are equal
//! blocks and prompts share exactly what they shared when they were recorded; the last block is cut to `input_length`. Rows of one
//! `session_id` are one conversation. (The sizing commands have a reader of their own: they need the hashes of huge traces, no words
//! and none of aiperf's members.)

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

use crate::engine::load::workload::dataset::gather::{choose, rows};
use crate::engine::load::workload::dataset::openai::{cut, messages, tokens};
use crate::engine::load::workload::dataset::{Dataset, DatasetError, Layout, Reading, TOKENS_MAX};
use crate::engine::load::workload::{Conversation, Members, Message, Passage, Planned, Says, json_text};

/// Tokens of a block in the traces that Mooncake publishes.
pub const BLOCK_TOKENS: u32 = 512;
/// Tokens of an answer to messages or a text where the row does not say.
const OUTPUT: u32 = 256;
/// Later times are no times of a recording: ten years in milliseconds.
const TIME_MAX: f64 = 315_576_000_000.0;

/// What a row asks.
enum Asks {
    Blocks(Vec<u64>),
    Made(u32),
    Text(String),
    Messages(Vec<Message>),
}

struct Line {
    asks: Asks,
    output: Option<u32>,
    input: Option<u32>,
    at: Option<f64>,
    delay: Option<f64>,
    session: Option<String>,
    delta: bool,
    extra: Vec<(String, String)>,
    tools: Option<String>,
}

fn parse(text: &str) -> Result<Line, String> {
    let (mut blocks, mut said, mut plain, mut input) = (None, None, None, None);
    let (mut output, mut at, mut delay, mut session, mut delta) = (None, None, None, None, false);
    let (mut extra, mut tools) = (Vec::new(), None);
    for (name, value) in json_text::members(text)? {
        if value == "null" {
            continue;
        }
        match name.as_str() {
            "hash_ids" => {
                let ids: Vec<u64> = serde_json::from_str(value).map_err(|error| format!("hash_ids: {error}"))?;
                blocks = Some(ids);
            }
            "messages" => said = Some(messages(value)?),
            "text_input" => plain = Some(serde_json::from_str(value).map_err(|error| format!("text_input: {error}"))?),
            "input_length" => input = tokens(&name, value)?,
            // Traces hold answers of no token; one is asked for.
            "output_length" => output = if value == "0" { Some(1) } else { tokens(&name, value)? },
            "timestamp" => at = Some(time(&name, value)?),
            "delay" => delay = Some(time(&name, value)?),
            "session_id" => session = Some(value.to_owned()),
            "message_mode" => {
                delta = match value {
                    "\"delta\"" => true,
                    "\"history\"" => false,
                    other => return Err(format!("message_mode {} is neither history nor delta", cut(other))),
                };
            }
            "extra" => {
                let members = json_text::members(value).map_err(|error| format!("extra: {error}"))?;
                extra = members.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
            }
            "tools" => tools = Some(value.to_owned()),
            _ => {}
        }
    }
    let asks = match (blocks, said, plain, input) {
        (None, Some(said), None, None) => Asks::Messages(said),
        (None, None, Some(plain), None) => Asks::Text(plain),
        (Some(blocks), None, None, _) if !blocks.is_empty() => Asks::Blocks(blocks),
        (_, None, None, Some(input)) => Asks::Made(input),
        (None, None, None, None) => {
            return Err("it has neither hash_ids, input_length, messages nor text_input".to_owned());
        }
        (Some(_), None, None, None) => return Err("no hash_ids and no input_length: nothing is asked".to_owned()),
        _ => return Err("hash_ids with input_length, messages and text_input exclude each other".to_owned()),
    };
    if delta && !matches!(asks, Asks::Messages(_)) {
        return Err("message_mode is for messages".to_owned());
    }
    if delta && extra.iter().any(|(name, _)| name == "messages") {
        return Err("extra has messages, which would replace the history".to_owned());
    }
    Ok(Line { asks, output, input, at, delay, session, delta, extra, tools })
}

/// Milliseconds.
fn time(name: &str, text: &str) -> Result<f64, String> {
    let time = serde_json::from_str(text).ok().filter(|time| (0.0..=TIME_MAX).contains(time));
    time.ok_or_else(|| format!("{name} {} is no time in milliseconds", cut(text)))
}

/// The blocks of a prompt of `input` tokens.
fn passages(blocks: &[u64], input: Option<u32>, block: u32) -> Result<Vec<Passage>, String> {
    let full = u32::try_from(blocks.len() as u64 * u64::from(block)).unwrap_or(u32::MAX);
    let input = input.unwrap_or(full);
    if input > TOKENS_MAX {
        return Err(format!("{} blocks of {block} tokens are more than {TOKENS_MAX} tokens", blocks.len()));
    }
    if input.div_ceil(block) as usize != blocks.len() {
        return Err(format!("{input} tokens are not {} blocks of {block} tokens", blocks.len()));
    }
    let passage = |(at, id): (usize, &u64)| Passage::Drawn {
        purpose: "block",
        number: *id,
        tokens: (input - at as u32 * block).min(block),
    };
    Ok(blocks.iter().enumerate().map(passage).collect())
}

/// A conversation while its rows come in.
#[derive(Default)]
struct Session {
    /// Where it begins.
    line: u64,
    conversation: Conversation,
    /// Of the rows with messages: do they hold only what is new?
    delta: Option<bool>,
    /// The tools of its last row that had some.
    tools: Option<String>,
    /// It grew too long: nothing more belongs to it.
    closed: bool,
}

impl Session {
    /// `row`, which stands in `line`, is its next turn.
    fn add(&mut self, row: Line, line: u64, reading: &Reading) -> Result<(), String> {
        let (says, whole, prompt, output) = match row.asks {
            Asks::Blocks(blocks) => {
                let passages = passages(&blocks, row.input, reading.block_tokens.max(1))?;
                let prompt = passages.iter().map(|passage| passage.tokens()).sum();
                (Says::Made(passages), true, prompt, 1)
            }
            Asks::Made(tokens) => {
                (Says::Made(vec![Passage::Drawn { purpose: "row", number: line, tokens }]), false, tokens, 1)
            }
            Asks::Text(text) => {
                let prompt = if reading.context.is_some() { reading.tokens(&text, false)? } else { 0 };
                (Says::Text(text.into()), false, prompt, OUTPUT)
            }
            Asks::Messages(messages) => {
                if *self.delta.get_or_insert(row.delta) != row.delta {
                    return Err(format!(
                        "its message_mode is not that of its session, which begins in line {}",
                        self.line
                    ));
                }
                (Says::Messages(messages), !row.delta, 0, OUTPUT)
            }
        };
        if row.tools.is_some() {
            if !matches!(says, Says::Messages(_)) {
                return Err("tools are for messages".to_owned());
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
        // The tools of rows that hold only what is new stay until others come.
        let tools = if row.delta { self.tools.clone() } else { self.tools.take() };
        let members = tools.map(|tools| ("tools".to_owned(), tools)).into_iter().chain(row.extra);
        turns.push(Planned {
            says,
            whole,
            max_tokens,
            extra: Members::new(members),
            at: row.at.map(|at| Duration::from_secs_f64(at / 1e3)),
            delay: Duration::from_secs_f64(row.delay.unwrap_or_default() / 1e3),
        });
        Ok(())
    }
}

pub(super) fn read(input: impl BufRead, file: &str, reading: &Reading) -> Result<Dataset, DatasetError> {
    let mut dataset = Dataset::default();
    let mut sessions: Vec<Session> = Vec::new();
    let mut named: HashMap<String, usize> = HashMap::new();
    // Without sessions and in the order of the file nothing is read beyond what is wanted; a session may go on anywhere.
    let all = reading.limit == 0 || reading.shuffle;
    let enough = if all { usize::MAX } else { reading.limit.saturating_add(reading.offset) };
    rows(input, file, Layout::Lines, reading, &mut dataset, |text, line| {
        let row = parse(text)?;
        let at = row.session.as_ref().and_then(|session| named.get(session).copied());
        match at {
            Some(at) => sessions[at].add(row, line, reading)?,
            None => {
                let mut session = Session { line, ..Session::default() };
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
    // Not every trace is in the order of its times.
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

/// `turns`, with each recorded prompt repeated `rounds` times: appended to the answers so far, as soon as the previous answer ends.
fn rounds(turns: Vec<Planned>, rounds: u32) -> Vec<Planned> {
    let more = |turn: Planned| {
        let recorded = turn.whole && matches!(turn.says, Says::Made(_));
        let again = Planned { whole: false, at: None, delay: Duration::ZERO, ..turn.clone() };
        let count = if recorded { rounds.saturating_sub(1) as usize } else { 0 };
        std::iter::once(turn).chain(std::iter::repeat_n(again, count))
    };
    turns.into_iter().flat_map(more).collect()
}

/// Times count from the first of all, and are stretched.
fn retime(conversations: &mut [Conversation], slowdown: f64) {
    let turns = || conversations.iter().flat_map(|conversation| &conversation.turns);
    let first = turns().filter_map(|turn| turn.at).min().unwrap_or_default();
    for turn in conversations.iter_mut().flat_map(|conversation| &mut conversation.turns) {
        // Bounded: ten years, and a factor that the command line bounds.
        turn.at = turn.at.map(|at| (at - first).mul_f64(slowdown));
        turn.delay = turn.delay.mul_f64(slowdown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(text: &str, reading: &Reading) -> Dataset {
        read(text.as_bytes(), "t", reading).expect("a trace")
    }

    fn reason(text: &str) -> String {
        match read(text.as_bytes(), "t", &Reading::default()) {
            Err(DatasetError::Row { bad, .. }) => bad.reason,
            other => panic!("{other:?}"),
        }
    }

    const PLAIN: &str = r#"{"timestamp": 2500, "input_length": 1100, "output_length": 52, "hash_ids": [7, 8, 9]}
{"timestamp": 500, "input_length": 512, "output_length": 0, "hash_ids": [7]}
{"timestamp": 500.5, "hash_ids": [7, 8]}
"#;

    #[test]
    fn every_id_is_one_block_and_the_last_one_is_cut() {
        let read = dataset(PLAIN, &Reading::default());
        let turns: Vec<&Planned> = read.conversations.iter().map(|conversation| &conversation.turns[0]).collect();
        let block = |number, tokens| Passage::Drawn { purpose: "block", number, tokens };
        assert_eq!(turns[0].says, Says::Made(vec![block(7, 512)]));
        assert_eq!(turns[1].says, Says::Made(vec![block(7, 512), block(8, 512)]));
        assert_eq!(turns[2].says, Says::Made(vec![block(7, 512), block(8, 512), block(9, 76)]));
        assert_eq!(turns.iter().map(|turn| turn.max_tokens).collect::<Vec<_>>(), [1, 1, 52]);
        assert!(turns.iter().all(|turn| turn.whole));
        let small = dataset(
            "{\"input_length\": 40, \"hash_ids\": [1, 2, 3]}",
            &Reading { block_tokens: 16, ..Reading::default() },
        );
        assert_eq!(small.conversations[0].turns[0].says, Says::Made(vec![block(1, 16), block(2, 16), block(3, 8)]));
    }

    #[test]
    fn further_rounds_ask_the_recorded_prompt_again_behind_the_answers() {
        let read = dataset(PLAIN, &Reading { rounds: 3, ..Reading::default() });
        let turns = &read.conversations[2].turns;
        assert_eq!(
            turns.iter().map(|turn| (turn.whole, turn.max_tokens)).collect::<Vec<_>>(),
            [(true, 52), (false, 52), (false, 52)]
        );
        assert_eq!((turns[0].at.is_some(), turns[1].at, &turns[1].says), (true, None, &turns[0].says));
        assert_eq!((read.rows, read.left_out), (3, 0));
    }

    #[test]
    fn requests_come_at_their_times_since_the_first_one() {
        let at = |slowdown| {
            let read = dataset(PLAIN, &Reading { slowdown, ..Reading::default() });
            let at = |conversation: &Conversation| conversation.turns[0].at.expect("a time").as_secs_f64() * 1e3;
            read.conversations.iter().map(at).collect::<Vec<_>>()
        };
        assert_eq!(at(1.0), [0.0, 0.5, 2000.0]);
        assert_eq!(at(0.5), [0.0, 0.25, 1000.0]);
    }

    #[test]
    fn rows_of_a_session_are_one_conversation_of_whole_requests_or_of_news() {
        let text = r#"{"session_id": "a", "messages": [{"role": "user", "content": "x"}], "timestamp": 0, "output_length": 5}
{"session_id": 2, "message_mode": "delta", "messages": [{"role": "user", "content": "q"}], "tools": [{"b": 1, "a": 2}]}
{"session_id": "a", "messages": [{"role": "user", "content": "y"}], "delay": 1500, "extra": {"top_p": 0.5}}
{"session_id": 2, "message_mode": "delta", "messages": [{"role": "user", "content": "r"}]}
"#;
        let read = dataset(text, &Reading::default());
        let shape = |conversation: &Conversation| conversation.turns.iter().map(|turn| turn.whole).collect::<Vec<_>>();
        let mut shapes: Vec<Vec<bool>> = read.conversations.iter().map(shape).collect();
        shapes.sort();
        assert_eq!(shapes, [[false, false], [true, true]]);
        let whole = read.conversations.iter().find(|found| found.turns[0].whole).expect("it is there");
        assert_eq!((whole.turns[0].max_tokens, whole.turns[1].delay), (5, Duration::from_millis(1500)));
        assert_eq!(whole.turns[1].extra.iter().collect::<Vec<_>>(), [("top_p", "0.5")]);
        let news = read.conversations.iter().find(|found| !found.turns[0].whole).expect("it is there");
        assert_eq!(news.turns[1].extra.iter().collect::<Vec<_>>(), [("tools", r#"[{"b": 1, "a": 2}]"#)]);
    }

    #[test]
    fn texts_and_lengths_alone_go_on_with_what_was_said() {
        let text = "{\"session_id\": 1, \"text_input\": \"hi\"}\n{\"session_id\": 1, \"input_length\": 9, \"output_length\": 3}";
        let turns = dataset(text, &Reading::default()).conversations.remove(0).turns;
        assert_eq!((&turns[0].says, turns[0].max_tokens), (&Says::Text("hi".into()), 256));
        assert_eq!(turns[1].says, Says::Made(vec![Passage::Drawn { purpose: "row", number: 2, tokens: 9 }]));
        assert!(!turns[1].whole && turns[1].max_tokens == 3);
    }

    #[test]
    fn a_row_that_contradicts_itself_is_refused() {
        for (text, why) in [
            ("{}", "neither hash_ids"),
            ("{\"hash_ids\": []}", "nothing is asked"),
            ("{\"hash_ids\": [1, 2], \"input_length\": 512}", "512 tokens are not 2 blocks of 512 tokens"),
            ("{\"hash_ids\": [-1]}", "hash_ids: invalid value"),
            ("{\"hash_ids\": [99999999999999999999999]}", "hash_ids"),
            ("{\"hash_ids\": [1], \"timestamp\": -5}", "timestamp -5 is no time"),
            ("{\"hash_ids\": [1], \"timestamp\": 1e300}", "no time"),
            ("{\"hash_ids\": [1], \"text_input\": \"x\"}", "exclude each other"),
            ("{\"input_length\": 99999999999}", "input_length 99999999999 is no number of tokens"),
            ("{\"text_input\": \"x\", \"message_mode\": \"delta\"}", "message_mode is for messages"),
            ("{\"text_input\": \"x\", \"message_mode\": \"both\"}", "neither history nor delta"),
            ("{\"text_input\": \"x\", \"tools\": []}", "tools are for messages"),
            ("[1]", "no JSON object"),
        ] {
            assert!(reason(text).contains(why), "{text}: {}", reason(text));
        }
        let mixed = r#"{"session_id": 1, "messages": [{"role": "user"}]}
{"session_id": 1, "messages": [{"role": "user"}], "message_mode": "delta"}"#;
        assert!(reason(mixed).contains("which begins in line 1"));
    }

    #[test]
    fn a_limit_stops_the_reading_and_a_context_leaves_long_rows_out() {
        let cut = format!("{PLAIN}oops");
        assert_eq!(dataset(&cut, &Reading { limit: 2, ..Reading::default() }).conversations.len(), 2);
        let read = dataset(PLAIN, &Reading { context: Some(600), ..Reading::default() });
        assert_eq!((read.conversations.len(), read.left_out), (1, 2));
        let read = dataset(&cut, &Reading { skip_bad: true, ..Reading::default() });
        assert_eq!((read.conversations.len(), read.skipped, read.first_bad.expect("kept").line), (3, 1, 4));
    }
}
