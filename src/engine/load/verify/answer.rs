//! Answers of SGLang's `/generate` with log-probabilities.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::verify::{CachedPrompt, NextToken, TokenName, VerifyRequest};
use mcctl_base::text::one_line;

/// Maximum number of characters of a server's message.
const MESSAGE_CHARS: usize = 300;

/// Number of prompt tokens that came from each tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct CachedByTier {
    pub device: u32,
    pub host: u32,
    pub storage: u32,
}

/// A server's answer to a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyAnswer {
    /// The forced positions, then the generated ones.
    pub positions: Vec<NextToken>,
    /// Number of forced positions.
    pub forced: usize,
    pub cached: CachedPrompt,
    /// Output tokens per second after the first one.
    pub decode_rate: Option<f64>,
    /// Tokens per verification step of speculative decoding, as reported by the server.
    pub accept_length: Option<f64>,
}

/// A response without a usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableAnswer {
    #[error("the response is not a JSON document of this API: {0}")]
    NotJson(String),
    #[error("the server returned an error: {0}")]
    Error(String),
    #[error("the response contains no log-probabilities")]
    NoLogprobs,
    #[error("the server aborted the request: {0}")]
    Aborted(String),
}

#[derive(Deserialize)]
struct GenerateDocument {
    meta_info: Meta,
}

/// `[logprob, token ID, text]`. The log-probability of a token without a preceding one is null.
type TokenRow = (Option<f64>, u32, Option<String>);

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    input_token_logprobs: Option<Vec<TokenRow>>,
    #[serde(default)]
    input_top_logprobs: Option<Vec<Option<Vec<TokenRow>>>>,
    #[serde(default)]
    output_token_logprobs: Option<Vec<TokenRow>>,
    #[serde(default)]
    output_top_logprobs: Option<Vec<Option<Vec<TokenRow>>>>,
    #[serde(default)]
    cached_tokens: u32,
    #[serde(default)]
    cached_tokens_details: Option<CachedByTier>,
    #[serde(default)]
    finish_reason: Option<Value>,
    #[serde(default)]
    completion_tokens: u32,
    #[serde(default)]
    e2e_latency: Option<f64>,
    #[serde(default)]
    first_token_latency: Option<f64>,
    #[serde(default)]
    spec_accept_length: Option<f64>,
}

pub(super) fn json_error(error: serde_json::Error) -> UnusableAnswer {
    UnusableAnswer::NotJson(one_line(&error.to_string(), MESSAGE_CHARS))
}

/// Returns the document in `body`, unless it is an error.
pub(super) fn document_of(body: &str) -> Result<Value, UnusableAnswer> {
    let document: Value = serde_json::from_str(body).map_err(json_error)?;
    let Some(error) = document.get("error") else { return Ok(document) };
    let message = error.get("message").unwrap_or(error);
    Err(UnusableAnswer::Error(one_line(message.as_str().unwrap_or(&message.to_string()), MESSAGE_CHARS)))
}

/// Parses the body of a response. `forced`: number of tokens whose log-probabilities were
/// requested. The first of them has none, because the server computes no distribution for it.
///
/// # Errors
/// The server returned an error, no log-probabilities, or another document.
pub(super) fn read_generate(body: &str, request: &VerifyRequest) -> Result<VerifyAnswer, UnusableAnswer> {
    let GenerateDocument { meta_info: meta } = serde_json::from_value(document_of(body)?).map_err(json_error)?;
    if let Some(reason) = meta.finish_reason.as_ref().filter(|reason| reason["type"] == "abort") {
        let message = reason["message"].as_str().unwrap_or("no reason given");
        return Err(UnusableAnswer::Aborted(one_line(message, MESSAGE_CHARS)));
    }
    let (Some(input), Some(output)) = (meta.input_token_logprobs, meta.output_token_logprobs) else {
        return Err(UnusableAnswer::NoLogprobs);
    };
    let forced = request.forced as usize;
    let appended = request.appended as usize;
    let expected = if request.computed { request.ids.len() } else { forced + appended };
    if input.len() != expected || output.len() != request.generated as usize {
        return Err(UnusableAnswer::NoLogprobs);
    }
    let mut positions = Vec::with_capacity(input.len() + output.len());
    join(&mut positions, input, meta.input_top_logprobs, (expected + 1).saturating_sub(forced + appended));
    positions.truncate(positions.len().saturating_sub(appended));
    let forced = positions.len();
    // What follows other tokens is not an answer to the prompt.
    if appended == 0 {
        join(&mut positions, output, meta.output_top_logprobs, 0);
    }
    let decode_s = meta.e2e_latency.zip(meta.first_token_latency).map(|(whole, first)| whole - first);
    let decode_rate = decode_s
        .filter(|seconds| *seconds > 0.0 && meta.completion_tokens > 1)
        .map(|seconds| f64::from(meta.completion_tokens - 1) / seconds);
    Ok(VerifyAnswer {
        positions,
        forced,
        // SGLang reports no details without cached tokens.
        cached: CachedPrompt {
            tokens: meta.cached_tokens,
            by_tier: meta.cached_tokens_details.or((meta.cached_tokens == 0).then(CachedByTier::default)),
        },
        decode_rate,
        accept_length: meta.spec_accept_length,
    })
}

/// Appends the positions from `skip` on.
fn join(to: &mut Vec<NextToken>, tokens: Vec<TokenRow>, top: Option<Vec<Option<Vec<TokenRow>>>>, skip: usize) {
    let mut top = top.unwrap_or_default().into_iter();
    for (at, (logprob, id, _)) in tokens.into_iter().enumerate() {
        let top = top.next().flatten().unwrap_or_default();
        if at < skip {
            continue;
        }
        // JSON has no NaN. A server writes null instead.
        let number = |logprob: Option<f64>| logprob.unwrap_or(f64::NAN);
        let top = top.into_iter().map(|(logprob, id, _)| (TokenName::Id(id), number(logprob))).collect();
        to.push(NextToken { token: TokenName::Id(id), logprob: number(logprob), top });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with two forced positions and one generated token.
    const BODY: &str = r#"{"text":"x","output_ids":[7],"meta_info":{"finish_reason":{"type":"length","length":2},
        "input_token_logprobs":[[null,5,null],[-1.5,6,null],[null,8,null]],
        "input_top_logprobs":[null,[[-0.5,9,null],[-1.5,6,null]],[[null,9,null]]],
        "output_token_logprobs":[[-0.25,7,null]],"output_top_logprobs":[[[-0.25,7,null]]],
        "cached_tokens":96,"cached_tokens_details":{"device":32,"host":0,"storage":64,"storage_backend":"MooncakeStore"},
        "completion_tokens":3,"e2e_latency":1.5,"first_token_latency":0.5,"spec_accept_length":2.5}}"#;

    fn request(forced: u32, computed: bool) -> VerifyRequest {
        VerifyRequest { ids: vec![1, 6, 8], forced, generated: 1, salt: None, appended: 0, computed }
    }

    #[test]
    fn forced_and_generated_positions_are_read_in_order() {
        let answer = read_generate(BODY, &request(3, false)).expect("an answer");
        let tokens: Vec<_> = answer.positions.iter().map(|position| position.token.clone()).collect();
        assert_eq!(tokens, [6, 8, 7].map(TokenName::Id));
        assert_eq!((answer.forced, answer.positions[0].top.len()), (2, 2));
        assert!(answer.positions[1].logprob.is_nan() && answer.positions[1].top[0].1.is_nan());
        assert_eq!(answer.cached.by_tier, Some(CachedByTier { device: 32, host: 0, storage: 64 }));
        assert_eq!((answer.decode_rate, answer.accept_length), (Some(2.0), Some(2.5)));
    }

    #[test]
    fn of_a_computed_prompt_only_the_continuation_is_kept() {
        let answer = read_generate(BODY, &request(2, true)).expect("an answer");
        let longer = VerifyRequest { appended: 1, ..request(2, false) };
        let longer = read_generate(BODY, &longer).expect("an answer");
        assert_eq!((longer.positions.len(), longer.forced, &longer.positions[0].token), (1, 1, &TokenName::Id(6)));
        let tokens: Vec<_> = answer.positions.iter().map(|position| position.token.clone()).collect();
        assert_eq!((tokens, answer.forced), ([8, 7].map(TokenName::Id).to_vec(), 1));
    }

    #[test]
    fn answers_without_what_was_requested_are_unusable() {
        assert_eq!(read_generate(BODY, &request(4, false)), Err(UnusableAnswer::NoLogprobs));
        let plain = read_generate(r#"{"text":"x","meta_info":{"cached_tokens":0}}"#, &request(3, false));
        assert_eq!(plain, Err(UnusableAnswer::NoLogprobs));
        let aborted = read_generate(
            r#"{"meta_info":{"finish_reason":{"type":"abort","message":"too long"}}}"#,
            &request(3, false),
        );
        assert_eq!(aborted, Err(UnusableAnswer::Aborted("too long".to_owned())));
        assert!(matches!(read_generate("", &request(3, false)), Err(UnusableAnswer::NotJson(_))));
        assert!(matches!(read_generate("[]", &request(3, false)), Err(UnusableAnswer::NotJson(_))));
    }
}
