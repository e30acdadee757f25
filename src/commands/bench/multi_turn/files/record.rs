//! A request as a JSON line (schema `mcctl.bench.record/1`) and as a CSV row.
//!
//! Times are in seconds since the start of the pass. Values that the server does not report are
//! null (empty in CSV).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::commands::bench::measured::MeasuredServer;
use crate::commands::bench::multi_turn::files::recorded_load::RecordedLoad;
use crate::commands::bench::multi_turn::report::Identity;
use crate::engine::load::answer::{CachedTokens, ModelAnswer, ServerTimes};
use crate::engine::load::ceiling::PossibleHits;
use crate::engine::load::measure::source::PromptSource;
use crate::engine::load::session::PassId;
use crate::engine::load::target::{Exchange, ExchangeOutcome};
use crate::engine::load::{TimedRequest, Turn};

pub(in crate::commands::bench) const SCHEMA: &str = "mcctl.bench.record/1";

/// First line of a records file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::commands::bench) struct RecordsHeader {
    pub schema: String,
    pub run: Identity,
    #[serde(flatten)]
    pub described: RunDescription,
}

/// The description of a run in a records file, besides the command.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::commands::bench) struct RunDescription {
    /// Digest of everything that determines the requests, including the servers: only the same run
    /// can be resumed.
    pub work: String,
    /// The load. Files of older versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<RecordedLoad>,
    /// The servers, in order of their labels. Files of older versions lack them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<MeasuredServer>,
}

/// Line written at the start of a pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::commands::bench) struct PassStart {
    pub pass: u32,
    pub side: String,
    pub name: String,
    pub block: u32,
    pub conversations: u64,
    pub requests: u64,
    pub started: String,
}

/// Line written at the end of a pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::commands::bench) struct PassEnd {
    pub pass: u32,
    pub completed: u64,
    pub failed: u64,
    pub unfinished: u64,
    /// The pass was stopped early.
    pub stopped: bool,
    pub seconds: f64,
}

/// Line for one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::commands::bench) struct RequestRecord {
    /// Pass number from zero, in run order.
    pub pass: u32,
    pub side: String,
    pub name: String,
    pub block: u32,
    /// Conversation index, from zero.
    pub conversation: u32,
    /// Turn number, from one.
    pub turn: u32,
    pub planned_s: f64,
    /// Earliest possible send time.
    pub free_s: f64,
    pub begun_s: f64,
    /// Time spent waiting before `begun_s`, as requested by Retry-After.
    #[serde(default)]
    pub waited_s: f64,
    pub wrote_s: f64,
    pub first_token_s: Option<f64>,
    pub last_token_s: Option<f64>,
    pub end_s: f64,
    pub asked_tokens: u32,
    pub arrived_tokens: u32,
    pub prompt_tokens: Option<u32>,
    pub completion_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
    pub device_tokens: Option<u32>,
    pub host_tokens: Option<u32>,
    pub storage_tokens: Option<u32>,
    pub storage_backend: Option<String>,
    pub expected_tokens: Option<u32>,
    /// Prompt tokens that a cache of unlimited size would hit. Files of older versions lack it.
    #[serde(default)]
    pub ceiling_tokens: Option<u32>,
    /// Prompt tokens that caches of the server's sizes would hit, if the sizes are known.
    #[serde(default)]
    pub allowed_tokens: Option<u32>,
    pub queue_s: Option<f64>,
    pub storage_wait_s: Option<f64>,
    pub server_first_token_s: Option<f64>,
    pub server_e2e_s: Option<f64>,
    pub finish_reason: Option<String>,
    pub bad_frames: u32,
    /// `ok`, or the failure type.
    pub outcome: String,
    /// Error message if the request failed.
    #[serde(rename = "said")]
    pub message: String,
    /// Where most of the prompt came from, if the server reports it: `computed`, `device`, `host`,
    /// `storage` or `cached_somewhere`.
    #[serde(default)]
    pub source: Option<PromptSource>,
}

impl RequestRecord {
    /// Returns the line for `record`.
    pub(crate) fn of(pass: u32, id: &PassId, record: &TimedRequest) -> RequestRecord {
        let exchange = &record.exchange;
        let answer = &record.exchange.answer;
        let cached = answer.cached.as_ref();
        let possible = record.possible;
        RequestRecord {
            pass,
            side: id.side_name.clone(),
            name: id.name.clone(),
            block: id.block,
            conversation: record.turn.conversation,
            turn: record.turn.index + 1,
            planned_s: record.planned.as_secs_f64(),
            free_s: record.eligible_at.as_secs_f64(),
            begun_s: exchange.begun.as_secs_f64(),
            waited_s: exchange.waited.as_secs_f64(),
            wrote_s: exchange.wrote.as_secs_f64(),
            first_token_s: exchange.first_token.map(|at| at.as_secs_f64()),
            last_token_s: exchange.last_token.map(|at| at.as_secs_f64()),
            end_s: exchange.end.as_secs_f64(),
            asked_tokens: record.max_tokens,
            arrived_tokens: exchange.arrived,
            prompt_tokens: answer.prompt_tokens,
            completion_tokens: answer.completion_tokens,
            cached_tokens: answer.cached_tokens,
            device_tokens: cached.map(|cached| cached.device),
            host_tokens: cached.map(|cached| cached.host),
            storage_tokens: cached.map(|cached| cached.storage),
            storage_backend: cached.and_then(|cached| cached.backend.clone()),
            expected_tokens: possible.map(|possible| possible.expected),
            ceiling_tokens: possible.map(|possible| possible.ceiling),
            allowed_tokens: possible.and_then(|possible| possible.allowed),
            queue_s: answer.times.queue,
            storage_wait_s: answer.times.storage_prefetch_wait,
            server_first_token_s: answer.times.first_token,
            server_e2e_s: answer.times.end_to_end,
            finish_reason: answer.finish_reason.clone(),
            bad_frames: answer.bad_frames,
            outcome: exchange.outcome.kind(),
            message: exchange.outcome.message(),
            source: PromptSource::of(answer),
        }
    }

    /// Returns the record with the fields that a report needs. For a failure, only its type and
    /// message are kept.
    pub(crate) fn record(&self) -> TimedRequest {
        let at = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let cached = self.device_tokens.map(|device| CachedTokens {
            device,
            host: self.host_tokens.unwrap_or(0),
            storage: self.storage_tokens.unwrap_or(0),
            backend: self.storage_backend.clone(),
        });
        let answer = ModelAnswer {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.cached_tokens,
            cached,
            finish_reason: self.finish_reason.clone(),
            times: ServerTimes {
                queue: self.queue_s,
                storage_prefetch_wait: self.storage_wait_s,
                first_token: self.server_first_token_s,
                end_to_end: self.server_e2e_s,
                ..ServerTimes::default()
            },
            bad_frames: self.bad_frames,
            ..ModelAnswer::default()
        };
        TimedRequest {
            turn: Turn { conversation: self.conversation, index: self.turn.saturating_sub(1) },
            planned: at(self.planned_s),
            eligible_at: at(self.free_s),
            max_tokens: self.asked_tokens,
            possible: self.expected_tokens.map(|expected| PossibleHits {
                // Files of older versions have only the expected hits.
                ceiling: self.ceiling_tokens.unwrap_or(expected),
                expected,
                allowed: self.allowed_tokens,
            }),
            own_tokens: None,
            exchange: Exchange {
                begun: at(self.begun_s),
                waited: at(self.waited_s),
                wrote: at(self.wrote_s),
                first_token: self.first_token_s.map(at),
                last_token: self.last_token_s.map(at),
                end: at(self.end_s),
                arrived: self.arrived_tokens,
                arrivals: Vec::new(),
                answer,
                outcome: outcome(&self.outcome, &self.message),
            },
        }
    }
}

/// Parses an outcome. An unknown failure type is treated as a broken connection, with the type in
/// the message.
fn outcome(kind: &str, message: &str) -> ExchangeOutcome {
    let message = message.to_owned();
    match kind {
        "ok" => ExchangeOutcome::Ok,
        "no connection" => ExchangeOutcome::Connect(message),
        "connection broke" => ExchangeOutcome::Broken(message),
        "stream cut off" => ExchangeOutcome::CutOff,
        "error in the stream" => ExchangeOutcome::Refused(message),
        "no tokens" => ExchangeOutcome::NoTokens,
        "no stream" => ExchangeOutcome::NoStream(message),
        "bug in mcctl" => ExchangeOutcome::Bug(message),
        "time-out" => ExchangeOutcome::TimedOut(Duration::ZERO),
        _ => match kind.strip_prefix("status ").and_then(|status| status.parse().ok()) {
            Some(status) => ExchangeOutcome::Status { status, message, retry_after: None },
            None => ExchangeOutcome::Broken(format!("{kind}: {message}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> RequestRecord {
        let at = Duration::from_micros;
        let answer = ModelAnswer {
            prompt_tokens: Some(100),
            completion_tokens: Some(5),
            cached_tokens: Some(96),
            cached: Some(CachedTokens { device: 16, host: 48, storage: 32, backend: Some("MooncakeStore".to_owned()) }),
            ..ModelAnswer::default()
        };
        let exchange = Exchange {
            begun: at(11),
            waited: Duration::ZERO,
            wrote: at(12),
            first_token: Some(at(50_123)),
            last_token: Some(at(90_000)),
            end: at(91_000),
            arrived: 5,
            arrivals: Vec::new(),
            answer,
            outcome: ExchangeOutcome::Ok,
        };
        let turn = Turn { conversation: 3, index: 1 };
        let record = TimedRequest {
            turn,
            planned: at(10),
            eligible_at: at(11),
            max_tokens: 5,
            possible: Some(PossibleHits { ceiling: 98, expected: 96, allowed: Some(64) }),
            own_tokens: None,
            exchange,
        };
        let id = PassId { side: 0, side_name: "A".to_owned(), name: "run".to_owned(), block: 0 };
        RequestRecord::of(0, &id, &record)
    }

    #[test]
    fn a_line_round_trips_to_its_record() {
        let line = line();
        let text = serde_json::to_string(&line).expect("text keys");
        let read: RequestRecord = serde_json::from_str(&text).expect("our own");
        assert_eq!(read, line);
        let id = PassId { side: 0, side_name: "A".to_owned(), name: "run".to_owned(), block: 0 };
        assert_eq!(RequestRecord::of(0, &id, &read.record()), line);
    }

    #[test]
    fn every_outcome_round_trips() {
        for word in [
            "ok",
            "no connection",
            "connection broke",
            "stream cut off",
            "error in the stream",
            "no tokens",
            "no stream",
            "bug in mcctl",
            "time-out",
            "status 503",
        ] {
            assert_eq!(outcome(word, "x").kind(), word);
        }
        assert_eq!(outcome("of the future", "x"), ExchangeOutcome::Broken("of the future: x".to_owned()));
    }

    #[test]
    fn a_csv_row_has_one_cell_per_column() {
        let mut csv = csv::Writer::from_writer(Vec::new());
        csv.serialize(line()).expect("flat");
        let text = String::from_utf8(csv.into_inner().expect("memory")).expect("text");
        let (head, row) = text.trim_end().split_once('\n').expect("two lines");
        assert_eq!(head.split(',').count(), row.split(',').count());
        assert!(head.starts_with("pass,side,name,block,conversation,turn,planned_s"), "{head}");
    }
}
