//! Messages of a chat, as the JSON text in which they are sent.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::engine::load::workload::json_text;

/// Who says a message of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The instructions.
    System,
    /// The user.
    User,
    /// The server.
    Assistant,
}

impl Role {
    /// The word in a request.
    pub const fn word(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// A message of a chat: an object with a role and whatever a dataset puts beside it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message(Arc<str>);

impl Message {
    /// `role` says `content`.
    pub fn new(role: Role, content: &str) -> Message {
        Message(format!("{{\"role\":\"{}\",\"content\":{}}}", role.word(), json_text::quoted(content)).into())
    }

    /// The message that stands in a file as `text`; sent as it stands there.
    ///
    /// # Errors
    /// It is no object with a role.
    pub fn from_json(text: &str) -> Result<Message, String> {
        let role = json_text::members(text)?.into_iter().rfind(|(name, _)| name == "role");
        let role = role.ok_or("a message without a role")?.1;
        match serde_json::from_str::<String>(role) {
            Ok(_) => Ok(Message(text.trim().into())),
            Err(_) => Err(format!("the role {role} is no text")),
        }
    }

    /// The JSON object.
    pub fn json(&self) -> &str {
        &self.0
    }

    /// Who says it.
    pub fn role(&self) -> String {
        let text = |message: &Map<String, Value>| Some(message.get("role")?.as_str()?.to_owned());
        self.object().as_ref().and_then(text).unwrap_or_default()
    }

    /// What is said, for a prompt that is one text: the content, or the texts of its parts.
    pub fn text(&self) -> String {
        match self.object().and_then(|mut message| message.remove("content")) {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => {
                let text = |part: &Value| Some(part.get("text")?.as_str()?.to_owned());
                parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }

    fn object(&self) -> Option<Map<String, Value>> {
        serde_json::from_str(&self.0).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_ours_is_an_object_with_role_and_content() {
        let message = Message::new(Role::User, "say \"hi\"\n");
        assert_eq!(message.json(), r#"{"role":"user","content":"say \"hi\"\n"}"#);
        assert_eq!((message.role().as_str(), message.text().as_str()), ("user", "say \"hi\"\n"));
    }

    #[test]
    fn a_message_of_a_file_is_sent_as_it_stands_there() {
        let text = r#"{"role": "assistant", "content": null, "tool_calls": [{"z": 1, "a": 2}]}"#;
        let message = Message::from_json(text).expect("a message");
        assert_eq!((message.json(), message.text().as_str()), (text, ""));
        let parts =
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"},{"type":"text","text":"b"}]}"#;
        assert_eq!(Message::from_json(parts).expect("a message").text(), "a\nb");
        for bad in ["{}", "[]", "7", r#"{"role": 1}"#, r#"{"content": "x"}"#, "{"] {
            assert!(Message::from_json(bad).is_err(), "{bad}");
        }
    }
}
