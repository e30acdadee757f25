//! The traces of Alibaba's Bailian (Qwen): `chat_id`, `parent_chat_id` (-1 for a first turn),
//! `timestamp` (seconds), `input_length`, `output_length`, `type`, `turn`, `hash_ids`.
//!
//! Blocks have 16 tokens. An ID is a hash of one block's content and not of the prefix, so IDs must
//! be compared in order from the start of the prompt. Every row has the whole prompt.

use serde::Deserialize;

use crate::error::RowError;
use crate::row::{ChatLink, TraceRow};
use crate::times::checked;

#[derive(Deserialize)]
struct BailianRow {
    chat_id: i64,
    #[serde(default)]
    parent_chat_id: Option<i64>,
    #[serde(default)]
    timestamp: Option<f64>,
    #[serde(default)]
    input_length: Option<u64>,
    #[serde(default)]
    output_length: Option<u64>,
    hash_ids: Vec<u64>,
}

/// Parses a row with a chat and its parent.
pub(crate) fn parse(text: &str) -> Result<TraceRow, RowError> {
    let row: BailianRow = serde_json::from_str(text)?;
    Ok(TraceRow {
        chat: Some(ChatLink { id: row.chat_id, parent: row.parent_chat_id.filter(|parent| *parent >= 0) }),
        at: row.timestamp.map(|at| checked("timestamp", at)).transpose()?,
        input: row.input_length,
        output: row.output_length,
        ids: Some(row.hash_ids),
        ..TraceRow::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_linked_to_the_turn_before() {
        let row = parse(r#"{"chat_id": 5, "parent_chat_id": 3, "timestamp": 1.5, "input_length": 20, "output_length": 4, "type": "text", "turn": 2, "hash_ids": [7, 8]}"#)
            .expect("a row");
        assert_eq!(row.chat, Some(ChatLink { id: 5, parent: Some(3) }));
        assert_eq!((row.at, row.input, row.output), (Some(1.5), Some(20), Some(4)));
        let first = parse(r#"{"chat_id": 5, "parent_chat_id": -1, "hash_ids": []}"#).expect("a row");
        assert_eq!(first.chat, Some(ChatLink { id: 5, parent: None }));
    }

    #[test]
    fn invalid_rows_are_refused() {
        for bad in
            ["{}", r#"{"chat_id": 1}"#, r#"{"chat_id": "x", "hash_ids": []}"#, r#"{"chat_id": 1, "hash_ids": [1.5]}"#]
        {
            assert!(matches!(parse(bad), Err(RowError::Json { .. })), "{bad}");
        }
    }
}
