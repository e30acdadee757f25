//! The state of a request.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{AdmissionError, Config};
use crate::counters::PromptTokens;
use crate::page::{PageNamer, mixed};
use crate::token;
use mcctl_base::Mono;
use mcctl_deploy::plan::hicache::tree::{NodeId, ROOT};

/// Parameters of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct SimRequest {
    pub prompt: Vec<u32>,
    /// Requested number of output tokens, if set.
    pub output: Option<u32>,
    /// Whether the response is streamed. Streamed and other requests are counted separately.
    pub stream: bool,
}

/// Timing and content of a response, known once the first token is generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// Token IDs of the whole response.
    pub answer: Arc<[u32]>,
    pub arrived: Mono,
    /// Start of the prefill.
    pub started: Mono,
    /// End of the prefill.
    pub computed: Mono,
    /// Prompt tokens by source.
    pub tokens: PromptTokens,
    /// Time spent waiting for storage.
    pub storage_wait: Duration,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// All output tokens were generated.
    Length,
    Abort,
}

/// Progress of the fetch from storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchState {
    None,
    /// Storage was queried, starting at page `from`.
    LookingUp {
        from: u64,
    },
    /// Pages are being read from storage, starting at page `from`. `reserved` host pages are set
    /// aside for them.
    Reading {
        from: u64,
        reserved: u64,
    },
    /// `pages` pages, starting at `from`, have been read.
    Done {
        from: u64,
        pages: u64,
    },
}

/// A request that is parsed and hashed before the engine is locked, because both steps take time
/// for a long prompt.
#[derive(Debug)]
pub struct HashedRequest(pub(super) ScheduledRequest);

impl HashedRequest {
    /// Prepares `ask` for an engine with `config`.
    ///
    /// # Errors
    /// The prompt is empty or too long.
    pub fn new(ask: SimRequest, config: &Config) -> Result<HashedRequest, AdmissionError> {
        ScheduledRequest::new(ask, config).map(HashedRequest)
    }
}

/// A request in the engine.
#[derive(Debug)]
pub(super) struct ScheduledRequest {
    pub stream: bool,
    pub tokens: u64,
    pub output: u32,
    /// The output tokens. Generated only when the request starts: the responses of all waiting
    /// requests would need unbounded memory.
    pub answer: Arc<[u32]>,
    seed: u64,
    namer: PageNamer,
    /// Prompt tokens after the last full page.
    tail: Vec<u32>,
    /// IDs of the prompt's full pages. Once the request has started, the list also includes the
    /// response's full pages. The response's last token is not counted, because it is never used as
    /// input.
    pub pages: Vec<u64>,
    /// Number of full prompt pages.
    pub prompt_pages: usize,
    /// Number of pages that may come from a cache. The last prompt token is always computed.
    pub asked: usize,
    pub arrived: Mono,
    pub started: Mono,
    pub fetch: FetchState,
    pub fetched_at: Mono,
    pub tokens_by_tier: PromptTokens,
    pub aborted: bool,
    /// Number of output tokens generated so far.
    pub generated: u32,
    /// Time of the last token.
    pub last_token: Mono,
    pub first_token: Mono,
    /// Number of tokens that occupy device pages.
    pub done: u64,
    /// Last node on the tree path that is locked for this request.
    pub last: NodeId,
    /// Number of pages owned by the tree.
    pub own: u64,
    /// Number of pages inserted into the tree.
    pub known: u64,
}

impl ScheduledRequest {
    fn new(ask: SimRequest, config: &Config) -> Result<ScheduledRequest, AdmissionError> {
        let tokens = ask.prompt.len() as u64;
        let output = config.answer_tokens(tokens, ask.output)?;
        let page = usize::try_from(config.page_size).unwrap_or(usize::MAX);
        let prompt = ask.prompt;
        let seed = prompt.iter().fold(0, |hash, id| mixed(hash ^ u64::from(*id)));
        let mut namer = PageNamer::new(&config.model, config.page_size, config.bytes_per_token);
        let full = prompt.chunks_exact(page);
        let tail = full.remainder().to_vec();
        let pages: Vec<u64> = full.map(|tokens| namer.next(tokens)).collect();
        Ok(ScheduledRequest {
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
            fetch: FetchState::None,
            fetched_at: Mono::ZERO,
            tokens_by_tier: PromptTokens::default(),
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

    /// Generates the response and the IDs of its pages.
    pub(super) fn begin(&mut self, page: u64) {
        self.answer = (0..self.output).map(|at| token::answered(self.seed, at)).collect();
        let computed = self.answer.len() - 1;
        let rest: Vec<u32> = self.tail.iter().chain(&self.answer[..computed]).copied().collect();
        let page = usize::try_from(page).unwrap_or(usize::MAX);
        let ScheduledRequest { pages, namer, .. } = self;
        pages.extend(rest.chunks_exact(page).map(|tokens| namer.next(tokens)));
    }

    /// Returns the pages that may come from a cache.
    pub(super) fn asked(&self) -> &[u64] {
        &self.pages[..self.asked]
    }

    /// Returns the total number of device pages that the request needs.
    pub(super) fn pages_max(&self, page: u64) -> u64 {
        (self.tokens + u64::from(self.output) - 1).div_ceil(page)
    }

    /// Returns the number of device pages that the request may still allocate.
    pub(super) fn pages_to_come(&self, page: u64) -> u64 {
        self.pages_max(page) - self.done.div_ceil(page)
    }

    /// Returns whether a storage operation is pending.
    pub(super) fn waits_for_storage(&self) -> bool {
        matches!(self.fetch, FetchState::LookingUp { .. } | FetchState::Reading { .. })
    }

    /// Returns the time spent waiting for storage.
    pub(super) fn storage_wait(&self) -> Duration {
        self.fetched_at.since(self.arrived)
    }
}
