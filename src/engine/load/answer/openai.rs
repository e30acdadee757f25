//! `/v1/chat/completions` and `/v1/completions`, as served by SGLang and others: delta frames,
//! followed by a frame with the token usage.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::answer::details::{CachedTokenDetails, error_message};
use crate::answer::{CachedTokens, ModelAnswer, WORD_CHARS};
use mcctl_base::text::one_line;

/// A frame with [`StreamChoice`]s, or a whole response with [`DocumentChoice`]s.
#[derive(Deserialize)]
struct OpenAiChoices<C> {
    #[serde(default = "Vec::new")]
    choices: Vec<C>,
    #[serde(default)]
    usage: Option<TokenUsage>,
    #[serde(default)]
    sglext: Option<SglangExtension>,
    #[serde(default)]
    error: Option<Value>,
}

/// A string, borrowed from the frame if it contains no escapes. Serde cannot borrow a bare `Cow`
/// inside an `Option`.
#[derive(Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct StreamChoice<'a> {
    /// Only set on `/v1/completions`.
    #[serde(borrow, default)]
    text: Option<BorrowedText<'a>>,
    /// Only set on `/v1/chat/completions`.
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<BorrowedText<'a>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<BorrowedText<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<BorrowedText<'a>>,
    #[serde(default)]
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct TokenUsage {
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
struct SglangExtension {
    #[serde(default)]
    cached_tokens_details: Option<CachedTokenDetails>,
}

/// One choice of a non-streamed response.
#[derive(Deserialize)]
struct DocumentChoice {
    /// Only set on `/v1/completions`.
    #[serde(default)]
    text: Option<String>,
    /// Only set on `/v1/chat/completions`.
    #[serde(default)]
    message: Option<DocumentMessage>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct DocumentMessage {
    #[serde(default)]
    content: Option<String>,
}

/// Parses a response that is a single document. Returns its token count (at least one), or `None`
/// if it is malformed.
pub(super) fn document(data: &[u8], answer: &mut ModelAnswer) -> Option<u32> {
    let OpenAiChoices::<DocumentChoice> { choices, usage, sglext, error } = serde_json::from_slice(data).ok()?;
    if let Some(error) = error {
        answer.error = Some(error_message(&error));
        return Some(0);
    }
    let choice = choices.into_iter().next()?;
    answer.text = choice.text.or(choice.message.and_then(|message| message.content)).unwrap_or_default();
    answer.finish_reason = choice.finish_reason.map(|reason| one_line(&reason, WORD_CHARS));
    count(usage, sglext, answer);
    Some(answer.completion_tokens.unwrap_or(1))
}

/// Stores the server's token counts.
fn count(usage: Option<TokenUsage>, extension: Option<SglangExtension>, answer: &mut ModelAnswer) {
    if let Some(usage) = usage {
        answer.prompt_tokens = usage.prompt_tokens.or(answer.prompt_tokens);
        answer.completion_tokens = usage.completion_tokens.or(answer.completion_tokens);
        answer.cached_tokens =
            usage.prompt_tokens_details.and_then(|details| details.cached_tokens).or(answer.cached_tokens);
    }
    if let Some(details) = extension.and_then(|extension| extension.cached_tokens_details) {
        answer.cached = Some(CachedTokens::from(details));
    }
}

/// Incremental parser for the frames of one response.
///
/// Most frames of a response differ only in their text. The bytes around the text of a parsed frame
/// are stored, and a frame that differs only in unescaped text is not parsed again.
#[derive(Debug, Default)]
pub(super) struct OpenAiParser {
    around: Option<FrameTemplate>,
}

#[derive(Debug)]
struct FrameTemplate {
    before: Vec<u8>,
    after: Vec<u8>,
    /// Whether the text belongs to the output rather than to the reasoning.
    text: bool,
}

impl FrameTemplate {
    /// Returns the text of a frame that matches the template.
    fn words<'a>(&self, data: &'a [u8]) -> Option<&'a str> {
        let words = data.strip_prefix(&self.before[..])?.strip_suffix(&self.after[..])?;
        // A frame with empty text may be of another kind, such as the final frame, so it is parsed.
        // Text with escapes or invalid characters is also left to the JSON parser.
        let plain = !words.is_empty() && words.iter().all(|byte| *byte >= b' ' && *byte != b'"' && *byte != b'\\');
        if plain { str::from_utf8(words).ok() } else { None }
    }

    /// Returns the bytes before and after `words`, if `words` is a slice of `data`.
    fn of(data: &[u8], words: &str, text: bool) -> Option<FrameTemplate> {
        let from = (words.as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
        if data.get(from..)?.get(..words.len())? != words.as_bytes() {
            return None;
        }
        let before = &data[..from];
        let after = &data[from + words.len()..];
        (before.ends_with(b"\"") && after.starts_with(b"\"")).then(|| FrameTemplate {
            before: before.to_vec(),
            after: after.to_vec(),
            text,
        })
    }
}

impl OpenAiParser {
    /// Reads a frame. Returns its token count, or `None` if it is malformed.
    pub(super) fn read(&mut self, data: &[u8], answer: &mut ModelAnswer) -> Option<u32> {
        if let Some(around) = &self.around
            && let Some(words) = around.words(data)
        {
            if around.text {
                answer.text.push_str(words);
            }
            return Some(1);
        }
        let frame: OpenAiChoices<StreamChoice<'_>> = serde_json::from_slice(data).ok()?;
        if let Some(error) = frame.error {
            answer.error = Some(error_message(&error));
            return Some(0);
        }
        let plain = frame.usage.is_none() && frame.sglext.is_none() && frame.choices.len() == 1;
        let mut tokens = 0;
        // Only one choice is requested, so only the first one counts.
        if let Some(choice) = frame.choices.into_iter().next() {
            let has_text = |text: &Option<BorrowedText<'_>>| text.as_ref().is_some_and(|text| !text.0.is_empty());
            tokens = match &choice.delta {
                Some(delta) => {
                    let has_text = has_text(&delta.content) || has_text(&delta.reasoning_content);
                    u32::from(has_text || delta.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()))
                }
                // A token with empty text (part of a character, or an unknown ID) still counts.
                None => u32::from(choice.text.is_some()),
            };
            let (content, thought) = match choice.delta {
                Some(delta) => (delta.content, delta.reasoning_content),
                None => (choice.text, None),
            };
            answer.text.push_str(content.as_ref().map_or("", |text| &text.0));
            if plain && choice.finish_reason.is_none() {
                self.around = match (has_text(&content), has_text(&thought)) {
                    (true, false) => content.and_then(|words| FrameTemplate::of(data, &words.0, true)),
                    (false, true) => thought.and_then(|words| FrameTemplate::of(data, &words.0, false)),
                    _ => self.around.take(),
                };
            }
            if let Some(reason) = choice.finish_reason {
                answer.finish_reason = Some(one_line(&reason.0, WORD_CHARS));
            }
        }
        count(frame.usage, frame.sglext, answer);
        Some(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_differ_only_in_plain_text_are_parsed_once() {
        let chat = |words: &str| {
            format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{words}"}},"finish_reason":null}}]}}"#)
        };
        let thought = |words: &str| chat(words).replace("content", "reasoning_content");
        let text = |words: &str| format!(r#"{{"choices":[{{"index":0,"text":"{words}","finish_reason":null}}]}}"#);
        for (frame, kept) in [(&chat as &dyn Fn(&str) -> String, "one two"), (&thought, ""), (&text, "one two")] {
            let mut progress = OpenAiParser::default();
            let mut answer = ModelAnswer::default();
            assert_eq!(progress.read(frame("one").as_bytes(), &mut answer), Some(1));
            let around = progress.around.as_ref().expect("a template");
            assert_eq!(around.words(frame(" two").as_bytes()), Some(" two"));
            assert_eq!(around.words(frame(r"\n").as_bytes()), None, "text with escapes must be parsed");
            assert_eq!(progress.read(frame(" two").as_bytes(), &mut answer), Some(1));
            assert_eq!(answer.text, kept);
        }
    }
}
