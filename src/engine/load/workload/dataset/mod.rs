//! Datasets: files with conversations or requests, and generated datasets. Each becomes a list of
//! [`Conversation`]s.
//!
//! A reader holds one row at a time, reports the file, line and reason for a malformed row, and
//! never uses the network.

mod agentic;
mod caveat;
mod custom;
mod gather;
mod longbench;
mod made;
mod openai;
mod random;
mod rows;
mod shared_prefix;
mod sharegpt;
mod speed_bench;
mod trace;

use std::fmt;
use std::io::BufRead;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use mcctl_trace::{TimeUnit, TraceRefusal};

use crate::Seed;
use crate::workload::tokenizer;
use crate::workload::{ChatTemplate, Conversation, RowError, Tokenizer};

pub use crate::workload::row_error::{ROW_BYTES_MAX, TOKENS_MAX};
pub use caveat::DatasetCaveat;
pub use made::{SampleFormat, SampleSpec};
pub use random::{Corpus, RandomIds, random_ids, random_texts, random_words};
pub use rows::{DatasetRow, RowLayout, RowReader};
pub use shared_prefix::{PrefixGroups, SharedPrefix, shared_prefix};

/// The format of a dataset file. Each has a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetFormat {
    /// JSON array or JSONL. Conversations consist of messages with `from` and `value`.
    ShareGpt,
    /// JSONL. Conversations consist of messages with `content` or `value`.
    Custom,
    /// Chat requests as JSONL.
    OpenAi,
    /// Recorded requests: all formats of `mcctl_trace`, aiperf rows, and BurstGPT's CSV files.
    Mooncake,
    /// JSON object of conversations whose turns contain only new messages.
    Agentic,
    /// JSONL. Each row has a long context, a question and four choices.
    LongBench,
    /// JSONL. Each row has `data`, a list of messages that alternate between user and assistant.
    UltraChat,
    /// JSONL. Each row has a long `input`, with questions and answers.
    Loogle,
    /// JSONL. Each row has `turns` and a `category`. The first turn is the request.
    SpeedBench,
}

impl DatasetFormat {
    pub const ALL: [DatasetFormat; 9] = [
        DatasetFormat::ShareGpt,
        DatasetFormat::Custom,
        DatasetFormat::OpenAi,
        DatasetFormat::Mooncake,
        DatasetFormat::Agentic,
        DatasetFormat::LongBench,
        DatasetFormat::UltraChat,
        DatasetFormat::Loogle,
        DatasetFormat::SpeedBench,
    ];

    /// Returns the name used on the command line. Names match SGLang's tools.
    pub const fn name(self) -> &'static str {
        match self {
            DatasetFormat::ShareGpt => "sharegpt",
            DatasetFormat::Custom => "custom",
            DatasetFormat::OpenAi => "openai",
            DatasetFormat::Mooncake => "mooncake",
            DatasetFormat::Agentic => "agentic-trace",
            DatasetFormat::LongBench => "longbench_v2",
            DatasetFormat::UltraChat => "ultrachat",
            DatasetFormat::Loogle => "loogle",
            DatasetFormat::SpeedBench => "speed-bench",
        }
    }
}

impl fmt::Display for DatasetFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DatasetFormat {
    type Err = ParseFormatError;

    fn from_str(text: &str) -> Result<DatasetFormat, ParseFormatError> {
        let known = |format: &&DatasetFormat| format.name() == text;
        DatasetFormat::ALL.iter().find(known).copied().ok_or_else(|| ParseFormatError(text.to_owned()))
    }
}

/// The string is not a valid dataset format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dataset format '{0}'")]
pub struct ParseFormatError(String);

/// Why a dataset cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    /// A row is malformed.
    #[error("{file}:{}: {}", .bad.line, .bad.reason)]
    Row {
        /// File name as specified by the user.
        file: String,
        bad: BadRow,
    },
    /// The file cannot be read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// File name as specified by the user.
        file: String,
        /// Error reported by the operating system.
        reason: String,
    },
    /// None of the rows can be sent.
    #[error(
        "{file}: none of the {rows} rows can be sent: {skipped} malformed{}, {left_out} too short, too long or without \
         turns",
        first(.bad.as_ref())
    )]
    Empty {
        /// File name as specified by the user.
        file: String,
        rows: u64,
        /// Malformed rows that were skipped.
        skipped: u64,
        /// The first malformed row.
        bad: Option<BadRow>,
        /// Rows that are too short, too long or have no turns.
        left_out: u64,
    },
    /// All rows are malformed.
    #[error("{file}: all {rows} rows are malformed; the first is line {}: {}", .bad.line, .bad.reason)]
    AllBad {
        /// File name as specified by the user.
        file: String,
        rows: u64,
        /// The first malformed row.
        bad: BadRow,
    },
    /// The offset skips all usable conversations.
    #[error("{file}: offset {offset} skips all {conversations} conversations (in {rows} rows)")]
    Offset {
        /// File name as specified by the user.
        file: String,
        /// Number of conversations to skip.
        offset: usize,
        /// Number of usable conversations.
        conversations: usize,
        rows: u64,
    },
    /// The file has a known format, but is not a trace that can be sent.
    #[error("{file}: {refusal}")]
    Refused { file: String, refusal: TraceRefusal },
    #[error("{file}: the file is compressed with gzip")]
    Gzip { file: String },
    /// An option requires a tokenizer, but none is set.
    #[error("{what} requires a tokenizer")]
    NeedsTokenizer { what: &'static str },
}

/// Formats the first malformed row, to be appended to the number of such rows.
fn first(bad: Option<&BadRow>) -> String {
    bad.map_or_else(String::new, |bad| format!(" (the first is on line {}: {})", bad.line, bad.reason))
}

/// A malformed row in a dataset file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Line number, from 1.
    pub line: u64,
    pub reason: RowError,
}

/// Options for reading dataset files.
#[derive(Clone, Debug)]
pub struct DatasetOptions {
    /// Maximum number of conversations. Zero means unlimited.
    pub limit: usize,
    /// Number of conversations to skip.
    pub offset: usize,
    /// Whether to use random order, and a random sample if a limit applies.
    pub shuffle: bool,
    /// Whether random order is the order in which `sglang.bench_serving` sends the rows. The whole
    /// file is then kept in memory.
    pub as_bench_serving: bool,
    /// Seed for all random choices.
    pub seed: Seed,
    /// Whether to count and skip malformed rows.
    pub skip_bad: bool,
    /// Output length of every request in tokens, overriding the file.
    pub output: Option<u32>,
    /// Context length in tokens. If prompt and output exceed it, a conversation ends early and a
    /// single request is skipped.
    pub context: Option<u32>,
    /// Maximum number of turns per conversation.
    pub max_turns: Option<u32>,
    /// Whether to use only the first question of each conversation, selected in the same way as in
    /// `sglang.bench_serving` 0.5.23.
    pub first_turn_only: bool,
    /// Tokenizer used to measure text lengths.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Tokens per block in a trace. By default, the size that fits the rows.
    pub block_tokens: Option<u64>,
    /// Unit of the times in a trace. By default, the format's unit. Absolute times do not depend
    /// on it.
    pub time_unit: Option<TimeUnit>,
    /// Factor by which recorded times are multiplied.
    pub slowdown: f64,
    /// Maximum delay between the end of a request and the start of the next one, after scaling.
    pub idle_max: Option<Duration>,
    /// Whether the pace is a fixed number of live sessions, so that recorded starts do not matter.
    pub live_sessions: bool,
    /// Rounds per recorded request. Each further round repeats the prompt after the conversation so
    /// far.
    pub rounds: u32,
    /// Text to append to every first question, before a trailing `Assistant:`.
    pub suffix: String,
    /// Chat template to apply to first questions.
    pub template: Option<Arc<ChatTemplate>>,
    /// If set, only rows in this category are used.
    pub category: Option<String>,
}

impl Default for DatasetOptions {
    fn default() -> DatasetOptions {
        DatasetOptions {
            limit: 0,
            offset: 0,
            shuffle: false,
            as_bench_serving: false,
            seed: Seed(1),
            skip_bad: false,
            output: None,
            context: None,
            max_turns: None,
            first_turn_only: false,
            tokenizer: None,
            block_tokens: None,
            time_unit: None,
            slowdown: 1.0,
            idle_max: None,
            live_sessions: false,
            rounds: 1,
            suffix: String::new(),
            template: None,
            category: None,
        }
    }
}

impl DatasetOptions {
    /// Returns the prompt for a first question.
    pub(self) fn prompt(&self, question: String) -> Result<String, RowError> {
        /// The marker at the end of each question in some datasets.
        const ASSISTANT: &str = "Assistant:";
        let mut prompt = question;
        if !self.suffix.is_empty() {
            prompt.truncate(prompt.strip_suffix(ASSISTANT).map_or(prompt.len(), str::len));
            prompt.extend([&self.suffix, ASSISTANT]);
        }
        match &self.template {
            Some(template) => Ok(template.apply(&prompt)?),
            None => Ok(prompt),
        }
    }

    /// Returns the number of tokens in `text`: counted, or estimated from its words.
    pub(self) fn tokens(&self, text: &str, special: bool) -> Result<u32, RowError> {
        Ok(match &self.tokenizer {
            Some(tokenizer) => u32::try_from(tokenizer.count(text, special)?).unwrap_or(u32::MAX),
            None => tokenizer::estimated_tokens(text),
        })
    }
}

/// A dataset in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    pub conversations: Vec<Conversation>,
    /// Number of rows read.
    pub rows: u64,
    /// Malformed rows that were skipped.
    pub skipped: u64,
    /// The first malformed row.
    pub first_bad: Option<BadRow>,
    /// Rows that are too short, too long or have no turns.
    pub left_out: u64,
    /// Number of conversations that the offset skipped.
    pub passed_over: usize,
    /// Whether lengths are estimated from words because there is no tokenizer.
    pub estimated: bool,
    pub caveats: Vec<DatasetCaveat>,
}

/// Reads `input` as `format`. Errors refer to it as `file`.
///
/// # Errors
/// A row is malformed and [`DatasetOptions::skip_bad`] is off, the input cannot be read, or no row
/// can be sent.
pub fn read(
    input: impl BufRead,
    file: &str,
    format: DatasetFormat,
    reading: &DatasetOptions,
) -> Result<Dataset, DatasetError> {
    let dataset = match format {
        DatasetFormat::ShareGpt => sharegpt::read(input, file, reading),
        DatasetFormat::Custom => custom::read(input, file, reading),
        DatasetFormat::UltraChat => custom::read_ultrachat(input, file, reading),
        DatasetFormat::OpenAi => openai::read(input, file, reading),
        DatasetFormat::Mooncake => trace::read(input, file, reading),
        DatasetFormat::Agentic => agentic::read(input, file, reading),
        DatasetFormat::LongBench => longbench::read(input, file, reading),
        DatasetFormat::Loogle => longbench::read_loogle(input, file, reading),
        DatasetFormat::SpeedBench => speed_bench::read(input, file, reading),
    }?;
    if dataset.conversations.is_empty() {
        let Dataset { rows, skipped, left_out, passed_over, .. } = dataset;
        let file = file.to_owned();
        return Err(match dataset.first_bad {
            // If all rows are malformed, report that rather than any other reason.
            Some(bad) if skipped == rows => DatasetError::AllBad { file, rows, bad },
            _ if passed_over > 0 => {
                DatasetError::Offset { file, offset: reading.offset, conversations: passed_over, rows }
            }
            bad => DatasetError::Empty { file, rows, skipped, bad, left_out },
        });
    }
    Ok(dataset)
}
