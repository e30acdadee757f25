//! ShareGPT: conversations as lists of who says what.

use std::io::BufRead;

use serde::Deserialize;

use crate::engine::load::workload::dataset::gather::gather;
use crate::engine::load::workload::dataset::{Dataset, DatasetError, Layout, Reading};
use crate::engine::load::workload::{Conversation, Message, Planned, Role, Says};

/// Shortest prompts and answers that `sglang.bench_serving` sends, in tokens.
const SHORTEST: u32 = 2;

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    System,
    User,
    Assistant,
}

/// A conversation as it stands in a file.
pub(super) type Dialogue = Vec<(Speaker, String)>;

#[derive(Deserialize)]
struct Line {
    conversations: Option<Vec<Said>>,
    conversation: Option<Vec<Said>>,
}

#[derive(Deserialize)]
struct Said {
    from: Option<String>,
    role: Option<String>,
    value: Option<String>,
    content: Option<String>,
}

/// The dialogue in `text`.
pub(super) fn parse(text: &str, reading: &Reading) -> Result<Dialogue, String> {
    let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let said = line.conversations.or(line.conversation).ok_or("it has neither 'conversations' nor 'conversation'")?;
    let speakers = said.into_iter().enumerate().map(|(at, said)| {
        let value = said.content.or(said.value).ok_or_else(|| format!("message {} has no text", at + 1))?;
        let speaker = match said.from.or(said.role).as_deref() {
            // Without a word on it they speak in turn.
            None => [Speaker::User, Speaker::Assistant][at % 2],
            Some("system") => Speaker::System,
            Some("human" | "user" | "prompter" | "tool" | "function" | "observation") => Speaker::User,
            Some("gpt" | "assistant" | "chatgpt" | "bot" | "model" | "bing" | "bard" | "function_call") => {
                Speaker::Assistant
            }
            // It does not matter who says the first two.
            Some(_) if reading.first_turn_only => Speaker::User,
            Some(other) => return Err(format!("message {} is from '{other}', which is nobody known", at + 1)),
        };
        Ok((speaker, value))
    });
    speakers.collect()
}

pub(super) fn read(input: impl BufRead, file: &str, reading: &Reading) -> Result<Dataset, DatasetError> {
    read_dialogues(input, file, Layout::ArrayOrLines, reading, |text| parse(text, reading))
}

/// Dialogues as conversations: all of their turns, or the first alone.
pub(super) fn read_dialogues(
    input: impl BufRead,
    file: &str,
    layout: Layout,
    reading: &Reading,
    parse: impl Fn(&str) -> Result<Dialogue, String>,
) -> Result<Dataset, DatasetError> {
    let plan = |dialogue| {
        if reading.first_turn_only { first_turn(dialogue, reading) } else { all_turns(dialogue, reading) }
    };
    let mut dataset = gather(input, file, layout, reading, parse, plan)?;
    dataset.estimated = reading.tokenizer.is_none() && (reading.output.is_none() || reading.context.is_some());
    Ok(dataset)
}

/// The first message as a request, as long an answer as the second one: whoever says them, special tokens counted, both of at least
/// two tokens. That is what `sglang.bench_serving` 0.5.23 does.
fn first_turn(dialogue: Dialogue, reading: &Reading) -> Result<Option<Conversation>, String> {
    let mut texts = dialogue.into_iter().map(|(_, text)| text);
    let (Some(prompt), Some(reply)) = (texts.next(), texts.next()) else { return Ok(None) };
    let prompt = reading.prompt(prompt)?;
    let input = reading.tokens(&prompt, true)?;
    let output = reading.output.map_or_else(|| reading.tokens(&reply, true), Ok)?;
    let long = reading.context.is_some_and(|most| input.saturating_add(output) > most);
    if input < SHORTEST || output < SHORTEST || long {
        return Ok(None);
    }
    let turns = vec![Planned::new(Says::Text(prompt.into()), output)];
    Ok(Some(Conversation { turns, routing_key: None }))
}

/// A turn for each answer in the file, as long as it. What nobody answers is not asked, unless the length of answers is given.
pub(super) fn all_turns(dialogue: Dialogue, reading: &Reading) -> Result<Option<Conversation>, String> {
    let mut turns: Vec<Planned> = Vec::new();
    let mut said: Vec<(Role, String)> = Vec::new();
    let mut context = 0_u32;
    let mut dialogue = dialogue;
    if let Some((_, first)) = dialogue.iter_mut().find(|(speaker, _)| *speaker == Speaker::User) {
        *first = reading.prompt(std::mem::take(first))?;
    }
    let most = reading.max_turns.map_or(usize::MAX, |most| most as usize);
    // An end that nobody answers is a turn where the length of the answer is known.
    let end = reading.output.map(|_| (Speaker::Assistant, String::new()));
    for (speaker, text) in dialogue.into_iter().chain(end) {
        let role = match speaker {
            Speaker::System => Role::System,
            Speaker::User => Role::User,
            Speaker::Assistant => {
                if !said.iter().any(|(role, _)| *role == Role::User) {
                    // An answer to nothing, or the rest of one.
                    if let (None, Some(last)) = (reading.output, turns.last_mut()) {
                        let more = reading.tokens(&text, false)?;
                        last.max_tokens = last.max_tokens.saturating_add(more);
                        context = context.saturating_add(more);
                    }
                    continue;
                }
                let mut input = 0_u32;
                if reading.context.is_some() {
                    for (_, text) in &said {
                        input = input.saturating_add(reading.tokens(text, false)?);
                    }
                }
                let output = reading.output.map_or_else(|| reading.tokens(&text, false), Ok)?.max(1);
                context = context.saturating_add(input).saturating_add(output);
                if turns.len() >= most || reading.context.is_some_and(|most| context > most) {
                    break;
                }
                turns.push(Planned::new(says(std::mem::take(&mut said)), output));
                continue;
            }
        };
        said.push((role, text));
    }
    Ok((!turns.is_empty()).then_some(Conversation { turns, routing_key: None }))
}

fn says(said: Vec<(Role, String)>) -> Says {
    match &said[..] {
        [(Role::User, text)] => Says::Text(text.as_str().into()),
        _ => Says::Messages(said.iter().map(|(role, text)| Message::new(*role, text)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Seed;
    use crate::engine::load::workload::tokenizer::tests::small;
    use std::sync::Arc;

    fn dataset(text: &str, reading: &Reading) -> Dataset {
        read(text.as_bytes(), "f", reading).expect("a dataset")
    }

    fn texts(dataset: &Dataset) -> Vec<Vec<(String, u32)>> {
        let text = |turn: &Planned| match &turn.says {
            Says::Text(text) => (text.to_string(), turn.max_tokens),
            other => (format!("{other:?}"), turn.max_tokens),
        };
        dataset.conversations.iter().map(|conversation| conversation.turns.iter().map(text).collect()).collect()
    }

    fn with_tokenizer() -> Reading {
        Reading { tokenizer: Some(Arc::new(small())), ..Reading::default() }
    }

    const TWO: &str = r#"[
        {"id": "a", "conversations": [{"from": "human", "value": " ab"}, {"from": "gpt", "value": " cd ef"},
            {"from": "human", "value": " gh"}, {"from": "gpt", "value": " ab ab ab"}, {"from": "human", "value": " ba"}]},
        {"conversation": [{"from": "user", "value": "x y"}, {"from": "assistant", "value": "z z z"}]}
    ]"#;

    #[test]
    fn every_turn_that_was_answered_is_asked_and_answers_are_as_long_as_in_the_file() {
        let read = dataset(TWO, &with_tokenizer());
        assert_eq!(texts(&read)[0], [(" ab".to_owned(), 2), (" gh".to_owned(), 3)]);
        assert!(!read.estimated);
    }

    #[test]
    fn without_a_tokenizer_lengths_are_estimated_and_that_is_said() {
        let read = dataset(TWO, &Reading::default());
        assert_eq!(texts(&read)[1], [("x y".to_owned(), 4)]);
        assert!(read.estimated);
        let given = dataset(TWO, &Reading { output: Some(7), ..Reading::default() });
        assert!(!given.estimated);
        assert_eq!(texts(&given)[0].len(), 3, "the end is asked, too, when the length of its answer is known");
    }

    #[test]
    fn instructions_go_before_the_question_and_answers_to_nothing_are_passed_over() {
        let text = r#"[{"conversations": [{"from": "gpt", "value": "hello"}, {"from": "system", "value": "be brief"},
            {"from": "human", "value": "a"}, {"from": "human", "value": "b"}, {"from": "gpt", "value": "x"},
            {"from": "gpt", "value": "y y"}]}]"#;
        let read = dataset(text, &Reading::default());
        let [turn] = &read.conversations[0].turns[..] else { panic!("one turn") };
        let said = [(Role::System, "be brief"), (Role::User, "a"), (Role::User, "b")];
        let messages = said.iter().map(|(role, text)| Message::new(*role, text)).collect();
        assert_eq!((&turn.says, turn.max_tokens), (&Says::Messages(messages), 2 + 3));
    }

    #[test]
    fn the_first_turn_alone_is_chosen_as_bench_serving_does() {
        let mut reading = with_tokenizer();
        reading.first_turn_only = true;
        let text = r#"[{"conversations": [{"from": "gpt", "value": " ab"}, {"from": "x", "value": " cd"}]}]"#;
        assert!(read(text.as_bytes(), "f", &Reading::default()).is_err(), "a speaker that is nobody");
        assert_eq!(texts(&dataset(text, &reading)), [[(" ab".to_owned(), 2)]]);
        let text = r#"[{"conversations": [{"from": "gpt", "value": " ab"}, {"from": "human", "value": " cd ef"}]},
            {"conversations": [{"from": "human", "value": " ab"}]},
            {"conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": " cd ef"}]},
            {"conversations": [{"from": "human", "value": " ab ab"}, {"from": "gpt", "value": ""}]}]"#;
        let read = dataset(text, &reading);
        // The special token before a text counts: one word is two tokens, and an empty text one.
        assert_eq!(texts(&read), [[(" ab".to_owned(), 3)]]);
        assert_eq!((read.rows, read.left_out), (4, 3));
        reading.context = Some(4);
        assert_eq!(dataset(text, &reading).left_out, 4);
    }

    #[test]
    fn a_suffix_stands_behind_the_first_question_and_before_the_word_for_the_answer() {
        let text = r#"[{"conversations": [{"from": "human", "value": "one two Assistant:"}, {"from": "gpt", "value": "a b c"}]}]"#;
        let reading = Reading { suffix: " be brief ".to_owned(), ..Reading::default() };
        for reading in [reading.clone(), Reading { first_turn_only: true, ..reading }] {
            assert_eq!(texts(&dataset(text, &reading))[0][0].0, "one two  be brief Assistant:");
        }
    }

    #[test]
    fn a_conversation_ends_where_the_context_does() {
        let mut reading = with_tokenizer();
        reading.context = Some(6);
        assert_eq!(texts(&dataset(TWO, &reading))[0].len(), 1);
        reading.context = Some(7);
        assert_eq!(texts(&dataset(TWO, &reading))[0].len(), 2);
        assert_eq!(texts(&dataset(TWO, &Reading { max_turns: Some(1), ..with_tokenizer() }))[0].len(), 1);
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
    fn the_same_seed_chooses_the_same_in_the_same_order_and_another_does_not() {
        let text = many(50);
        let chosen = |seed, limit| {
            let reading = Reading { shuffle: true, limit, seed: Seed(seed), ..Reading::default() };
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
    fn offset_and_limit_count_conversations_and_nothing_is_read_beyond_them() {
        let text = many(3).replace("q2", "q2\", oops");
        let reading = Reading { offset: 1, limit: 1, ..Reading::default() };
        assert_eq!(first_words(&dataset(&text, &reading)), ["q1"]);
    }

    #[test]
    fn a_malformed_row_has_its_line_and_the_rest_is_read_where_it_may_be_skipped() {
        let text = many(3).replace("{\"from\": \"human\", \"value\": \"q1\"}", "{\"from\": \"human\", \"value\": 7}");
        let error = read(text.as_bytes(), "talk.json", &Reading::default()).expect_err("a number is no text");
        assert!(error.to_string().starts_with("talk.json:2: invalid type: integer `7`"), "{error}");
        let read = dataset(&text, &Reading { skip_bad: true, ..Reading::default() });
        assert_eq!((first_words(&read), read.skipped), (vec!["q0".to_owned(), "q2".to_owned()], 1));
        assert_eq!(read.first_bad.expect("it is kept").line, 2);
    }

    #[test]
    fn nothing_to_send_is_an_error() {
        for text in ["[]", "", "[{\"conversations\": []}]"] {
            let error = crate::engine::load::workload::dataset::read(
                text.as_bytes(),
                "f",
                crate::engine::load::workload::dataset::Format::ShareGpt,
                &Reading::default(),
            );
            assert!(matches!(error, Err(DatasetError::Empty { .. })), "{error:?}");
        }
    }
}
