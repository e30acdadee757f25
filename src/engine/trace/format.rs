//! The formats, and how to recognize them.

use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::block_size::{BlockRule, BlockSizes};
use crate::error::{RowError, TraceError, TraceRefusal};
use crate::row::TraceRow;
use crate::times::TimeUnit;
use crate::weka::WekaSession;
use crate::{bailian, litellm, mooncake, tracelab};

/// Characters of a row of unknown format to report.
const FOUND_CHARS: usize = 80;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// Mooncake's JSONL, with or without sessions.
    Mooncake,
    /// Input of `vllm bench serve --dataset-name timed_trace`. It has the fields of Mooncake's
    /// format, so it is recognized only after many rows.
    VllmTimed,
    /// The input format of kvcache-simulator.
    KvcacheSimulator,
    /// Traces of Alibaba's Bailian (Qwen).
    Bailian,
    /// Session trees of kv-cache-tester and AgentX.
    Weka,
    /// Rounds of coding agents.
    TraceLab,
    /// LiteLLM's spend log with block hashes.
    LiteLlm,
}

impl TraceFormat {
    /// Recognizes the format by the first row.
    ///
    /// # Errors
    /// The row is not a JSON object, has the fields of no format, or has a format without prefixes.
    /// The reported line is 1.
    pub fn detect(first_row: &str) -> Result<TraceFormat, TraceError> {
        let unknown = || TraceError::UnknownFormat { found: first_row.chars().take(FOUND_CHARS).collect() };
        let text = first_row.trim_start();
        if !text.starts_with('{') {
            return Err(Self::other_file(text).map_or_else(unknown, TraceError::Refused));
        }
        let fields: Fields = serde_json::from_str(text).map_err(|error| crate::error::BadRow {
            line: 1,
            request: None,
            reason: error.into(),
        })?;
        if let Some(refusal) = fields.schema {
            return Err(refusal.into());
        }
        let has = |name: &str| fields.names & bit(name) != 0;
        let format = if has("prefix_block_hashes") || has("prompt_tokens") && (has("startTime") || has("start_time")) {
            TraceFormat::LiteLlm
        } else if has("requests") {
            TraceFormat::Weka
        } else if has("input_tokens_total") || has("round_index") && has("timing_events") {
            TraceFormat::TraceLab
        } else if has("chat_id") && has("hash_ids") {
            TraceFormat::Bailian
        } else if has("block_size") && has("hash_ids") {
            TraceFormat::KvcacheSimulator
        } else if ["hash_ids", "input_length", "input_tokens", "messages", "text_input"].into_iter().any(has) {
            TraceFormat::Mooncake
        } else if has("conversations") {
            return Err(TraceRefusal::ShareGpt.into());
        } else {
            return Err(unknown());
        };
        Ok(format)
    }

    /// Recognizes files whose first row is not an object.
    fn other_file(text: &str) -> Option<TraceRefusal> {
        if text.starts_with('[') {
            let share_gpt = text.contains("\"conversations\"");
            return Some(if share_gpt { TraceRefusal::ShareGpt } else { TraceRefusal::JsonArray });
        }
        // The header of BurstGPT's CSV files.
        let header = text.lines().next()?.to_ascii_lowercase();
        (header.contains("timestamp") && header.contains("request tokens")).then_some(TraceRefusal::BurstGpt)
    }

    /// Parses a row of a format with one request per row; `None` for [`TraceFormat::Weka`].
    ///
    /// # Errors
    /// The row is not a JSON object with the fields of the format, or a value is out of range.
    pub fn parse_row(self, text: &str) -> Option<Result<TraceRow, RowError>> {
        match self {
            TraceFormat::Mooncake | TraceFormat::VllmTimed | TraceFormat::KvcacheSimulator => {
                Some(mooncake::parse(text))
            }
            TraceFormat::Bailian => Some(bailian::parse(text)),
            TraceFormat::LiteLlm => Some(litellm::parse(text)),
            TraceFormat::TraceLab => Some(tracelab::parse(text).map(TraceRow::from)),
            TraceFormat::Weka => None,
        }
    }

    /// Parses a row of a format with one session per row; `None` for other formats than
    /// [`TraceFormat::Weka`].
    ///
    /// # Errors
    /// The row is not a JSON object with the fields of the format, or a time is out of range.
    pub fn parse_session(self, text: &str) -> Option<Result<WekaSession, RowError>> {
        (self == TraceFormat::Weka).then(|| WekaSession::parse(text))
    }

    /// Returns the format that all rows suggest. A trace with Mooncake's fields is a timed trace of
    /// vLLM if some times have `fractions`, and of the two conventional block sizes only vLLM's is
    /// among the `sizes` that fit all rows.
    pub fn settled(self, fractions: bool, sizes: Option<BlockSizes>) -> TraceFormat {
        let is_timed = || sizes.is_some_and(|sizes| !sizes.contains(512) && sizes.contains(16));
        if self == TraceFormat::Mooncake && fractions && is_timed() { TraceFormat::VllmTimed } else { self }
    }

    /// Returns the block size that the format has by convention, in tokens.
    pub fn conventional_block_tokens(self) -> Option<u64> {
        match self {
            TraceFormat::Mooncake => Some(512),
            TraceFormat::VllmTimed | TraceFormat::Bailian => Some(16),
            TraceFormat::Weka => Some(64),
            TraceFormat::KvcacheSimulator | TraceFormat::TraceLab | TraceFormat::LiteLlm => None,
        }
    }

    /// Returns how many hash IDs a prompt has.
    pub fn block_rule(self) -> BlockRule {
        match self {
            TraceFormat::Weka => BlockRule::WholeOnly,
            TraceFormat::KvcacheSimulator => BlockRule::Either,
            _ => BlockRule::PartialLast,
        }
    }

    /// Returns the unit of the format's timestamps.
    pub fn time_unit(self) -> TimeUnit {
        match self {
            TraceFormat::Mooncake | TraceFormat::KvcacheSimulator => TimeUnit::Milliseconds,
            _ => TimeUnit::Seconds,
        }
    }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TraceFormat::Mooncake => "Mooncake",
            TraceFormat::VllmTimed => "vLLM timed trace",
            TraceFormat::KvcacheSimulator => "kvcache-simulator",
            TraceFormat::Bailian => "Bailian (Qwen)",
            TraceFormat::Weka => "Weka/AgentX",
            TraceFormat::TraceLab => "TraceLab",
            TraceFormat::LiteLlm => "LiteLLM spend log",
        })
    }
}

/// Fields that distinguish formats.
const NAMES: [&str; 16] = [
    "hash_ids",
    "input_length",
    "input_tokens",
    "messages",
    "text_input",
    "chat_id",
    "requests",
    "input_tokens_total",
    "round_index",
    "timing_events",
    "block_size",
    "conversations",
    "prompt_tokens",
    "startTime",
    "start_time",
    "prefix_block_hashes",
];

fn bit(name: &str) -> u32 {
    NAMES.iter().position(|known| *known == name).map_or(0, |at| 1 << at)
}

/// Which of [`NAMES`] a row has.
struct Fields {
    names: u32,
    /// Why a file with this `schema` is refused, if it is.
    schema: Option<TraceRefusal>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Fields, A::Error> {
                let mut fields = Fields { names: 0, schema: None };
                while let Some(name) = members.next_key::<String>()? {
                    if name == "schema" {
                        let value: &RawValue = members.next_value()?;
                        fields.schema = match value.get() {
                            text if text.starts_with("\"mcctl.bench.record/") => Some(TraceRefusal::BenchRecords),
                            text if text.starts_with("\"dynamo.agentic") => Some(TraceRefusal::DynamoAgentic),
                            _ => None,
                        };
                    } else if name == "metadata" {
                        let value: &RawValue = members.next_value()?;
                        if value.get().contains("prefix_block_hashes") {
                            fields.names |= bit("prefix_block_hashes");
                        }
                    } else {
                        fields.names |= bit(&name);
                        members.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formats_are_recognized_by_the_first_row() {
        let formats = [
            (r#"{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}"#, TraceFormat::Mooncake),
            (r#"{"session_id": "s", "input_tokens": 3}"#, TraceFormat::Mooncake),
            (r#"{"messages": []}"#, TraceFormat::Mooncake),
            (r#"{"block_size": 64, "hash_ids": [1], "input_length": 3}"#, TraceFormat::KvcacheSimulator),
            (r#"{"chat_id": 1, "parent_chat_id": -1, "hash_ids": [1]}"#, TraceFormat::Bailian),
            (r#"{"id": "a", "block_size": 64, "requests": []}"#, TraceFormat::Weka),
            (r#"{"session_id": "s", "round_index": 0, "input_tokens_total": 5}"#, TraceFormat::TraceLab),
            (r#"{"startTime": "2026-01-01T00:00:00Z", "prompt_tokens": 5}"#, TraceFormat::LiteLlm),
            (r#"{"metadata": "{\"prefix_block_hashes\": []}"}"#, TraceFormat::LiteLlm),
        ];
        for (row, format) in formats {
            assert_eq!(TraceFormat::detect(row).expect(row), format, "{row}");
        }
    }

    #[test]
    fn files_without_prefixes_are_refused_with_the_reason() {
        let refusals = [
            (
                "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
                TraceRefusal::BurstGpt,
            ),
            (r#"[{"id": "x", "conversations": [{"from": "human"}]}]"#, TraceRefusal::ShareGpt),
            (r#"{"id": "x", "conversations": []}"#, TraceRefusal::ShareGpt),
            (r#"[{"hash_ids": [1]}]"#, TraceRefusal::JsonArray),
            (r#"{"schema": "mcctl.bench.record/1", "run": {}}"#, TraceRefusal::BenchRecords),
            (r#"{"schema": "dynamo.agentic_mooncake", "block_size": 64}"#, TraceRefusal::DynamoAgentic),
        ];
        for (row, refusal) in refusals {
            assert!(matches!(TraceFormat::detect(row), Err(TraceError::Refused(found)) if found == refusal), "{row}");
        }
    }

    #[test]
    fn other_rows_are_unknown_or_invalid() {
        assert!(matches!(TraceFormat::detect(r#"{"a": 1}"#), Err(TraceError::UnknownFormat { .. })));
        assert!(matches!(TraceFormat::detect("hello"), Err(TraceError::UnknownFormat { .. })));
        assert!(matches!(TraceFormat::detect(r#"{"a": "#), Err(TraceError::Row(_))));
    }

    #[test]
    fn deep_nesting_is_not_a_stack_overflow() {
        let deep = format!(r#"{{"a": {}{}, "hash_ids": [1]}}"#, "[".repeat(500_000), "]".repeat(500_000));
        assert!(TraceFormat::detect(&deep).is_ok_and(|format| format.parse_row(&deep).is_some()));
        let open = format!(r#"{{"requests": {}"#, "[".repeat(500_000));
        assert!(TraceFormat::detect(&open).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,80}", json in "[{][\\[\\]{}\":,a0 \\\\]{0,60}") {
            let _ = TraceFormat::detect(&text);
            let _ = TraceFormat::detect(&json);
        }
    }
}
