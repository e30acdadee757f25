//! Requests as they come: JSON of unknown origin to an [`Ask`]. What a simulator cannot do is refused, never passed over in silence;
//! what has no meaning for made-up answers (temperature, stop words) is.

use serde::Deserialize;
use serde_json::Value;

use crate::engine::sim::scheduler::Ask;
use crate::engine::sim::token;

/// Which route's answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/generate`.
    Generate,
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// What a body asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The request.
    pub ask: Ask,
    /// Its id, if the client chose one (`rid`).
    pub id: Option<String>,
    /// The usage at the end of a stream.
    pub usage: bool,
    /// The tiers at the end of an OpenAI answer.
    pub details: bool,
}

/// The longest id that a client may choose, bytes.
const ID_BYTES_MAX: usize = 256;

#[derive(Deserialize)]
struct Generate {
    #[serde(default)]
    text: Option<Value>,
    #[serde(default)]
    input_ids: Option<Ids>,
    #[serde(default)]
    sampling_params: Option<Sampling>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    rid: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(Vec<u32>),
    Other(serde::de::IgnoredAny),
}

#[derive(Default, Deserialize)]
struct Sampling {
    #[serde(default)]
    max_new_tokens: Option<u32>,
    #[serde(default)]
    n: Option<u32>,
}

#[derive(Deserialize)]
struct OpenAi {
    #[serde(default)]
    messages: Option<Vec<Message>>,
    #[serde(default)]
    prompt: Option<Prompt>,
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
enum Prompt {
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
struct Message {
    role: String,
    #[serde(default)]
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: Option<String>,
}

const BATCH: &str = "this is a simulator: it takes one prompt a request, no batch of them";

/// Read a body.
///
/// # Errors
/// What is wrong with it.
pub fn read(route: Route, body: &[u8]) -> Result<Wanted, String> {
    match route {
        Route::Generate => generate(body),
        Route::Completions | Route::Chat => openai(route, body),
    }
}

fn generate(body: &[u8]) -> Result<Wanted, String> {
    let asked: Generate = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let prompt = match (asked.text, asked.input_ids) {
        (None | Some(Value::Null), Some(Ids::One(ids))) => ids,
        (Some(Value::String(text)), None) => token::tokens(&text),
        (Some(Value::Array(_)), None) | (None, Some(Ids::Other(_))) => return Err(BATCH.to_owned()),
        _ => return Err("either text or input_ids is to be given: a string, or a list of token ids".to_owned()),
    };
    let sampling = asked.sampling_params.unwrap_or_default();
    one(sampling.n)?;
    Ok(Wanted {
        ask: Ask { prompt, output: sampling.max_new_tokens, stream: asked.stream.unwrap_or(false) },
        id: id(asked.rid)?,
        usage: true,
        details: true,
    })
}

fn openai(route: Route, body: &[u8]) -> Result<Wanted, String> {
    let asked: OpenAi = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    one(asked.n)?;
    let prompt = match (route, asked.messages, asked.prompt) {
        (Route::Chat, Some(messages), _) if !messages.is_empty() => chat(&messages),
        (Route::Chat, ..) => return Err("messages is to be a list of at least one".to_owned()),
        (_, _, Some(Prompt::Text(text))) => token::tokens(&text),
        (_, _, Some(Prompt::Ids(ids))) => ids,
        (_, _, Some(Prompt::Other(_))) => return Err(BATCH.to_owned()),
        (_, _, None) => return Err("prompt is to be given: a string, or a list of token ids".to_owned()),
    };
    Ok(Wanted {
        ask: Ask {
            prompt,
            output: asked.max_completion_tokens.or(asked.max_tokens),
            stream: asked.stream.unwrap_or(false),
        },
        id: id(asked.rid)?,
        usage: asked.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        details: asked.return_cached_tokens_details.unwrap_or(false),
    })
}

/// What a template makes of a conversation: each message under its role, and the role that is to answer. A conversation that goes on
/// begins with what it was before.
fn chat(messages: &[Message]) -> Vec<u32> {
    let mut text = String::new();
    for message in messages {
        text.push_str("\n<|");
        text.push_str(&message.role);
        text.push_str("|>");
        match &message.content {
            Some(Content::Text(content)) => text.push_str(content),
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_deref()).for_each(|part| text.push_str(part))
            }
            None => {}
        }
    }
    text.push_str("\n<|assistant|>");
    token::tokens(&text)
}

fn one(n: Option<u32>) -> Result<(), String> {
    match n {
        None | Some(1) => Ok(()),
        Some(n) => Err(format!("this is a simulator: it gives one answer, not {n}")),
    }
}

fn id(id: Option<String>) -> Result<Option<String>, String> {
    match id {
        Some(id) if id.len() > ID_BYTES_MAX => Err(format!("rid has at most {ID_BYTES_MAX} bytes here")),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(route: Route, body: &str) -> Wanted {
        read(route, body.as_bytes()).unwrap()
    }

    #[test]
    fn each_route_has_its_own_names_for_the_same() {
        let ids = ok(
            Route::Generate,
            r#"{"input_ids":[1,2],"sampling_params":{"max_new_tokens":7,"temperature":0},"stream":true}"#,
        );
        assert_eq!(ids.ask, Ask { prompt: vec![1, 2], output: Some(7), stream: true });
        let text = ok(Route::Generate, r#"{"text":"a word","rid":"x"}"#);
        assert_eq!((text.ask.prompt.len(), text.ask.output, text.id.as_deref()), (2, None, Some("x")));
        let chat =
            ok(Route::Chat, r#"{"messages":[{"role":"user","content":"a"}],"max_completion_tokens":3,"max_tokens":9}"#);
        assert_eq!((chat.ask.output, chat.usage), (Some(3), false));
        let whole = ok(
            Route::Completions,
            r#"{"prompt":"ab","stream":true,"stream_options":{"include_usage":true},"best_of":1}"#,
        );
        assert!(whole.usage && whole.ask.stream && !whole.details);
    }

    #[test]
    fn a_conversation_that_goes_on_begins_with_what_it_was() {
        let said: String = (0..30).map(|at| token::text(token::answered(3, at))).collect();
        let first =
            ok(Route::Chat, r#"{"messages":[{"role":"system","content":"be"},{"role":"user","content":"hello"}]}"#);
        let body = serde_json::json!({"messages": [
            {"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": said}, {"role": "user", "content": "more"}]});
        let next = ok(Route::Chat, &body.to_string()).ask.prompt;
        let before = first.ask.prompt.len();
        assert_eq!(next[..before], first.ask.prompt[..]);
        assert!((0..30).all(|at| next[before + at as usize] == token::answered(3, at)));
    }

    #[test]
    fn what_cannot_be_answered_is_refused_with_a_reason() {
        for (route, body, why) in [
            (Route::Generate, "{", "EOF"),
            (Route::Generate, "[]", "either text or input_ids"),
            (Route::Generate, "\"text\"", "invalid type"),
            (Route::Generate, "{}", "either text or input_ids"),
            (Route::Generate, r#"{"text":"a","input_ids":[1]}"#, "either text or input_ids"),
            (Route::Generate, r#"{"text":["a","b"]}"#, "one prompt a request"),
            (Route::Generate, r#"{"input_ids":[[1],[2]]}"#, "one prompt a request"),
            (Route::Generate, r#"{"input_ids":[-1]}"#, "one prompt a request"),
            (Route::Generate, r#"{"text":"a","sampling_params":{"n":2}}"#, "one answer"),
            (Route::Chat, r#"{"messages":[]}"#, "at least one"),
            (Route::Completions, r#"{"prompt":["a","b"]}"#, "one prompt a request"),
            (Route::Completions, "{}", "prompt is to be given"),
        ] {
            let said = read(route, body.as_bytes()).unwrap_err();
            assert!(said.contains(why), "{body}: {said}");
        }
    }
}
