//! JSONL of chat requests: each line is one request, whatever messages it has.

use std::io::BufRead;

use crate::engine::load::workload::dataset::gather::gather;
use crate::engine::load::workload::dataset::{Dataset, DatasetError, Layout, Reading, TOKENS_MAX};
use crate::engine::load::workload::{Conversation, Members, Message, Planned, Says, json_text};

/// Tokens of an answer where the line does not say, as in SGLang's tool.
const OUTPUT: u32 = 256;
/// Members that are ours to send. Answers are always streamed.
const OURS: [&str; 6] = ["messages", "model", "max_tokens", "max_completion_tokens", "stream", "stream_options"];

pub(super) fn read(input: impl BufRead, file: &str, reading: &Reading) -> Result<Dataset, DatasetError> {
    let parse = |text: &str| {
        let (mut messages, mut most, mut newer, mut extra) = (None, None, None, Vec::new());
        for (name, value) in json_text::members(text)? {
            match name.as_str() {
                "messages" => messages = Some(self::messages(value)?),
                "max_tokens" => most = tokens(&name, value)?,
                "max_completion_tokens" => newer = tokens(&name, value)?,
                _ if OURS.contains(&name.as_str()) => {}
                _ => extra.push((name, value.to_owned())),
            }
        }
        let messages = messages.ok_or("it has no messages")?;
        let output = reading.output.or(most).or(newer).unwrap_or(OUTPUT);
        Ok((messages, output, Members::new(extra)))
    };
    let plan = |(messages, output, extra): (Vec<Message>, u32, Members)| {
        if messages.is_empty() {
            return Ok(None);
        }
        if let Some(most) = reading.context {
            let mut tokens = output;
            for message in &messages {
                tokens = tokens.saturating_add(reading.tokens(&message.text(), false)?);
            }
            if tokens > most {
                return Ok(None);
            }
        }
        let turn = Planned { extra, ..Planned::whole(Says::Messages(messages), output) };
        Ok(Some(Conversation { turns: vec![turn], routing_key: None }))
    };
    let mut dataset = gather(input, file, Layout::Lines, reading, parse, plan)?;
    dataset.estimated = reading.context.is_some() && reading.tokenizer.is_none();
    Ok(dataset)
}

/// The messages of the JSON array `text`.
pub(super) fn messages(text: &str) -> Result<Vec<Message>, String> {
    let items = json_text::items(text).map_err(|error| format!("messages: {error}"))?;
    let message =
        |(at, text): (usize, &str)| Message::from_json(text).map_err(|error| format!("message {}: {error}", at + 1));
    items.into_iter().enumerate().map(message).collect()
}

/// A number of tokens; none where it is null.
pub(super) fn tokens(name: &str, text: &str) -> Result<Option<u32>, String> {
    let wrong = || format!("{name} {} is no number of tokens from 1 to {TOKENS_MAX}", cut(text));
    if text == "null" {
        return Ok(None);
    }
    // Some writers make floats of whole numbers.
    let number: f64 = serde_json::from_str(text).map_err(|_| wrong())?;
    if number.fract() == 0.0 && (1.0..=f64::from(TOKENS_MAX)).contains(&number) {
        Ok(Some(number as u32))
    } else {
        Err(wrong())
    }
}

/// The beginning of `text`, fit for a line.
pub(super) fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(40).collect();
    if cut.len() < text.len() {
        cut.push_str(" ...");
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Planned {
        let mut read = read(text.as_bytes(), "f", &Reading::default()).expect("a dataset");
        read.conversations.remove(0).turns.remove(0)
    }

    #[test]
    fn a_line_is_one_request_with_all_its_messages_and_members() {
        let call = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "c1"}]}"#;
        let tool = r#"{"role": "tool", "tool_call_id": "c1", "content": "7"}"#;
        let text = format!(
            r#"{{"model": "x", "stream": false, "messages": [{call}, {tool}], "tools": [{{"z": 1, "a": 2}}], "max_tokens": 9, "top_p": 0.5}}"#
        );
        let turn = one(&text);
        let Says::Messages(messages) = &turn.says else { panic!("messages") };
        assert_eq!(messages.iter().map(Message::json).collect::<Vec<_>>(), [call, tool]);
        assert_eq!((turn.max_tokens, turn.whole), (9, true));
        assert_eq!(turn.extra.iter().collect::<Vec<_>>(), [("tools", "[{\"z\": 1, \"a\": 2}]"), ("top_p", "0.5")]);
    }

    #[test]
    fn the_length_of_an_answer_has_a_default_and_either_name() {
        let output =
            |more: &str| one(&format!(r#"{{"messages": [{{"role": "user", "content": "a"}}]{more}}}"#)).max_tokens;
        assert_eq!(output(""), 256);
        assert_eq!(output(r#", "max_tokens": null, "max_completion_tokens": 12.0"#), 12);
    }

    #[test]
    fn malformed_lines_say_why() {
        let says = |text: &str| match read(text.as_bytes(), "f", &Reading::default()) {
            Err(DatasetError::Row { bad, .. }) => bad.reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(says("{}"), "it has no messages");
        assert_eq!(says(r#"{"messages": 7}"#), "messages: no JSON array");
        assert_eq!(says(r#"{"messages": [{"content": "x"}]}"#), "message 1: a message without a role");
        for huge in ["0", "1.5", "-3", "123456789012345678901234567890", "1e400", "\"9\"", "[]"] {
            let reason = says(&format!(r#"{{"messages": [], "max_tokens": {huge}}}"#));
            assert!(reason.contains("no number of tokens") || reason.contains("out of range"), "{reason}");
        }
        let deep = format!("{{\"messages\": [], \"tools\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(says(&deep).contains("brackets deep"));
    }
}
