//! Chat templates: how a model's messages become one text (`--apply-chat-template`).

use std::fmt;

use md5::{Digest, Md5};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::Value;

/// The name under which the template is kept.
const NAME: &str = "chat";

/// A chat template, in the language that Hugging Face's tokenizers use (Jinja).
pub struct ChatTemplate {
    inner: Environment<'static>,
    bos: String,
    eos: String,
    digest: String,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// From the text of a `tokenizer_config.json`, and of a `chat_template.jinja` where there is one, which wins.
    ///
    /// # Errors
    /// There is none, or it is malformed; in the parser's words.
    pub fn read(config: &str, file: Option<String>) -> Result<ChatTemplate, String> {
        let config: Value = serde_json::from_str(config).map_err(|error| error.to_string())?;
        let source = file.or_else(|| source(&config["chat_template"])).ok_or("no chat_template in it")?;
        let digest = Md5::digest(source.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut inner = Environment::new();
        // As transformers has it.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        inner.set_syntax(syntax.map_err(|error| error.to_string())?);
        inner.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        inner.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // Templates print today's date; the same line must give the same prompt every day.
        inner.add_function("strftime_now", |_: String| "01 Jan 2026".to_owned());
        inner.add_template_owned(NAME, source).map_err(|error| error.to_string())?;
        Ok(ChatTemplate { inner, bos: token(&config["bos_token"]), eos: token(&config["eos_token"]), digest })
    }

    /// What decides the texts that it makes.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// `prompt` as the one message of a user, ready to be answered; without the token of the beginning, which the server adds.
    ///
    /// # Errors
    /// The template refuses it; in its words.
    pub fn apply(&self, prompt: &str) -> Result<String, String> {
        let messages = vec![context! { role => "user", content => prompt }];
        let template = self.inner.get_template(NAME).map_err(|error| error.to_string())?;
        let text = template.render(context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        });
        let text = text.map_err(|error| error.to_string())?;
        Ok(if self.bos.is_empty() { text } else { text.replace(&self.bos, "") })
    }
}

/// A template, or the one called `default` of several.
fn source(member: &Value) -> Option<String> {
    let of = |template: &Value| Some(template["template"].as_str()?.to_owned());
    match member {
        Value::String(text) => Some(text.clone()),
        Value::Array(several) => several.iter().find(|one| one["name"] == "default").or(several.first()).and_then(of),
        _ => None,
    }
}

/// A special token: a string, or an object with its content.
fn token(member: &Value) -> String {
    member.as_str().or(member["content"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_makes_a_text_of_a_message_without_the_first_token() {
        let template = "{{ bos_token }}{% for message in messages %}\n    {% if message['role'] == 'user' %}<u>{{ message['content'].strip() }}\
            </u>{% endif %}\n{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";
        let config =
            json!({"chat_template": template, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}).to_string();
        let made = ChatTemplate::read(&config, None).expect("a template");
        assert_eq!(made.apply(" hi ").as_deref(), Ok("<u>hi</u><a>"));
        let file = ChatTemplate::read(&config, Some("x{{ eos_token }}".to_owned())).expect("a template");
        assert_eq!(file.apply("hi").as_deref(), Ok("x</s>"));
        let several =
            json!({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]});
        assert_eq!(ChatTemplate::read(&several.to_string(), None).expect("a template").apply("").as_deref(), Ok("d"));
    }

    #[test]
    fn what_is_not_a_template_and_a_refusal_of_one_are_errors() {
        for bad in ["{}", "[", r#"{"chat_template": "{% if %}"}"#] {
            assert!(ChatTemplate::read(bad, None).is_err(), "{bad}");
        }
        let refuses = ChatTemplate::read(r#"{"chat_template": "{{ raise_exception('no system') }}"}"#, None);
        assert!(refuses.expect("a template").apply("x").is_err_and(|said| said.contains("no system")));
    }
}
