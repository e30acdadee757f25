//! Lines of a request trace in Mooncake's format: a JSON object per line with `hash_ids`, the hashes of the prompt's blocks in order.
//!
//! Other fields (`timestamp`, `input_length`, `output_length`) do not matter here, and may be absent.

use std::collections::HashSet;

use serde::Deserialize;

/// Tokens of a block in the traces that Mooncake publishes.
pub const BLOCK_TOKENS: u64 = 512;
/// The most bytes of a line.
pub const LINE_BYTES_MAX: u64 = 16 << 20;

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

/// The blocks of the request in `line`; each once, since a hash stands for all blocks before it. `None` for an empty line.
///
/// # Errors
/// It is no such object; with what the parser says.
pub fn blocks(line: &str) -> Result<Option<Vec<u64>>, String> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let Line { mut hash_ids } = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let mut seen = HashSet::with_capacity(hash_ids.len());
    hash_ids.retain(|hash| seen.insert(*hash));
    Ok(Some(hash_ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_its_blocks_and_what_is_none_is_refused() {
        let line = r#"{"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [46, 47, 48, 47]}"#;
        assert_eq!(blocks(line), Ok(Some(vec![46, 47, 48])));
        assert_eq!(blocks(" \n"), Ok(None));
        for bad in ["{}", "[]", "x", r#"{"hash_ids": ["a"]}"#, r#"{"hash_ids": [-1]}"#] {
            assert!(blocks(bad).is_err(), "{bad}");
        }
    }
}
