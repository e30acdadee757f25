//! What conversations say. A workload makes the prompt of a turn from its own words and the answers that came before it.

mod adapters;
pub mod dataset;
pub mod foreseen;
mod json_text;
mod left;
mod message;
mod part;
mod played;
mod speech;
mod synthetic;
mod template;
mod tokenizer;

use std::fmt;
use std::sync::Arc;

use crate::engine::load::{Answer, Script, Turn};

pub use adapters::{Adapters, Deal};
pub use json_text::Members;
pub use left::Left;
pub use message::{Message, Role};
pub use part::Part;
pub use played::{Conversation, Planned, Played, Says};
pub use speech::{Form, Passage, Speech};
pub use synthetic::{Synthetic, Words};
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;

/// A prompt in one of the forms that servers take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids: the history is an exact prefix of what follows.
    Ids(Vec<u32>),
    /// A text.
    Text(String),
    /// A chat.
    Messages(Vec<Message>),
}

/// What a turn asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens of the answer, at most; exactly so many where the server is told to ignore its end-of-sequence token.
    pub max_tokens: u32,
    /// Members of this request alone; they win over the target's.
    pub extra: Members,
    /// A word by which routers keep what belongs together in one place.
    pub routing_key: Option<Arc<str>>,
    /// Tokens of the prompt that should be cached by now, where somebody keeps count.
    pub expected: Option<u32>,
}

impl Ask {
    /// `prompt`, to be answered with so many tokens.
    pub fn new(prompt: Prompt, max_tokens: u32) -> Ask {
        Ask { prompt, max_tokens, extra: Members::default(), routing_key: None, expected: None }
    }
}

/// A set of conversations.
pub trait Workload {
    /// The course of each conversation, by index.
    fn scripts(&self) -> Vec<Script>;
    /// What `turn` asks for. Its conversation's turns are asked in order, each after the answer of the one before it was heard.
    fn ask(&mut self, turn: Turn) -> Ask;
    /// The answer of `turn`: the history of the next one.
    fn heard(&mut self, turn: Turn, answer: &Answer);
    /// What conversations share: system prompts and the like, each once. Nothing where they share nothing, or nobody knows.
    fn shared(&self) -> Vec<Prompt> {
        Vec::new()
    }
    /// What has to be known about it beside its figures: rows that were passed over, lengths that were estimated.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Writes what decides its words beside the flags: the rows of a dataset, the tokenizer. Where the flags and this are the same, the
    /// same is asked.
    ///
    /// # Errors
    /// `to` takes no more.
    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        let _ = to;
        Ok(())
    }
    /// The conversation of `turn` is over. When it is asked again, it is from its start, and the very same.
    fn over(&mut self, turn: Turn);
}
