//! SGLang's `/generate`. Every frame repeats the entire response so far, unless the server streams
//! deltas (`--incremental-streaming-output`). Fully parsing each cumulative frame would take
//! quadratic time, so only the token count is extracted from the frames between the first and the
//! last.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;

use crate::answer::details::{CachedTokenDetails, error_message};
use crate::answer::{CachedTokens, ModelAnswer, ServerTimes, WORD_CHARS};
use mcctl_base::text::one_line;

/// Incremental parser for the frames of one response.
#[derive(Debug, Default)]
pub(super) struct GenerateParser {
    tokens: u32,
    /// All token IDs if frames are deltas, otherwise the token IDs in the last parsed frame.
    ids: Vec<u32>,
    text: String,
    /// Whether frames are deltas rather than cumulative. `None` until a frame reveals this.
    deltas: Option<bool>,
    /// Number of bytes from the `meta_info` member to the end of the last parsed frame.
    meta: usize,
}

#[derive(Deserialize)]
struct GenerateFrame<'a> {
    #[serde(borrow, default)]
    text: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    output_ids: Option<Vec<u32>>,
    #[serde(default)]
    meta_info: Option<MetaInfo>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MetaInfo {
    finish_reason: Option<serde_json::Value>,
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    cached_tokens_details: Option<CachedTokenDetails>,
    queue_time: Option<f64>,
    storage_prefetch_wait: Option<f64>,
    first_token_latency: Option<f64>,
    e2e_latency: Option<f64>,
    forward_entry_time: Option<f64>,
    prefill_finished_time: Option<f64>,
}

// Quotes inside JSON strings are escaped, so none of these patterns can occur inside a string.
static META: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"meta_info\":"));
static UNFINISHED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\":null"));
static COUNT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"completion_tokens\":"));

/// The end of a frame, from `meta_info` on, may be up to this many bytes longer than in the last
/// parsed frame. The token count is searched only there.
const GROWTH_BYTES: usize = 64;

/// Extracts the token count from a frame that is not the last one (`finish_reason` is null).
fn count(data: &[u8], meta: usize) -> Option<u32> {
    // The text and IDs generated so far come before the counts and are skipped.
    let counts = &data[data.len().saturating_sub(meta + GROWTH_BYTES)..];
    UNFINISHED.find(counts)?;
    let at = COUNT.find(counts)? + COUNT.needle().len();
    let digits = counts[at..].iter().skip_while(|byte| **byte == b' ').take_while(|byte| byte.is_ascii_digit());
    let mut any = false;
    let value = digits.fold(0_u32, |value, digit| {
        any = true;
        value.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
    });
    any.then_some(value)
}

impl GenerateParser {
    /// Number of bytes stored for the response.
    pub(super) fn bytes(&self) -> usize {
        self.text.len().max(self.ids.len())
    }

    /// Reads a frame. Returns how many tokens it adds, or `None` if it is malformed.
    pub(super) fn read(&mut self, data: &[u8], answer: &mut ModelAnswer) -> Option<u32> {
        let between = self.deltas == Some(false) && self.meta > 0;
        let sum = match between.then(|| count(data, self.meta)).flatten() {
            Some(sum) => sum,
            None => self.parse(data, answer)?,
        };
        let new = sum.saturating_sub(self.tokens);
        self.tokens = self.tokens.max(sum);
        Some(new)
    }

    /// Parses an entire frame. Returns the number of output tokens so far.
    fn parse(&mut self, data: &[u8], answer: &mut ModelAnswer) -> Option<u32> {
        let frame: GenerateFrame<'_> = serde_json::from_slice(data).ok()?;
        if let Some(error) = frame.error {
            answer.error = Some(error_message(&error));
            return Some(self.tokens);
        }
        self.meta = META.find(data).map_or(0, |at| data.len() - at);
        let meta = frame.meta_info.unwrap_or_default();
        let ids = frame.output_ids.unwrap_or_default();
        let text = frame.text.unwrap_or_default();
        // If the server sends no count, count the IDs.
        let sum = meta.completion_tokens.unwrap_or(self.tokens.saturating_add(ids.len() as u32));
        if self.deltas.is_none() && self.tokens > 0 && sum > self.tokens {
            let new = (sum - self.tokens) as usize;
            self.deltas = match ids.len() {
                0 => Some(!text.starts_with(self.text.as_str())),
                known => Some(known <= new),
            };
        }
        if self.deltas == Some(true) {
            self.ids.extend_from_slice(&ids);
            self.text.push_str(&text);
        } else {
            self.ids = ids;
            self.text = text.into_owned();
        }
        apply_meta(meta, answer);
        Some(sum)
    }

    /// Ends the stream. If the stream was cut off, only the token count is known.
    pub(super) fn finish(self, answer: &mut ModelAnswer) {
        answer.output_ids = self.ids;
        answer.text = self.text;
        if self.tokens > 0 {
            answer.completion_tokens = answer.completion_tokens.max(Some(self.tokens));
        }
    }
}

fn apply_meta(meta: MetaInfo, answer: &mut ModelAnswer) {
    let or = |new: Option<f64>, old: Option<f64>| new.or(old);
    answer.prompt_tokens = meta.prompt_tokens.or(answer.prompt_tokens);
    answer.completion_tokens = meta.completion_tokens.or(answer.completion_tokens);
    answer.cached_tokens = meta.cached_tokens.or(answer.cached_tokens);
    answer.cached = meta.cached_tokens_details.map(CachedTokens::from).or(answer.cached.take());
    if let Some(reason) = meta.finish_reason {
        answer.finish_reason = match (reason.get("type").and_then(|kind| kind.as_str()), reason.as_str()) {
            (Some(kind), _) | (None, Some(kind)) => Some(one_line(kind, WORD_CHARS)),
            (None, None) => answer.finish_reason.take(),
        };
    }
    let old = answer.times;
    answer.times = ServerTimes {
        queue: or(meta.queue_time, old.queue),
        storage_prefetch_wait: or(meta.storage_prefetch_wait, old.storage_prefetch_wait),
        first_token: or(meta.first_token_latency, old.first_token),
        end_to_end: or(meta.e2e_latency, old.end_to_end),
        forward_entry: or(meta.forward_entry_time, old.forward_entry),
        prefill_finished: or(meta.prefill_finished_time, old.prefill_finished),
    };
}
