//! Mooncake's format, and formats with the same fields.
//!
//! Mooncake's published traces have `timestamp` (milliseconds), `input_length`, `output_length` and
//! `hash_ids`, with blocks of 512 tokens. aiperf and Dynamo add `session_id` and `delay`
//! (milliseconds), and accept `input_tokens`, `output_tokens`, `created_time` and `delay_ms`.
//! `timed_trace` of `vllm bench serve` has Mooncake's fields, by default with seconds and blocks of
//! 16 tokens. The input of kvcache-simulator has `block_size` in each row.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::error::RowError;
use crate::row::TraceRow;
use crate::times::checked;

#[derive(Deserialize)]
struct MooncakeRow<'a> {
    #[serde(default, alias = "created_time")]
    timestamp: Option<f64>,
    #[serde(default, alias = "delay_ms")]
    delay: Option<f64>,
    #[serde(default, alias = "input_tokens")]
    input_length: Option<u64>,
    #[serde(default, alias = "output_tokens")]
    output_length: Option<u64>,
    #[serde(default)]
    hash_ids: Option<Vec<u64>>,
    /// A string or a number.
    #[serde(default, borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(default)]
    block_size: Option<u64>,
    #[serde(default)]
    messages: Option<IgnoredAny>,
    #[serde(default)]
    text_input: Option<IgnoredAny>,
}

/// Parses a row with hash IDs or a session.
pub(crate) fn parse(text: &str) -> Result<TraceRow, RowError> {
    let row: MooncakeRow<'_> = serde_json::from_str(text)?;
    let is_text = row.messages.is_some() || row.text_input.is_some();
    if !is_text && row.hash_ids.is_none() && row.input_length.is_none() {
        return Err(RowError::Missing("input_length"));
    }
    Ok(TraceRow {
        session: row.session_id.map(|session| session.get().trim_matches('"').to_owned()),
        chat: None,
        at: row.timestamp.map(|at| checked("timestamp", at)).transpose()?,
        delay: row.delay.map(|delay| checked("delay", delay)).transpose()?,
        input: row.input_length,
        output: row.output_length,
        ids: row.hash_ids,
        block_tokens: row.block_size,
        text: is_text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_the_fields_of_either_name() {
        let row = parse(r#"{"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [46, 47, 18446744073709551615]}"#)
            .expect("a row");
        assert_eq!((row.at, row.input, row.output), (Some(27.0), Some(1100), Some(5)));
        assert_eq!(row.ids.as_deref(), Some(&[46, 47, u64::MAX][..]));
        let row = parse(
            r#"{"created_time": 1.5, "input_tokens": 7, "output_tokens": 2, "delay_ms": 3, "session_id": "s", "x": [1e999]}"#,
        );
        // A number out of range in an ignored field is not an error.
        let row = row.expect("a row");
        assert_eq!((row.at, row.delay, row.session.as_deref()), (Some(1.5), Some(3.0), Some("s")));
        assert_eq!((row.input, row.output, row.ids), (Some(7), Some(2), None));
    }

    #[test]
    fn session_may_be_a_number() {
        assert_eq!(parse(r#"{"input_length": 1, "session_id": 7}"#).expect("a row").session.as_deref(), Some("7"));
    }

    #[test]
    fn invalid_rows_are_refused() {
        for bad in [
            "{}",
            "[]",
            "x",
            r#"{"hash_ids": ["a"]}"#,
            r#"{"hash_ids": [-1]}"#,
            r#"{"hash_ids": [18446744073709551616]}"#,
            r#"{"input_length": -5}"#,
            r#"{"input_length": NaN}"#,
            r#"{"input_length": 1, "input_length": 2}"#,
            r#"{"input_length": 1, "input_tokens": 2}"#,
            r#"{"input_length": 1, "timestamp": 1e999}"#,
        ] {
            assert!(matches!(parse(bad), Err(RowError::Json { .. } | RowError::Missing(_))), "{bad}");
        }
        let negative = parse(r#"{"input_length": 1, "timestamp": -1}"#);
        assert!(matches!(negative, Err(RowError::Time { field: "timestamp", .. })));
    }
}
