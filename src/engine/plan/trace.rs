//! Lines of a request trace in Mooncake's format: a JSON object per line with `hash_ids`, the hashes of the prompt's blocks in order.
//!
//! The curve asks for the hashes only; what each tier serves of a request is asked with the lengths, too. Other fields may stand there.

use std::collections::HashSet;

use serde::Deserialize;

/// Tokens of a block in the traces that Mooncake publishes.
pub const BLOCK_TOKENS: u64 = 512;
/// The most bytes of a line.
pub const LINE_BYTES_MAX: u64 = 16 << 20;
/// The most tokens of a prompt, and of a reply.
pub const TOKENS_MAX: u64 = 1 << 26;

/// A request as it stands in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Request {
    /// The hashes of the prompt's blocks; equal ones stand for equal blocks after equal beginnings.
    pub hash_ids: Vec<u64>,
    /// Tokens of the prompt; the last block may not be full. Without it, all blocks are.
    pub input_length: Option<u64>,
    /// Tokens of the reply; without it, one.
    pub output_length: Option<u64>,
}

/// The request in `line`; `None` for an empty line.
///
/// # Errors
/// It is no such object; with what the parser says.
pub fn request(line: &str) -> Result<Option<Request>, String> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    serde_json::from_str(line).map(Some).map_err(|error| error.to_string())
}

impl Request {
    /// The blocks; each once, since a hash stands for all blocks before it.
    pub fn blocks(self) -> Vec<u64> {
        let Request { mut hash_ids, .. } = self;
        let mut seen = HashSet::with_capacity(hash_ids.len());
        hash_ids.retain(|hash| seen.insert(*hash));
        hash_ids
    }

    /// Tokens of the prompt and of the reply, of blocks of `block_tokens` tokens.
    ///
    /// # Errors
    /// The blocks are too many or too few for the prompt, or a length is absurd.
    pub fn lengths(&self, block_tokens: u64) -> Result<(u64, u64), String> {
        let blocks = self.hash_ids.len() as u64;
        let full = blocks.saturating_mul(block_tokens);
        let input = self.input_length.unwrap_or(full);
        if input == 0 || input > TOKENS_MAX {
            return Err(format!("a prompt of {input} tokens"));
        }
        if input.div_ceil(block_tokens) != blocks {
            return Err(format!("{input} tokens are not {blocks} blocks of {block_tokens}"));
        }
        let output = self.output_length.unwrap_or(1).max(1);
        if output > TOKENS_MAX { Err(format!("a reply of {output} tokens")) } else { Ok((input, output)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_its_blocks_and_what_is_none_is_refused() {
        let line = r#"{"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [46, 47, 48, 47]}"#;
        assert_eq!(request(line).unwrap().unwrap().blocks(), [46, 47, 48]);
        assert_eq!(request(" \n"), Ok(None));
        for bad in ["{}", "[]", "x", r#"{"hash_ids": ["a"]}"#, r#"{"hash_ids": [-1]}"#] {
            assert!(request(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_have_defaults_and_must_agree_with_the_blocks() {
        let lengths = |line: &str| request(line).unwrap().unwrap().lengths(512);
        assert_eq!(lengths(r#"{"input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}"#), Ok((1100, 5)));
        assert_eq!(lengths(r#"{"hash_ids": [1, 2, 3], "output_length": 0}"#), Ok((1536, 1)));
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
