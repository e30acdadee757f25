//! ShareGPT: conversations as lists of messages, each with a speaker.

use std::io::BufRead;

use serde::Deserialize;

use crate::workload::dataset::gather::gather;
use crate::workload::dataset::{Dataset, DatasetError, DatasetOptions, RowLayout};
use crate::workload::{ChatMessage, ChatRole, Conversation, PlannedTurn, RowError, TurnContent};

/// Minimum prompt and output length in `sglang.bench_serving`, in tokens.
const SHORTEST: u32 = 2;

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    System,
    User,
    Assistant,
}

/// A conversation's messages, as in the file.
pub(super) type Dialogue = Vec<(Speaker, String)>;

#[derive(Deserialize)]
struct ShareGptRow {
    conversations: Option<Vec<ShareGptMessage>>,
    conversation: Option<Vec<ShareGptMessage>>,
}

#[derive(Deserialize)]
struct ShareGptMessage {
    from: Option<String>,
    role: Option<String>,
    value: Option<String>,
    content: Option<String>,
}

pub(super) fn parse(text: &str, reading: &DatasetOptions) -> Result<Dialogue, RowError> {
    let line: ShareGptRow = serde_json::from_str(text)?;
    let messages = line.conversations.or(line.conversation).ok_or(RowError::NoConversation)?;
    let speakers = messages.into_iter().enumerate().map(|(at, message)| {
        let value = message.content.or(message.value).ok_or_else(|| RowError::NoText.in_message(at))?;
        let speaker = match message.from.or(message.role).as_deref() {
            // Without speakers, messages alternate.
            None => [Speaker::User, Speaker::Assistant][at % 2],
            Some("system") => Speaker::System,
            Some("human" | "user" | "prompter" | "tool" | "function" | "observation") => Speaker::User,
            Some("gpt" | "assistant" | "chatgpt" | "bot" | "model" | "bing" | "bard" | "function_call") => {
                Speaker::Assistant
            }
            // The speakers of the first two messages are irrelevant.
            Some(_) if reading.first_turn_only => Speaker::User,
            Some(other) => return Err(RowError::UnknownSpeaker(other.to_owned()).in_message(at)),
        };
        Ok((speaker, value))
    });
    speakers.collect()
}

pub(super) fn read(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    read_dialogues(input, file, RowLayout::ArrayOrLines, reading, |text| parse(text, reading))
}

/// Reads dialogues as conversations, with all turns or only the first one.
pub(super) fn read_dialogues(
    input: impl BufRead,
    file: &str,
    layout: RowLayout,
    reading: &DatasetOptions,
    parse: impl Fn(&str) -> Result<Dialogue, RowError>,
) -> Result<Dataset, DatasetError> {
    let plan = |dialogue| {
        if reading.first_turn_only { first_turn(dialogue, reading) } else { all_turns(dialogue, reading) }
    };
    let parse = |text: &str| {
        let mut dialogue = parse(text)?;
        if reading.first_turn_only {
            dialogue.truncate(2);
        }
        Ok(dialogue)
    };
    let usable = |dialogue: &Dialogue| !reading.first_turn_only || dialogue.len() == 2;
    let mut dataset = gather(input, file, layout, reading, parse, usable, plan)?;
    dataset.estimated = reading.tokenizer.is_none() && (reading.output.is_none() || reading.context.is_some());
    Ok(dataset)
}

/// Uses the first message as the prompt and the length of the second as the output length,
/// regardless of the speakers. Special tokens are counted, and both messages need at least two
/// tokens. This matches `sglang.bench_serving` 0.5.23.
fn first_turn(dialogue: Dialogue, reading: &DatasetOptions) -> Result<Option<Conversation>, RowError> {
    let mut texts = dialogue.into_iter().map(|(_, text)| text);
    let (Some(prompt), Some(reply)) = (texts.next(), texts.next()) else { return Ok(None) };
    let prompt = reading.prompt(prompt)?;
    let input = reading.tokens(&prompt, true)?;
    let output = reading.output.map_or_else(|| reading.tokens(&reply, true), Ok)?;
    let long = reading.context.is_some_and(|most| input.saturating_add(output) > most);
    if input < SHORTEST || output < SHORTEST || long {
        return Ok(None);
    }
    let turns = vec![PlannedTurn::new(TurnContent::Text(prompt.into()), output)];
    Ok(Some(Conversation::new(turns)))
}

/// Creates one turn for each answer in the file, with the answer's length as the output length. A
/// question without an answer is skipped, unless the output length is set explicitly.
pub(super) fn all_turns(dialogue: Dialogue, reading: &DatasetOptions) -> Result<Option<Conversation>, RowError> {
    let mut turns: Vec<PlannedTurn> = Vec::new();
    let mut messages: Vec<(ChatRole, String)> = Vec::new();
    let mut context = 0_u32;
    let mut dialogue = dialogue;
    if let Some((_, first)) = dialogue.iter_mut().find(|(speaker, _)| *speaker == Speaker::User) {
        // Servers reject an empty prompt, and the rest of the conversation depends on it.
        if first.trim().is_empty() {
            return Ok(None);
        }
        *first = reading.prompt(std::mem::take(first))?;
    }
    let most = reading.max_turns.map_or(usize::MAX, |most| most as usize);
    // A final question without an answer becomes a turn if the output length is set explicitly.
    let end = reading.output.map(|_| (Speaker::Assistant, String::new()));
    for (speaker, text) in dialogue.into_iter().chain(end) {
        let role = match speaker {
            Speaker::System => ChatRole::System,
            Speaker::User => ChatRole::User,
            Speaker::Assistant => {
                if !messages.iter().any(|(role, _)| *role == ChatRole::User) {
                    // An answer without a question, or a continuation of the previous answer.
                    if let (None, Some(last)) = (reading.output, turns.last_mut()) {
                        let more = reading.tokens(&text, false)?;
                        last.max_tokens = last.max_tokens.saturating_add(more);
                        context = context.saturating_add(more);
                    }
                    continue;
                }
                let mut input = 0_u32;
                if reading.context.is_some() {
                    for (_, text) in &messages {
                        input = input.saturating_add(reading.tokens(text, false)?);
                    }
                }
                let output = reading.output.map_or_else(|| reading.tokens(&text, false), Ok)?.max(1);
                context = context.saturating_add(input).saturating_add(output);
                if turns.len() >= most || reading.context.is_some_and(|most| context > most) {
                    break;
                }
                turns.push(PlannedTurn::new(turn_content(std::mem::take(&mut messages)), output));
                continue;
            }
        };
        messages.push((role, text));
    }
    Ok((!turns.is_empty()).then_some(Conversation::new(turns)))
}

fn turn_content(messages: Vec<(ChatRole, String)>) -> TurnContent {
    match &messages[..] {
        [(ChatRole::User, text)] => TurnContent::Text(text.as_str().into()),
        _ => TurnContent::Messages(messages.iter().map(|(role, text)| ChatMessage::new(*role, text)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;
    use crate::workload::tokenizer::tests::small;
    use std::sync::Arc;

    fn dataset(text: &str, reading: &DatasetOptions) -> Dataset {
        read(text.as_bytes(), "f", reading).expect("a dataset")
    }

    fn texts(dataset: &Dataset) -> Vec<Vec<(String, u32)>> {
        let text = |turn: &PlannedTurn| match &turn.content {
            TurnContent::Text(text) => (text.to_string(), turn.max_tokens),
            other => (format!("{other:?}"), turn.max_tokens),
        };
        dataset.conversations.iter().map(|conversation| conversation.turns.iter().map(text).collect()).collect()
    }

    fn with_tokenizer() -> DatasetOptions {
        DatasetOptions { tokenizer: Some(Arc::new(small())), ..DatasetOptions::default() }
    }

    const TWO: &str = r#"[
        {"id": "a", "conversations": [{"from": "human", "value": " ab"}, {"from": "gpt", "value": " cd ef"},
            {"from": "human", "value": " gh"}, {"from": "gpt", "value": " ab ab ab"}, {"from": "human", "value": " ba"}]},
        {"conversation": [{"from": "user", "value": "x y"}, {"from": "assistant", "value": "z z z"}]}
    ]"#;

    #[test]
    fn every_answered_turn_is_used_with_its_answer_length() {
        let read = dataset(TWO, &with_tokenizer());
        assert_eq!(texts(&read)[0], [(" ab".to_owned(), 2), (" gh".to_owned(), 3)]);
        assert!(!read.estimated);
    }

    #[test]
    fn lengths_without_a_tokenizer_are_marked_as_estimated() {
        let read = dataset(TWO, &DatasetOptions::default());
        assert_eq!(texts(&read)[1], [("x y".to_owned(), 4)]);
        assert!(read.estimated);
        let given = dataset(TWO, &DatasetOptions { output: Some(7), ..DatasetOptions::default() });
        assert!(!given.estimated);
        assert_eq!(texts(&given)[0].len(), 3, "the last question counts if the output length is set");
    }

    #[test]
    fn system_prompts_precede_the_question_and_stray_answers_are_skipped() {
        let text = r#"[{"conversations": [{"from": "gpt", "value": "hello"}, {"from": "system", "value": "be brief"},
            {"from": "human", "value": "a"}, {"from": "human", "value": "b"}, {"from": "gpt", "value": "x"},
            {"from": "gpt", "value": "y y"}]}]"#;
        let read = dataset(text, &DatasetOptions::default());
        let [turn] = &read.conversations[0].turns[..] else { panic!("one turn") };
        let expected = [(ChatRole::System, "be brief"), (ChatRole::User, "a"), (ChatRole::User, "b")];
        let messages = expected.iter().map(|(role, text)| ChatMessage::new(*role, text)).collect();
        assert_eq!((&turn.content, turn.max_tokens), (&TurnContent::Messages(messages), 2 + 3));
    }

    #[test]
    fn first_turn_is_selected_like_in_bench_serving() {
        let mut reading = with_tokenizer();
        reading.first_turn_only = true;
        let text = r#"[{"conversations": [{"from": "gpt", "value": " ab"}, {"from": "x", "value": " cd"}]}]"#;
        assert!(read(text.as_bytes(), "f", &DatasetOptions::default()).is_err(), "an unknown speaker");
        assert_eq!(texts(&dataset(text, &reading)), [[(" ab".to_owned(), 2)]]);
        let text = r#"[{"conversations": [{"from": "gpt", "value": " ab"}, {"from": "human", "value": " cd ef"}]},
            {"conversations": [{"from": "human", "value": " ab"}]},
            {"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": " cd ef"}]},
            {"conversations": [{"from": "human", "value": " ab ab"}, {"from": "gpt", "value": ""}]}]"#;
        let read = dataset(text, &reading);
        // The special token before the text is counted, so a single word counts as two tokens, and
        // an empty string as one.
        assert_eq!(texts(&read), [[(" ab".to_owned(), 3)]]);
        assert_eq!((read.rows, read.left_out), (4, 3));
        reading.context = Some(4);
        assert_eq!(dataset(text, &reading).left_out, 4);
    }

    #[test]
    fn row_with_an_empty_first_question_is_left_out() {
        let row = |first: &str| {
            format!(
                r#"{{"conversations": [{{"from": "human", "value": "{first}"}}, {{"from": "gpt", "value": "a a"}},
                {{"from": "human", "value": "b"}}, {{"from": "gpt", "value": "c c"}}]}}"#
            )
        };
        let text = format!("[{}, {}, {}]", row(""), row(" \\n"), row("q"));
        for reading in
            [DatasetOptions::default(), DatasetOptions { suffix: "x".to_owned(), ..DatasetOptions::default() }]
        {
            let read = dataset(&text, &reading);
            assert_eq!((read.conversations.len(), read.rows, read.left_out), (1, 3, 2));
        }
    }

    #[test]
    fn suffix_goes_between_first_question_and_answer_marker() {
        let text = r#"[{"conversations": [{"from": "human", "value": "one two Assistant:"}, {"from": "gpt", "value": "a b c"}]}]"#;
        let reading = DatasetOptions { suffix: " be brief ".to_owned(), ..DatasetOptions::default() };
        for reading in [reading.clone(), DatasetOptions { first_turn_only: true, ..reading }] {
            assert_eq!(texts(&dataset(text, &reading))[0][0].0, "one two  be brief Assistant:");
        }
    }

    #[test]
    fn conversation_ends_at_the_context_length() {
        let mut reading = with_tokenizer();
        reading.context = Some(6);
        assert_eq!(texts(&dataset(TWO, &reading))[0].len(), 1);
        reading.context = Some(7);
        assert_eq!(texts(&dataset(TWO, &reading))[0].len(), 2);
        assert_eq!(texts(&dataset(TWO, &DatasetOptions { max_turns: Some(1), ..with_tokenizer() }))[0].len(), 1);
    }

    fn many(rows: usize) -> String {
        let row = |n| {
            format!(r#"{{"conversations": [{{"from": "human", "value": "q{n}"}}, {{"from": "gpt", "value": "a"}}]}}"#)
        };
        format!("[{}]", (0..rows).map(row).collect::<Vec<_>>().join(",\n"))
    }

    fn first_words(dataset: &Dataset) -> Vec<String> {
        texts(dataset).into_iter().map(|turns| turns[0].0.clone()).collect()
    }

    #[test]
    fn selection_and_order_depend_only_on_the_seed() {
        let text = many(50);
        let chosen = |seed, limit| {
            let reading = DatasetOptions { shuffle: true, limit, seed: Seed(seed), ..DatasetOptions::default() };
            first_words(&dataset(&text, &reading))
        };
        assert_eq!(chosen(1, 10), chosen(1, 10));
        assert_ne!(chosen(1, 10), chosen(2, 10));
        assert_eq!(chosen(1, 10)[..], chosen(1, 0)[..10]);
        let mut all = chosen(3, 0);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 50);
    }

    #[test]
    fn offset_and_limit_count_conversations_and_stop_reading() {
        let text = many(3).replace("q2", "q2\", oops");
        let reading = DatasetOptions { offset: 1, limit: 1, ..DatasetOptions::default() };
        assert_eq!(first_words(&dataset(&text, &reading)), ["q1"]);
    }

    #[test]
    fn malformed_row_has_its_line_and_can_be_skipped() {
        let text = many(3).replace("{\"from\": \"human\", \"value\": \"q1\"}", "{\"from\": \"human\", \"value\": 7}");
        let error =
            read(text.as_bytes(), "talk.json", &DatasetOptions::default()).expect_err("a number instead of a string");
        assert!(error.to_string().starts_with("talk.json:2: invalid type: integer `7`"), "{error}");
        let read = dataset(&text, &DatasetOptions { skip_bad: true, ..DatasetOptions::default() });
        assert_eq!((first_words(&read), read.skipped), (vec!["q0".to_owned(), "q2".to_owned()], 1));
        assert_eq!(read.first_bad.expect("the first bad row").line, 2);
    }

    #[test]
    fn dataset_without_usable_rows_is_an_error() {
        for text in ["[]", "", "[{\"conversations\": []}]"] {
            let error = crate::workload::dataset::read(
                text.as_bytes(),
                "f",
                crate::workload::dataset::DatasetFormat::ShareGpt,
                &DatasetOptions::default(),
            );
            assert!(matches!(error, Err(DatasetError::Empty { .. })), "{error:?}");
        }
    }
}
