//! Chat requests as JSONL: each line is one request with all of its messages.

use std::io::BufRead;

use crate::workload::dataset::gather::gather;
use crate::workload::dataset::{Dataset, DatasetError, DatasetOptions, RowLayout, TOKENS_MAX};
use crate::workload::{ChatMessage, Conversation, Members, PlannedTurn, RowError, TurnContent, json_text};

/// Default output length in tokens, the same as in SGLang's tool.
const OUTPUT: u32 = 256;
/// Members that mcctl sets itself. Responses are always streamed.
const OURS: [&str; 6] = ["messages", "model", "max_tokens", "max_completion_tokens", "stream", "stream_options"];

pub(super) fn read(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    let parse = |text: &str| {
        let mut messages = None;
        let mut most = None;
        let mut newer = None;
        let mut extra = Vec::new();
        for (name, value) in json_text::members(text)? {
            match name.as_str() {
                "messages" => messages = Some(self::messages(value)?),
                "max_tokens" => most = tokens(&name, value)?,
                "max_completion_tokens" => newer = tokens(&name, value)?,
                _ if OURS.contains(&name.as_str()) => {}
                _ => extra.push((name, value.to_owned())),
            }
        }
        let messages = messages.ok_or(RowError::NoMessages)?;
        let output = reading.output.or(most).or(newer).unwrap_or(OUTPUT);
        Ok((messages, output, Members::new(extra)))
    };
    let plan = |(messages, output, extra): (Vec<ChatMessage>, u32, Members)| {
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
        let turn = PlannedTurn { extra, ..PlannedTurn::whole(TurnContent::Messages(messages), output) };
        Ok(Some(Conversation::new(vec![turn])))
    };
    let mut dataset = gather(input, file, RowLayout::Lines, reading, parse, |_| true, plan)?;
    dataset.estimated = reading.context.is_some() && reading.tokenizer.is_none();
    Ok(dataset)
}

/// Parses the JSON array of messages in `text`.
pub(super) fn messages(text: &str) -> Result<Vec<ChatMessage>, RowError> {
    let items = json_text::items(text).map_err(|error| error.in_member("messages"))?;
    let message = |(at, text): (usize, &str)| ChatMessage::from_json(text).map_err(|error| error.in_message(at));
    items.into_iter().enumerate().map(message).collect()
}

/// Parses a number of tokens. Returns `None` for null.
pub(super) fn tokens(name: &str, text: &str) -> Result<Option<u32>, RowError> {
    let wrong = || RowError::InvalidTokens { name: name.to_owned(), value: cut(text) };
    if text == "null" {
        return Ok(None);
    }
    // Some writers emit integers as floats.
    let number: f64 = serde_json::from_str(text).map_err(|_| wrong())?;
    if number.fract() == 0.0 && (1.0..=f64::from(TOKENS_MAX)).contains(&number) {
        Ok(Some(number as u32))
    } else {
        Err(wrong())
    }
}

/// Returns the start of `text`, for use in error messages.
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

    fn one(text: &str) -> PlannedTurn {
        let mut read = read(text.as_bytes(), "f", &DatasetOptions::default()).expect("a dataset");
        read.conversations.remove(0).turns.remove(0)
    }

    #[test]
    fn line_is_one_request_with_all_its_messages_and_members() {
        let call = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "c1"}]}"#;
        let tool = r#"{"role": "tool", "tool_call_id": "c1", "content": "7"}"#;
        let text = format!(
            r#"{{"model": "x", "stream": false, "messages": [{call}, {tool}], "tools": [{{"z": 1, "a": 2}}], "max_tokens": 9, "top_p": 0.5}}"#
        );
        let turn = one(&text);
        let TurnContent::Messages(messages) = &turn.content else { panic!("messages") };
        assert_eq!(messages.iter().map(ChatMessage::json).collect::<Vec<_>>(), [call, tool]);
        assert_eq!((turn.max_tokens, turn.whole), (9, true));
        assert_eq!(turn.extra.iter().collect::<Vec<_>>(), [("tools", "[{\"z\": 1, \"a\": 2}]"), ("top_p", "0.5")]);
    }

    #[test]
    fn answer_length_has_a_default_and_two_names() {
        let output =
            |more: &str| one(&format!(r#"{{"messages": [{{"role": "user", "content": "a"}}]{more}}}"#)).max_tokens;
        assert_eq!(output(""), 256);
        assert_eq!(output(r#", "max_tokens": null, "max_completion_tokens": 12.0"#), 12);
    }

    #[test]
    fn malformed_lines_state_the_reason() {
        let reason = |text: &str| match read(text.as_bytes(), "f", &DatasetOptions::default()) {
            Err(DatasetError::Row { bad, .. }) => bad.reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason("{}"), RowError::NoMessages);
        assert_eq!(reason(r#"{"messages": 7}"#), RowError::NotAnArray.in_member("messages"));
        assert_eq!(reason(r#"{"messages": [{"content": "x"}]}"#), RowError::NoRole.in_message(0));
        for huge in ["0", "1.5", "-3", "123456789012345678901234567890", "\"9\"", "[]"] {
            let reason = reason(&format!(r#"{{"messages": [], "max_tokens": {huge}}}"#));
            assert!(matches!(reason, RowError::InvalidTokens { .. }), "{reason}");
        }
        let infinite = reason(r#"{"messages": [], "max_tokens": 1e400}"#);
        assert!(matches!(infinite, RowError::Json(_) | RowError::InvalidTokens { .. }), "{infinite}");
        let deep = format!("{{\"messages\": [], \"tools\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(reason(&deep), RowError::TooDeep(_) | RowError::Json(_)));
    }
}
