//! Configuration of a simulated endpoint: sizes and cost model.

use std::time::Duration;

use mcctl_deploy::plan::hicache::PREFETCH_THRESHOLD;

/// Cost model. An engine step takes `step`, plus the time for the prompt tokens that it computes or
/// loads from the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Prefill throughput in tokens per second.
    pub prefill_tokens_per_s: f64,
    /// Duration of a decode step, in which every running request receives one token. Also the
    /// minimum duration of any step.
    pub step: Duration,
    /// Additional decode step duration per running request.
    pub step_per_request: Duration,
    /// Throughput of loads from host to device, in tokens per second.
    pub load_back_tokens_per_s: f64,
    /// Maximum throughput of reads from storage, in tokens per second; 0 means as fast as the
    /// store.
    pub storage_tokens_per_s: f64,
}

/// Configuration of a simulated endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub model: String,
    /// Number of tokens per page.
    pub page_size: u64,
    /// Device pool size in tokens.
    pub device_tokens: u64,
    /// Host pool size in tokens; 0 disables HiCache.
    pub host_tokens: u64,
    pub storage: bool,
    /// Minimum number of missing tokens for a storage lookup.
    pub prefetch_threshold: u64,
    /// KV bytes per token.
    pub bytes_per_token: u64,
    /// Maximum number of prompt and output tokens per request.
    pub context_length: u64,
    /// Maximum number of running requests. Further requests wait.
    pub running_max: usize,
    /// Maximum number of waiting requests. Further requests are rejected.
    pub queue_max: usize,
    /// Maximum number of prompt tokens to compute in one step that has more than one prompt.
    pub prefill_batch_tokens: u64,
    /// Default output length in tokens.
    pub output_tokens: u32,
    /// Whether streams send deltas instead of the whole text so far.
    pub incremental: bool,
    pub cost: Cost,
}

impl Config {
    /// Returns a small configuration: 64 tokens per page, 64 Ki tokens on the device, no HiCache.
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

    /// Returns the size in bytes of each of the two objects in a page.
    pub fn object_bytes(&self) -> u64 {
        (self.page_size * self.bytes_per_token / 2).max(1)
    }

    /// Returns the maximum number of prompt and output tokens per request.
    pub fn request_tokens_max(&self) -> u64 {
        let pages = self.device_tokens / self.page_size;
        self.context_length.min(pages.saturating_mul(self.page_size)).saturating_sub(1)
    }

    /// Returns the output length for a prompt of `prompt` tokens if `asked` tokens are requested.
    /// As in SGLang, it is limited to the available space.
    ///
    /// # Errors
    /// The prompt is empty, or it exceeds the context length or the device pool.
    pub fn answer_tokens(&self, prompt: u64, asked: Option<u32>) -> Result<u32, AdmissionError> {
        let max = self.request_tokens_max();
        if prompt == 0 {
            return Err(AdmissionError::Empty);
        }
        if prompt >= max {
            return Err(AdmissionError::TooLong { prompt, max });
        }
        let asked = asked.unwrap_or(self.output_tokens).max(1);
        Ok(asked.min(u32::try_from(max - prompt).unwrap_or(u32::MAX)))
    }
}

/// Reasons why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The prompt has no tokens.
    #[error("The prompt has no tokens.")]
    Empty,
    /// The prompt does not fit.
    #[error(
        "The input ({prompt} tokens) is longer than this server supports ({max} tokens: context length or KV pool)."
    )]
    TooLong { prompt: u64, max: u64 },
    #[error("The request queue is full.")]
    QueueFull,
}
