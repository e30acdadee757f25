//! A trace request divided into pages, as in SGLang's radix tree. Each page is identified by all
//! tokens up to its end.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::plan::trace::{TraceError, TraceRequest};

/// A prompt divided into pages. If two pages have the same hash, all tokens from the start of the
/// prompt to the end of the page are identical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedPrompt {
    /// Hashes of the prompt's full pages.
    pub pages: Vec<u64>,
    /// Hashes of the pages that the reply fills; the first one also contains the end of the prompt.
    pub reply_pages: Vec<u64>,
    /// Prompt length, in tokens.
    pub tokens: u64,
    /// Reply length, in tokens.
    pub reply_tokens: u64,
}

impl PagedPrompt {
    /// Divides the prompt of `request`, with blocks of `block_tokens` tokens, into pages of
    /// `page_size` tokens. Identical prompts get identical replies; different prompts get different
    /// replies. The reply's last token is never cached, because no token is computed after it.
    ///
    /// # Errors
    /// Same as [`TraceRequest::lengths`].
    pub fn new(request: &TraceRequest, block_tokens: u64, page_size: u64) -> Result<PagedPrompt, TraceError> {
        let (tokens, reply_tokens) = request.lengths(block_tokens)?;
        let mut name = 0u64;
        let mut pages = Vec::new();
        let mut at = 0;
        while at < tokens {
            let end = (at + page_size).min(tokens);
            name = next(name, request, at..end, block_tokens);
            if end == at + page_size {
                pages.push(name);
            }
            at = end;
        }
        let all = (tokens + reply_tokens - 1) / page_size;
        let reply_pages = (pages.len() as u64..all).map(|page| hashed((name, "reply", page))).collect();
        Ok(PagedPrompt { pages, reply_pages, tokens, reply_tokens })
    }
}

/// Returns the hash of the tokens up to the end of `span`. `name` is the hash of the tokens before
/// `span`.
fn next(name: u64, request: &TraceRequest, span: std::ops::Range<u64>, block_tokens: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let mut at = span.start;
    while at < span.end {
        let block = at / block_tokens;
        let end = ((block + 1) * block_tokens).min(span.end);
        // `lengths` has verified that every token has a block.
        let id = usize::try_from(block).ok().and_then(|block| request.hash_ids.get(block));
        (id, at % block_tokens, end - at).hash(&mut hasher);
        at = end;
    }
    hasher.finish()
}

fn hashed(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(ids: &[u64], input: u64, output: u64, page: u64) -> PagedPrompt {
        let request = TraceRequest { hash_ids: ids.to_vec(), input_length: Some(input), output_length: Some(output) };
        PagedPrompt::new(&request, 64, page).unwrap()
    }

    #[test]
    fn equal_prefixes_have_equal_pages() {
        let a = prompt(&[1, 2], 100, 1, 16);
        let b = prompt(&[1, 3], 128, 1, 16);
        assert_eq!((a.pages.len(), b.pages.len()), (6, 8));
        assert_eq!(a.pages[..4], b.pages[..4]);
        assert_ne!(a.pages[4], b.pages[4]);
        // A partial block is a prefix of the full block.
        assert_eq!(a.pages[..], prompt(&[1, 2], 128, 1, 16).pages[..6]);
        // The same block at another position is a different page.
        assert_ne!(prompt(&[1, 1], 128, 1, 16).pages[0], prompt(&[1, 1], 128, 1, 16).pages[4]);
    }

    #[test]
    fn a_page_may_span_blocks() {
        let a = prompt(&[1, 2, 3], 192, 1, 96);
        let b = prompt(&[1, 2, 4], 192, 1, 96);
        assert_eq!(a.pages[0], b.pages[0]);
        assert_ne!(a.pages[1], b.pages[1]);
    }

    #[test]
    fn a_reply_fills_its_own_pages_except_the_last_token() {
        let of = |output| prompt(&[1, 2], 100, output, 16).reply_pages;
        assert_eq!((of(1).len(), of(12).len(), of(13).len(), of(29).len()), (0, 0, 1, 2));
        assert_eq!(of(13)[0], of(29)[0]);
        assert_ne!(of(13)[0], prompt(&[1, 2], 101, 13, 16).reply_pages[0]);
    }
}
