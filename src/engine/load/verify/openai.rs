//! Answers of the completions API with log-probabilities.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::verify::answer::{document_of, json_error};
use crate::verify::{CachedByTier, CachedPrompt, NextToken, TokenName, UnusableAnswer, VerifyAnswer};

#[derive(Deserialize)]
struct CompletionDocument {
    choices: Vec<CompletionChoice>,
    #[serde(default)]
    usage: Option<CompletionUsage>,
    /// Only SGLang's.
    #[serde(default)]
    sglext: Option<SglangExtension>,
}

#[derive(Deserialize)]
struct CompletionChoice {
    #[serde(default)]
    logprobs: Option<CompletionLogprobs>,
}

#[derive(Deserialize)]
struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    #[serde(default)]
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

#[derive(Default, Deserialize)]
struct SglangExtension {
    #[serde(default)]
    cached_tokens_details: Option<CachedByTier>,
}

#[derive(Deserialize)]
struct CompletionUsage {
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Default, Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

/// Parses the body of a response.
///
/// # Errors
/// The server returned an error, no log-probabilities, or another document.
pub(super) fn read_completion(body: &str) -> Result<VerifyAnswer, UnusableAnswer> {
    let document: CompletionDocument = serde_json::from_value(document_of(body)?).map_err(json_error)?;
    let usage = document.usage.and_then(|usage| usage.prompt_tokens_details).unwrap_or_default();
    let choice = document.choices.into_iter().next().ok_or(UnusableAnswer::NoLogprobs)?;
    let is_complete = |of: &CompletionLogprobs| !of.tokens.is_empty() && of.tokens.len() == of.token_logprobs.len();
    let logprobs = choice.logprobs.filter(is_complete).ok_or(UnusableAnswer::NoLogprobs)?;
    let mut top = logprobs.top_logprobs.unwrap_or_default().into_iter();
    let named = |text: &str| TokenName::Text(text.into());
    let position = |(text, logprob): (String, Option<f64>)| {
        let top = top.next().flatten().unwrap_or_default();
        let top = top.iter().map(|(text, logprob)| (named(text), logprob.as_f64().unwrap_or(f64::NAN))).collect();
        NextToken { token: named(&text), logprob: logprob.unwrap_or(f64::NAN), top }
    };
    let positions = logprobs.tokens.into_iter().zip(logprobs.token_logprobs).map(position).collect();
    Ok(VerifyAnswer {
        positions,
        forced: 0,
        cached: CachedPrompt {
            tokens: usage.cached_tokens.unwrap_or(0),
            by_tier: document.sglext.and_then(|extension| extension.cached_tokens_details),
        },
        decode_rate: None,
        accept_length: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tokens_and_cached_tokens_are_read() {
        let body = r#"{"choices":[{"text":" a b","logprobs":{"tokens":[" a"," b"],"token_logprobs":[-0.5,null],
            "top_logprobs":[{" a":-0.5," c":-1.5},null]}}],"usage":{"prompt_tokens_details":{"cached_tokens":96}},
            "sglext":{"cached_tokens_details":{"device":32,"host":0,"storage":64}}}"#;
        let answer = read_completion(body).expect("an answer");
        assert_eq!((answer.positions.len(), answer.forced, answer.cached.tokens), (2, 0, 96));
        assert_eq!(answer.cached.by_tier, Some(CachedByTier { device: 32, host: 0, storage: 64 }));
        assert_eq!(answer.positions[0].top.len(), 2);
        assert!(answer.positions[1].logprob.is_nan());
    }

    #[test]
    fn answers_without_logprobs_and_errors_are_unusable() {
        for body in [
            r#"{"choices":[]}"#,
            r#"{"choices":[{"text":"a"}]}"#,
            r#"{"choices":[{"logprobs":null}]}"#,
            r#"{"choices":[{"logprobs":{"tokens":["a"],"token_logprobs":[]}}]}"#,
        ] {
            assert_eq!(read_completion(body), Err(UnusableAnswer::NoLogprobs), "{body}");
        }
        let error = read_completion(r#"{"error":{"message":"no\nsuch model"}}"#);
        assert_eq!(error, Err(UnusableAnswer::Error("no such model".to_owned())));
        assert!(matches!(read_completion("<html>"), Err(UnusableAnswer::NotJson(_))));
    }
}
