//! A trace request divided into pages, as in SGLang's radix tree. Each page is identified by all
//! tokens up to its end.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use mcctl_trace::{SessionId, TracePrompt, TraceRequest};

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

/// Divides the requests of a trace into pages.
#[derive(Clone, Debug)]
pub struct PromptPager {
    page_size: u64,
    block_tokens: u64,
    /// Number of prompts so far.
    prompts: u64,
    /// The pages of each session's last request and its reply, of prompts without keys.
    sessions: HashMap<SessionId, Vec<u64>>,
}

impl PromptPager {
    /// Pages have `page_size` tokens, and the blocks of the trace `block_tokens`.
    pub fn new(page_size: u64, block_tokens: u64) -> PromptPager {
        let (page_size, block_tokens) = (page_size.max(1), block_tokens.max(1));
        PromptPager { page_size, block_tokens, prompts: 0, sessions: HashMap::new() }
    }

    /// Divides the prompt of the next request. `keys` are the prefix keys of its trace, which must
    /// not be sampled.
    ///
    /// Identical prompts with keys get identical replies; different prompts get different replies.
    /// The reply's last token is never cached, because no token is computed after it.
    pub fn page(&mut self, request: &TraceRequest, keys: &[u64]) -> PagedPrompt {
        self.prompts += 1;
        let (tokens, reply_tokens) = (request.input, request.output.max(1));
        let cached = tokens.saturating_add(reply_tokens - 1) / self.page_size;
        let (pages, reply_pages) = match &request.prompt {
            TracePrompt::Blocks { keys: range, .. } => {
                let keys = keys.get(range.clone()).unwrap_or_default();
                let (pages, end) = self.keyed(keys, tokens);
                let reply = (pages.len() as u64..cached).map(|page| hashed((end, "reply", page))).collect();
                (pages, reply)
            }
            TracePrompt::Continued { prefix } => self.continued(request, *prefix, cached),
        };
        PagedPrompt { pages, reply_pages, tokens, reply_tokens }
    }

    /// The full pages of a prompt with keys, and a hash of the whole prompt.
    fn keyed(&self, keys: &[u64], tokens: u64) -> (Vec<u64>, u64) {
        let mut name = 0u64;
        let mut pages = Vec::new();
        let mut at = 0;
        while at < tokens {
            let end = (at + self.page_size).min(tokens);
            name = self.next(name, keys, at..end);
            if end == at + self.page_size {
                pages.push(name);
            }
            at = end;
        }
        (pages, name)
    }

    /// Returns the hash of the tokens up to the end of `span`. `name` is the hash of the tokens
    /// before it.
    fn next(&self, name: u64, keys: &[u64], span: std::ops::Range<u64>) -> u64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let mut at = span.start;
        while at < span.end {
            let block = at / self.block_tokens;
            let end = ((block + 1) * self.block_tokens).min(span.end);
            match usize::try_from(block).ok().and_then(|block| keys.get(block)) {
                Some(key) => (key, at % self.block_tokens, end - at).hash(&mut hasher),
                // Tokens after the last block are those of this prompt only.
                None => ("end", self.prompts, at, end - at).hash(&mut hasher),
            }
            at = end;
        }
        hasher.finish()
    }

    /// The full pages of a prompt that continues its session, and those of its reply.
    fn continued(&mut self, request: &TraceRequest, prefix: u64, cached: u64) -> (Vec<u64>, Vec<u64>) {
        let prompts = self.prompts;
        let whole = |tokens: u64| usize::try_from(tokens / self.page_size).unwrap_or(usize::MAX);
        let (shared, own) = (whole(prefix.min(request.input)), whole(request.input));
        let pages = self.sessions.entry(request.session).or_default();
        pages.truncate(shared);
        pages.extend((pages.len() as u64..cached).map(|page| hashed((prompts, page))));
        let own = own.min(pages.len());
        (pages[..own].to_vec(), pages[own..].to_vec())
    }
}

fn hashed(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(input: u64, output: u64, prompt: TracePrompt) -> TraceRequest {
        TraceRequest { line: 1, session: 0, at: None, input, output, prompt }
    }

    fn prompt(keys: &[u64], input: u64, output: u64, page: u64) -> PagedPrompt {
        let blocks = TracePrompt::Blocks { keys: 0..keys.len(), last_tokens: 64 };
        PromptPager::new(page, 64).page(&request(input, output, blocks), keys)
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
    }

    #[test]
    fn a_page_may_span_blocks() {
        let a = prompt(&[1, 2, 3], 192, 1, 96);
        let b = prompt(&[1, 2, 4], 192, 1, 96);
        assert_eq!(a.pages[0], b.pages[0]);
        assert_ne!(a.pages[1], b.pages[1]);
    }

    #[test]
    fn tokens_after_the_last_block_are_not_shared() {
        let mut pager = PromptPager::new(16, 64);
        let mut page = || pager.page(&request(100, 1, TracePrompt::Blocks { keys: 0..1, last_tokens: 64 }), &[7]).pages;
        let (a, b) = (page(), page());
        assert_eq!((a.len(), &a[..4]), (6, &b[..4]));
        assert_ne!(a[4], b[4]);
    }

    #[test]
    fn a_session_continues_its_pages_and_those_of_its_reply() {
        let mut pager = PromptPager::new(16, 64);
        let mut page =
            |input, output, prefix| pager.page(&request(input, output, TracePrompt::Continued { prefix }), &[]);
        let a = page(40, 25, 0);
        assert_eq!((a.pages.len(), a.reply_pages.len()), (2, 2));
        let b = page(80, 1, 63);
        assert_eq!((b.pages.len(), &b.pages[..2], b.pages[2]), (5, &a.pages[..], a.reply_pages[0]));
        assert_ne!(b.pages[3], a.reply_pages[1]);
        assert_eq!(page(33, 1, 1_000).pages, b.pages[..2]);
    }

    #[test]
    fn a_reply_fills_its_own_pages_except_the_last_token() {
        let of = |output| prompt(&[1, 2], 100, output, 16).reply_pages;
        assert_eq!((of(1).len(), of(12).len(), of(13).len(), of(29).len()), (0, 0, 1, 2));
        assert_eq!(of(13)[0], of(29)[0]);
        assert_ne!(of(13)[0], prompt(&[1, 2], 101, 13, 16).reply_pages[0]);
    }
}
