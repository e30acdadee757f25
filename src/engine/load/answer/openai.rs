//! `/v1/chat/completions` and `/v1/completions`, of SGLang and of others: deltas, usage at the end.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::engine::load::answer::generate::Details;
use crate::engine::load::answer::{Answer, Cached};

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    sglext: Option<Extension>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    /// Of `/v1/completions`.
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    /// Of `/v1/chat/completions`.
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(default)]
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<u32>,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Extension {
    #[serde(default)]
    cached_tokens_details: Option<Details>,
}

/// What an error in a stream says.
pub(super) fn message(error: &Value) -> String {
    let text = error.get("message").and_then(Value::as_str).or(error.as_str());
    text.map_or_else(|| error.to_string(), str::to_owned)
}

/// Read a frame: how many tokens came with it; `None` for what is no frame.
pub(super) fn read(data: &[u8], answer: &mut Answer) -> Option<u32> {
    let frame: Frame<'_> = serde_json::from_slice(data).ok()?;
    if let Some(error) = frame.error {
        answer.error = Some(message(&error));
        return Some(0);
    }
    let mut tokens = 0;
    // One answer is asked for, so there is one choice.
    if let Some(choice) = frame.choices.into_iter().next() {
        let text = |text: &Option<Cow<'_, str>>| text.as_deref().is_some_and(|text| !text.is_empty());
        tokens = match &choice.delta {
            Some(delta) => {
                let said = text(&delta.content) || text(&delta.reasoning_content);
                u32::from(said || delta.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()))
            }
            // A token whose text is empty (half of a character, an unknown id) is one all the same.
            None => u32::from(choice.text.is_some()),
        };
        let content = choice.delta.and_then(|delta| delta.content).or(choice.text);
        answer.text.push_str(content.as_deref().unwrap_or_default());
        if let Some(reason) = choice.finish_reason {
            answer.finish_reason = Some(reason.into_owned());
        }
    }
    if let Some(usage) = frame.usage {
        answer.prompt_tokens = usage.prompt_tokens.or(answer.prompt_tokens);
        answer.completion_tokens = usage.completion_tokens.or(answer.completion_tokens);
        answer.cached_tokens =
            usage.prompt_tokens_details.and_then(|details| details.cached_tokens).or(answer.cached_tokens);
    }
    if let Some(details) = frame.sglext.and_then(|extension| extension.cached_tokens_details) {
        answer.cached = Some(Cached::from(details));
    }
    Some(tokens)
}
