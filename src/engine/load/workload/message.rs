//! Chat messages, stored as the JSON text that is sent.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::workload::{RowError, json_text};

/// The role of a chat message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChatRole {
    System,
    User,
    Assistant,
}

impl ChatRole {
    /// Returns the name of the role in requests.
    pub const fn name(self) -> &'static str {
        match self {
            ChatRole::System => "system",
            ChatRole::User => "user",
            ChatRole::Assistant => "assistant",
        }
    }
}

/// A chat message: an object with a role and other members. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChatMessage(Arc<str>);

impl ChatMessage {
    /// Creates a message with `content`.
    pub fn new(role: ChatRole, content: &str) -> ChatMessage {
        ChatMessage(format!("{{\"role\":\"{}\",\"content\":{}}}", role.name(), json_text::quoted(content)).into())
    }

    /// Creates a message from the JSON `text` in a file. The text is sent unchanged.
    ///
    /// # Errors
    /// `text` is not an object with a role.
    pub fn from_json(text: &str) -> Result<ChatMessage, RowError> {
        let role = json_text::members(text)?.into_iter().rfind(|(name, _)| name == "role");
        let role = role.ok_or(RowError::NoRole)?.1;
        match serde_json::from_str::<String>(role) {
            Ok(_) => Ok(ChatMessage(text.trim().into())),
            Err(_) => Err(RowError::InvalidRole(role.to_owned())),
        }
    }

    /// Returns the message with `text` before its content; `None` if the content is not a text.
    pub(super) fn starting_with(&self, text: &str) -> Option<ChatMessage> {
        let members = json_text::members(&self.0).ok()?;
        let (_, content) = members.iter().rfind(|(name, _)| name == "content")?;
        let content = serde_json::from_str::<String>(content).ok()?;
        let quoted = json_text::quoted(&format!("{text}\n{content}"));
        let member = |(name, value): &(String, &str)| {
            let value = if name == "content" { quoted.as_str() } else { value };
            format!("{}:{value}", json_text::quoted(name))
        };
        let members: Vec<String> = members.iter().map(member).collect();
        Some(ChatMessage(format!("{{{}}}", members.join(",")).into()))
    }

    /// Returns the JSON object.
    pub fn json(&self) -> &str {
        &self.0
    }

    /// Returns the message's role.
    pub fn role(&self) -> String {
        let text = |message: &Map<String, Value>| Some(message.get("role")?.as_str()?.to_owned());
        self.object().as_ref().and_then(text).unwrap_or_default()
    }

    /// Returns the text to use in a plain-text prompt: the content, or the text of its parts.
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
    fn new_message_is_an_object_with_role_and_content() {
        let message = ChatMessage::new(ChatRole::User, "say \"hi\"\n");
        assert_eq!(message.json(), r#"{"role":"user","content":"say \"hi\"\n"}"#);
        assert_eq!((message.role().as_str(), message.text().as_str()), ("user", "say \"hi\"\n"));
    }

    #[test]
    fn message_from_a_file_is_sent_unchanged() {
        let text = r#"{"role": "assistant", "content": null, "tool_calls": [{"z": 1, "a": 2}]}"#;
        let message = ChatMessage::from_json(text).expect("a message");
        assert_eq!((message.json(), message.text().as_str()), (text, ""));
        let parts =
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"},{"type":"text","text":"b"}]}"#;
        assert_eq!(ChatMessage::from_json(parts).expect("a message").text(), "a\nb");
        for bad in ["{}", "[]", "7", r#"{"role": 1}"#, r#"{"content": "x"}"#, "{"] {
            assert!(ChatMessage::from_json(bad).is_err(), "{bad}");
        }
    }
}
