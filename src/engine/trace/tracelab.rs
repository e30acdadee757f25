//! TraceLab's rounds of coding agents (uw-syfi/TraceLab): one row for each call of a model.
//!
//! A row has lengths and no hashes: `input_tokens_total` is the sum of `prefix_tokens` and
//! `newly_append_tokens`. `prefix_tokens` is what the provider's cache served. If the prompt grew
//! since the round before, that whole prompt is a prefix of the new one, whether or not the
//! provider still had it.
//!
//! A round starts at its latest input event (`user_message`, `tool_result`), or, without one, at
//! its earliest output event. Rounds of a session are ordered by that time, then by `round_index`.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use crate::caveat::TraceCaveat;
use crate::error::{RowError, TraceError};
use crate::request::SessionId;
use crate::row::TraceRow;
use crate::size_check::TOKENS_MAX;
use crate::times::{Timestamp, checked};

/// A row as recorded.
#[derive(Deserialize)]
pub(crate) struct TraceLabRow<'a> {
    #[serde(borrow)]
    session_id: Name<'a>,
    #[serde(default)]
    round_index: Option<u64>,
    #[serde(default)]
    timing_events: Option<RoundTimes>,
    #[serde(default)]
    input_tokens_total: Option<u64>,
    #[serde(default)]
    prefix_tokens: Option<u64>,
    #[serde(default)]
    newly_append_tokens: Option<u64>,
    #[serde(default)]
    output_tokens: Option<u64>,
}

/// A string that is borrowed if it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);

impl TraceLabRow<'_> {
    /// Prompt length in tokens; 0 if the usage is not recorded.
    fn input(&self) -> u64 {
        let sum = self.prefix_tokens.unwrap_or(0).saturating_add(self.newly_append_tokens.unwrap_or(0));
        self.input_tokens_total.unwrap_or(sum)
    }

    fn at(&self) -> Option<f64> {
        self.timing_events.as_ref().and_then(|times| times.last_input.or(times.first_output))
    }
}

/// Parses a row, which is one round of a session.
pub(crate) fn parse(text: &str) -> Result<TraceLabRow<'_>, RowError> {
    let row: TraceLabRow<'_> = serde_json::from_str(text)?;
    if let Some(at) = row.at() {
        checked("timing_events", at)?;
    }
    if row.input() > TOKENS_MAX {
        return Err(RowError::PromptLength(row.input()));
    }
    if row.output_tokens.is_some_and(|output| output > TOKENS_MAX) {
        return Err(RowError::ReplyLength(row.output_tokens.unwrap_or(0)));
    }
    Ok(row)
}

impl From<TraceLabRow<'_>> for TraceRow {
    fn from(row: TraceLabRow<'_>) -> TraceRow {
        TraceRow {
            at: row.at(),
            input: Some(row.input()),
            output: row.output_tokens,
            session: Some(row.session_id.0.into_owned()),
            ..TraceRow::default()
        }
    }
}

/// Times of a round's events, in seconds since 1970.
#[derive(Default)]
struct RoundTimes {
    last_input: Option<f64>,
    first_output: Option<f64>,
}

#[derive(Deserialize)]
struct RoundEvent {
    #[serde(default)]
    event_type: Option<EventType>,
    #[serde(default)]
    timestamp: Option<Timestamp>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventType {
    UserMessage,
    ToolResult,
    Text,
    Reasoning,
    ToolCall,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for RoundTimes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RoundTimes, D::Error> {
        struct EventsVisitor;
        impl<'de> Visitor<'de> for EventsVisitor {
            type Value = RoundTimes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<RoundTimes, A::Error> {
                let mut times = RoundTimes::default();
                while let Some(event) = events.next_element::<RoundEvent>()? {
                    let (Some(kind), Some(Timestamp(at))) = (event.event_type, event.timestamp) else { continue };
                    match kind {
                        EventType::UserMessage | EventType::ToolResult => {
                            times.last_input = Some(times.last_input.map_or(at, |last| last.max(at)));
                        }
                        EventType::Text | EventType::Reasoning | EventType::ToolCall => {
                            times.first_output = Some(times.first_output.map_or(at, |first| first.min(at)));
                        }
                        EventType::Other => {}
                    }
                }
                Ok(times)
            }
        }
        deserializer.deserialize_seq(EventsVisitor)
    }
}

/// A round of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceLabRound {
    /// The line at which the row starts, from 1.
    pub line: u64,
    pub session: SessionId,
    /// Position within the session, as recorded; `u64::MAX` if it is not.
    pub index: u64,
    /// Start in seconds since 1970.
    pub at: f64,
    /// Prompt length in tokens, at least 1.
    pub input: u64,
    /// Reply length in tokens, at least 1.
    pub output: u64,
    /// The first `prefix` tokens of the prompt are the first tokens of the session's round before,
    /// including its reply.
    pub prefix: u64,
}

/// Collects rounds of TraceLab.
#[derive(Debug, Default)]
pub struct TraceLabRounds {
    /// With the recorded prefixes: what the provider's cache served.
    rounds: Vec<TraceLabRound>,
    sessions: HashMap<Box<str>, SessionId>,
    no_tokens: u64,
    no_time: u64,
}

impl TraceLabRounds {
    /// Adds the row at `line`. Rows without tokens or without a time are left out.
    ///
    /// # Errors
    /// The outer error ends the trace: it has too many sessions. The inner error: the row is not a
    /// JSON object with the fields of the format, or a value is out of range.
    pub fn add(&mut self, line: u64, text: &str) -> Result<Result<(), RowError>, TraceError> {
        let row = match parse(text) {
            Ok(row) => row,
            Err(reason) => return Ok(Err(reason)),
        };
        let (input, Some(at)) = (row.input(), row.at()) else {
            self.no_time += 1;
            return Ok(Ok(()));
        };
        if input == 0 {
            self.no_tokens += 1;
            return Ok(Ok(()));
        }
        let name = row.session_id.0.as_ref();
        let session = match self.sessions.get(name) {
            Some(session) => *session,
            None => {
                let session = SessionId::try_from(self.sessions.len()).map_err(|_| TraceError::TooManySessions)?;
                self.sessions.insert(name.into(), session);
                session
            }
        };
        self.rounds.push(TraceLabRound {
            line,
            session,
            index: row.round_index.unwrap_or(u64::MAX),
            at,
            input,
            output: row.output_tokens.unwrap_or(0).max(1),
            prefix: row.prefix_tokens.unwrap_or(0).min(input),
        });
        Ok(Ok(()))
    }

    /// Returns the rounds in the order of their starts, with their prefixes.
    pub fn finish(mut self) -> (Vec<TraceLabRound>, Vec<TraceCaveat>) {
        self.rounds.sort_by(|a, b| a.at.total_cmp(&b.at).then(a.index.cmp(&b.index)));
        // Prompt and reply length of the round before, by session.
        let mut before: Vec<Option<(u64, u64)>> = vec![None; self.sessions.len()];
        let (mut misses, mut first, mut first_tokens) = (0, 0, 0_u64);
        for round in &mut self.rounds {
            let before = &mut before[round.session as usize];
            round.prefix = match *before {
                Some((input, output)) => {
                    let recorded = round.prefix.min(input.saturating_add(output));
                    misses += u64::from(round.input >= input && recorded < input);
                    if round.input >= input { recorded.max(input) } else { recorded }
                }
                None => {
                    first += u64::from(round.prefix > 0);
                    first_tokens = first_tokens.saturating_add(round.prefix);
                    0
                }
            };
            *before = Some((round.input, round.output));
        }
        let mut caveats = Vec::new();
        if self.no_tokens + self.no_time > 0 {
            let (no_tokens, no_time) = (self.no_tokens, self.no_time);
            caveats.push(TraceCaveat::LeftOut { no_tokens, no_time, no_hashes: 0 });
        }
        if first > 0 {
            caveats.push(TraceCaveat::PrefixFromOtherSessions { sessions: first, tokens: first_tokens });
        }
        if misses > 0 {
            caveats.push(TraceCaveat::ProviderCacheMisses { rounds: misses });
        }
        (self.rounds, caveats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_starts_at_its_latest_input_event() {
        let row = |events: &str| format!(r#"{{"session_id": "s", "timing_events": [{events}]}}"#);
        let at = |events: &str| parse(&row(events)).expect("a row").at();
        let event = |kind: &str, second: u32| {
            format!(r#"{{"event_type": "{kind}", "timestamp": "1970-01-01T00:00:{second:02}Z", "x": 1}}"#)
        };
        let all = [event("user_message", 3), event("tool_result", 5), event("text", 9), event("usage_report", 1)];
        assert_eq!(at(&all.join(",")), Some(5.0));
        assert_eq!(at(&[event("text", 9), event("reasoning", 8), event("other", 1)].join(",")), Some(8.0));
        assert_eq!(at(r#"{"event_type": "text", "timestamp": null}, {"timestamp": 1}"#), None);
        assert_eq!(parse(r#"{"session_id": "s", "timing_events": null}"#).expect("a row").at(), None);
    }

    #[test]
    fn invalid_rows_are_refused() {
        for bad in [
            "{}",
            r#"{"session_id": 1}"#,
            r#"{"session_id": "s", "input_tokens_total": 99999999999}"#,
            r#"{"session_id": "s", "output_tokens": 99999999999}"#,
            r#"{"session_id": "s", "timing_events": [{"event_type": "text", "timestamp": "soon"}]}"#,
            r#"{"session_id": "s", "timing_events": [{"event_type": "text", "timestamp": -5}]}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
