//! Parts of a response that several routes share: cached tokens by tier, and error objects.

use serde::Deserialize;
use serde_json::Value;

use crate::answer::{CachedTokens, SAID_CHARS, WORD_CHARS};
use mcctl_base::text::one_line;

/// `cached_tokens_details`, as returned by `/generate` and the OpenAI routes.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct CachedTokenDetails {
    device: u32,
    host: u32,
    storage: u32,
    storage_backend: Option<String>,
}

impl From<CachedTokenDetails> for CachedTokens {
    fn from(details: CachedTokenDetails) -> CachedTokens {
        let CachedTokenDetails { device, host, storage, storage_backend } = details;
        CachedTokens { device, host, storage, backend: storage_backend.map(|name| one_line(&name, WORD_CHARS)) }
    }
}

/// Returns the message from an error object.
pub(super) fn error_message(error: &Value) -> String {
    let text = error.get("message").and_then(Value::as_str).or(error.as_str());
    text.map_or_else(|| one_line(&error.to_string(), SAID_CHARS), |text| one_line(text, SAID_CHARS))
}
