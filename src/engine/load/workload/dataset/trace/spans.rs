//! The texts of recorded prompts.

use mcctl_trace::{CheckedPrompt, PrefixKeys};

use crate::workload::dataset::TOKENS_MAX;
use crate::workload::{RowError, TextSpan};

/// Where hash IDs have a meaning.
#[derive(Clone, Copy)]
pub(super) enum IdScope {
    /// The same ID is the same text everywhere.
    Trace,
    /// The same ID is the same text within this session only.
    Session(u64),
}

impl IdScope {
    fn span(self, id: u64, tokens: u32) -> TextSpan {
        match self {
            IdScope::Trace => TextSpan::Drawn { purpose: "block", number: id, tokens },
            // Within a session, different IDs have different numbers. Numbers of different sessions
            // are pseudorandom.
            IdScope::Session(session) => {
                TextSpan::Drawn { purpose: "session-block", number: PrefixKeys::local(session).next(id), tokens }
            }
        }
    }
}

/// Returns the text of a prompt with these blocks. The last block is cut to the length of the
/// prompt. Tokens after the last block are text of this prompt only, which is the `prompt`th of the
/// trace.
pub(super) fn block_spans(
    ids: &[u64],
    checked: CheckedPrompt,
    scope: IdScope,
    prompt: u64,
) -> Result<Vec<TextSpan>, RowError> {
    let CheckedPrompt { tokens, blocks, block_tokens } = checked;
    let mut left = length(tokens)?;
    let size = u32::try_from(block_tokens).unwrap_or(u32::MAX);
    let blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
    let mut spans = Vec::with_capacity(blocks.min(ids.len()) + 1);
    for id in ids.iter().take(blocks) {
        let tokens = left.min(size);
        spans.push(scope.span(*id, tokens));
        left -= tokens;
    }
    if left > 0 {
        spans.push(TextSpan::Drawn { purpose: "tail", number: prompt, tokens: left });
    }
    Ok(spans)
}

/// Checks the length of a prompt or a reply.
pub(super) fn length(tokens: u64) -> Result<u32, RowError> {
    let checked = u32::try_from(tokens).ok().filter(|tokens| *tokens <= TOKENS_MAX);
    checked.ok_or(RowError::TooManyTokens { tokens })
}

/// Returns the first `tokens` tokens of `spans`.
pub(super) fn first_tokens(spans: &[TextSpan], tokens: u32) -> Vec<TextSpan> {
    let mut left = tokens;
    let mut first = Vec::new();
    for span in spans {
        if left == 0 {
            break;
        }
        let cut = span.tokens().min(left);
        left -= cut;
        first.push(span.with_tokens(cut));
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_after_the_last_block_are_text_of_the_prompt() {
        let checked = CheckedPrompt { tokens: 150, blocks: 2, block_tokens: 64 };
        let spans = block_spans(&[7, 8], checked, IdScope::Trace, 5).expect("spans");
        let lengths: Vec<u32> = spans.iter().map(|span| span.tokens()).collect();
        assert_eq!(lengths, [64, 64, 22]);
        assert_eq!(spans[2], TextSpan::Drawn { purpose: "tail", number: 5, tokens: 22 });
        let huge = CheckedPrompt { tokens: 1 << 25, ..checked };
        assert!(matches!(block_spans(&[7], huge, IdScope::Trace, 5), Err(RowError::TooManyTokens { .. })));
    }

    #[test]
    fn ids_of_a_session_are_other_texts_in_another_session() {
        let span = |session, id| IdScope::Session(session).span(id, 64);
        assert_eq!(span(1, 7), span(1, 7));
        assert_ne!(span(1, 7), span(2, 7));
        assert_ne!(span(1, 7), span(1, 8));
        assert_ne!(span(1, 7), IdScope::Trace.span(7, 64));
    }

    #[test]
    fn first_tokens_cut_the_last_span() {
        let spans = [3, 4].map(|number| TextSpan::Drawn { purpose: "round", number, tokens: 10 });
        assert_eq!(first_tokens(&spans, 13), [spans[0], spans[1].with_tokens(3)]);
        assert_eq!(first_tokens(&spans, 10), [spans[0]]);
        assert_eq!(first_tokens(&spans, 0), []);
    }
}
