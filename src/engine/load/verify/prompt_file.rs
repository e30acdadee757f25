//! Reads the user's prompts.

use std::io::BufRead;

use serde::Deserialize;

/// A line of the file: a list of token IDs, or a request of `/generate` with one.
#[derive(Deserialize)]
#[serde(untagged)]
enum PromptLine {
    Ids(Vec<u32>),
    Request { input_ids: Vec<u32> },
}

/// Why a file has no usable prompts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptFileError {
    #[error("{0}")]
    Read(String),
    #[error("line {line} is not a JSON list of token IDs")]
    Line { line: usize },
    #[error("the file has no prompts")]
    Empty,
    #[error("the file has more than {most} prompts")]
    TooMany { most: u32 },
}

/// Returns the prompts in `file`, one per line. Empty lines are skipped. Reads no further than the
/// first prompt above `most`.
///
/// # Errors
/// The file cannot be read, a line is not a list of token IDs, or there are no or too many prompts.
pub fn read_prompts(file: impl BufRead, most: u32) -> Result<Vec<Vec<u32>>, PromptFileError> {
    let mut prompts = Vec::new();
    for (at, text) in file.lines().enumerate() {
        let text = text.map_err(|error| PromptFileError::Read(error.to_string()))?;
        if text.trim().is_empty() {
            continue;
        }
        if prompts.len() >= most as usize {
            return Err(PromptFileError::TooMany { most });
        }
        let (PromptLine::Ids(mut ids) | PromptLine::Request { input_ids: mut ids }) =
            serde_json::from_str(&text).map_err(|_| PromptFileError::Line { line: at + 1 })?;
        ids.shrink_to_fit();
        prompts.push(ids);
    }
    if prompts.is_empty() { Err(PromptFileError::Empty) } else { Ok(prompts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_lists_or_requests_of_token_ids() {
        let read_prompts = |text: &str| read_prompts(text.as_bytes(), 2);
        let found = read_prompts("[1,2]\n\n{\"input_ids\": [3], \"rid\": \"x\"}\r\n");
        assert_eq!(found, Ok(vec![vec![1, 2], vec![3]]));
        assert_eq!(read_prompts("\n"), Err(PromptFileError::Empty));
        assert_eq!(read_prompts("[1]\n\n[2]\n[3]\nx"), Err(PromptFileError::TooMany { most: 2 }));
        assert!(matches!(super::read_prompts(&b"\xff\n"[..], 2), Err(PromptFileError::Read(_))));
        for bad in ["[1,-2]", "[[1]]", "{\"text\":\"a\"}", "[1,2"] {
            assert_eq!(read_prompts(&format!("[5]\n{bad}")), Err(PromptFileError::Line { line: 2 }), "{bad}");
        }
    }
}
