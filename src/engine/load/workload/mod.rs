//! Workloads: the content of conversations. A workload builds the prompt for a turn from its own
//! text and the previous responses.

mod adapters;
mod annotated;
mod conversation;
pub mod dataset;
pub mod expected_hits;
mod footprint;
mod json_text;
mod message;
mod midway;
mod planned_reuse;
mod replay;
mod row_error;
mod span_list;
mod subset;
mod synthetic;
mod template;
mod textgen;
mod tokenizer;

use std::fmt;
use std::sync::Arc;

use crate::ceiling::PossibleHits;
use crate::{ModelAnswer, Script, Turn};

pub use adapters::{AdapterPolicy, Adapters};
pub use annotated::AnnotatedWorkload;
pub use conversation::{Conversation, PlannedTurn, TurnContent};
pub use footprint::Footprint;
pub use json_text::Members;
pub use message::{ChatMessage, ChatRole};
pub use planned_reuse::PlannedReuse;
pub use replay::{Replay, SessionPrefix};
pub use row_error::RowError;
pub use span_list::SpanList;
pub use subset::WorkloadSubset;
pub use synthetic::{Synthetic, SyntheticPrompt};
pub use template::{ChatTemplate, TemplateError};
pub use textgen::{PromptForm, TextGenerator, TextSpan};
pub use tokenizer::{TOKENS_PER_WORD, Tokenizer, TokenizerError};

/// A prompt in one of the forms that servers accept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TurnPrompt {
    /// Token IDs. The history is an exact prefix of later prompts.
    Ids(Vec<u32>),
    Text(String),
    Messages(Vec<ChatMessage>),
}

/// The request for one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnRequest {
    pub prompt: TurnPrompt,
    /// Maximum number of output tokens. If the server ignores its end-of-sequence token, the
    /// response has exactly this length.
    pub max_tokens: u32,
    /// Members for this request only. They override the target's members.
    pub extra: Members,
    /// Routing key that routers use to send related requests to the same worker.
    pub routing_key: Option<Arc<str>>,
    /// Prompt tokens that can be cached, if known.
    pub possible: Option<PossibleHits>,
    /// For a text prompt whose structure is known: IDs in place of the server's tokens. Prompts
    /// with the same beginning have the same IDs there.
    pub stand_ins: Option<Vec<u32>>,
    /// Tokens that this turn adds to the prompt, without earlier turns and responses. `None` if not
    /// counted.
    pub own_tokens: Option<u32>,
}

impl TurnRequest {
    /// Creates a request for `prompt` with up to `max_tokens` output tokens.
    pub fn new(prompt: TurnPrompt, max_tokens: u32) -> TurnRequest {
        TurnRequest {
            prompt,
            max_tokens,
            extra: Members::default(),
            routing_key: None,
            possible: None,
            stand_ins: None,
            own_tokens: None,
        }
    }
}

/// A set of conversations.
pub trait LoadWorkload {
    /// Returns the script for each conversation, by index.
    fn scripts(&self) -> Vec<Script>;
    /// Returns the request for `turn`. The turns of a conversation are requested in order, each one
    /// after [`LoadWorkload::on_response`] was called for the previous one.
    fn request(&mut self, turn: Turn) -> TurnRequest;
    /// Records the response to `turn`, which becomes history for the next turn.
    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer);
    /// Returns the prompts that conversations share, such as system prompts, without duplicates.
    /// Empty if none are known.
    fn shared(&self) -> Vec<TurnPrompt> {
        Vec::new()
    }
    /// Number of requests that rebuild the prefixes of conversations that had begun before the run.
    fn warmups(&self) -> u32 {
        0
    }
    /// Returns one of these requests. It asks for one output token.
    fn warmup(&mut self, index: u32) -> Option<TurnRequest> {
        let _ = index;
        None
    }
    /// Returns notes for the report, for example on skipped rows or estimated lengths.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Writes the inputs that, in addition to the flags, determine the content: dataset rows and
    /// tokenizer. The same flags and fingerprint always produce the same requests.
    ///
    /// # Errors
    /// Writing to `to` fails.
    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        let _ = to;
        Ok(())
    }
    /// Ends the conversation of `turn`. If it is requested again, it restarts from the beginning
    /// with the same content.
    fn on_conversation_end(&mut self, turn: Turn);
    /// Called if the request of `turn` failed before its first token.
    fn on_failure(&mut self, _turn: Turn) {}
}
