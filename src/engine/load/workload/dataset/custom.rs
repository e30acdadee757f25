//! Conversations as JSONL: SGLang's custom format and UltraChat.

use std::io::BufRead;

use serde::Deserialize;

use crate::workload::RowError;
use crate::workload::dataset::sharegpt::{self, Dialogue, Speaker, read_dialogues};
use crate::workload::dataset::{Dataset, DatasetError, DatasetOptions, RowLayout};

pub(super) fn read(input: impl BufRead, file: &str, reading: &DatasetOptions) -> Result<Dataset, DatasetError> {
    read_dialogues(input, file, RowLayout::Lines, reading, |text| sharegpt::parse(text, reading))
}

#[derive(Deserialize)]
struct UltraChatRow {
    data: Vec<String>,
}

/// Reads rows whose `data` member is a list of messages that alternate between user and assistant.
pub(super) fn read_ultrachat(
    input: impl BufRead,
    file: &str,
    reading: &DatasetOptions,
) -> Result<Dataset, DatasetError> {
    let parse = |text: &str| -> Result<Dialogue, RowError> {
        let line: UltraChatRow = serde_json::from_str(text)?;
        let speaker = |at| [Speaker::User, Speaker::Assistant][at % 2];
        Ok(line.data.into_iter().enumerate().map(|(at, text)| (speaker(at), text)).collect())
    };
    read_dialogues(input, file, RowLayout::ArrayOrLines, reading, parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_or_value_and_optional_speakers_are_accepted() {
        let text = "{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b b\"}]}\r\n\
                    {\"conversation\": [{\"value\": \"c\"}, {\"value\": \"d\"}, {\"value\": \"e\"}, {\"value\": \"f\"}]}\n";
        let read = read(text.as_bytes(), "f", &DatasetOptions::default()).expect("a dataset");
        let turns: Vec<usize> = read.conversations.iter().map(|conversation| conversation.turns.len()).collect();
        assert_eq!(turns, [1, 2]);
    }

    #[test]
    fn malformed_line_is_named() {
        let text = "{\"conversations\": []}\n{\"conversations\": [}\n";
        let error = read(text.as_bytes(), "talk.jsonl", &DatasetOptions::default()).expect_err("half a line");
        assert!(error.to_string().starts_with("talk.jsonl:2: "), "{error}");
    }

    #[test]
    fn ultrachat_alternates_between_speakers() {
        let text = "{\"id\": \"1\", \"data\": [\"q\", \"a\", \"q2\", \"a2\", \"q3\"]}";
        let read = read_ultrachat(text.as_bytes(), "f", &DatasetOptions::default()).expect("a dataset");
        assert_eq!(read.conversations[0].turns.len(), 2);
    }
}
