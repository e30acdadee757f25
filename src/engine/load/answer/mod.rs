//! What a streamed answer says, read as it comes: when tokens came, what they were, and what the server told about them.

mod generate;
mod openai;
mod sse;
mod tensor_rt;

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::engine::base::text::one_line;

pub use sse::{Event, FrameTooLong, Frames};

/// The longest text of an answer that is kept, and four times the most token ids: far beyond what any model says.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// An answer grows beyond all measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    /// One of its frames does.
    #[error(transparent)]
    Frame(#[from] FrameTooLong),
    /// Its text does.
    #[error("the answer has more than {TEXT_BYTES_MAX} bytes of text")]
    Text,
}

/// Which words a server streams in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SGLang's `/generate`.
    Generate,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// TensorRT-LLM's `/v2/models/ensemble/generate_stream`.
    TensorRt,
}

/// Where the tokens of a prompt came from, as SGLang tells it (`cached_tokens_details`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cached {
    /// From device memory (L1).
    pub device: u32,
    /// From host memory (L2).
    pub host: u32,
    /// From the store (L3).
    pub storage: u32,
    /// Which store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
}

impl Cached {
    /// From all tiers. What a server claims may be any numbers.
    pub fn tokens(&self) -> u32 {
        self.device.saturating_add(self.host).saturating_add(self.storage)
    }
}

/// What the server says of its own times, seconds as it gives them. Nothing of it has to be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ServerTimes {
    /// In the queue.
    pub queue: Option<f64>,
    /// Waiting for L3.
    pub storage_prefetch_wait: Option<f64>,
    /// From its receipt to the first token.
    pub first_token: Option<f64>,
    /// From its receipt to the end.
    pub end_to_end: Option<f64>,
    /// When the prefill began, Unix.
    pub forward_entry: Option<f64>,
    /// When the prefill was done, Unix.
    pub prefill_finished: Option<f64>,
}

/// What an answer says in all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Tokens of the prompt, by the server.
    pub prompt_tokens: Option<u32>,
    /// Tokens of the answer, by the server.
    pub completion_tokens: Option<u32>,
    /// Tokens of the prompt that were cached, in all.
    pub cached_tokens: Option<u32>,
    /// The same by tier; `None` where the server does not tell, or cached nothing.
    pub cached: Option<Cached>,
    /// Why it ended: `length`, `stop`, `abort` ...
    pub finish_reason: Option<String>,
    /// An error that came in the stream.
    pub error: Option<String>,
    /// The text, for a conversation that goes on with it.
    pub text: String,
    /// The token ids, where the server gives them.
    pub output_ids: Vec<u32>,
    /// Its own times.
    pub times: ServerTimes,
    /// Did it say that it is complete (`[DONE]`)?
    pub done: bool,
    /// Frames that were no JSON of the dialect.
    pub bad_frames: u32,
    /// The first of them, fit for a line.
    pub bad_frame: Option<String>,
}

impl Answer {
    /// Tokens of the prompt that were cached, in all: by the server's sum, or that of its tiers.
    pub fn cached_in_all(&self) -> u32 {
        self.cached_tokens.or(self.cached.as_ref().map(Cached::tokens)).unwrap_or(0)
    }
}

/// Characters of a server's words that are kept where they stand beside others: a reason, a name.
const WORD_CHARS: usize = 80;
/// The same of what it says of a failure.
const SAID_CHARS: usize = 300;

/// Tokens that came together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When their bytes were read, since the start of the run.
    pub at: Duration,
    /// How many, at least one. On OpenAI's routes a frame is taken for one token, since it does not say.
    pub tokens: u32,
}

/// A frame of a failure is no longer than this.
const FAILURE_BYTES_MAX: usize = 64 << 10;

/// What a frame that is no JSON says of a failure: servers put the words of others into it as they are, with raw control bytes or
/// bytes that are no UTF-8.
fn failure(data: &[u8]) -> Option<String> {
    if data.len() > FAILURE_BYTES_MAX {
        return None;
    }
    let text = one_line(&String::from_utf8_lossy(data), usize::MAX);
    let told: Value = serde_json::from_str(&text).ok()?;
    told.get("error").filter(|error| !error.is_null()).map(openai::message)
}

/// Reads one answer. Time is linear in the bytes that come.
#[derive(Debug)]
pub struct Reader {
    dialect: Dialect,
    /// The body so far, of an answer that is one document.
    document: Option<Vec<u8>>,
    frames: Frames,
    generate: generate::Progress,
    openai: openai::Progress,
    answer: Answer,
}

impl Reader {
    /// A reader of `dialect`.
    pub fn new(dialect: Dialect) -> Reader {
        Reader {
            dialect,
            document: None,
            frames: Frames::default(),
            generate: generate::Progress::default(),
            openai: openai::Progress::default(),
            answer: Answer::default(),
        }
    }

    /// A reader of an answer that is not streamed: one JSON document.
    pub fn of_document(dialect: Dialect) -> Reader {
        Reader { document: Some(Vec::new()), ..Reader::new(dialect) }
    }

    /// Bytes that were read at `at`; `arrived` hears of every frame with tokens.
    ///
    /// # Errors
    /// See [`TooLong`].
    pub fn push(&mut self, bytes: &[u8], at: Duration, mut arrived: impl FnMut(Arrival)) -> Result<(), TooLong> {
        if let Some(document) = &mut self.document {
            document.extend_from_slice(bytes);
            return if document.len() > 4 * TEXT_BYTES_MAX { Err(TooLong::Text) } else { Ok(()) };
        }
        let Reader { dialect, frames, generate, openai, answer, .. } = self;
        frames.push(bytes, |event| {
            let data = match event {
                Event::Data(data) => data,
                Event::Done => {
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
                Some(tokens) => arrived(Arrival { at, tokens }),
                None => {
                    if let Some(said) = failure(data) {
                        answer.error.get_or_insert(said);
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

    /// The body is over. Gives the answer, and the tokens that arrived only now: those of a document.
    pub fn finish(mut self) -> (Answer, u32) {
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
            // Its streams have no last frame: the end of the body is theirs.
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
        std::fs::read(format!("{}/fixtures/load/{name}", env!("CARGO_MANIFEST_DIR"))).expect("it is there")
    }

    /// Read `bytes` in pieces of `step`; the time is the number of bytes read.
    fn read(dialect: Dialect, bytes: &[u8], step: usize) -> (Answer, Vec<Arrival>) {
        let (mut reader, mut arrivals, mut at) = (Reader::new(dialect), Vec::new(), 0);
        for piece in bytes.chunks(step) {
            at += piece.len();
            reader
                .push(piece, Duration::from_nanos(at as u64), |arrival| arrivals.push(arrival))
                .expect("short frames");
        }
        (reader.finish().0, arrivals)
    }

    #[test]
    fn an_answer_of_generate_is_read_token_by_token_though_its_text_is_empty() {
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
    fn an_answer_of_chat_has_its_text_its_usage_and_its_tiers() {
        let (answer, arrivals) = read(Dialect::Chat, &fixture("chat.sse"), 4096);
        assert_eq!(arrivals.len(), 4, "the frame of the role and that of the end carry none");
        assert_eq!(
            (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens),
            (Some(95), Some(4), Some(1))
        );
        assert_eq!(answer.cached, Some(Cached { device: 1, ..Cached::default() }));
        assert!(answer.text.starts_with(" doraelarzan"), "{}", answer.text);
        assert_eq!((answer.finish_reason.as_deref(), answer.done), (Some("length"), true));
    }

    #[test]
    fn an_answer_of_completions_counts_frames_of_empty_text() {
        let (answer, arrivals) = read(Dialect::Completions, &fixture("completions.sse"), 4096);
        assert_eq!((arrivals.len(), answer.completion_tokens), (3, Some(3)));
        assert_eq!(answer.cached.map(|cached| cached.device), Some(90));
    }

    #[test]
    fn an_answer_that_is_one_document_has_its_tokens_at_its_end() {
        let whole = |dialect, text: &str| {
            let mut reader = Reader::of_document(dialect);
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
    fn frames_of_tensorrt_have_a_text_each_and_end_with_the_body() {
        let text = "data: {\"text_output\":\"a\"}\n\ndata: {\"text_output\":\" b\"}\n\n";
        let (answer, arrivals) = read(Dialect::TensorRt, text.as_bytes(), 7);
        assert_eq!((answer.text.as_str(), arrivals.len(), answer.done), ("a b", 2, true));
    }

    #[test]
    fn tiers_of_a_store_are_read() {
        let frame = br#"data: {"text":"x","output_ids":[5],"meta_info":{"finish_reason":{"type":"stop","matched":2},"prompt_tokens":800,"completion_tokens":1,"cached_tokens":784,"cached_tokens_details":{"device":16,"host":0,"storage":768,"storage_backend":"MooncakeStore"}}}

"#;
        let (answer, _) = read(Dialect::Generate, frame, 7);
        let cached = answer.cached.expect("told");
        assert_eq!((cached.device, cached.host, cached.storage), (16, 0, 768));
        assert_eq!(cached.backend.as_deref(), Some("MooncakeStore"));
        assert!(!answer.done, "nobody said so");
    }

    #[test]
    fn deltas_and_sums_of_ids_give_the_same_answer() {
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
    fn sums_are_counted_whatever_their_text_says() {
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
    fn a_stream_that_is_cut_off_tells_how_far_it_came() {
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
    fn frames_of_a_chat_are_read_alike_whatever_is_in_their_words() {
        let frame = |member: &str, words: &str| {
            let words = serde_json::to_string(words).expect("text");
            format!(
                "data: {{\"id\":\"m\",\"choices\":[{{\"delta\":{{\"{member}\":{words}}},\"finish_reason\":null}}]}}\n\n"
            )
        };
        let said = ["a", " b", "\"", "\\", "\n", "\u{e9}", "", "},\"finish_reason\":\"x\"", "c"];
        let thoughts: String = ["x", "y", "z"].map(|word| frame("reasoning_content", word)).concat();
        let text: String = said.map(|word| frame("content", word)).concat();
        let (answer, arrivals) = read(Dialect::Chat, (thoughts + &text).as_bytes(), 1000);
        assert_eq!(answer.text, said.concat());
        assert_eq!((arrivals.len(), answer.bad_frames, answer.finish_reason), (3 + 8, 0, None));
        // What only looks like a frame of the same kind is none.
        let broken = frame("content", "a") + &frame("content", "b") + &frame("content", "c").replace('c', "\t");
        let (answer, arrivals) = read(Dialect::Chat, broken.as_bytes(), 1000);
        assert_eq!((arrivals.len(), answer.bad_frames), (2, 1));
    }

    #[test]
    fn what_a_server_claims_neither_overflows_nor_fills_a_terminal() {
        let says = format!("\u{1b}[2J{}", "x".repeat(100_000)).replace('\u{1b}', "\\u001b");
        let frame = format!("data: {{\"error\":{{\"message\":\"{says}\"}}}}\n\n");
        for dialect in [Dialect::Generate, Dialect::Chat] {
            let error = read(dialect, frame.as_bytes(), 4096).0.error.expect("it is told");
            assert!(error.starts_with(" [2Jx") && error.len() == SAID_CHARS, "{error}");
        }
        let cached = Cached { device: u32::MAX, host: u32::MAX, storage: 1, backend: None };
        assert_eq!(Answer { cached: Some(cached), ..Answer::default() }.cached_in_all(), u32::MAX);
    }

    #[test]
    fn an_error_in_the_stream_and_frames_that_are_none_are_kept() {
        let (answer, arrivals) =
            read(Dialect::Chat, b"data: {\"error\":{\"message\":\"too long\"}}\n\ndata: {half\n\ndata: \xff\n\n", 64);
        assert_eq!(answer.error.as_deref(), Some("too long"));
        assert_eq!((answer.bad_frames, answer.bad_frame.as_deref()), (2, Some("{half")));
        assert!(arrivals.is_empty());
    }

    #[test]
    fn words_of_a_failure_are_kept_whatever_bytes_stand_among_them() {
        for dialect in [Dialect::Generate, Dialect::Chat, Dialect::Completions] {
            for (frame, said) in [
                (&b"data: {\"error\":{\"message\":\"too\tlong \x1b[31m\x00now\"}}\n\n"[..], "too long  [31m now"),
                (b"data: {\"error\":{\"message\":\"caf\xe9\"}}\n\n", "caf\u{fffd}"),
                (b"data: {\"error\":\"a\x08b\"}\n\n", "a b"),
            ] {
                let (answer, _) = read(dialect, frame, 7);
                assert_eq!((answer.error.as_deref(), answer.bad_frames), (Some(said), 0), "{dialect:?}");
            }
            let (answer, _) = read(dialect, b"data: {\"text\":\"a\x08b\"}\n\n", 7);
            assert_eq!((answer.error, answer.bad_frames), (None, 1), "what is no failure is no frame: {dialect:?}");
        }
    }

    proptest! {
        #[test]
        fn an_answer_is_the_same_however_its_bytes_are_cut(step in 1_usize..600) {
            for (dialect, name) in
                [(Dialect::Generate, "generate.sse"), (Dialect::Chat, "chat.sse"), (Dialect::Completions, "completions.sse")]
            {
                let bytes = fixture(name);
                let (whole, cut) = (read(dialect, &bytes, usize::MAX), read(dialect, &bytes, step));
                prop_assert_eq!(whole.0, cut.0);
                prop_assert_eq!(whole.1.len(), cut.1.len());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), which in 0..3_u8) {
            let dialect = [Dialect::Generate, Dialect::Chat, Dialect::Completions][which as usize];
            read(dialect, &[b"data: {\"meta_info\":{\"completion_tokens\":", &bytes[..], b"}}\n\n"].concat(), 50);
            read(dialect, &bytes, 50);
        }
    }
}
