//! Parses a request trace in Mooncake's format: one JSON object per line with `hash_ids`, the
//! hashes of the prompt's blocks in order.
//!
//! The hit curve uses only the hashes. The tokens per tier also depend on the prompt and reply
//! lengths. Other fields are ignored.

use std::collections::HashSet;

use serde::Deserialize;

/// Tokens per block in Mooncake's published traces.
pub const BLOCK_TOKENS: u64 = 512;
/// Maximum line length, in bytes.
pub const LINE_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of tokens in a prompt, and in a reply.
pub const TOKENS_MAX: u64 = 1 << 26;

/// A request in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TraceRequest {
    /// The hashes of the prompt's blocks. Blocks with the same hash are identical and follow
    /// identical prefixes.
    pub hash_ids: Vec<u64>,
    /// Prompt length, in tokens. The last block may be partial. By default, all blocks are full.
    pub input_length: Option<u64>,
    /// Reply length, in tokens; the default is 1.
    pub output_length: Option<u64>,
}

/// The reason why a line in a trace is invalid.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The line is not a JSON object with the expected fields.
    #[error("{0}")]
    Json(serde_json::Error),
    #[error("invalid prompt length: {0} tokens")]
    PromptLength(u64),
    #[error("{tokens} tokens do not match {blocks} blocks of {block_tokens} tokens")]
    BlockCount { tokens: u64, blocks: u64, block_tokens: u64 },
    #[error("invalid reply length: {0} tokens")]
    ReplyLength(u64),
}

/// Parses a line; `None` if the line is empty.
///
/// # Errors
/// [`TraceError::Json`].
pub fn request(line: &str) -> Result<Option<TraceRequest>, TraceError> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    serde_json::from_str(line).map(Some).map_err(TraceError::Json)
}

impl TraceRequest {
    /// The distinct blocks, in order. Duplicates are dropped, because a hash includes all blocks
    /// before it and so cannot repeat.
    pub fn blocks(self) -> Vec<u64> {
        let TraceRequest { mut hash_ids, .. } = self;
        let mut seen = HashSet::with_capacity(hash_ids.len());
        hash_ids.retain(|hash| seen.insert(*hash));
        hash_ids
    }

    /// Returns the prompt length and the reply length in tokens, for blocks of `block_tokens`
    /// tokens.
    ///
    /// # Errors
    /// The number of blocks does not match the prompt, or a length is out of range.
    pub fn lengths(&self, block_tokens: u64) -> Result<(u64, u64), TraceError> {
        let blocks = self.hash_ids.len() as u64;
        let full = blocks.saturating_mul(block_tokens);
        let input = self.input_length.unwrap_or(full);
        if input == 0 || input > TOKENS_MAX {
            return Err(TraceError::PromptLength(input));
        }
        if input.div_ceil(block_tokens) != blocks {
            return Err(TraceError::BlockCount { tokens: input, blocks, block_tokens });
        }
        let output = self.output_length.unwrap_or(1).max(1);
        if output > TOKENS_MAX { Err(TraceError::ReplyLength(output)) } else { Ok((input, output)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_parsed_and_invalid_lines_refused() {
        let line = r#"{"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [46, 47, 48, 47]}"#;
        assert_eq!(request(line).unwrap().unwrap().blocks(), [46, 47, 48]);
        assert!(request(" \n").unwrap().is_none());
        for bad in ["{}", "[]", "x", r#"{"hash_ids": ["a"]}"#, r#"{"hash_ids": [-1]}"#] {
            assert!(request(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_have_defaults_and_must_match_the_blocks() {
        let lengths = |line: &str| request(line).unwrap().unwrap().lengths(512);
        let line = r#"{"input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}"#;
        assert_eq!(lengths(line).unwrap(), (1100, 5));
        assert_eq!(lengths(r#"{"hash_ids": [1, 2, 3], "output_length": 0}"#).unwrap(), (1536, 1));
        for bad in [
            r#"{"hash_ids": []}"#,
            r#"{"hash_ids": [1], "input_length": 513}"#,
            r#"{"hash_ids": [1, 2], "input_length": 512}"#,
            r#"{"hash_ids": [1], "output_length": 99999999999}"#,
        ] {
            assert!(lengths(bad).is_err(), "{bad}");
        }
    }
}
