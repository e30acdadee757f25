//! A request on its way.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::plan::hicache::tree::{Id, ROOT};
use crate::engine::sim::config::{Config, Refused};
use crate::engine::sim::counters::ByTier;
use crate::engine::sim::page::{Namer, mixed};
use crate::engine::sim::token;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the answer, if anybody said.
    pub output: Option<u32>,
    /// Is it streamed? Counted apart.
    pub stream: bool,
}

/// How an answer's first token came to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The whole answer, as it will be.
    pub answer: Arc<[u32]>,
    /// When it came.
    pub arrived: Mono,
    /// When its prompt was begun.
    pub started: Mono,
    /// When that was done.
    pub computed: Mono,
    /// Tokens of the prompt, by where they came from.
    pub tokens: ByTier,
    /// How long storage was waited for.
    pub storage_wait: Duration,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has its tokens.
    Length,
    /// Nobody wanted them.
    Abort,
}

/// How far the fetch from storage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetch {
    /// There is none.
    None,
    /// Storage is asked what it has, from page `from` on.
    Looking { from: u64 },
    /// Pages are read, for which the host keeps room.
    Reading { from: u64, room: u64 },
    /// They came: pages from `from` on.
    Done { from: u64, pages: u64 },
}

/// A request that was read and hashed, which takes its time for a long prompt: before the engine is asked.
#[derive(Debug)]
pub struct Prepared(pub(super) Request);

impl Prepared {
    /// `ask`, for an engine of `config`.
    ///
    /// # Errors
    /// It is not taken.
    pub fn new(ask: Ask, config: &Config) -> Result<Prepared, Refused> {
        Request::new(ask, config).map(Prepared)
    }
}

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub stream: bool,
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Tokens of the answer.
    pub output: u32,
    /// The answer, once it is begun: while requests wait, there is no bound on all their answers.
    pub answer: Arc<[u32]>,
    seed: u64,
    namer: Namer,
    /// Tokens of the prompt after its last full page.
    tail: Vec<u32>,
    /// Names of the full pages of the prompt and, once it is begun, of all of the answer that is ever computed: all but its last token.
    pub pages: Vec<u64>,
    /// Full pages of the prompt.
    pub prompt_pages: usize,
    /// Pages that may come from a cache: the last token of the prompt is always computed.
    pub asked: usize,
    pub arrived: Mono,
    pub started: Mono,
    pub fetch: Fetch,
    pub fetched_at: Mono,
    pub tokens_by_tier: ByTier,
    pub aborted: bool,
    /// Tokens of the answer so far.
    pub generated: u32,
    /// When the last of them came.
    pub last_token: Mono,
    pub first_token: Mono,
    /// Tokens that have a place on the device.
    pub done: u64,
    /// The node up to which the tree is kept for it.
    pub last: Id,
    /// Pages that the tree owns.
    pub own: u64,
    /// Pages that it has put.
    pub known: u64,
}

impl Request {
    fn new(ask: Ask, config: &Config) -> Result<Request, Refused> {
        let tokens = ask.prompt.len() as u64;
        let output = config.answer_tokens(tokens, ask.output)?;
        let page = usize::try_from(config.page_size).unwrap_or(usize::MAX);
        let prompt = ask.prompt;
        let seed = prompt.iter().fold(0, |hash, id| mixed(hash ^ u64::from(*id)));
        let mut namer = Namer::new(&config.model, config.page_size, config.bytes_per_token);
        let full = prompt.chunks_exact(page);
        let tail = full.remainder().to_vec();
        let pages: Vec<u64> = full.map(|tokens| namer.next(tokens)).collect();
        Ok(Request {
            stream: ask.stream,
            tokens,
            output,
            answer: Arc::default(),
            seed,
            namer,
            tail,
            prompt_pages: pages.len(),
            pages,
            asked: (prompt.len() - 1) / page,
            arrived: Mono::ZERO,
            started: Mono::ZERO,
            fetch: Fetch::None,
            fetched_at: Mono::ZERO,
            tokens_by_tier: ByTier::default(),
            aborted: false,
            generated: 0,
            last_token: Mono::ZERO,
            first_token: Mono::ZERO,
            done: 0,
            last: ROOT,
            own: 0,
            known: 0,
        })
    }

    /// Make up the answer, and name its pages.
    pub fn begin(&mut self, page: u64) {
        self.answer = (0..self.output).map(|at| token::answered(self.seed, at)).collect();
        let computed = self.answer.len() - 1;
        let rest: Vec<u32> = self.tail.iter().chain(&self.answer[..computed]).copied().collect();
        let page = usize::try_from(page).unwrap_or(usize::MAX);
        let Request { pages, namer, .. } = self;
        pages.extend(rest.chunks_exact(page).map(|tokens| namer.next(tokens)));
    }

    /// The pages that may come from a cache.
    pub fn asked(&self) -> &[u64] {
        &self.pages[..self.asked]
    }

    /// Pages of the device that it takes in the end.
    pub fn pages_max(&self, page: u64) -> u64 {
        (self.tokens + u64::from(self.output) - 1).div_ceil(page)
    }

    /// Pages of the device that it may still take.
    pub fn pages_to_come(&self, page: u64) -> u64 {
        self.pages_max(page) - self.done.div_ceil(page)
    }

    /// Is it waiting for storage?
    pub fn waits_for_storage(&self) -> bool {
        matches!(self.fetch, Fetch::Looking { .. } | Fetch::Reading { .. })
    }

    /// How long storage was waited for.
    pub fn storage_wait(&self) -> Duration {
        self.fetched_at.since(self.arrived)
    }
}
