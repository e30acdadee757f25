//! What conversations say. A workload makes the prompt of a turn from its own words and the answers that came before it.

mod synthetic;

use crate::engine::load::{Answer, Script, Turn};

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
}

/// A set of conversations.
pub trait Workload {
    /// The course of each conversation, by index.
    fn scripts(&self) -> Vec<Script>;
    /// What `turn` asks for. Its conversation's turns are asked in order, each after the answer of the one before it was heard.
    fn ask(&mut self, turn: Turn) -> Ask;
    /// The answer of `turn`: the history of the next one.
    fn heard(&mut self, turn: Turn, answer: &Answer);
    /// The conversation of `turn` is over: nothing more is asked of it.
    fn over(&mut self, turn: Turn);
}
