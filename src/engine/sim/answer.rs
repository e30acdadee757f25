//! Responses in the formats of SGLang's routes.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::VERSION;
use crate::ask::ApiRoute;
use crate::counters::PromptTokens;
use crate::scheduler::{Admission, FinishReason};
use crate::token;
use mcctl_base::Mono;

/// A point on the monotonic clock and its Unix time, used to convert between the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    /// Unix time in seconds.
    pub unix: f64,
    pub mono: Mono,
}

impl WallClock {
    fn at(&self, at: Mono) -> f64 {
        self.unix + (at.0 as f64 - self.mono.0 as f64) / 1e9
    }
}

/// Builds the frames of one response.
#[derive(Debug)]
pub(crate) struct AnswerFrames {
    pub route: ApiRoute,
    pub id: String,
    pub model: Arc<str>,
    pub incremental: bool,
    /// Whether to send usage at the end of a stream.
    pub usage: bool,
    /// Whether to send cached tokens by tier.
    pub details: bool,
    pub storage: bool,
    pub clock: WallClock,
    pub prompt: u64,
    pub arrived: Mono,
    admission: Option<Admission>,
    sent: usize,
    text: String,
}

/// Name of the storage backend, the same as in SGLang.
pub(crate) const BACKEND: &str = "MooncakeStore";

impl AnswerFrames {
    /// Creates a builder for a response that has no tokens yet.
    pub(crate) fn new(route: ApiRoute, id: String, model: Arc<str>, clock: WallClock) -> AnswerFrames {
        AnswerFrames {
            route,
            id,
            model,
            incremental: false,
            usage: false,
            details: false,
            storage: false,
            clock,
            prompt: 0,
            arrived: Mono::ZERO,
            admission: None,
            sent: 0,
            text: String::new(),
        }
    }

    /// Returns the frames for the first token.
    pub(crate) fn first(&mut self, admission: Admission, at: Mono) -> Bytes {
        self.admission = Some(admission);
        let mut out = Vec::new();
        if self.route == ApiRoute::Chat {
            let role = json!({"role": "assistant", "content": "", "reasoning_content": null});
            frame(&mut out, &self.chunk("delta", &role, None));
        }
        self.token(&mut out, at);
        out.into()
    }

    /// Returns the frame for a further token.
    pub(crate) fn next(&mut self, at: Mono) -> Bytes {
        let mut out = Vec::new();
        self.token(&mut out, at);
        out.into()
    }

    fn token(&mut self, out: &mut Vec<u8>, at: Mono) {
        let Some(admission) = &self.admission else { return };
        let Some(id) = admission.answer.get(self.sent) else { return };
        self.sent += 1;
        let word = token::text(*id);
        match self.route {
            ApiRoute::Generate => {
                self.text.push_str(&word);
                let is_last = self.sent == admission.answer.len();
                // The last token is sent with the final frame.
                if !is_last {
                    let value = self.generated(if self.incremental { &word } else { &self.text }, at, None);
                    frame(out, &value);
                }
            }
            ApiRoute::Chat => {
                frame(out, &self.chunk("delta", &json!({"content": word, "reasoning_content": null}), None))
            }
            ApiRoute::Completions => frame(out, &self.chunk("text", &json!(word), None)),
        }
    }

    /// Returns the last frames of a stream.
    pub(crate) fn end(&mut self, end: FinishReason, at: Mono) -> Bytes {
        let mut out = Vec::new();
        let reason = reason(end);
        match self.route {
            ApiRoute::Generate => {
                let value = match (&self.admission, self.incremental) {
                    (Some(admission), true) if end == FinishReason::Length => {
                        let word = token::text(admission.answer[self.sent - 1]);
                        self.generated(&word, at, Some(end))
                    }
                    (_, true) => self.generated("", at, Some(end)),
                    (_, false) => self.generated(&self.text, at, Some(end)),
                };
                frame(&mut out, &value);
            }
            ApiRoute::Chat => frame(&mut out, &self.chunk("delta", &json!({"reasoning_content": null}), Some(reason))),
            ApiRoute::Completions => frame(&mut out, &self.chunk("text", &json!(""), Some(reason))),
        }
        if self.route != ApiRoute::Generate {
            let object = |more: Value| -> Value {
                let mut value = self.head(true);
                value["choices"] = json!([]);
                for (key, what) in more.as_object().into_iter().flatten() {
                    value[key.as_str()] = what.clone();
                }
                value
            };
            if self.details {
                frame(&mut out, &object(json!({"usage": null, "sglext": {"cached_tokens_details": self.tiers()}})));
            }
            if self.usage {
                frame(&mut out, &object(json!({"usage": self.usage()})));
            }
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        out.into()
    }

    /// Returns the complete response for a request without streaming.
    pub(crate) fn whole(&mut self, end: FinishReason, at: Mono) -> Value {
        let text: String = self.answered().iter().map(|id| token::text(*id)).collect();
        let choice = match self.route {
            ApiRoute::Generate => {
                self.text = text;
                return self.generated(&self.text, at, Some(end));
            }
            ApiRoute::Chat => {
                json!({"index": 0, "message": {"role": "assistant", "content": text, "reasoning_content": null,
                "tool_calls": null}, "logprobs": null, "finish_reason": reason(end), "matched_stop": null})
            }
            ApiRoute::Completions => {
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason(end), "matched_stop": null})
            }
        };
        let mut value = self.head(false);
        value["choices"] = json!([choice]);
        value["usage"] = self.usage();
        value["metadata"] = json!({"weight_version": "default"});
        if self.details {
            value["sglext"] = json!({"cached_tokens_details": self.tiers()});
        }
        value
    }

    /// Counts a token of a response that is not streamed.
    pub(crate) fn count(&mut self, admission: Option<Admission>) {
        if admission.is_some() {
            self.admission = admission;
        }
        self.sent += 1;
    }

    fn answered(&self) -> &[u32] {
        self.admission.as_ref().map_or(&[], |admission| &admission.answer[..self.sent.min(admission.answer.len())])
    }

    fn by_tier(&self) -> PromptTokens {
        self.admission.as_ref().map_or_else(PromptTokens::default, |admission| admission.tokens)
    }

    fn cached(&self) -> u64 {
        let PromptTokens { device, host, storage, .. } = self.by_tier();
        device + host + storage
    }

    fn tiers(&self) -> Value {
        let PromptTokens { device, host, storage, .. } = self.by_tier();
        match (self.cached(), self.storage) {
            (0, _) => Value::Null,
            (_, false) => json!({"device": device, "host": host}),
            (_, true) => json!({"device": device, "host": host, "storage": storage, "storage_backend": BACKEND}),
        }
    }

    /// Builds a `/generate` object.
    fn generated(&self, text: &str, at: Mono, end: Option<FinishReason>) -> Value {
        let seconds = |admission: &Admission| admission.started.since(admission.arrived).as_secs_f64();
        let all = self.answered();
        let ids = if self.incremental && self.sent > 0 { &all[all.len() - 1..] } else { all };
        let finish = end.map(|end| match end {
            FinishReason::Length => json!({"type": "length", "length": self.sent}),
            FinishReason::Abort => json!({"type": "abort", "message": "Abort in waiting queue or in batch", "status_code": null, "err_type": null}),
        });
        let mut meta = json!({
            "id": self.id,
            "finish_reason": finish,
            "prompt_tokens": self.prompt,
            "weight_version": "default",
            "num_retractions": 0,
            "storage_prefetch_wait": self.admission.as_ref().map_or(0.0, |a| a.storage_wait.as_secs_f64()),
            "storage_staging_wait": 0.0,
            "reasoning_tokens": 0,
            "completion_tokens": self.sent,
            "cached_tokens": self.cached(),
            "cached_tokens_details": self.tiers(),
            "dp_rank": null,
            "simulator": true,
        });
        if let Some(admission) = &self.admission {
            meta["forward_entry_time"] = json!(self.clock.at(admission.started));
            meta["prefill_finished_time"] = json!(self.clock.at(admission.computed));
            meta["queue_time"] = json!(seconds(admission));
            if self.sent == 1 || end.is_some() {
                meta["response_sent_to_client_ts"] = json!(self.clock.at(admission.computed));
            }
            if end.is_some() {
                let spent = at.since(admission.computed).as_secs_f64();
                meta["first_token_latency"] = json!(admission.computed.since(admission.arrived).as_secs_f64());
                if spent > 0.0 {
                    meta["decode_throughput"] = json!((self.sent.max(1) - 1) as f64 / spent);
                }
                meta["weight_versions"] = json!([{"version": "default", "start": 0, "end": self.sent}]);
            }
        }
        if end.is_some() {
            meta["e2e_latency"] = json!(at.since(self.arrived).as_secs_f64());
            meta["request_received_ts"] = json!(self.clock.at(self.arrived));
            meta["api_server_dispatch_finish_ts"] = json!(self.clock.at(self.arrived));
            meta["request_finished_ts"] = json!(self.clock.at(at));
        }
        json!({"text": text, "output_ids": ids, "meta_info": meta})
    }

    /// Builds the fields that all OpenAI objects share.
    fn head(&self, streamed: bool) -> Value {
        let object = match (self.route, streamed) {
            (ApiRoute::Chat, true) => "chat.completion.chunk",
            (ApiRoute::Chat, false) => "chat.completion",
            _ => "text_completion",
        };
        let created = self.clock.at(self.arrived) as u64;
        json!({"id": self.id, "object": object, "created": created, "model": &*self.model, "system_fingerprint": VERSION})
    }

    fn chunk(&self, key: &str, what: &Value, reason: Option<&str>) -> Value {
        let mut value = self.head(true);
        value["choices"] =
            json!([{"index": 0, key: what, "logprobs": null, "finish_reason": reason, "matched_stop": null}]);
        if self.route == ApiRoute::Completions {
            value["usage"] = Value::Null;
        }
        value
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.sent as u64,
            "completion_tokens": self.sent,
            "prompt_tokens_details": {"cached_tokens": self.cached()},
            "reasoning_tokens": 0,
        })
    }
}

fn reason(end: FinishReason) -> &'static str {
    match end {
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

fn frame(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(value.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}

/// Builds the error object for a route.
pub(crate) fn error(route: ApiRoute, status: u16, message: &str) -> Value {
    match route {
        ApiRoute::Generate => json!({"error": {"message": message, "type": "invalid_request_error", "code": status}}),
        _ => json!({"object": "error", "message": message, "type": "BadRequestError", "param": null, "code": status}),
    }
}
