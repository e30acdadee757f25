//! Reads the user's prompts.

use serde::Deserialize;

/// A line of the file: a list of token IDs, or a request of `/generate` with one.
#[derive(Deserialize)]
#[serde(untagged)]
enum PromptLine {
    Ids(Vec<u32>),
    Request { input_ids: Vec<u32> },
}

/// Why a file has no usable prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptFileError {
    #[error("line {line} is not a JSON list of token IDs")]
    Line { line: usize },
    #[error("the file has no prompts")]
    Empty,
}

/// Returns the prompts in `text`, one per line. Empty lines are skipped.
///
/// # Errors
/// A line is not a list of token IDs, or there are no prompts.
pub fn read_prompts(text: &str) -> Result<Vec<Vec<u32>>, PromptFileError> {
    let lines = text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty());
    let read = |(at, text): (usize, &str)| match serde_json::from_str(text) {
        Ok(PromptLine::Ids(ids) | PromptLine::Request { input_ids: ids }) => Ok(ids),
        Err(_) => Err(PromptFileError::Line { line: at + 1 }),
    };
    let prompts: Vec<Vec<u32>> = lines.map(read).collect::<Result<_, _>>()?;
    if prompts.is_empty() { Err(PromptFileError::Empty) } else { Ok(prompts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_lists_or_requests_of_token_ids() {
        let found = read_prompts("[1,2]\n\n{\"input_ids\": [3], \"rid\": \"x\"}\r\n");
        assert_eq!(found, Ok(vec![vec![1, 2], vec![3]]));
        assert_eq!(read_prompts("\n"), Err(PromptFileError::Empty));
        for bad in ["[1,-2]", "[[1]]", "{\"text\":\"a\"}", "[1,2"] {
            assert_eq!(read_prompts(&format!("[5]\n{bad}")), Err(PromptFileError::Line { line: 2 }), "{bad}");
        }
    }
}
