//! What conversations say. A workload makes the prompt of a turn from its own words and the answers that came before it.

pub mod foreseen;
mod part;
mod synthetic;

use serde_json::{Map, Value};

use crate::engine::load::{Answer, Script, Turn};

pub use part::Part;
pub use synthetic::{Synthetic, Words};

/// Who says a message of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The instructions.
    System,
    /// The user.
    User,
    /// The server.
    Assistant,
}

impl Role {
    /// The word in a request.
    pub const fn word(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What.
    pub content: String,
}

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
    pub extra: Map<String, Value>,
    /// Tokens of the prompt that should be cached by now, where somebody keeps count.
    pub expected: Option<u32>,
}

impl Ask {
    /// `prompt`, to be answered with so many tokens.
    pub fn new(prompt: Prompt, max_tokens: u32) -> Ask {
        Ask { prompt, max_tokens, extra: Map::new(), expected: None }
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
    /// The conversation of `turn` is over. When it is asked again, it is from its start, and the very same.
    fn over(&mut self, turn: Turn);
}
