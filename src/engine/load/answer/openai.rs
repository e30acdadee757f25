//! `/v1/chat/completions` and `/v1/completions`, of SGLang and of others: deltas, usage at the end.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::engine::base::text::one_line;
use crate::engine::load::answer::generate::Details;
use crate::engine::load::answer::{Answer, Cached, SAID_CHARS, WORD_CHARS};

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    sglext: Option<Extension>,
    #[serde(default)]
    error: Option<Value>,
}

/// A string that is borrowed from the frame where it stands there as it is. (Within an `Option`, serde borrows no bare `Cow`.)
#[derive(Deserialize)]
struct Words<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Choice<'a> {
    /// Of `/v1/completions`.
    #[serde(borrow, default)]
    text: Option<Words<'a>>,
    /// Of `/v1/chat/completions`.
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Words<'a>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Words<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Words<'a>>,
    #[serde(default)]
    tool_calls: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Deserialize)]
struct Usage {
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
struct Extension {
    #[serde(default)]
    cached_tokens_details: Option<Details>,
}

/// What an error in a stream says.
pub(super) fn message(error: &Value) -> String {
    let text = error.get("message").and_then(Value::as_str).or(error.as_str());
    text.map_or_else(|| one_line(&error.to_string(), SAID_CHARS), |text| one_line(text, SAID_CHARS))
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    choices: Vec<Whole>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    sglext: Option<Extension>,
    #[serde(default)]
    error: Option<Value>,
}

/// A choice of an answer that is not streamed.
#[derive(Deserialize)]
struct Whole {
    /// Of `/v1/completions`.
    #[serde(default)]
    text: Option<String>,
    /// Of `/v1/chat/completions`.
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
}

/// Read an answer that is one document: how many tokens it has, at least one where there is an answer; `None` for what is not one.
pub(super) fn document(data: &[u8], answer: &mut Answer) -> Option<u32> {
    let Document { choices, usage, sglext, error } = serde_json::from_slice(data).ok()?;
    if let Some(error) = error {
        answer.error = Some(message(&error));
        return Some(0);
    }
    let choice = choices.into_iter().next()?;
    answer.text = choice.text.or(choice.message.and_then(|message| message.content)).unwrap_or_default();
    answer.finish_reason = choice.finish_reason.map(|reason| one_line(&reason, WORD_CHARS));
    count(usage, sglext, answer);
    Some(answer.completion_tokens.unwrap_or(1))
}

/// What the server counted.
fn count(usage: Option<Usage>, extension: Option<Extension>, answer: &mut Answer) {
    if let Some(usage) = usage {
        answer.prompt_tokens = usage.prompt_tokens.or(answer.prompt_tokens);
        answer.completion_tokens = usage.completion_tokens.or(answer.completion_tokens);
        answer.cached_tokens =
            usage.prompt_tokens_details.and_then(|details| details.cached_tokens).or(answer.cached_tokens);
    }
    if let Some(details) = extension.and_then(|extension| extension.cached_tokens_details) {
        answer.cached = Some(Cached::from(details));
    }
}

/// How far an answer has come.
///
/// The frames of an answer are the same but for the words in them. What stands around the words of one that was parsed is kept, and
/// a frame that differs from it in nothing but plain words is not parsed again.
#[derive(Debug, Default)]
pub(super) struct Progress {
    around: Option<Around>,
}

#[derive(Debug)]
struct Around {
    before: Vec<u8>,
    after: Vec<u8>,
    /// Are the words part of the text (and not of what the model thinks aloud)?
    text: bool,
}

impl Around {
    /// The words of a frame of the same kind.
    fn words<'a>(&self, data: &'a [u8]) -> Option<&'a str> {
        let words = data.strip_prefix(&self.before[..])?.strip_suffix(&self.after[..])?;
        // No word is another kind of frame; an escape, and what may not stand in a string, is the parser's business.
        let plain = !words.is_empty() && words.iter().all(|byte| *byte >= b' ' && *byte != b'"' && *byte != b'\\');
        if plain { str::from_utf8(words).ok() } else { None }
    }

    /// What stands around `words`, if they are a piece of `data` as they are.
    fn of(data: &[u8], words: &str, text: bool) -> Option<Around> {
        let from = (words.as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
        if data.get(from..)?.get(..words.len())? != words.as_bytes() {
            return None;
        }
        let (before, after) = (&data[..from], &data[from + words.len()..]);
        (before.ends_with(b"\"") && after.starts_with(b"\"")).then(|| Around {
            before: before.to_vec(),
            after: after.to_vec(),
            text,
        })
    }
}

impl Progress {
    /// Read a frame: how many tokens came with it; `None` for what is no frame.
    pub(super) fn read(&mut self, data: &[u8], answer: &mut Answer) -> Option<u32> {
        if let Some(around) = &self.around
            && let Some(words) = around.words(data)
        {
            if around.text {
                answer.text.push_str(words);
            }
            return Some(1);
        }
        let frame: Frame<'_> = serde_json::from_slice(data).ok()?;
        if let Some(error) = frame.error {
            answer.error = Some(message(&error));
            return Some(0);
        }
        let plain = frame.usage.is_none() && frame.sglext.is_none() && frame.choices.len() == 1;
        let mut tokens = 0;
        // One answer is asked for, so there is one choice.
        if let Some(choice) = frame.choices.into_iter().next() {
            let said = |text: &Option<Words<'_>>| text.as_ref().is_some_and(|text| !text.0.is_empty());
            tokens = match &choice.delta {
                Some(delta) => {
                    let said = said(&delta.content) || said(&delta.reasoning_content);
                    u32::from(said || delta.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty()))
                }
                // A token whose text is empty (half of a character, an unknown id) is one all the same.
                None => u32::from(choice.text.is_some()),
            };
            let (content, thought) = match choice.delta {
                Some(delta) => (delta.content, delta.reasoning_content),
                None => (choice.text, None),
            };
            answer.text.push_str(content.as_ref().map_or("", |text| &text.0));
            if plain && choice.finish_reason.is_none() {
                self.around = match (said(&content), said(&thought)) {
                    (true, false) => content.and_then(|words| Around::of(data, &words.0, true)),
                    (false, true) => thought.and_then(|words| Around::of(data, &words.0, false)),
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
    fn frames_that_differ_in_plain_words_only_are_parsed_once() {
        let chat = |words: &str| {
            format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{words}"}},"finish_reason":null}}]}}"#)
        };
        let thought = |words: &str| chat(words).replace("content", "reasoning_content");
        let text = |words: &str| format!(r#"{{"choices":[{{"index":0,"text":"{words}","finish_reason":null}}]}}"#);
        for (frame, kept) in [(&chat as &dyn Fn(&str) -> String, "one two"), (&thought, ""), (&text, "one two")] {
            let (mut progress, mut answer) = (Progress::default(), Answer::default());
            assert_eq!(progress.read(frame("one").as_bytes(), &mut answer), Some(1));
            let around = progress.around.as_ref().expect("what stands around the words is known");
            assert_eq!(around.words(frame(" two").as_bytes()), Some(" two"));
            assert_eq!(around.words(frame(r"\n").as_bytes()), None, "an escape is the parser's business");
            assert_eq!(progress.read(frame(" two").as_bytes(), &mut answer), Some(1));
            assert_eq!(answer.text, kept);
        }
    }
}
