//! Builds a trace from prompts: checks them against the block size, and collects prefix keys.

use crate::caveat::TraceCaveat;
use crate::error::{BadRow, RowError, TraceError};
use crate::format::TraceFormat;
use crate::keys::KeyArena;
use crate::prefix_key::PrefixKeys;
use crate::read::{Trace, TraceOptions};
use crate::request::{SessionId, TracePrompt, TraceRequest};
use crate::size_check::{PromptCounts, SizeCheck, TOKENS_MAX};

/// A prompt whose block size may not be known yet.
pub(crate) struct Prompt {
    pub(crate) line: u64,
    /// Position within the session, from 1, in formats with one session per row.
    pub(crate) request: Option<u64>,
    pub(crate) session: SessionId,
    pub(crate) at: Option<f64>,
    /// By default, all blocks are full.
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    /// Block size as recorded with the prompt.
    pub(crate) block_tokens: Option<u64>,
    pub(crate) content: PromptContent,
}

pub(crate) enum PromptContent {
    Blocks { ids: Vec<u64>, keys: PrefixKeys },
    Continued { prefix: u64 },
}

impl Prompt {
    fn counts(&self) -> PromptCounts {
        let blocks = match &self.content {
            PromptContent::Blocks { ids, .. } => Some(ids.len() as u64),
            PromptContent::Continued { .. } => None,
        };
        PromptCounts { tokens: self.input, blocks, block_tokens: self.block_tokens }
    }
}

/// Collects the requests of a trace.
pub(crate) struct TraceBuilder<'a> {
    format: TraceFormat,
    options: &'a TraceOptions,
    requests: Vec<TraceRequest>,
    keys: KeyArena,
    /// Prompts that wait for the block size.
    waiting: Vec<Prompt>,
    sizes: SizeCheck,
    block_ids: u64,
    keyed_tokens: u64,
    pub(crate) rows: u64,
    skipped: u64,
    first_bad: Option<BadRow>,
    pub(crate) caveats: Vec<TraceCaveat>,
}

impl<'a> TraceBuilder<'a> {
    pub(crate) fn new(format: TraceFormat, options: &'a TraceOptions) -> TraceBuilder<'a> {
        TraceBuilder {
            format,
            options,
            requests: Vec::new(),
            keys: KeyArena::new(options.keys_max),
            waiting: Vec::new(),
            sizes: SizeCheck::new(format, options.block_tokens, options.skip_bad),
            block_ids: 0,
            keyed_tokens: 0,
            rows: 0,
            skipped: 0,
            first_bad: None,
            caveats: Vec::new(),
        }
    }

    /// Counts a bad row, or returns it as an error if bad rows are not skipped.
    pub(crate) fn bad(&mut self, bad: BadRow) -> Result<(), TraceError> {
        if !self.options.skip_bad {
            return Err(bad.into());
        }
        self.skipped += 1;
        // Block sizes are checked after later rows are parsed.
        if self.first_bad.as_ref().is_none_or(|first| bad.line < first.line) {
            self.first_bad = Some(bad);
        }
        Ok(())
    }

    /// Counts `rows` bad rows.
    pub(crate) fn bad_rows(&mut self, rows: u64, first: BadRow) {
        self.rows += rows;
        self.skipped += rows;
        self.first_bad.get_or_insert(first);
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skipped
    }

    pub(crate) fn reserve(&mut self, requests: usize) {
        self.requests.reserve_exact(requests);
    }

    /// Adds a finished request without blocks.
    pub(crate) fn push(&mut self, request: TraceRequest) {
        self.requests.push(request);
    }

    pub(crate) fn add(&mut self, prompt: Prompt) -> Result<(), TraceError> {
        let is_known = self.sizes.add(prompt.counts());
        self.waiting.push(prompt);
        if is_known { self.resolve_waiting() } else { Ok(()) }
    }

    fn resolve_waiting(&mut self) -> Result<(), TraceError> {
        self.sizes.settle();
        for prompt in std::mem::take(&mut self.waiting) {
            self.resolve(prompt)?;
        }
        Ok(())
    }

    /// Checks a prompt against the block size, and adds it or counts it as a bad row.
    fn resolve(&mut self, prompt: Prompt) -> Result<(), TraceError> {
        let (line, request) = (prompt.line, prompt.request);
        match self.checked(prompt) {
            Ok(request) => {
                self.requests.push(request);
                Ok(())
            }
            Err(reason) => self.bad(BadRow { line, request, reason }),
        }
    }

    fn checked(&mut self, prompt: Prompt) -> Result<TraceRequest, RowError> {
        let output = prompt.output.unwrap_or(1).max(1);
        if output > TOKENS_MAX {
            return Err(RowError::ReplyLength(output));
        }
        let checked = self.sizes.check(prompt.counts())?;
        let (input, size) = (checked.tokens, checked.block_tokens);
        let prompt_keys = match prompt.content {
            PromptContent::Continued { prefix } => TracePrompt::Continued { prefix: prefix.min(input) },
            PromptContent::Blocks { mut ids, keys } => {
                ids.truncate(usize::try_from(checked.blocks).unwrap_or(usize::MAX));
                self.block_ids += checked.blocks;
                let before_last = checked.blocks.saturating_sub(1).saturating_mul(size);
                let last_tokens = input.saturating_sub(before_last).min(size);
                self.keyed_tokens += if ids.is_empty() { 0 } else { before_last.saturating_add(last_tokens) };
                self.keys.push(keys, &ids, last_tokens, size, &mut self.requests)
            }
        };
        let (line, session, at) = (prompt.line, prompt.session, prompt.at);
        Ok(TraceRequest { line, session, at, input, output, prompt: prompt_keys })
    }

    /// Returns the requests in the order of the file.
    pub(crate) fn finish(mut self) -> Result<Trace, TraceError> {
        self.resolve_waiting()?;
        if self.sizes.mismatches() > 0 {
            self.caveats.push(TraceCaveat::HashCount { rows: self.sizes.mismatches() });
        }
        if self.requests.is_empty() {
            return Err(match self.first_bad {
                Some(first) if self.skipped == self.rows => TraceError::AllRowsBad { rows: self.rows, first },
                _ if self.rows > 0 => TraceError::NoRequests { rows: self.rows },
                _ => TraceError::Empty,
            });
        }
        let mut keys = self.keys.keys;
        keys.shrink_to_fit();
        Ok(Trace {
            format: self.format,
            block_tokens: self.sizes.size().unwrap_or(1),
            common_sizes: self.sizes.common_sizes(),
            requests: self.requests,
            keys,
            sample_shift: self.keys.shift,
            block_ids: self.block_ids,
            keyed_tokens: self.keyed_tokens,
            rows: self.rows,
            skipped: self.skipped,
            first_bad: self.first_bad,
            caveats: self.caveats,
            has_times: false,
        })
    }
}
