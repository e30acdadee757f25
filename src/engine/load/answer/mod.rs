//! Parsers for streamed responses: token arrival times, content and server metadata.

mod details;
mod generate;
mod openai;
mod sse;
mod tensor_rt;

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use mcctl_base::text::one_line;

pub use sse::{FrameTooLong, SseEvent, SseParser};

/// Maximum size of the stored text of a response. The limit on token IDs is derived from it. Both
/// limits are far above what any model generates.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A response exceeds a size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    /// One of its frames is too long.
    #[error(transparent)]
    Frame(#[from] FrameTooLong),
    #[error("the response text exceeds {TEXT_BYTES_MAX} bytes")]
    Text,
}

/// The API that a server implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Generate,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// TensorRT-LLM ensemble route, `/v2/models/ensemble/generate_stream`.
    TensorRt,
}

impl Dialect {
    /// Returns the API's route.
    pub const fn route(self) -> &'static str {
        match self {
            Dialect::Generate => "/generate",
            Dialect::Chat => "/v1/chat/completions",
            Dialect::Completions => "/v1/completions",
            Dialect::TensorRt => "/v2/models/ensemble/generate_stream",
        }
    }
}

/// Number of cached prompt tokens from each tier, as reported by SGLang (`cached_tokens_details`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CachedTokens {
    /// From device memory (L1).
    pub device: u32,
    /// From host memory (L2).
    pub host: u32,
    /// From the store (L3).
    pub storage: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
}

impl CachedTokens {
    /// Returns the sum over all tiers. The addition saturates, because a server may report
    /// arbitrary numbers.
    pub fn tokens(&self) -> u32 {
        self.device.saturating_add(self.host).saturating_add(self.storage)
    }
}

/// Timings measured by the server, in seconds. All are optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ServerTimes {
    pub queue: Option<f64>,
    /// Time spent waiting for the prefetch from L3.
    pub storage_prefetch_wait: Option<f64>,
    /// Time from receipt of the request to the first token.
    pub first_token: Option<f64>,
    /// Time from receipt of the request to the end of the response.
    pub end_to_end: Option<f64>,
    /// Start of prefill, as a Unix timestamp.
    pub forward_entry: Option<f64>,
    /// End of prefill, as a Unix timestamp.
    pub prefill_finished: Option<f64>,
}

/// The content and metadata of a complete response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelAnswer {
    /// Prompt tokens, as counted by the server.
    pub prompt_tokens: Option<u32>,
    /// Output tokens, as counted by the server.
    pub completion_tokens: Option<u32>,
    /// Cached prompt tokens across all tiers.
    pub cached_tokens: Option<u32>,
    /// Cached tokens by tier. `None` if the server reported no tiers or no cached tokens.
    pub cached: Option<CachedTokens>,
    /// Finish reason, such as `length`, `stop` or `abort`.
    pub finish_reason: Option<String>,
    /// An error sent in the stream.
    pub error: Option<String>,
    /// The output text, used as history for the next turn.
    pub text: String,
    /// Output token IDs, if the server returns them.
    pub output_ids: Vec<u32>,
    pub times: ServerTimes,
    /// Whether the final frame (`[DONE]`) arrived.
    pub done: bool,
    /// Number of frames that are not valid JSON for this API.
    pub bad_frames: u32,
    /// The first malformed frame, shortened to one line.
    pub bad_frame: Option<String>,
}

impl ModelAnswer {
    /// Returns the number of cached prompt tokens: the server's total, or the sum over its tiers.
    pub fn cached_in_all(&self) -> u32 {
        self.cached_tokens.or(self.cached.as_ref().map(CachedTokens::tokens)).unwrap_or(0)
    }

    /// Returns the cached prompt tokens of L1, L2 and L3, and those without a reported tier.
    pub(crate) fn cached_by_tier(&self) -> [u32; 4] {
        match &self.cached {
            Some(cached) => [cached.device, cached.host, cached.storage, 0],
            None => [0, 0, 0, self.cached_tokens.unwrap_or(0)],
        }
    }
}

/// Maximum number of characters kept from a short server string, such as a finish reason or a name.
const WORD_CHARS: usize = 80;
/// Maximum number of characters kept from a server's error message.
const SAID_CHARS: usize = 300;

/// Tokens that arrived in one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenArrival {
    /// When the bytes of the tokens were read, relative to the start of the run.
    pub at: Duration,
    /// Number of tokens, at least one. A frame on an OpenAI route counts as one token, because it
    /// carries no count.
    pub tokens: u32,
}

/// Frames longer than this are not searched for an error message.
const FAILURE_BYTES_MAX: usize = 64 << 10;

/// Extracts the error message from a frame that is not valid JSON. Some servers embed another
/// program's messages unescaped, with raw control bytes or invalid UTF-8.
fn failure(data: &[u8]) -> Option<String> {
    if data.len() > FAILURE_BYTES_MAX {
        return None;
    }
    let text = one_line(&String::from_utf8_lossy(data), usize::MAX);
    let document: Value = serde_json::from_str(&text).ok()?;
    document.get("error").filter(|error| !error.is_null()).map(details::error_message)
}

/// Parses one response in time linear in its size.
#[derive(Debug)]
pub struct AnswerReader {
    dialect: Dialect,
    /// The body so far, if the response is a single JSON document.
    document: Option<Vec<u8>>,
    frames: SseParser,
    generate: generate::GenerateParser,
    openai: openai::OpenAiParser,
    answer: ModelAnswer,
}

impl AnswerReader {
    /// Creates a parser for a streamed response.
    pub fn new(dialect: Dialect) -> AnswerReader {
        AnswerReader {
            dialect,
            document: None,
            frames: SseParser::default(),
            generate: generate::GenerateParser::default(),
            openai: openai::OpenAiParser::default(),
            answer: ModelAnswer::default(),
        }
    }

    /// Creates a parser for a non-streamed response: a single JSON document.
    pub fn of_document(dialect: Dialect) -> AnswerReader {
        AnswerReader { document: Some(Vec::new()), ..AnswerReader::new(dialect) }
    }

    /// Parses bytes that were read at `at`, and calls `arrived` for every frame that contains
    /// tokens.
    ///
    /// # Errors
    /// A frame or the entire text exceeds its limit.
    pub fn push(&mut self, bytes: &[u8], at: Duration, mut arrived: impl FnMut(TokenArrival)) -> Result<(), TooLong> {
        if let Some(document) = &mut self.document {
            document.extend_from_slice(bytes);
            return if document.len() > 4 * TEXT_BYTES_MAX { Err(TooLong::Text) } else { Ok(()) };
        }
        let AnswerReader { dialect, frames, generate, openai, answer, .. } = self;
        frames.push(bytes, |event| {
            let data = match event {
                SseEvent::Data(data) => data,
                SseEvent::Done => {
                    answer.done = true;
                    return;
                }
            };
            let tokens = match dialect {
                Dialect::Generate => generate.read(data, answer),
                Dialect::Chat | Dialect::Completions => openai.read(data, answer),
                Dialect::TensorRt => tensor_rt::read(data, answer),
            };
            match tokens {
                Some(0) => {}
                Some(tokens) => arrived(TokenArrival { at, tokens }),
                None => {
                    if let Some(text) = failure(data) {
                        answer.error.get_or_insert(text);
                        return;
                    }
                    answer.bad_frames = answer.bad_frames.saturating_add(1);
                    let begin = || String::from_utf8_lossy(&data[..data.len().min(4 * WORD_CHARS)]);
                    answer.bad_frame.get_or_insert_with(|| one_line(&begin(), WORD_CHARS));
                }
            }
        })?;
        if answer.text.len().max(generate.bytes()) > TEXT_BYTES_MAX { Err(TooLong::Text) } else { Ok(()) }
    }

    /// Ends the body. Returns the response and the number of tokens that became available only at
    /// the end: all tokens of a non-streamed response, otherwise none.
    pub fn finish(mut self) -> (ModelAnswer, u32) {
        let mut tokens = 0;
        if let Some(document) = std::mem::take(&mut self.document) {
            let read = match self.dialect {
                Dialect::Generate => self.generate.read(&document, &mut self.answer),
                Dialect::Chat | Dialect::Completions => openai::document(&document, &mut self.answer),
                Dialect::TensorRt => tensor_rt::read(&document, &mut self.answer),
            };
            tokens = read.unwrap_or(0);
            self.answer.done = read.is_some();
            if read.is_none() {
                self.answer.error = failure(&document);
            }
        }
        match self.dialect {
            Dialect::Generate => self.generate.finish(&mut self.answer),
            // TensorRT-LLM sends no final frame: the end of the body is the end of the stream.
            Dialect::TensorRt => self.answer.done = true,
            Dialect::Chat | Dialect::Completions => {}
        }
        (self.answer, tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fixture(name: &str) -> Vec<u8> {
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/load/").to_owned() + name)
            .expect("fixture exists")
    }

    /// Parses `bytes` in pieces of `step`. The number of bytes read serves as the time.
    fn read(dialect: Dialect, bytes: &[u8], step: usize) -> (ModelAnswer, Vec<TokenArrival>) {
        let mut reader = AnswerReader::new(dialect);
        let mut arrivals = Vec::new();
        let mut at = 0;
        for piece in bytes.chunks(step) {
            at += piece.len();
            reader
                .push(piece, Duration::from_nanos(at as u64), |arrival| arrivals.push(arrival))
                .expect("short frames");
        }
        (reader.finish().0, arrivals)
    }

    #[test]
    fn generate_stream_is_counted_token_by_token_even_with_empty_text() {
        let (answer, arrivals) = read(Dialect::Generate, &fixture("generate.sse"), 4096);
        assert_eq!(arrivals.iter().map(|a| a.tokens).collect::<Vec<_>>(), [1, 1, 1, 1]);
        assert_eq!((answer.prompt_tokens, answer.completion_tokens), (Some(91), Some(4)));
        assert_eq!((answer.cached_tokens, answer.cached.clone()), (Some(0), None));
        assert_eq!(answer.output_ids, [1974; 4]);
        assert_eq!(answer.finish_reason.as_deref(), Some("length"));
        assert!(answer.times.first_token.is_some_and(|seconds| (seconds - 0.076_098_222).abs() < 1e-9));
        assert_eq!((answer.times.storage_prefetch_wait, answer.done, answer.bad_frames), (Some(0.0), true, 0));
    }

    #[test]
    fn chat_stream_has_text_usage_and_tiers() {
        let (answer, arrivals) = read(Dialect::Chat, &fixture("chat.sse"), 4096);
        assert_eq!(arrivals.len(), 4, "the role frame and the final frame contain no token");
        assert_eq!(
            (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens),
            (Some(95), Some(4), Some(1))
        );
        assert_eq!(answer.cached, Some(CachedTokens { device: 1, ..CachedTokens::default() }));
        assert!(answer.text.starts_with(" doraelarzan"), "{}", answer.text);
        assert_eq!((answer.finish_reason.as_deref(), answer.done), (Some("length"), true));
    }

    #[test]
    fn completions_stream_counts_frames_of_empty_text() {
        let (answer, arrivals) = read(Dialect::Completions, &fixture("completions.sse"), 4096);
        assert_eq!((arrivals.len(), answer.completion_tokens), (3, Some(3)));
        assert_eq!(answer.cached.map(|cached| cached.device), Some(90));
    }

    #[test]
    fn tokens_of_a_document_arrive_at_its_end() {
        let whole = |dialect, text: &str| {
            let mut reader = AnswerReader::of_document(dialect);
            for piece in text.as_bytes().chunks(9) {
                reader.push(piece, Duration::ZERO, |_| panic!("nothing before the end")).expect("short");
            }
            reader.finish()
        };
        let generate = r#"{"text":"a b","output_ids":[3,4],"meta_info":{"finish_reason":{"type":"length"},"prompt_tokens":9,"completion_tokens":2,"cached_tokens":4}}"#;
        let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}"#;
        let chat = format!(
            r#"{{"choices":[{{"message":{{"role":"assistant","content":"a b"}},"finish_reason":"length"}}],{usage}}}"#
        );
        let completions = format!(r#"{{"choices":[{{"text":"a b","finish_reason":"length"}}],{usage}}}"#);
        for (dialect, text) in
            [(Dialect::Generate, generate), (Dialect::Chat, &chat), (Dialect::Completions, &completions)]
        {
            let (answer, tokens) = whole(dialect, text);
            assert_eq!((tokens, answer.prompt_tokens, answer.completion_tokens), (2, Some(9), Some(2)), "{dialect:?}");
            assert_eq!((answer.text.as_str(), answer.cached_in_all(), answer.done), ("a b", 4, true), "{dialect:?}");
        }
        let (answer, tokens) = whole(Dialect::Chat, r#"{"error":{"message":"no"}}"#);
        assert_eq!((answer.error.as_deref(), tokens), (Some("no"), 0));
        let (answer, tokens) = whole(Dialect::Chat, "<html>");
        assert!(!answer.done && tokens == 0);
    }

    #[test]
    fn tensorrt_stream_has_one_text_per_frame_and_ends_with_the_body() {
        let text = "data: {\"text_output\":\"a\"}\n\ndata: {\"text_output\":\" b\"}\n\n";
        let (answer, arrivals) = read(Dialect::TensorRt, text.as_bytes(), 7);
        assert_eq!((answer.text.as_str(), arrivals.len(), answer.done), ("a b", 2, true));
    }

    #[test]
    fn storage_tier_is_parsed() {
        let frame = br#"data: {"text":"x","output_ids":[5],"meta_info":{"finish_reason":{"type":"stop","matched":2},"prompt_tokens":800,"completion_tokens":1,"cached_tokens":784,"cached_tokens_details":{"device":16,"host":0,"storage":768,"storage_backend":"MooncakeStore"}}}

"#;
        let (answer, _) = read(Dialect::Generate, frame, 7);
        let cached = answer.cached.expect("details");
        assert_eq!((cached.device, cached.host, cached.storage), (16, 0, 768));
        assert_eq!(cached.backend.as_deref(), Some("MooncakeStore"));
        assert!(!answer.done, "no final frame");
    }

    #[test]
    fn deltas_and_cumulative_frames_give_the_same_answer() {
        let frame = |ids: &[u32], sum: usize, end: bool| {
            let reason = if end { r#"{"type":"length"}"# } else { "null" };
            format!(
                "data: {{\"text\":\"\",\"output_ids\":{ids:?},\"meta_info\":{{\"finish_reason\":{reason},\"completion_tokens\":{sum}}}}}\n\n"
            )
        };
        let sums = [frame(&[1], 1, false), frame(&[1, 2, 3], 3, false), frame(&[1, 2, 3, 4], 4, true)].concat();
        let deltas = [frame(&[1], 1, false), frame(&[2, 3], 3, false), frame(&[4], 4, true)].concat();
        for text in [sums, deltas] {
            let (answer, arrivals) = read(Dialect::Generate, text.as_bytes(), 1000);
            assert_eq!(answer.output_ids, [1, 2, 3, 4], "{text}");
            assert_eq!(arrivals.iter().map(|a| a.tokens).collect::<Vec<_>>(), [1, 2, 1]);
        }
    }

    #[test]
    fn text_that_imitates_metadata_does_not_change_the_count() {
        let frame = |text: &str, sum: usize, reason: &str| {
            let text = serde_json::to_string(text).expect("text");
            format!(
                "data: {{\"text\":{text},\"output_ids\":{:?},\"meta_info\":{{\"finish_reason\":{reason},\"completion_tokens\":{sum}}}}}\n\n",
                vec![7; sum]
            )
        };
        let sly = "a\"completion_tokens\":99,\"finish_reason\":null,\"meta_info\":{".to_owned();
        let texts = [&sly[..1], &sly[..30], &sly, &(sly.clone() + "!")];
        let frames: Vec<String> = texts
            .iter()
            .zip(1..)
            .map(|(text, n)| frame(text, n, if n == 4 { "{\"type\":\"stop\"}" } else { "null" }))
            .collect();
        let (answer, arrivals) = read(Dialect::Generate, frames.concat().as_bytes(), 1000);
        assert_eq!(arrivals.iter().map(|a| a.tokens).collect::<Vec<_>>(), [1, 1, 1, 1]);
        assert_eq!((answer.text, answer.completion_tokens), (sly + "!", Some(4)));
    }

    #[test]
    fn cut_off_stream_reports_its_token_count() {
        let frame = |sum: usize| {
            format!(
                "data: {{\"text\":\"\",\"output_ids\":{:?},\"meta_info\":{{\"finish_reason\":null,\"completion_tokens\":{sum}}}}}\n\n",
                vec![1; sum]
            )
        };
        let (answer, _) = read(Dialect::Generate, [frame(1), frame(2), frame(3)].concat().as_bytes(), 50);
        assert_eq!((answer.completion_tokens, answer.done), (Some(3), false));
    }

    #[test]
    fn chat_frames_with_special_characters_parse_like_others() {
        let frame = |member: &str, words: &str| {
            let words = serde_json::to_string(words).expect("text");
            format!(
                "data: {{\"id\":\"m\",\"choices\":[{{\"delta\":{{\"{member}\":{words}}},\"finish_reason\":null}}]}}\n\n"
            )
        };
        let words = ["a", " b", "\"", "\\", "\n", "\u{e9}", "", "},\"finish_reason\":\"x\"", "c"];
        let thoughts: String = ["x", "y", "z"].map(|word| frame("reasoning_content", word)).concat();
        let text: String = words.map(|word| frame("content", word)).concat();
        let (answer, arrivals) = read(Dialect::Chat, (thoughts + &text).as_bytes(), 1000);
        assert_eq!(answer.text, words.concat());
        assert_eq!((arrivals.len(), answer.bad_frames, answer.finish_reason), (3 + 8, 0, None));
        // A malformed frame that resembles the template must be rejected.
        let broken = frame("content", "a") + &frame("content", "b") + &frame("content", "c").replace('c', "\t");
        let (answer, arrivals) = read(Dialect::Chat, broken.as_bytes(), 1000);
        assert_eq!((arrivals.len(), answer.bad_frames), (2, 1));
    }

    #[test]
    fn server_values_neither_overflow_nor_reach_the_terminal_unescaped() {
        let message = format!("\u{1b}[2J{}", "x".repeat(100_000)).replace('\u{1b}', "\\u001b");
        let frame = format!("data: {{\"error\":{{\"message\":\"{message}\"}}}}\n\n");
        for dialect in [Dialect::Generate, Dialect::Chat] {
            let error = read(dialect, frame.as_bytes(), 4096).0.error.expect("an error");
            assert!(error.starts_with(" [2Jx") && error.len() == SAID_CHARS, "{error}");
        }
        let cached = CachedTokens { device: u32::MAX, host: u32::MAX, storage: 1, backend: None };
        assert_eq!(ModelAnswer { cached: Some(cached), ..ModelAnswer::default() }.cached_in_all(), u32::MAX);
    }

    #[test]
    fn stream_errors_and_bad_frames_are_kept() {
        let (answer, arrivals) =
            read(Dialect::Chat, b"data: {\"error\":{\"message\":\"too long\"}}\n\ndata: {half\n\ndata: \xff\n\n", 64);
        assert_eq!(answer.error.as_deref(), Some("too long"));
        assert_eq!((answer.bad_frames, answer.bad_frame.as_deref()), (2, Some("{half")));
        assert!(arrivals.is_empty());
    }

    #[test]
    fn error_messages_survive_control_bytes_and_invalid_utf8() {
        for dialect in [Dialect::Generate, Dialect::Chat, Dialect::Completions] {
            for (frame, text) in [
                (&b"data: {\"error\":{\"message\":\"too\tlong \x1b[31m\x00now\"}}\n\n"[..], "too long  [31m now"),
                (b"data: {\"error\":{\"message\":\"caf\xe9\"}}\n\n", "caf\u{fffd}"),
                (b"data: {\"error\":\"a\x08b\"}\n\n", "a b"),
            ] {
                let (answer, _) = read(dialect, frame, 7);
                assert_eq!((answer.error.as_deref(), answer.bad_frames), (Some(text), 0), "{dialect:?}");
            }
            let (answer, _) = read(dialect, b"data: {\"text\":\"a\x08b\"}\n\n", 7);
            assert_eq!((answer.error, answer.bad_frames), (None, 1), "bad frame: {dialect:?}");
        }
    }

    proptest! {
        #[test]
        fn an_answer_does_not_depend_on_how_its_bytes_are_split(step in 1_usize..600) {
            for (dialect, name) in
                [(Dialect::Generate, "generate.sse"), (Dialect::Chat, "chat.sse"), (Dialect::Completions, "completions.sse")]
            {
                let bytes = fixture(name);
                let whole = read(dialect, &bytes, usize::MAX);
                let cut = read(dialect, &bytes, step);
                prop_assert_eq!(whole.0, cut.0);
                prop_assert_eq!(whole.1.len(), cut.1.len());
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), which in 0..3_u8) {
            let dialect = [Dialect::Generate, Dialect::Chat, Dialect::Completions][which as usize];
            read(dialect, &[b"data: {\"meta_info\":{\"completion_tokens\":", &bytes[..], b"}}\n\n"].concat(), 50);
            read(dialect, &bytes, 50);
        }
    }
}
