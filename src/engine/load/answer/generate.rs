//! SGLang's `/generate`: every frame repeats the sum of the answer so far, unless the server streams deltas
//! (`--incremental-streaming-output`). To parse each sum whole would take quadratic time, so the frames between the first and the
//! last are only asked how many tokens there are by now.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;

use crate::engine::base::text::one_line;
use crate::engine::load::answer::{Answer, Cached, ServerTimes, WORD_CHARS};

/// How far an answer has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    tokens: u32,
    /// Ids of deltas, in order; of sums, those of the last frame that was parsed.
    ids: Vec<u32>,
    text: String,
    /// Known from the first frame on which the two differ.
    deltas: Option<bool>,
    /// Bytes from the member with the counts to the end of the frame, in the last one that was parsed.
    meta: usize,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, default)]
    text: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    output_ids: Option<Vec<u32>>,
    #[serde(default)]
    meta_info: Option<Meta>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    finish_reason: Option<serde_json::Value>,
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    cached_tokens: Option<u32>,
    cached_tokens_details: Option<Details>,
    queue_time: Option<f64>,
    storage_prefetch_wait: Option<f64>,
    first_token_latency: Option<f64>,
    e2e_latency: Option<f64>,
    forward_entry_time: Option<f64>,
    prefill_finished_time: Option<f64>,
}

/// `cached_tokens_details`, here and on OpenAI's routes.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Details {
    device: u32,
    host: u32,
    storage: u32,
    storage_backend: Option<String>,
}

impl From<Details> for Cached {
    fn from(details: Details) -> Cached {
        let Details { device, host, storage, storage_backend } = details;
        Cached { device, host, storage, backend: storage_backend.map(|name| one_line(&name, WORD_CHARS)) }
    }
}

// A quote in a string is escaped, so that none of these can stand in one.
static META: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"meta_info\":"));
static GOES_ON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\":null"));
static COUNT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"completion_tokens\":"));

/// By so many bytes the counts of a frame may be longer than those of the last that was parsed, and still be looked for at its end.
const GROWTH_BYTES: usize = 64;

/// How many tokens a frame says there are by now, if it says that the answer goes on.
fn count(data: &[u8], meta: usize) -> Option<u32> {
    // The sum of the answer so far stands before the counts, and is not looked through.
    let counts = &data[data.len().saturating_sub(meta + GROWTH_BYTES)..];
    GOES_ON.find(counts)?;
    let at = COUNT.find(counts)? + COUNT.needle().len();
    let digits = counts[at..].iter().skip_while(|byte| **byte == b' ').take_while(|byte| byte.is_ascii_digit());
    let mut any = false;
    let value = digits.fold(0_u32, |value, digit| {
        any = true;
        value.saturating_mul(10).saturating_add(u32::from(digit - b'0'))
    });
    any.then_some(value)
}

impl Progress {
    /// Bytes that are kept of the answer.
    pub(super) fn bytes(&self) -> usize {
        self.text.len().max(self.ids.len())
    }

    /// Read a frame: how many tokens are new in it; `None` for what is no frame.
    pub(super) fn read(&mut self, data: &[u8], answer: &mut Answer) -> Option<u32> {
        let between = self.deltas == Some(false) && self.meta > 0;
        let sum = match between.then(|| count(data, self.meta)).flatten() {
            Some(sum) => sum,
            None => self.parse(data, answer)?,
        };
        let new = sum.saturating_sub(self.tokens);
        self.tokens = self.tokens.max(sum);
        Some(new)
    }

    /// Parse a frame whole: the tokens of the answer by now.
    fn parse(&mut self, data: &[u8], answer: &mut Answer) -> Option<u32> {
        let frame: Frame<'_> = serde_json::from_slice(data).ok()?;
        if let Some(error) = frame.error {
            answer.error = Some(super::openai::message(&error));
            return Some(self.tokens);
        }
        self.meta = META.find(data).map_or(0, |at| data.len() - at);
        let meta = frame.meta_info.unwrap_or_default();
        let (ids, text) = (frame.output_ids.unwrap_or_default(), frame.text.unwrap_or_default());
        // A server that counts nothing leaves the ids.
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
            (self.ids, self.text) = (ids, text.into_owned());
        }
        take(meta, answer);
        Some(sum)
    }

    /// The stream is over. Of one that was cut off, only its count is known.
    pub(super) fn finish(self, answer: &mut Answer) {
        (answer.output_ids, answer.text) = (self.ids, self.text);
        if self.tokens > 0 {
            answer.completion_tokens = answer.completion_tokens.max(Some(self.tokens));
        }
    }
}

fn take(meta: Meta, answer: &mut Answer) {
    let or = |new: Option<f64>, old: Option<f64>| new.or(old);
    answer.prompt_tokens = meta.prompt_tokens.or(answer.prompt_tokens);
    answer.completion_tokens = meta.completion_tokens.or(answer.completion_tokens);
    answer.cached_tokens = meta.cached_tokens.or(answer.cached_tokens);
    answer.cached = meta.cached_tokens_details.map(Cached::from).or(answer.cached.take());
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
