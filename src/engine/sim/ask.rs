//! Parses requests: untrusted JSON becomes a [`SimRequest`]. Unsupported features are rejected.
//! Parameters that do not affect generated responses (temperature, stop words) are ignored.

use serde::Deserialize;
use serde_json::Value;

use crate::scheduler::SimRequest;
use crate::token;

/// The API route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiRoute {
    /// `/generate`.
    Generate,
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// A parsed request body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParsedRequest {
    pub ask: SimRequest,
    /// Request ID chosen by the client (`rid`).
    pub id: Option<String>,
    /// Whether to send usage at the end of a stream.
    pub usage: bool,
    /// Whether to send cached tokens by tier at the end of an OpenAI response.
    pub details: bool,
}

/// Maximum length of a request ID in bytes.
const ID_BYTES_MAX: usize = 256;

#[derive(Deserialize)]
struct GenerateBody {
    #[serde(default)]
    text: Option<Value>,
    #[serde(default)]
    input_ids: Option<TokenIds>,
    #[serde(default)]
    sampling_params: Option<SamplingParams>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    rid: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(Vec<u32>),
    Other(serde::de::IgnoredAny),
}

#[derive(Default, Deserialize)]
struct SamplingParams {
    #[serde(default)]
    max_new_tokens: Option<u32>,
    #[serde(default)]
    n: Option<u32>,
}

#[derive(Deserialize)]
struct OpenAiBody {
    #[serde(default)]
    messages: Option<Vec<BodyMessage>>,
    #[serde(default)]
    prompt: Option<CompletionPrompt>,
    #[serde(default)]
    max_tokens: Option<u32>,
    #[serde(default)]
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    n: Option<u32>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    return_cached_tokens_details: Option<bool>,
    #[serde(default)]
    rid: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CompletionPrompt {
    Text(String),
    Ids(Vec<u32>),
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct BodyMessage {
    role: String,
    #[serde(default)]
    content: Option<MessageContent>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize)]
struct ContentPart {
    #[serde(default)]
    text: Option<String>,
}

/// Reasons why a request body is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestBodyError {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("the simulator accepts one prompt per request, not a batch")]
    Batch,
    #[error("the simulator returns one response per request, not {0}")]
    SeveralAnswers(u32),
    #[error("exactly one of text (a string) and input_ids (a list of token IDs) is required")]
    TextOrIds,
    #[error("messages must contain at least one message")]
    NoMessages,
    #[error("prompt is required and must be a string or a list of token IDs")]
    NoPrompt,
    #[error("rid must be at most {ID_BYTES_MAX} bytes long")]
    LongId,
}

/// Parses a request body.
///
/// # Errors
/// The body is malformed, or it requests something the simulator does not support.
pub(crate) fn read(route: ApiRoute, body: &[u8]) -> Result<ParsedRequest, RequestBodyError> {
    match route {
        ApiRoute::Generate => generate(body),
        ApiRoute::Completions | ApiRoute::Chat => openai(route, body),
    }
}

fn generate(body: &[u8]) -> Result<ParsedRequest, RequestBodyError> {
    let asked: GenerateBody = serde_json::from_slice(body)?;
    let prompt = match (asked.text, asked.input_ids) {
        (None | Some(Value::Null), Some(TokenIds::One(ids))) => ids,
        (Some(Value::String(text)), None) => token::tokens(&text),
        (Some(Value::Array(_)), None) | (None, Some(TokenIds::Other(_))) => return Err(RequestBodyError::Batch),
        _ => return Err(RequestBodyError::TextOrIds),
    };
    let sampling = asked.sampling_params.unwrap_or_default();
    one(sampling.n)?;
    Ok(ParsedRequest {
        ask: SimRequest { prompt, output: sampling.max_new_tokens, stream: asked.stream.unwrap_or(false) },
        id: id(asked.rid)?,
        usage: true,
        details: true,
    })
}

fn openai(route: ApiRoute, body: &[u8]) -> Result<ParsedRequest, RequestBodyError> {
    let asked: OpenAiBody = serde_json::from_slice(body)?;
    one(asked.n)?;
    let prompt = match (route, asked.messages, asked.prompt) {
        (ApiRoute::Chat, Some(messages), _) if !messages.is_empty() => chat(&messages),
        (ApiRoute::Chat, ..) => return Err(RequestBodyError::NoMessages),
        (_, _, Some(CompletionPrompt::Text(text))) => token::tokens(&text),
        (_, _, Some(CompletionPrompt::Ids(ids))) => ids,
        (_, _, Some(CompletionPrompt::Other(_))) => return Err(RequestBodyError::Batch),
        (_, _, None) => return Err(RequestBodyError::NoPrompt),
    };
    Ok(ParsedRequest {
        ask: SimRequest {
            prompt,
            output: asked.max_completion_tokens.or(asked.max_tokens),
            stream: asked.stream.unwrap_or(false),
        },
        id: id(asked.rid)?,
        usage: asked.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        details: asked.return_cached_tokens_details.unwrap_or(false),
    })
}

/// Renders a conversation in the same way as a chat template: each message is preceded by its role,
/// and the role of the response comes last. Each prompt of a conversation therefore begins with the
/// text of its previous turns.
fn chat(messages: &[BodyMessage]) -> Vec<u32> {
    let mut text = String::new();
    for message in messages {
        text.push_str("\n<|");
        text.push_str(&message.role);
        text.push_str("|>");
        match &message.content {
            Some(MessageContent::Text(content)) => text.push_str(content),
            Some(MessageContent::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_deref()).for_each(|part| text.push_str(part))
            }
            None => {}
        }
    }
    text.push_str("\n<|assistant|>");
    token::tokens(&text)
}

fn one(n: Option<u32>) -> Result<(), RequestBodyError> {
    match n {
        None | Some(1) => Ok(()),
        Some(n) => Err(RequestBodyError::SeveralAnswers(n)),
    }
}

fn id(id: Option<String>) -> Result<Option<String>, RequestBodyError> {
    match id {
        Some(id) if id.len() > ID_BYTES_MAX => Err(RequestBodyError::LongId),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(route: ApiRoute, body: &str) -> ParsedRequest {
        read(route, body.as_bytes()).unwrap()
    }

    #[test]
    fn routes_use_their_own_member_names() {
        let ids = ok(
            ApiRoute::Generate,
            r#"{"input_ids":[1,2],"sampling_params":{"max_new_tokens":7,"temperature":0},"stream":true}"#,
        );
        assert_eq!(ids.ask, SimRequest { prompt: vec![1, 2], output: Some(7), stream: true });
        let text = ok(ApiRoute::Generate, r#"{"text":"a word","rid":"x"}"#);
        assert_eq!((text.ask.prompt.len(), text.ask.output, text.id.as_deref()), (2, None, Some("x")));
        let chat = ok(
            ApiRoute::Chat,
            r#"{"messages":[{"role":"user","content":"a"}],"max_completion_tokens":3,"max_tokens":9}"#,
        );
        assert_eq!((chat.ask.output, chat.usage), (Some(3), false));
        let whole = ok(
            ApiRoute::Completions,
            r#"{"prompt":"ab","stream":true,"stream_options":{"include_usage":true},"best_of":1}"#,
        );
        assert!(whole.usage && whole.ask.stream && !whole.details);
    }

    #[test]
    fn continued_conversation_begins_with_its_previous_tokens() {
        let answer: String = (0..30).map(|at| token::text(token::answered(3, at))).collect();
        let first =
            ok(ApiRoute::Chat, r#"{"messages":[{"role":"system","content":"be"},{"role":"user","content":"hello"}]}"#);
        let body = serde_json::json!({"messages": [
            {"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]});
        let next = ok(ApiRoute::Chat, &body.to_string()).ask.prompt;
        let before = first.ask.prompt.len();
        assert_eq!(next[..before], first.ask.prompt[..]);
        assert!((0..30).all(|at| next[before + at as usize] == token::answered(3, at)));
    }

    #[test]
    fn unsupported_requests_are_refused_with_a_reason() {
        use RequestBodyError as E;
        type Expected = fn(&RequestBodyError) -> bool;
        let cases: [(ApiRoute, &str, Expected); 12] = [
            (ApiRoute::Generate, "{", |e| matches!(e, E::Json(_))),
            (ApiRoute::Generate, "[]", |e| matches!(e, E::TextOrIds)),
            (ApiRoute::Generate, "\"text\"", |e| matches!(e, E::Json(_))),
            (ApiRoute::Generate, "{}", |e| matches!(e, E::TextOrIds)),
            (ApiRoute::Generate, r#"{"text":"a","input_ids":[1]}"#, |e| matches!(e, E::TextOrIds)),
            (ApiRoute::Generate, r#"{"text":["a","b"]}"#, |e| matches!(e, E::Batch)),
            (ApiRoute::Generate, r#"{"input_ids":[[1],[2]]}"#, |e| matches!(e, E::Batch)),
            (ApiRoute::Generate, r#"{"input_ids":[-1]}"#, |e| matches!(e, E::Batch)),
            (ApiRoute::Generate, r#"{"text":"a","sampling_params":{"n":2}}"#, |e| matches!(e, E::SeveralAnswers(2))),
            (ApiRoute::Chat, r#"{"messages":[]}"#, |e| matches!(e, E::NoMessages)),
            (ApiRoute::Completions, r#"{"prompt":["a","b"]}"#, |e| matches!(e, E::Batch)),
            (ApiRoute::Completions, "{}", |e| matches!(e, E::NoPrompt)),
        ];
        for (route, body, expected) in cases {
            let error = read(route, body.as_bytes()).unwrap_err();
            assert!(expected(&error), "{body}: {error}");
        }
    }
}
