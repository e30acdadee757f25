//! Requests for log-probabilities.

use serde_json::{Map, Value, json};

/// Number of likeliest tokens to request at each position of `/generate`.
const TOP: u32 = 20;
/// The same for the completions API. vLLM's default limit is 20, and OpenAI's is 5.
const TOP_COMPLETIONS: u32 = 5;

/// A prompt and what is requested with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyRequest {
    /// Token IDs of the prompt, the forced continuation included.
    pub ids: Vec<u32>,
    /// Number of tokens at the end of the prompt whose log-probabilities are returned. Zero: none
    /// are returned, not even those of generated tokens.
    pub forced: u32,
    /// Number of tokens to generate.
    pub generated: u32,
    /// Name of a cache that no other request shares.
    pub salt: Option<String>,
    /// Number of tokens at the end that do not belong to the prompt. They change the number of
    /// tokens that are computed, and nothing before them.
    pub appended: u32,
    /// Whether log-probabilities of all tokens are requested. Then no cache serves any of them.
    pub computed: bool,
}

impl VerifyRequest {
    /// Returns the body for SGLang's `/generate`. `extra`: members that override these.
    pub(super) fn generate_body(&self, extra: &Map<String, Value>) -> String {
        let mut body = json!({
            "input_ids": self.ids,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": self.generated, "ignore_eos": true},
            "stream": false,
        });
        if self.forced > 0 {
            body["return_logprob"] = true.into();
            // SGLang serves no token from a cache at or after this position, because it needs the
            // hidden states there.
            let cached = (self.ids.len() as u64).saturating_sub(u64::from(self.forced) + u64::from(self.appended));
            body["logprob_start_len"] = if self.computed { 0 } else { cached }.into();
            body["top_logprobs_num"] = TOP.into();
        }
        if let Some(salt) = &self.salt {
            body["extra_key"] = salt.as_str().into();
        }
        merged(body, extra)
    }

    /// Returns the body for the completions API. It cannot force a continuation while a cache is
    /// used, so only generated tokens have log-probabilities.
    pub(super) fn completions_body(&self, model: &str, extra: &Map<String, Value>) -> String {
        let mut body = json!({
            "model": model,
            "prompt": self.ids,
            "temperature": 0.0,
            "max_tokens": self.generated,
            "ignore_eos": true,
            "stream": false,
            "return_cached_tokens_details": true,
        });
        if self.forced > 0 {
            body["logprobs"] = TOP_COMPLETIONS.into();
        }
        if let Some(salt) = &self.salt {
            // vLLM's name, and SGLang's.
            body["cache_salt"] = salt.as_str().into();
            body["extra_key"] = salt.as_str().into();
        }
        merged(body, extra)
    }
}

fn merged(mut body: Value, extra: &Map<String, Value>) -> String {
    for (name, value) in extra {
        body[name] = value.clone();
    }
    body.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuation_starts_after_the_tokens_that_a_cache_may_serve() {
        let request = VerifyRequest {
            ids: (0..100).collect(),
            forced: 20,
            generated: 8,
            salt: Some("s".to_owned()),
            appended: 0,
            computed: false,
        };
        let body: Value = serde_json::from_str(&request.generate_body(&Map::new())).expect("JSON");
        assert_eq!((&body["logprob_start_len"], &body["extra_key"]), (&json!(80), &json!("s")));
        let longer = VerifyRequest { appended: 10, ..request.clone() };
        let body: Value = serde_json::from_str(&longer.generate_body(&Map::new())).expect("JSON");
        assert_eq!(body["logprob_start_len"], 70);
        let computed = VerifyRequest { computed: true, ..request.clone() };
        let body: Value = serde_json::from_str(&computed.generate_body(&Map::new())).expect("JSON");
        assert_eq!(body["logprob_start_len"], 0);
        let mut extra = Map::new();
        extra.insert("priority".to_owned(), 3.into());
        let plain = VerifyRequest { forced: 0, salt: None, ..request };
        let body: Value = serde_json::from_str(&plain.generate_body(&extra)).expect("JSON");
        assert!(body["return_logprob"].is_null() && body["extra_key"].is_null() && body["priority"] == 3);
        let body: Value = serde_json::from_str(&plain.completions_body("m", &extra)).expect("JSON");
        assert!(body["logprobs"].is_null() && body["model"] == "m" && body["prompt"][99] == 99);
    }
}
