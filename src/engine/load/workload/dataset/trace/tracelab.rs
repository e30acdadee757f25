//! TraceLab's rounds of coding agents: one row per round, with lengths only.
//!
//! A session is one conversation of entire prompts. The first tokens of a prompt are the text of
//! the round before, as far as the trace says: its prompt, and the text that stands for its reply.
//! The rest is new.

use std::collections::HashMap;

use mcctl_trace::{SessionId, TraceError, TraceLabRound, TraceLabRounds};

use crate::workload::dataset::trace::session::{RecordedTurn, TraceSession};
use crate::workload::dataset::trace::spans::{first_tokens, length};
use crate::workload::dataset::trace::{TraceReader, TraceReading};
use crate::workload::dataset::{DatasetError, DatasetOptions};
use crate::workload::{Conversation, PlannedTurn, RowError, TextSpan, TurnContent};

#[derive(Default)]
pub(super) struct TraceLabReader {
    rounds: TraceLabRounds,
}

/// A conversation, and the text of its last round.
struct RoundSession {
    turns: TraceSession,
    /// Tokens of the prompt and its reply.
    text: Vec<TextSpan>,
}

impl RoundSession {
    /// Adds a round, the `number`th of the trace.
    fn add(&mut self, round: &TraceLabRound, number: u64, options: &DatasetOptions) -> Result<(), RowError> {
        let input = length(round.input)?;
        let reply = length(round.output)?;
        let mut spans = first_tokens(&self.text, length(round.prefix)?);
        let known: u32 = spans.iter().map(|span| span.tokens()).sum();
        if input > known {
            spans.push(TextSpan::Drawn { purpose: "round", number, tokens: input - known });
        }
        self.text.clone_from(&spans);
        self.text.push(TextSpan::Drawn { purpose: "reply", number, tokens: reply });
        let turn = PlannedTurn::whole(TurnContent::made(spans), options.output.unwrap_or(reply));
        self.turns.push(RecordedTurn { turn, prompt: input, at: Some(round.at), delay: 0.0 }, options);
        Ok(())
    }
}

impl TraceReader for TraceLabReader {
    fn row(&mut self, line: u64, text: &str, reading: &mut TraceReading<'_>) -> Result<bool, DatasetError> {
        reading.rows += 1;
        match self.rounds.add(line, text) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => reading.bad(line, reason.into())?,
            Err(error) => return Err(too_large(reading, &error)),
        }
        Ok(true)
    }

    fn finish(self: Box<Self>, reading: &mut TraceReading<'_>) -> Result<Vec<Conversation>, DatasetError> {
        let (rounds, caveats) = self.rounds.finish();
        reading.caveats.extend(caveats.into_iter().map(Into::into));
        // In the order of their starts.
        let mut sessions: Vec<RoundSession> = Vec::new();
        let mut indices: HashMap<SessionId, usize> = HashMap::new();
        for (number, round) in (0..).zip(&rounds) {
            let is_full = sessions.len() >= reading.enough();
            let index = match indices.get(&round.session) {
                Some(index) => *index,
                None if is_full => {
                    reading.unused += 1;
                    continue;
                }
                None => {
                    sessions.push(RoundSession { turns: TraceSession::new(round.line), text: Vec::new() });
                    indices.insert(round.session, sessions.len() - 1);
                    sessions.len() - 1
                }
            };
            if let Err(reason) = sessions[index].add(round, number, reading.options) {
                reading.bad(round.line, reason)?;
            }
        }
        Ok(sessions.into_iter().map(|session| session.turns.finish(1.0)).collect())
    }
}

fn too_large(reading: &TraceReading<'_>, error: &TraceError) -> DatasetError {
    DatasetError::Unreadable { file: reading.file.to_owned(), reason: error.to_string() }
}
