//! Workloads: the content of conversations. A workload builds the prompt of a turn from its own text and the previous
//! answers.

mod adapters;
pub mod dataset;
pub mod expected_hits;
mod json_text;
mod message;
mod range;
mod replay;
mod row_error;
mod subset;
mod synthetic;
mod template;
mod textgen;
mod tokenizer;

use std::fmt;
use std::sync::Arc;

use crate::engine::load::{ModelAnswer, Script, Turn};

pub use adapters::{AdapterPolicy, Adapters};
pub use json_text::Members;
pub use message::{ChatMessage, ChatRole};
pub use range::WorkloadRange;
pub use replay::{Conversation, PlannedTurn, Replay, TurnContent};
pub use row_error::RowError;
pub use subset::WorkloadSubset;
pub use synthetic::{Synthetic, SyntheticPrompt};
pub use template::{ChatTemplate, TemplateError};
pub use textgen::{PromptForm, TextGenerator, TextSpan};
pub use tokenizer::{Tokenizer, TokenizerError};

/// A prompt in one of the forms that servers accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnPrompt {
    /// Token ids. The history is an exact prefix of later turns.
    Ids(Vec<u32>),
    Text(String),
    Messages(Vec<ChatMessage>),
}

/// The request of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnRequest {
    pub prompt: TurnPrompt,
    /// Maximum tokens of the answer. Exact if the server ignores its end-of-sequence token.
    pub max_tokens: u32,
    /// Members of this request only. They override those of the target.
    pub extra: Members,
    /// Routing key by which routers send related requests to one worker.
    pub routing_key: Option<Arc<str>>,
    /// Prompt tokens that should be cached, if an expectation exists.
    pub expected: Option<u32>,
}

impl TurnRequest {
    /// Creates a request for `prompt` with `max_tokens` answer tokens.
    pub fn new(prompt: TurnPrompt, max_tokens: u32) -> TurnRequest {
        TurnRequest { prompt, max_tokens, extra: Members::default(), routing_key: None, expected: None }
    }
}

/// A set of conversations.
pub trait LoadWorkload {
    /// Returns the script of each conversation, by index.
    fn scripts(&self) -> Vec<Script>;
    /// Returns the request of `turn`. Turns of a conversation are requested in order, each after
    /// [`LoadWorkload::on_response`] of the previous one.
    fn request(&mut self, turn: Turn) -> TurnRequest;
    /// Records the answer of `turn`, which is the history of the next turn.
    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer);
    /// Returns the prompts that conversations share, such as system prompts, each once. Empty if none are known.
    fn shared(&self) -> Vec<TurnPrompt> {
        Vec::new()
    }
    /// Returns notes for the report: skipped rows, estimated lengths.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Writes what determines the content beside the flags: dataset rows and tokenizer. Equal flags and fingerprints
    /// give equal requests.
    ///
    /// # Errors
    /// Writing to `to` fails.
    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        let _ = to;
        Ok(())
    }
    /// Ends the conversation of `turn`. If it is requested again, it restarts from the beginning with the same
    /// content.
    fn on_conversation_end(&mut self, turn: Turn);
}
