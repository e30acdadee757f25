//! LiteLLM's spend log with the callback `prefix_block_hashes` (LiteLLM 1.111 and later).
//!
//! The callback stores one hash of 16 hexadecimal digits per block, including a partial last one.
//! Hashes are chained: each depends on all blocks before. The hashes may be anywhere in the row's
//! metadata, which may itself be JSON in a string. Times and token counts are those of the spend
//! log: `startTime`, `prompt_tokens`, `completion_tokens`.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::RowError;
use crate::row::TraceRow;
use crate::times::{Timestamp, checked};

/// The member with the hashes.
const HASHES: &str = "prefix_block_hashes";
/// Members with the list of hashes, if they are not the value of [`HASHES`] itself.
const LISTS: [&str; 5] = ["hashes", "hash_ids", "block_hashes", "ids", HASHES];
/// Members with the number of tokens per block.
const SIZES: [&str; 3] = ["block_size", "block_tokens", "tokens_per_block"];
/// Maximum nesting of JSON in strings.
const TEXT_DEPTH_MAX: u32 = 4;

#[derive(Deserialize)]
struct SpendLogRow<'a> {
    #[serde(default, rename = "startTime", alias = "start_time")]
    start: Option<Timestamp>,
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default, borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    prefix_block_hashes: Option<&'a RawValue>,
}

/// Parses a row. `at` is in seconds since 1970. `ids` is `None` if the row has no hashes, as for
/// requests that failed.
pub(crate) fn parse(text: &str) -> Result<TraceRow, RowError> {
    let row: SpendLogRow<'_> = serde_json::from_str(text)?;
    let hashes = match (row.prefix_block_hashes, row.metadata) {
        (Some(hashes), _) => Some(serde_json::from_str::<Value>(hashes.get())?),
        (None, Some(metadata)) => find(serde_json::from_str(metadata.get())?, 0),
        (None, None) => None,
    };
    let (ids, block_tokens) = match &hashes {
        Some(hashes) => block_ids(hashes)?,
        None => (None, None),
    };
    Ok(TraceRow {
        session: row.session_id.filter(|session| !session.is_empty()),
        at: row.start.map(|Timestamp(at)| checked("startTime", at)).transpose()?,
        input: row.prompt_tokens,
        output: row.completion_tokens,
        ids,
        block_tokens,
        ..TraceRow::default()
    })
}

/// Returns the value of [`HASHES`] in `value`, at any depth.
fn find(value: Value, texts: u32) -> Option<Value> {
    match value {
        Value::Object(mut members) => match members.remove(HASHES) {
            Some(hashes) if !hashes.is_null() => Some(hashes),
            _ => members.into_iter().find_map(|(_, value)| find(value, texts)),
        },
        Value::String(text) if texts < TEXT_DEPTH_MAX && text.contains(HASHES) => {
            find(serde_json::from_str(&text).ok()?, texts + 1)
        }
        _ => None,
    }
}

/// Returns the IDs and the block size, each if present.
fn block_ids(value: &Value) -> Result<(Option<Vec<u64>>, Option<u64>), RowError> {
    let list = match value {
        Value::Array(_) => Some(value),
        Value::Object(members) => LISTS.iter().find_map(|name| members.get(*name)),
        _ => None,
    };
    let block_tokens = SIZES.iter().find_map(|name| value.get(*name)?.as_u64());
    let ids = list.and_then(Value::as_array).map(|list| list.iter().map(block_id).collect()).transpose()?;
    Ok((ids, block_tokens))
}

/// Returns the first 16 digits of a hash as a number.
fn block_id(hash: &Value) -> Result<u64, RowError> {
    let invalid = || RowError::BlockHash(hash.to_string().chars().take(40).collect());
    let text = hash.as_str().ok_or_else(invalid)?;
    if text.len() < 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(invalid());
    }
    u64::from_str_radix(&text[..16], 16).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "00000000000000ff";

    fn ids(text: &str) -> Option<Vec<u64>> {
        parse(text).expect("a row").ids
    }

    #[test]
    fn hashes_may_be_at_any_depth() {
        let list = format!(r#"["{HASH}", "ffffffffffffffff"]"#);
        let expected = Some(vec![255, u64::MAX]);
        assert_eq!(ids(&format!(r#"{{"prefix_block_hashes": {list}}}"#)), expected);
        assert_eq!(ids(&format!(r#"{{"metadata": {{"a": 1, "prefix_block_hashes": {list}}}}}"#)), expected);
        let nested =
            format!(r#"{{"spend_logs_metadata": {{"prefix_block_hashes": {{"hashes": {list}, "block_size": 64}}}}}}"#);
        let row = parse(&format!(r#"{{"metadata": {nested}}}"#)).expect("a row");
        assert_eq!((row.ids, row.block_tokens), (expected.clone(), Some(64)));
        let text = serde_json::to_string(&nested).expect("a string");
        assert_eq!(ids(&format!(r#"{{"metadata": {text}}}"#)), expected);
    }

    #[test]
    fn times_and_lengths_are_those_of_the_spend_log() {
        let row = parse(
            r#"{"startTime": "1970-01-01T00:01:00Z", "prompt_tokens": 9, "completion_tokens": 0, "session_id": ""}"#,
        )
        .expect("a row");
        assert_eq!((row.at, row.input, row.output), (Some(60.0), Some(9), Some(0)));
        assert_eq!((row.session, row.ids), (None, None));
    }

    #[test]
    fn invalid_hashes_are_refused() {
        for bad in [r#"["00ff"]"#, "[1]", r#"["zzzzzzzzzzzzzzzz"]"#, r#"["ääääääää"]"#] {
            let row = parse(&format!(r#"{{"prefix_block_hashes": {bad}}}"#));
            assert!(matches!(row, Err(RowError::BlockHash(_))), "{bad}");
        }
    }
}
