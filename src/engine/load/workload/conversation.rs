//! Planned conversations: what to send, and when.

use std::sync::Arc;
use std::time::Duration;

use crate::SessionNode;
use crate::workload::tokenizer;
use crate::workload::{ChatMessage, Members, SpanList, TextSpan, Tokenizer};

/// A conversation with at least one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// User turns, in order.
    pub turns: Vec<PlannedTurn>,
    /// Routing key that routers use to send related requests to the same worker.
    pub routing_key: Option<Arc<str>>,
    /// Where the conversation belongs in its session. `None`: it is a session of its own.
    pub node: Option<Box<SessionNode>>,
}

impl Conversation {
    /// Creates a conversation that is a session of its own.
    pub fn new(turns: Vec<PlannedTurn>) -> Conversation {
        Conversation { turns, routing_key: None, node: None }
    }

    /// Returns whether the conversation belongs to the session of the one before it.
    pub fn continues_session(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.index > 0)
    }

    /// Groups conversations by session.
    pub(super) fn sessions(conversations: Vec<Conversation>) -> Vec<Vec<Conversation>> {
        let mut sessions: Vec<Vec<Conversation>> = Vec::new();
        for conversation in conversations {
            match sessions.last_mut().filter(|_| conversation.continues_session()) {
                Some(session) => session.push(conversation),
                None => sessions.push(vec![conversation]),
            }
        }
        sessions
    }
}

/// A turn in a planned conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTurn {
    pub content: TurnContent,
    /// Whether the turn is a complete request, which discards the history.
    pub whole: bool,
    pub max_tokens: u32,
    /// Members for this request only.
    pub extra: Members,
    /// Recorded time, relative to the first request in the trace.
    pub at: Option<Duration>,
    /// Delay after the previous response.
    pub delay: Duration,
    /// Recorded start after the start of the session; zero if it is not recorded.
    pub since_start: Duration,
    /// Tokens in `content`. `None` if not counted.
    pub tokens: Option<u32>,
}

impl PlannedTurn {
    /// Creates a turn that continues the conversation.
    pub fn new(content: TurnContent, max_tokens: u32) -> PlannedTurn {
        PlannedTurn {
            content,
            whole: false,
            max_tokens,
            extra: Members::default(),
            at: None,
            delay: Duration::ZERO,
            since_start: Duration::ZERO,
            tokens: None,
        }
    }

    /// Counts the tokens in the content, if it is not generated text: exactly with a tokenizer,
    /// otherwise estimated from words. Text that cannot be encoded is not counted.
    pub fn count(&mut self, tokenizer: Option<&Tokenizer>) {
        let count = |text: &str, special| match tokenizer {
            Some(tokenizer) => tokenizer.count(text, special).ok().and_then(|count| u32::try_from(count).ok()),
            None => Some(tokenizer::estimated_tokens(text)),
        };
        self.tokens = match &self.content {
            TurnContent::Text(text) => count(text, true),
            TurnContent::Messages(messages) => messages.iter().map(|message| count(&message.text(), false)).sum(),
            TurnContent::Made(spans) => Some(spans.tokens()),
        };
    }

    /// Creates a turn that is a complete request.
    pub fn whole(content: TurnContent, max_tokens: u32) -> PlannedTurn {
        PlannedTurn { whole: true, ..PlannedTurn::new(content, max_tokens) }
    }
}

/// The content of a user turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnContent {
    Text(Arc<str>),
    Messages(Vec<ChatMessage>),
    /// Generated user text: concatenated spans.
    Made(SpanList),
}

impl TurnContent {
    /// Returns generated text that consists of `spans`.
    pub fn made(spans: Vec<TextSpan>) -> TurnContent {
        TurnContent::Made(spans.into())
    }
}
