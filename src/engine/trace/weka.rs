//! Session trees of kv-cache-tester and AgentX: one JSON object per conversation.
//!
//! A session has `id`, `block_size`, `hash_id_scope` ("local") and `requests`. A request has `t`
//! (seconds after the start of the session), `in`, `out`, `hash_ids` and `api_time` (seconds). An
//! entry of type `subagent` has `t`, `duration_ms` and `requests` of its own, which run beside the
//! session's. IDs are local to the session, and shared with its subagents. They cover whole blocks
//! only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Deserialize;

use crate::error::RowError;
use crate::times::checked;

/// Tolerance in the comparison of times, in seconds.
const EPSILON: f64 = 1e-6;

/// A conversation with its subagents.
#[derive(Clone, Debug, PartialEq)]
pub struct WekaSession {
    /// Tokens per block, if the session has it.
    pub block_tokens: Option<u64>,
    /// Requests of the session and of its subagents, in the order of the file.
    pub requests: Vec<WekaRequest>,
    /// The stream in which each subagent started: that of subagent 1, then that of subagent 2, and
    /// so on.
    pub parents: Vec<u32>,
    /// Time from the start of the session to the end of its last request, in seconds.
    pub duration: f64,
    /// Subagents with times after the start of the subagent.
    pub relative: u64,
    /// Subagents with times after the start of the session.
    pub absolute: u64,
    /// Subagents, counted in one of the two, whose times fit both.
    pub ambiguous: u64,
}

/// A request of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct WekaRequest {
    /// 0 for the session itself, otherwise the number of the subagent.
    pub stream: u32,
    /// Start in seconds after the first request of the session.
    pub at: f64,
    /// Duration in seconds; 0 if it is not recorded.
    pub duration: f64,
    /// Prompt length in tokens.
    pub input: u64,
    /// Reply length in tokens.
    pub output: u64,
    /// IDs of the prompt's whole blocks.
    pub ids: Vec<u64>,
}

#[derive(Deserialize)]
struct SessionRow {
    #[serde(default)]
    block_size: Option<u64>,
    requests: Vec<Entry>,
}

/// A request, or a subagent with its requests.
#[derive(Deserialize)]
struct Entry {
    t: f64,
    #[serde(default, rename = "in")]
    input: Option<u64>,
    #[serde(default, rename = "out")]
    output: Option<u64>,
    #[serde(default)]
    hash_ids: Option<Vec<u64>>,
    #[serde(default)]
    api_time: Option<f64>,
    #[serde(default)]
    duration_ms: Option<f64>,
    #[serde(default)]
    requests: Option<Vec<Entry>>,
}

impl Entry {
    fn duration(&self) -> f64 {
        // Negative durations occur in recorded files.
        self.api_time.unwrap_or(0.0).max(0.0)
    }
}

impl WekaSession {
    pub(crate) fn parse(text: &str) -> Result<WekaSession, RowError> {
        let row: SessionRow = serde_json::from_str(text)?;
        let mut session = WekaSession {
            block_tokens: row.block_size,
            requests: Vec::with_capacity(row.requests.len()),
            parents: Vec::new(),
            duration: 0.0,
            relative: 0,
            absolute: 0,
            ambiguous: 0,
        };
        session.add(row.requests, 0, 0.0)?;
        let start = session.requests.iter().map(|request| request.at).reduce(f64::min).unwrap_or(0.0);
        for request in &mut session.requests {
            request.at -= start;
            session.duration = session.duration.max(request.at + request.duration);
        }
        Ok(session)
    }

    /// Adds the requests of one stream. Their times count from `origin`. The parser limits the
    /// depth of the recursion.
    fn add(&mut self, entries: Vec<Entry>, stream: u32, origin: f64) -> Result<(), RowError> {
        for entry in entries {
            let at = origin + checked("t", entry.t)?;
            let duration = checked("api_time", entry.duration())?;
            if let Some(inner) = entry.requests {
                self.parents.push(stream);
                let number = u32::try_from(self.parents.len()).unwrap_or(u32::MAX);
                let origin = self.origin(entry.t, entry.duration_ms, &inner, origin);
                self.add(inner, number, origin)?;
                continue;
            }
            self.requests.push(WekaRequest {
                stream,
                at,
                duration,
                input: entry.input.ok_or(RowError::Missing("in"))?,
                output: entry.output.unwrap_or(1).max(1),
                ids: entry.hash_ids.unwrap_or_default(),
            });
        }
        Ok(())
    }

    /// Returns the origin of the times of a subagent that started `start` seconds after `origin`.
    /// A time before the start of the subagent can only be relative to it. A time after its end is
    /// evidence against that origin.
    fn origin(&mut self, start: f64, duration_ms: Option<f64>, inner: &[Entry], origin: f64) -> f64 {
        if inner.is_empty() {
            return origin;
        }
        let first = inner.iter().map(|entry| entry.t).fold(f64::INFINITY, f64::min);
        let last = inner.iter().map(|entry| entry.t).fold(0.0, f64::max);
        let duration = duration_ms.map_or(f64::INFINITY, |duration| duration.max(0.0) / 1e3);
        let absolute = first + EPSILON >= start && last <= start + duration + EPSILON;
        let relative = last <= duration + EPSILON;
        let is_relative = match (absolute, relative) {
            (true, false) => false,
            (false, true) => true,
            // The duration may be missing or wrong.
            (false, false) => first + EPSILON < start,
            (true, true) => {
                self.ambiguous += u64::from(start > 0.0);
                self.relative > self.absolute
            }
        };
        if is_relative {
            self.relative += 1;
            origin + start
        } else {
            self.absolute += 1;
            origin
        }
    }
}

/// Chooses the starts of sessions, so that a fixed number of them is live at a time: when one ends,
/// the next starts.
#[derive(Debug)]
pub struct LiveSessions {
    live: usize,
    /// Ends of the live sessions, in seconds.
    ends: BinaryHeap<Reverse<Seconds>>,
}

/// Seconds in their total order.
#[derive(Debug)]
struct Seconds(f64);

impl Ord for Seconds {
    fn cmp(&self, other: &Seconds) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Seconds) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Seconds {
    fn eq(&self, other: &Seconds) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Seconds {}

impl LiveSessions {
    /// At least one session is live.
    pub fn new(live: u32) -> LiveSessions {
        LiveSessions { live: live.max(1) as usize, ends: BinaryHeap::new() }
    }

    /// Returns the start of the next session, which lasts `duration` seconds. Starts never
    /// decrease.
    pub fn start(&mut self, duration: f64) -> f64 {
        let start = match self.ends.len() < self.live {
            true => 0.0,
            false => self.ends.pop().map_or(0.0, |Reverse(Seconds(end))| end),
        };
        self.ends.push(Reverse(Seconds(start + duration)));
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str) -> Vec<(u32, f64)> {
        let session = WekaSession::parse(text).expect("a session");
        session.requests.iter().map(|request| (request.stream, request.at)).collect()
    }

    fn with_subagent(start: f64, duration: &str, inner: [f64; 2]) -> String {
        let inner =
            inner.map(|t| format!(r#"{{"t": {t}, "type": "n", "in": 64, "out": 1, "hash_ids": [1]}}"#)).join(",");
        format!(
            r#"{{"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [
                {{"t": 0, "type": "s", "in": 130, "out": 9, "hash_ids": [1, 2], "api_time": 2.5, "ttft": 0.5}},
                {{"t": {start}, "type": "subagent", "agent_id": "x", "duration_ms": {duration}, "requests": [{inner}]}}]}}"#
        )
    }

    #[test]
    fn subagent_times_are_relative_or_absolute_by_their_values() {
        assert_eq!(times(&with_subagent(10.0, "5000", [0.0, 4.0])), [(0, 0.0), (1, 10.0), (1, 14.0)]);
        assert_eq!(times(&with_subagent(10.0, "5000", [10.0, 14.0])), [(0, 0.0), (1, 10.0), (1, 14.0)]);
        assert_eq!(times(&with_subagent(10.0, "null", [1.0, 30.0])), [(0, 0.0), (1, 11.0), (1, 40.0)]);
        let doubtful = WekaSession::parse(&with_subagent(10.0, "null", [11.0, 30.0])).expect("a session");
        assert_eq!((doubtful.absolute, doubtful.relative, doubtful.ambiguous), (1, 0, 1));
    }

    #[test]
    fn session_starts_with_its_first_request_and_ends_with_its_last() {
        let session = WekaSession::parse(
            r#"{"requests": [{"t": 5, "in": 64, "out": 0, "hash_ids": [7], "api_time": 9}, {"t": 7, "in": 10}]}"#,
        );
        let session = session.expect("a session");
        assert_eq!((session.requests[0].at, session.requests[1].at, session.duration), (0.0, 2.0, 9.0));
        assert_eq!((session.requests[0].output, session.requests[1].ids.len()), (1, 0));
    }

    #[test]
    fn invalid_sessions_are_refused() {
        for bad in [
            "{}",
            r#"{"requests": {}}"#,
            r#"{"requests": [{"t": 1}]}"#,
            r#"{"requests": [{"t": -1, "in": 5}]}"#,
            r#"{"requests": [{"t": 1, "in": 5, "hash_ids": [1.5]}]}"#,
        ] {
            assert!(WekaSession::parse(bad).is_err(), "{bad}");
        }
        let deep = format!("{}{}", r#"{"t": 0, "requests": ["#.repeat(10_000), "]}".repeat(10_000));
        assert!(WekaSession::parse(&deep).is_err(), "too deep");
    }

    #[test]
    fn next_session_starts_when_one_ends() {
        let mut live = LiveSessions::new(2);
        let starts = [10.0, 4.0, 3.0, 1.0, 1.0].map(|duration| live.start(duration));
        assert_eq!(starts, [0.0, 0.0, 4.0, 7.0, 8.0]);
    }
}
