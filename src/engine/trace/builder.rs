//! Builds a trace from prompts: chooses and checks the block size, and collects prefix keys.

use crate::block_size::BlockSizes;
use crate::caveat::TraceCaveat;
use crate::error::{BadRow, BlockCountError, RowError, TraceError};
use crate::format::TraceFormat;
use crate::keys::KeyArena;
use crate::prefix_key::PrefixKeys;
use crate::read::{Trace, TraceOptions};
use crate::request::{SessionId, TracePrompt, TraceRequest};

/// Maximum number of tokens in a prompt, and in a reply.
pub(crate) const TOKENS_MAX: u64 = 1 << 26;
/// Number of prompts, and of their IDs, from which the block size is derived.
const SAMPLE_PROMPTS: usize = 1000;
const SAMPLE_IDS: usize = 1 << 20;
/// Two tokenizers may differ by this part of the blocks of a prompt.
const TOKENIZER_SHARE: u64 = 4;
/// Largest power of two that is tried as a block size.
const SIZE_MAX_LOG2: u32 = 16;

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
    fn blocks(&self) -> Option<u64> {
        match &self.content {
            PromptContent::Blocks { ids, .. } => Some(ids.len() as u64),
            PromptContent::Continued { .. } => None,
        }
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
    waiting_ids: usize,
    /// Tokens per block, once chosen.
    size: Option<u64>,
    /// The block sizes that fit all prompts so far.
    common: Option<BlockSizes>,
    block_ids: u64,
    keyed_tokens: u64,
    pub(crate) rows: u64,
    skipped: u64,
    first_bad: Option<BadRow>,
    hash_count: u64,
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
            waiting_ids: 0,
            size: None,
            common: Some(BlockSizes::ALL),
            block_ids: 0,
            keyed_tokens: 0,
            rows: 0,
            skipped: 0,
            first_bad: None,
            hash_count: 0,
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
        let sizes = self.row_sizes(&prompt);
        // A row that will be skipped says nothing about the others.
        let is_bad = |sizes: Option<BlockSizes>| sizes.zip(self.size).is_none_or(|(sizes, size)| !sizes.contains(size));
        if let Some(sizes) = sizes
            && !(self.options.skip_bad && self.size.is_some() && is_bad(sizes))
        {
            self.common = self.common.and_then(|common| common.intersect(sizes?));
        }
        if self.size.is_some() {
            return self.resolve(prompt);
        }
        self.waiting_ids += prompt.blocks().unwrap_or(0) as usize;
        let declared = prompt.block_tokens.is_some();
        self.waiting.push(prompt);
        // With a recorded block size, nothing has to be derived.
        if declared || self.waiting.len() >= SAMPLE_PROMPTS || self.waiting_ids >= SAMPLE_IDS {
            self.resolve_waiting()?;
        }
        Ok(())
    }

    /// Returns the block sizes that fit a prompt; the outer `None` if it says nothing about them.
    fn row_sizes(&self, prompt: &Prompt) -> Option<Option<BlockSizes>> {
        Some(self.format.block_rule().sizes(prompt.input?, prompt.blocks()?))
    }

    fn resolve_waiting(&mut self) -> Result<(), TraceError> {
        if self.size.is_none() {
            let size = self.choose_size();
            self.size = Some(size);
            if self.options.skip_bad && self.common.is_none_or(|common| !common.contains(size)) {
                let sizes = self.waiting.iter().filter_map(|prompt| self.row_sizes(prompt).flatten());
                self.common = sizes
                    .filter(|sizes| sizes.contains(size))
                    .try_fold(BlockSizes::ALL, |common, sizes| common.intersect(sizes));
            }
        }
        self.waiting_ids = 0;
        for prompt in std::mem::take(&mut self.waiting) {
            self.resolve(prompt)?;
        }
        Ok(())
    }

    /// Chooses the block size: as given, as recorded, or as derived from the waiting prompts.
    fn choose_size(&self) -> u64 {
        let recorded = || self.waiting.iter().find_map(|prompt| prompt.block_tokens);
        if let Some(size) = self.options.block_tokens.or_else(recorded) {
            return size.max(1);
        }
        let conventional = self.format.conventional_block_tokens();
        if let Some(common) = self.common {
            return common.preferred(conventional);
        }
        // No size fits all prompts. The size that fits most of them is likely the right one.
        let fits = |size: u64| {
            let fits = |prompt: &&Prompt| self.row_sizes(prompt).flatten().is_some_and(|sizes| sizes.contains(size));
            self.waiting.iter().filter(fits).count()
        };
        let smallest = self.waiting.iter().find_map(|prompt| self.row_sizes(prompt).flatten()).map(|sizes| sizes.min);
        let powers = (0..=SIZE_MAX_LOG2).rev().map(|log2| 1 << log2);
        let sizes = conventional.into_iter().chain(powers).chain(smallest);
        // The first of equally good sizes.
        let best = sizes.map(|size| (fits(size), size)).reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map_or(1, |(_, size)| size)
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
        let size = self.size.unwrap_or(1);
        let row_sizes = self.row_sizes(&prompt).flatten();
        let output = prompt.output.unwrap_or(1).max(1);
        if output > TOKENS_MAX {
            return Err(RowError::ReplyLength(output));
        }
        let blocks = prompt.blocks();
        let input = prompt.input.or(blocks.map(|blocks| blocks.saturating_mul(size))).unwrap_or(0);
        if input == 0 || input > TOKENS_MAX {
            return Err(RowError::PromptLength(input));
        }
        if let Some(found) = prompt.block_tokens {
            if found == 0 {
                return Err(RowError::BlockSize(found));
            }
            if found != size && self.options.block_tokens.is_none() {
                return Err(RowError::OtherBlockSize { found, used: size });
            }
        }
        let prompt_keys = match prompt.content {
            PromptContent::Continued { prefix } => TracePrompt::Continued { prefix: prefix.min(input) },
            PromptContent::Blocks { mut ids, keys } => {
                let blocks = ids.len() as u64;
                if !self.format.block_rule().fits(input, blocks, size) {
                    // The proxy's tokenizer may differ from the one that counted the prompt.
                    let has_size = prompt.block_tokens.is_some() || self.options.block_tokens.is_some();
                    let off = blocks.abs_diff(input.div_ceil(size));
                    let tolerated =
                        self.format == TraceFormat::LiteLlm && has_size && off <= (blocks / TOKENIZER_SHARE).max(1);
                    if !tolerated {
                        return Err(RowError::BlockCount(self.mismatch(input, blocks, size, row_sizes)));
                    }
                    self.hash_count += 1;
                    ids.truncate(usize::try_from(input.div_ceil(size)).unwrap_or(usize::MAX));
                }
                self.block_ids += ids.len() as u64;
                let before_last = (ids.len() as u64).saturating_sub(1).saturating_mul(size);
                let last_tokens = input.saturating_sub(before_last).min(size);
                self.keyed_tokens += if ids.is_empty() { 0 } else { before_last.saturating_add(last_tokens) };
                self.keys.push(keys, &ids, last_tokens, size, &mut self.requests)
            }
        };
        let (line, session, at) = (prompt.line, prompt.session, prompt.at);
        Ok(TraceRequest { line, session, at, input, output, prompt: prompt_keys })
    }

    fn mismatch(&self, tokens: u64, blocks: u64, size: u64, row_sizes: Option<BlockSizes>) -> BlockCountError {
        let common_sizes = self.common.and_then(|common| common.intersect(row_sizes?));
        let suggested = common_sizes.map(|sizes| sizes.preferred(self.format.conventional_block_tokens()));
        BlockCountError { tokens, blocks, block_tokens: size, row_sizes, common_sizes, suggested }
    }

    /// Returns the requests in the order of the file.
    pub(crate) fn finish(mut self) -> Result<Trace, TraceError> {
        self.resolve_waiting()?;
        if self.hash_count > 0 {
            self.caveats.push(TraceCaveat::HashCount { rows: self.hash_count });
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
            block_tokens: self.size.unwrap_or(1),
            common_sizes: self.common,
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
