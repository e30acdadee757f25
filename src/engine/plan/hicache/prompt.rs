//! A request of a trace as SGLang's tree sees it: pages, each named by all tokens up to its end.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::engine::plan::trace::Request;

/// A prompt in pages. Equal names are equal tokens from the beginning on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Names of the full pages of the prompt.
    pub pages: Vec<u64>,
    /// Names of the pages that the reply fills, the first of them with the prompt's rest.
    pub reply_pages: Vec<u64>,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Tokens of the reply.
    pub reply_tokens: u64,
}

impl Prompt {
    /// The prompt of `request`, whose blocks are of `block_tokens` tokens, in pages of `page_size`. The same prompt gets the same reply,
    /// which no other prompt begins with. The reply's last token is never in the cache: nothing was computed after it.
    ///
    /// # Errors
    /// As [`Request::lengths`].
    pub fn new(request: &Request, block_tokens: u64, page_size: u64) -> Result<Prompt, String> {
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
        Ok(Prompt { pages, reply_pages, tokens, reply_tokens })
    }
}

/// The name of the tokens up to the end of `span`, where those before it are `name`.
fn next(name: u64, request: &Request, span: std::ops::Range<u64>, block_tokens: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let mut at = span.start;
    while at < span.end {
        let block = at / block_tokens;
        let end = ((block + 1) * block_tokens).min(span.end);
        // The lengths were checked: there is a block for every token.
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

    fn prompt(ids: &[u64], input: u64, output: u64, page: u64) -> Prompt {
        let request = Request { hash_ids: ids.to_vec(), input_length: Some(input), output_length: Some(output) };
        Prompt::new(&request, 64, page).unwrap()
    }

    #[test]
    fn equal_beginnings_have_equal_pages_whatever_follows() {
        let (a, b) = (prompt(&[1, 2], 100, 1, 16), prompt(&[1, 3], 128, 1, 16));
        assert_eq!((a.pages.len(), b.pages.len()), (6, 8));
        assert_eq!(a.pages[..4], b.pages[..4]);
        assert_ne!(a.pages[4], b.pages[4]);
        // A block cut short is the beginning of the whole block.
        assert_eq!(a.pages[..], prompt(&[1, 2], 128, 1, 16).pages[..6]);
        // The same block elsewhere is another page.
        assert_ne!(prompt(&[1, 1], 128, 1, 16).pages[0], prompt(&[1, 1], 128, 1, 16).pages[4]);
    }

    #[test]
    fn a_page_may_span_blocks() {
        let (a, b) = (prompt(&[1, 2, 3], 192, 1, 96), prompt(&[1, 2, 4], 192, 1, 96));
        assert_eq!(a.pages[0], b.pages[0]);
        assert_ne!(a.pages[1], b.pages[1]);
    }

    #[test]
    fn a_reply_fills_pages_of_its_own_but_for_its_last_token() {
        let of = |output| prompt(&[1, 2], 100, output, 16).reply_pages;
        assert_eq!((of(1).len(), of(12).len(), of(13).len(), of(29).len()), (0, 0, 1, 2));
        assert_eq!(of(13)[0], of(29)[0]);
        assert_ne!(of(13)[0], prompt(&[1, 2], 101, 13, 16).reply_pages[0]);
    }
}
