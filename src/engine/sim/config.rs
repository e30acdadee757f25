//! What is simulated: sizes, and what everything costs.

use std::time::Duration;

use crate::engine::plan::hicache::PREFETCH_THRESHOLD;

/// What work costs. A step of the engine takes `step`, and, where it computes prompts or brings pages back from the host, the time of
/// those tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Tokens of prompts computed in a second.
    pub prefill_tokens_per_s: f64,
    /// A step in which every running request gets a token, and the least that any step takes.
    pub step: Duration,
    /// What each running request adds to a step.
    pub step_per_request: Duration,
    /// Tokens brought from the host to the device in a second.
    pub load_back_tokens_per_s: f64,
    /// Tokens read from storage in a second; 0: as fast as the store gives them. It never gives them faster.
    pub storage_tokens_per_s: f64,
}

/// A simulated endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the model is called.
    pub model: String,
    /// Tokens of a page.
    pub page_size: u64,
    /// Tokens of the device's pool.
    pub device_tokens: u64,
    /// Tokens of the host's pool; 0: no HiCache.
    pub host_tokens: u64,
    /// Is there storage?
    pub storage: bool,
    /// Uncached tokens from which storage is asked.
    pub prefetch_threshold: u64,
    /// Bytes of a token's keys and values.
    pub bytes_per_token: u64,
    /// Tokens of prompt and answer at most.
    pub context_length: u64,
    /// Requests that run at once; others wait.
    pub running_max: usize,
    /// Requests that wait at once; others are refused.
    pub queue_max: usize,
    /// Tokens of prompts that one step computes, if there is more than one prompt in it.
    pub prefill_batch_tokens: u64,
    /// Tokens of an answer where none are asked for.
    pub output_tokens: u32,
    /// Are streams deltas, rather than all so far?
    pub incremental: bool,
    /// What work costs.
    pub cost: Cost,
}

impl Config {
    /// A small one: 64 tokens a page, 64 Ki tokens on the device and no HiCache.
    pub fn small() -> Config {
        Config {
            model: "sim".to_owned(),
            page_size: 64,
            device_tokens: 65_536,
            host_tokens: 0,
            storage: false,
            prefetch_threshold: PREFETCH_THRESHOLD,
            bytes_per_token: 2048,
            context_length: 131_072,
            running_max: 64,
            queue_max: 16_384,
            prefill_batch_tokens: 8192,
            output_tokens: 128,
            incremental: false,
            cost: Cost {
                prefill_tokens_per_s: 20_000.0,
                step: Duration::from_millis(10),
                step_per_request: Duration::ZERO,
                load_back_tokens_per_s: 400_000.0,
                storage_tokens_per_s: 0.0,
            },
        }
    }

    /// Bytes of one of the two objects of a page.
    pub fn object_bytes(&self) -> u64 {
        (self.page_size * self.bytes_per_token / 2).max(1)
    }

    /// Tokens of the longest prompt with its answer.
    pub fn request_tokens_max(&self) -> u64 {
        let pages = self.device_tokens / self.page_size;
        self.context_length.min(pages.saturating_mul(self.page_size)).saturating_sub(1)
    }

    /// The tokens of an answer to a prompt of `prompt` tokens, where `asked` are asked for: SGLang, too, cuts it to what there is room
    /// for.
    ///
    /// # Errors
    /// The prompt itself is too long, or empty.
    pub fn answer_tokens(&self, prompt: u64, asked: Option<u32>) -> Result<u32, Refused> {
        let max = self.request_tokens_max();
        if prompt == 0 {
            return Err(Refused::Empty);
        }
        if prompt >= max {
            return Err(Refused::TooLong { prompt, max });
        }
        let asked = asked.unwrap_or(self.output_tokens).max(1);
        Ok(asked.min(u32::try_from(max - prompt).unwrap_or(u32::MAX)))
    }
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has no tokens.
    #[error("The prompt has no tokens.")]
    Empty,
    /// It does not fit.
    #[error(
        "The input ({prompt} tokens) is longer than what this server holds ({max} tokens: the context length, or the KV pool)."
    )]
    TooLong {
        /// Its tokens.
        prompt: u64,
        /// What fits.
        max: u64,
    },
    /// Too many wait.
    #[error("The request queue is full.")]
    QueueFull,
}
