//! The bodies of requests.

use std::io::Write;

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use crate::engine::load::answer::Dialect;
use crate::engine::load::target::Target;
use crate::engine::load::workload::{Ask, Message, Prompt};

/// A request that is ready to be sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Asking {
    /// Its body.
    pub body: Bytes,
    /// The word for routers that goes with it (`X-SMG-Routing-Key`).
    pub routing_key: Option<HeaderValue>,
}

/// The header by which SGLang's router keeps what belongs together in one place.
pub(super) const ROUTING_KEY: HeaderName = HeaderName::from_static("x-smg-routing-key");

impl Target {
    /// The request for `ask`. A routing key that no header can hold is left out.
    pub fn asking(&self, ask: &Ask) -> Asking {
        let routing_key = ask.routing_key.as_deref().and_then(|key| HeaderValue::from_str(key).ok());
        Asking { body: self.body(ask), routing_key }
    }

    /// The body of a request for `ask`. The same ask gives the same bytes.
    pub fn body(&self, ask: &Ask) -> Bytes {
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
                // Only a stream takes options.
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
        let rest = serde_json::to_vec(&members).expect("members have text keys");
        text.extend_from_slice(&rest[1..rest.len() - 1]);
        for (name, value) in ask.extra.iter() {
            if text.last() != Some(&b',') {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, name).expect("a vector takes all");
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
        }
        text.push(b'}');
        text.into()
    }
}

impl Target {
    /// The members of TensorRT-LLM's ensemble. It cannot ignore the end-of-sequence token. A minimum length and an end
    /// token outside every vocabulary give answers of the full length.
    fn tensor_rt(&self, ask: &Ask, members: &mut Map<String, Value>) {
        /// Temperature zero is refused there.
        const COLDEST: f64 = 1e-6;
        /// Beyond every vocabulary.
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

/// The member that holds the prompt, after its opening quote. Long lists of ids are written straight.
fn prompt(dialect: Dialect, prompt: &Prompt, text: &mut Vec<u8>) {
    let name: &[u8] = match (dialect, prompt) {
        (Dialect::Generate, Prompt::Ids(_)) => b"input_ids\":",
        (Dialect::Generate, _) => b"text\":",
        (Dialect::Chat, _) => b"messages\":",
        (Dialect::TensorRt, _) => b"text_input\":",
        (Dialect::Completions, _) => b"prompt\":",
    };
    text.extend_from_slice(name);
    match (dialect, prompt) {
        (Dialect::Chat, Prompt::Messages(messages)) => {
            text.push(b'[');
            for (at, message) in messages.iter().enumerate() {
                if at > 0 {
                    text.push(b',');
                }
                text.extend_from_slice(message.json().as_bytes());
            }
            text.push(b']');
        }
        (Dialect::Chat, Prompt::Text(content)) => {
            serde_json::to_writer(text, &json!([{"role": "user", "content": content}])).expect("a vector takes all");
        }
        (_, Prompt::Ids(ids)) => {
            text.reserve(ids.len() * 6);
            let mut lead = b'[';
            for id in ids {
                text.push(lead);
                write!(text, "{id}").expect("a vector takes all");
                lead = b',';
            }
            if ids.is_empty() {
                text.push(b'[');
            }
            text.push(b']');
        }
        (_, Prompt::Text(content)) => serde_json::to_writer(text, content).expect("a vector takes all"),
        (_, Prompt::Messages(messages)) => {
            let content: String = messages.iter().map(Message::text).collect();
            serde_json::to_writer(text, &content).expect("a vector takes all");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::base::HostPort;
    use crate::engine::load::target::{Limits, Via};
    use crate::engine::load::workload::{Members, Role};
    use hyper::header::HeaderMap;

    fn target(dialect: Dialect) -> Target {
        Target {
            at: HostPort::new("h", 1),
            path: "/".to_owned(),
            dialect,
            model: "m".to_owned(),
            temperature: 0.0,
            top_p: None,
            stream: true,
            ignore_eos: true,
            extra: Map::new(),
            headers: HeaderMap::new(),
            via: Via::default(),
            limits: Limits::default(),
        }
    }

    fn body(target: &Target, prompt: Prompt) -> Value {
        serde_json::from_slice(&target.body(&Ask::new(prompt, 7))).expect("JSON")
    }

    #[test]
    fn generate_takes_ids_or_text() {
        let generate = target(Dialect::Generate);
        let expected = json!({
            "input_ids": [1, 22, 333],
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 7, "ignore_eos": true},
            "stream": true,
        });
        assert_eq!(body(&generate, Prompt::Ids(vec![1, 22, 333])), expected);
        assert_eq!(body(&generate, Prompt::Text("a\"b".to_owned()))["text"], "a\"b");
        assert_eq!(body(&generate, Prompt::Ids(Vec::new()))["input_ids"], json!([]));
    }

    #[test]
    fn the_routes_of_openai_take_messages_and_a_prompt_and_ask_for_usage() {
        let messages = vec![Message::new(Role::User, "hi")];
        let chat = body(&target(Dialect::Chat), Prompt::Messages(messages));
        assert_eq!(chat["messages"], json!([{"role": "user", "content": "hi"}]));
        assert_eq!(
            (&chat["max_completion_tokens"], &chat["stream_options"]["include_usage"]),
            (&json!(7), &json!(true))
        );
        let completions = body(&target(Dialect::Completions), Prompt::Ids(vec![5]));
        assert_eq!((&completions["prompt"], &completions["max_tokens"]), (&json!([5]), &json!(7)));
    }

    #[test]
    fn sampling_and_streaming_are_members_where_each_route_has_them() {
        let all = [Dialect::Generate, Dialect::Chat, Dialect::Completions, Dialect::TensorRt];
        let bodies = all.map(|dialect| {
            let target = Target { top_p: Some(0.5), stream: false, temperature: 0.25, ..target(dialect) };
            body(&target, Prompt::Text("x".to_owned()))
        });
        let sampling = |body: &Value| [body["temperature"].clone(), body["top_p"].clone()];
        assert_eq!(sampling(&bodies[0]["sampling_params"]), [json!(0.25), json!(0.5)]);
        assert!(bodies[1..].iter().all(|body| sampling(body) == [json!(0.25), json!(0.5)]), "{bodies:?}");
        assert!(bodies.iter().all(|body| body["stream"] == false && body.get("stream_options").is_none()));
        assert_eq!((&bodies[3]["text_input"], &bodies[3]["min_length"]), (&json!("x"), &json!(7)));
    }

    #[test]
    fn what_the_user_adds_wins() {
        let mut target = target(Dialect::Chat);
        target.extra.insert("temperature".to_owned(), json!(0.5));
        assert_eq!(body(&target, Prompt::Text("x".to_owned()))["temperature"], 0.5);
    }

    #[test]
    fn members_of_one_request_win_and_stand_as_they_do_in_the_file() {
        let mut chat = target(Dialect::Chat);
        chat.extra.insert("top_p".to_owned(), json!(0.5));
        let mut ask = Ask::new(Prompt::Text("x".to_owned()), 7);
        let member = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        ask.extra = Members::new([member("top_p", "0.25"), member("tools", r#"[{"z":1, "a":{}}]"#)]);
        let text = chat.body(&ask);
        let body: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!((&body["top_p"], &body["tools"]), (&json!(0.25), &json!([{"a": {}, "z": 1}])));
        assert!(String::from_utf8_lossy(&text).ends_with(r#","top_p":0.25,"tools":[{"z":1, "a":{}}]}"#));
    }
}
