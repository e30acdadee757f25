//! Chat templates, which render messages into a single prompt in the format that the model expects
//! (`--apply-chat-template`).

use std::fmt;

use md5::{Digest, Md5};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::Value;

/// Name of the template in the template environment.
const NAME: &str = "chat";

/// A chat template could not be loaded or rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The tokenizer configuration is not valid JSON.
    #[error("{0}")]
    Json(String),
    #[error("chat_template not found")]
    Missing,
    /// An error in the template engine, or one raised by the template.
    #[error("{0}")]
    Template(String),
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> TemplateError {
        TemplateError::Template(error.to_string())
    }
}

/// A Jinja chat template, as used by Hugging Face tokenizers.
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
    /// Reads the template from the contents of a `tokenizer_config.json`. If `file` (the contents
    /// of a `chat_template.jinja`) is set, it takes precedence.
    ///
    /// # Errors
    /// The configuration contains no chat template, or the template is malformed.
    pub fn read(config: &str, file: Option<String>) -> Result<ChatTemplate, TemplateError> {
        let config: Value = serde_json::from_str(config).map_err(|error| TemplateError::Json(error.to_string()))?;
        let source = file.or_else(|| source(&config["chat_template"])).ok_or(TemplateError::Missing)?;
        let digest = Md5::digest(source.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut inner = Environment::new();
        // These settings match the settings of the `transformers` library.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        inner.set_syntax(syntax?);
        inner.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        inner.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // Some templates print the current date. A fixed date keeps prompts the same from day to
        // day.
        inner.add_function("strftime_now", |_: String| "01 Jan 2026".to_owned());
        inner.add_template_owned(NAME, source)?;
        Ok(ChatTemplate { inner, bos: token(&config["bos_token"]), eos: token(&config["eos_token"]), digest })
    }

    /// Returns a digest of the template's source.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Renders `prompt` as the only user message, followed by the generation prompt. The BOS token
    /// is removed, because the server adds it.
    ///
    /// # Errors
    /// The template raises an error.
    pub fn apply(&self, prompt: &str) -> Result<String, TemplateError> {
        let messages = vec![context! { role => "user", content => prompt }];
        let template = self.inner.get_template(NAME)?;
        let text = template.render(context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        });
        let text = text?;
        Ok(if self.bos.is_empty() { text } else { text.replace(&self.bos, "") })
    }
}

/// Returns the template, or the one named `default` if there are several.
fn source(member: &Value) -> Option<String> {
    let of = |template: &Value| Some(template["template"].as_str()?.to_owned());
    match member {
        Value::String(text) => Some(text.clone()),
        Value::Array(several) => several.iter().find(|one| one["name"] == "default").or(several.first()).and_then(of),
        _ => None,
    }
}

/// Returns a special token, which is a string or an object with `content`.
fn token(member: &Value) -> String {
    member.as_str().or(member["content"].as_str()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn template_renders_a_message_without_the_bos_token() {
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
    fn malformed_templates_and_raised_exceptions_are_errors() {
        for bad in ["{}", "[", r#"{"chat_template": "{% if %}"}"#] {
            assert!(ChatTemplate::read(bad, None).is_err(), "{bad}");
        }
        let refuses = ChatTemplate::read(r#"{"chat_template": "{{ raise_exception('no system') }}"}"#, None);
        assert!(
            refuses
                .expect("a template")
                .apply("x")
                .is_err_and(|error| matches!(error, TemplateError::Template(text) if text.contains("no system")))
        );
    }
}
