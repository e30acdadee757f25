//! Sessions and times of formats with one request per row.

use std::collections::HashMap;

use crate::builder::{Prompt, PromptContent};
use crate::caveat::TraceCaveat;
use crate::error::{RowError, TraceError};
use crate::prefix_key::PrefixKeys;
use crate::request::SessionId;
use crate::row::{ChatLink, TraceRow};

/// The turn before, in one session.
#[derive(Clone, Copy, Default)]
struct SessionTurn {
    at: Option<f64>,
    /// Tokens of the prompt and its reply.
    tokens: u64,
}

/// Assigns rows to sessions, and derives starts and prefixes.
#[derive(Default)]
pub(crate) struct Sessions {
    turns: Vec<SessionTurn>,
    names: HashMap<String, SessionId>,
    chats: HashMap<i64, SessionId>,
    /// Rows that share a prefix, as far as the format says.
    has_prefixes: bool,
    has_fractions: bool,
    latest: Option<f64>,
    unordered: u64,
    estimated: u64,
}

impl Sessions {
    /// Whether any row has hash IDs or a session.
    pub(crate) fn has_prefixes(&self) -> bool {
        self.has_prefixes
    }

    /// Whether any time is not an integer.
    pub(crate) fn has_fractions(&self) -> bool {
        self.has_fractions
    }

    pub(crate) fn caveats(&self) -> impl Iterator<Item = TraceCaveat> {
        let unordered = (self.unordered > 0).then_some(TraceCaveat::NotInTimeOrder { rows: self.unordered });
        let delays = (self.estimated > 0).then_some(TraceCaveat::DelaysWithoutDurations { rows: self.estimated });
        unordered.into_iter().chain(delays)
    }

    /// Turns the row at `line` into a prompt. The outer error ends the trace.
    pub(crate) fn prompt(&mut self, line: u64, row: TraceRow) -> Result<Result<Prompt, RowError>, TraceError> {
        if row.text && row.ids.is_none() {
            return Ok(Err(RowError::TextOnly));
        }
        if row.ids.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Err(RowError::EmptyField("hash_ids")));
        }
        let named = row.session.is_some();
        let session = self.session(row.session, row.chat)?;
        let turn = &mut self.turns[session as usize];
        let mut at = row.at;
        if at.is_none() {
            at = turn.at.zip(row.delay).map(|(before, delay)| before + delay);
            self.estimated += u64::from(at.is_some());
        }
        let content = match row.ids {
            Some(ids) => PromptContent::Blocks { ids, keys: PrefixKeys::global() },
            None => {
                // The new text follows the turn before, which therefore comes first.
                at = at.map(|at| turn.at.map_or(at, |before| at.max(before)));
                PromptContent::Continued { prefix: turn.tokens }
            }
        };
        self.has_prefixes |= named || matches!(content, PromptContent::Blocks { .. });
        let input = match &content {
            PromptContent::Continued { prefix } => match row.input {
                Some(input) => Some(prefix.saturating_add(input)),
                None => return Ok(Err(RowError::Missing("input_length"))),
            },
            PromptContent::Blocks { .. } => row.input,
        };
        *turn = SessionTurn { at, tokens: input.unwrap_or(0).saturating_add(row.output.unwrap_or(1)) };
        if let Some(at) = at {
            self.has_fractions |= at.fract() != 0.0;
            self.unordered += u64::from(self.latest.is_some_and(|latest| at < latest));
            self.latest = Some(self.latest.map_or(at, |latest| latest.max(at)));
        }
        let (output, block_tokens) = (row.output, row.block_tokens);
        Ok(Ok(Prompt { line, request: None, session, at, input, output, block_tokens, content }))
    }

    fn session(&mut self, name: Option<String>, chat: Option<ChatLink>) -> Result<SessionId, TraceError> {
        let new = SessionId::try_from(self.turns.len()).map_err(|_| TraceError::TooManySessions)?;
        let session = match (name, chat) {
            (Some(name), _) => *self.names.entry(name).or_insert(new),
            (None, Some(ChatLink { id, parent })) => {
                let session = parent.and_then(|parent| self.chats.get(&parent)).copied().unwrap_or(new);
                self.chats.insert(id, session);
                session
            }
            (None, None) => new,
        };
        if session == new {
            self.turns.push(SessionTurn::default());
        }
        Ok(session)
    }
}
