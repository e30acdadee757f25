//! Builds request bodies.

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use crate::answer::Dialect;
use crate::target::LoadTarget;
use crate::workload::{ChatMessage, TurnPrompt, TurnRequest};

/// A request that is ready to be sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EncodedRequest {
    pub body: Bytes,
    /// Routing key for SGLang's router (`X-SMG-Routing-Key`).
    pub routing_key: Option<HeaderValue>,
}

/// The header that SGLang's router uses to send related requests to the same worker.
pub(super) const ROUTING_KEY: HeaderName = HeaderName::from_static("x-smg-routing-key");

impl LoadTarget {
    /// Encodes `ask`. A routing key that is not a valid header value is dropped.
    pub fn encode(&self, ask: &TurnRequest) -> EncodedRequest {
        let routing_key = ask.routing_key.as_deref().and_then(|key| HeaderValue::from_str(key).ok());
        EncodedRequest { body: self.body(ask), routing_key }
    }

    /// Returns the request body for `ask`. The same `ask` always produces the same bytes.
    pub fn body(&self, ask: &TurnRequest) -> Bytes {
        let mut members = Map::new();
        match self.dialect {
            Dialect::Generate => {
                let mut sampling = json!({
                    "temperature": self.temperature,
                    "max_new_tokens": ask.max_tokens,
                    "ignore_eos": self.ignore_eos,
                });
                if let Some(top_p) = self.top_p {
                    sampling["top_p"] = Value::from(top_p);
                }
                members.insert("sampling_params".to_owned(), sampling);
            }
            Dialect::TensorRt => self.tensor_rt(ask, &mut members),
            Dialect::Chat | Dialect::Completions => {
                let most = if self.dialect == Dialect::Chat { "max_completion_tokens" } else { "max_tokens" };
                members.insert("model".to_owned(), Value::from(self.model.as_str()));
                members.insert(most.to_owned(), Value::from(ask.max_tokens));
                members.insert("temperature".to_owned(), Value::from(self.temperature));
                members.insert("ignore_eos".to_owned(), Value::from(self.ignore_eos));
                if let Some(top_p) = self.top_p {
                    members.insert("top_p".to_owned(), Value::from(top_p));
                }
                // Servers accept stream options only for streamed responses.
                if self.stream {
                    members.insert("stream_options".to_owned(), json!({"include_usage": true}));
                }
                members.insert("return_cached_tokens_details".to_owned(), Value::from(true));
            }
        }
        members.insert("stream".to_owned(), Value::from(self.stream));
        for (name, value) in &self.extra {
            members.insert(name.clone(), value.clone());
        }
        for (name, _) in ask.extra.iter() {
            members.remove(name);
        }
        let mut text = Vec::new();
        text.extend_from_slice(b"{\"");
        prompt(self.dialect, &ask.prompt, &mut text);
        text.push(b',');
        let rest = serde_json::to_vec(&members).expect("members have string keys");
        text.extend_from_slice(&rest[1..rest.len() - 1]);
        for (name, value) in ask.extra.iter() {
            if text.last() != Some(&b',') {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, name).expect("writing to a vector succeeds");
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
        }
        text.push(b'}');
        text.into()
    }
}

impl LoadTarget {
    /// Adds the members for TensorRT-LLM's ensemble route. The route cannot ignore the
    /// end-of-sequence token. Instead, a minimum length and an end token outside any vocabulary are
    /// set, which produces responses of the full length.
    fn tensor_rt(&self, ask: &TurnRequest, members: &mut Map<String, Value>) {
        /// The lowest temperature that the route accepts; zero is rejected.
        const COLDEST: f64 = 1e-6;
        /// An ID outside any vocabulary.
        const NO_TOKEN: u32 = 1 << 20;
        members.insert("accumulate_tokens".to_owned(), Value::from(true));
        members.insert("temperature".to_owned(), Value::from(self.temperature.max(COLDEST)));
        members.insert("top_p".to_owned(), Value::from(self.top_p.unwrap_or(1.0)));
        members.insert("max_tokens".to_owned(), Value::from(ask.max_tokens));
        if self.ignore_eos {
            members.insert("min_length".to_owned(), Value::from(ask.max_tokens));
            members.insert("end_id".to_owned(), Value::from(NO_TOKEN));
        }
    }
}

/// Writes the member that contains the prompt, without its opening quote. Long ID lists are written
/// directly, without an intermediate value.
fn prompt(dialect: Dialect, prompt: &TurnPrompt, text: &mut Vec<u8>) {
    let name: &[u8] = match (dialect, prompt) {
        (Dialect::Generate, TurnPrompt::Ids(_)) => b"input_ids\":",
        (Dialect::Generate, _) => b"text\":",
        (Dialect::Chat, _) => b"messages\":",
        (Dialect::TensorRt, _) => b"text_input\":",
        (Dialect::Completions, _) => b"prompt\":",
    };
    text.extend_from_slice(name);
    match (dialect, prompt) {
        (Dialect::Chat, TurnPrompt::Messages(messages)) => {
            text.push(b'[');
            for (at, message) in messages.iter().enumerate() {
                if at > 0 {
                    text.push(b',');
                }
                text.extend_from_slice(message.json().as_bytes());
            }
            text.push(b']');
        }
        (Dialect::Chat, TurnPrompt::Text(content)) => {
            serde_json::to_writer(text, &json!([{"role": "user", "content": content}]))
                .expect("writing to a vector succeeds");
        }
        (_, TurnPrompt::Ids(ids)) => {
            text.reserve(ids.len() * 7);
            serde_json::to_writer(text, ids).expect("writing to a vector succeeds");
        }
        (_, TurnPrompt::Text(content)) => serde_json::to_writer(text, content).expect("writing to a vector succeeds"),
        (_, TurnPrompt::Messages(messages)) => {
            let content: String = messages.iter().map(ChatMessage::text).collect();
            serde_json::to_writer(text, &content).expect("writing to a vector succeeds");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{ChatRole, Members};
    use mcctl_base::HostPort;

    fn target(dialect: Dialect) -> LoadTarget {
        LoadTarget { path: "/".to_owned(), model: "m".to_owned(), ..LoadTarget::new(HostPort::new("h", 1), dialect) }
    }

    fn body(target: &LoadTarget, prompt: TurnPrompt) -> Value {
        serde_json::from_slice(&target.body(&TurnRequest::new(prompt, 7))).expect("JSON")
    }

    #[test]
    fn generate_accepts_ids_or_text() {
        let generate = target(Dialect::Generate);
        let expected = json!({
            "input_ids": [1, 22, 333],
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 7, "ignore_eos": true},
            "stream": true,
        });
        assert_eq!(body(&generate, TurnPrompt::Ids(vec![1, 22, 333])), expected);
        assert_eq!(body(&generate, TurnPrompt::Text("a\"b".to_owned()))["text"], "a\"b");
        assert_eq!(body(&generate, TurnPrompt::Ids(Vec::new()))["input_ids"], json!([]));
    }

    #[test]
    fn openai_routes_use_messages_or_prompt_and_request_usage() {
        let messages = vec![ChatMessage::new(ChatRole::User, "hi")];
        let chat = body(&target(Dialect::Chat), TurnPrompt::Messages(messages));
        assert_eq!(chat["messages"], json!([{"role": "user", "content": "hi"}]));
        assert_eq!(
            (&chat["max_completion_tokens"], &chat["stream_options"]["include_usage"]),
            (&json!(7), &json!(true))
        );
        let completions = body(&target(Dialect::Completions), TurnPrompt::Ids(vec![5]));
        assert_eq!((&completions["prompt"], &completions["max_tokens"]), (&json!([5]), &json!(7)));
    }

    #[test]
    fn sampling_and_streaming_members_match_each_route() {
        let all = [Dialect::Generate, Dialect::Chat, Dialect::Completions, Dialect::TensorRt];
        let bodies = all.map(|dialect| {
            let target = LoadTarget { top_p: Some(0.5), stream: false, temperature: 0.25, ..target(dialect) };
            body(&target, TurnPrompt::Text("x".to_owned()))
        });
        let sampling = |body: &Value| [body["temperature"].clone(), body["top_p"].clone()];
        assert_eq!(sampling(&bodies[0]["sampling_params"]), [json!(0.25), json!(0.5)]);
        assert!(bodies[1..].iter().all(|body| sampling(body) == [json!(0.25), json!(0.5)]), "{bodies:?}");
        assert!(bodies.iter().all(|body| body["stream"] == false && body.get("stream_options").is_none()));
        assert_eq!((&bodies[3]["text_input"], &bodies[3]["min_length"]), (&json!("x"), &json!(7)));
    }

    #[test]
    fn extra_members_of_the_user_take_precedence() {
        let mut target = target(Dialect::Chat);
        target.extra.insert("temperature".to_owned(), json!(0.5));
        assert_eq!(body(&target, TurnPrompt::Text("x".to_owned()))["temperature"], 0.5);
    }

    #[test]
    fn members_of_one_request_take_precedence_and_keep_their_text() {
        let mut chat = target(Dialect::Chat);
        chat.extra.insert("top_p".to_owned(), json!(0.5));
        let mut ask = TurnRequest::new(TurnPrompt::Text("x".to_owned()), 7);
        let member = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        ask.extra = Members::new([member("top_p", "0.25"), member("tools", r#"[{"z":1, "a":{}}]"#)]);
        let text = chat.body(&ask);
        let body: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!((&body["top_p"], &body["tools"]), (&json!(0.25), &json!([{"a": {}, "z": 1}])));
        assert!(String::from_utf8_lossy(&text).ends_with(r#","top_p":0.25,"tools":[{"z":1, "a":{}}]}"#));
    }
}
