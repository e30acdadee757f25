//! Datasets: files of conversations and requests, and those that are made from numbers alone. Each becomes [`Conversation`]s.
//!
//! A reader holds one row at a time, says file, line and reason of a row that is malformed, and takes nothing from the network.

mod agentic;
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

use crate::engine::load::Seed;
use crate::engine::load::workload::{ChatTemplate, Conversation, Tokenizer};

pub use made::{Sample, SampleFormat};
pub use random::{Corpus, RandomIds, random_ids, random_texts, random_words};
pub use rows::{Layout, ROW_BYTES_MAX, Row, Rows};
pub use shared_prefix::{Groups, SharedPrefix, shared_prefix};
pub use trace::BLOCK_TOKENS;

/// The most tokens of an answer or a prompt that a row may ask for.
pub const TOKENS_MAX: u32 = 1 << 24;
/// Tokens per word where no tokenizer tells.
pub const TOKENS_PER_WORD: f64 = 1.3;

/// The formats of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// A JSON array of conversations with `from` and `value`; JSONL of the same, too.
    ShareGpt,
    /// JSONL of conversations with `content` or `value`.
    Custom,
    /// JSONL of chat requests.
    OpenAi,
    /// JSONL of recorded requests: Mooncake's traces and aiperf's rows.
    Mooncake,
    /// JSON of conversations whose turns hold only what is new.
    Agentic,
    /// JSONL of long contexts with a question and four choices.
    LongBench,
    /// JSONL of `data`: what user and assistant say in turn.
    UltraChat,
    /// JSONL of a long `input` with questions and answers.
    Loogle,
    /// JSONL of `turns` with a `category`, of which the first is asked.
    SpeedBench,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 9] = [
        Format::ShareGpt,
        Format::Custom,
        Format::OpenAi,
        Format::Mooncake,
        Format::Agentic,
        Format::LongBench,
        Format::UltraChat,
        Format::Loogle,
        Format::SpeedBench,
    ];

    /// Its name on command lines, as SGLang's tools have it.
    pub const fn name(self) -> &'static str {
        match self {
            Format::ShareGpt => "sharegpt",
            Format::Custom => "custom",
            Format::OpenAi => "openai",
            Format::Mooncake => "mooncake",
            Format::Agentic => "agentic-trace",
            Format::LongBench => "longbench_v2",
            Format::UltraChat => "ultrachat",
            Format::Loogle => "loogle",
            Format::SpeedBench => "speed-bench",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        let known = |format: &&Format| format.name() == text;
        Format::ALL.iter().find(known).copied().ok_or_else(|| format!("'{text}' is no format of dataset files"))
    }
}

/// Why a dataset is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    /// A row is malformed.
    #[error("{file}:{}: {}", .bad.line, .bad.reason)]
    Row {
        /// The file as the user named it.
        file: String,
        /// Which, and why.
        bad: BadRow,
    },
    /// It cannot be read any further.
    #[error("{file}: {reason}")]
    Unreadable {
        /// The file as the user named it.
        file: String,
        /// In the system's words.
        reason: String,
    },
    /// Nothing is left to send.
    #[error("{file}: none of {rows} rows can be sent: {skipped} malformed{}, {left_out} left out by their lengths", first(.bad.as_ref()))]
    Empty {
        /// The file as the user named it.
        file: String,
        /// Rows in it.
        rows: u64,
        /// Malformed ones that were skipped.
        skipped: u64,
        /// The first of them.
        bad: Option<BadRow>,
        /// Those that are too short, too long, or without a turn.
        left_out: u64,
    },
    /// Every row is malformed.
    #[error("{file}: none of {rows} rows is well-formed; the first, line {}: {}", .bad.line, .bad.reason)]
    AllBad {
        /// The file as the user named it.
        file: String,
        /// Rows in it.
        rows: u64,
        /// The first of them.
        bad: BadRow,
    },
    /// All that could be sent was passed over.
    #[error("{file}: {offset} conversations are to be passed over, and there are {conversations} (in {rows} rows)")]
    Offset {
        /// The file as the user named it.
        file: String,
        /// To be passed over.
        offset: usize,
        /// That could be sent.
        conversations: usize,
        /// Rows in it.
        rows: u64,
    },
    /// Something can only be had with a tokenizer.
    #[error("{what} can only be told with a tokenizer")]
    NeedsTokenizer {
        /// What.
        what: &'static str,
    },
}

/// The first of the malformed rows, behind their number.
fn first(bad: Option<&BadRow>) -> String {
    bad.map_or_else(String::new, |bad| format!(" (the first, line {}: {})", bad.line, bad.reason))
}

/// A malformed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Counted from one.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// How files are read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Conversations at most; zero: all.
    pub limit: usize,
    /// So many of the file's conversations are passed over.
    pub offset: usize,
    /// In random order, and a random choice where a limit leaves some out.
    pub shuffle: bool,
    /// All choices come from it.
    pub seed: Seed,
    /// Malformed rows are counted and passed over.
    pub skip_bad: bool,
    /// Tokens of every answer, whatever the file says.
    pub output: Option<u32>,
    /// Conversations end, and requests are left out, where prompt and answer have more tokens than this.
    pub context: Option<u32>,
    /// Turns of a conversation at most.
    pub max_turns: Option<u32>,
    /// Only the first question of each conversation, chosen as `sglang.bench_serving` 0.5.23 does.
    pub first_turn_only: bool,
    /// Tells how long texts are.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Tokens of a block of a trace.
    pub block_tokens: u32,
    /// Recorded times are multiplied by this.
    pub slowdown: f64,
    /// Rounds of a recorded request: further ones ask the same again, behind the answers so far.
    pub rounds: u32,
    /// Put behind every first question, and before a last `Assistant:`.
    pub suffix: String,
    /// First questions are sent as the text that it makes of them.
    pub template: Option<Arc<ChatTemplate>>,
    /// Only rows of this category.
    pub category: Option<String>,
}

impl Default for Reading {
    fn default() -> Reading {
        Reading {
            limit: 0,
            offset: 0,
            shuffle: false,
            seed: Seed(1),
            skip_bad: false,
            output: None,
            context: None,
            max_turns: None,
            first_turn_only: false,
            tokenizer: None,
            block_tokens: BLOCK_TOKENS,
            slowdown: 1.0,
            rounds: 1,
            suffix: String::new(),
            template: None,
            category: None,
        }
    }
}

impl Reading {
    /// The prompt that is made of a first question.
    pub(self) fn prompt(&self, question: String) -> Result<String, String> {
        /// What some datasets end their questions with.
        const ASSISTANT: &str = "Assistant:";
        let mut prompt = question;
        if !self.suffix.is_empty() {
            prompt.truncate(prompt.strip_suffix(ASSISTANT).map_or(prompt.len(), str::len));
            prompt.extend([&self.suffix, ASSISTANT]);
        }
        match &self.template {
            Some(template) => template.apply(&prompt),
            None => Ok(prompt),
        }
    }

    /// Tokens of `text`: counted, or estimated from its words.
    pub(self) fn tokens(&self, text: &str, special: bool) -> Result<u32, String> {
        Ok(match &self.tokenizer {
            Some(tokenizer) => u32::try_from(tokenizer.count(text, special)?).unwrap_or(u32::MAX),
            None => (text.split_whitespace().count() as f64 * TOKENS_PER_WORD).ceil() as u32,
        })
    }
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataset {
    /// To play.
    pub conversations: Vec<Conversation>,
    /// Rows that were looked at.
    pub rows: u64,
    /// Malformed ones that were skipped, and the first of them.
    pub skipped: u64,
    /// The first of them.
    pub first_bad: Option<BadRow>,
    /// Rows that are too short, too long, or without a turn.
    pub left_out: u64,
    /// Conversations before those that are played.
    pub passed_over: usize,
    /// Lengths are estimated from words, for want of a tokenizer.
    pub estimated: bool,
}

/// Read `input` as `format`. `file` is how it is called in what is said about it.
///
/// # Errors
/// A row is malformed and [`Reading::skip_bad`] is off; the input cannot be read; nothing is left to send.
pub fn read(input: impl BufRead, file: &str, format: Format, reading: &Reading) -> Result<Dataset, DatasetError> {
    let dataset = match format {
        Format::ShareGpt => sharegpt::read(input, file, reading),
        Format::Custom => custom::read(input, file, reading),
        Format::UltraChat => custom::read_ultrachat(input, file, reading),
        Format::OpenAi => openai::read(input, file, reading),
        Format::Mooncake => trace::read(input, file, reading),
        Format::Agentic => agentic::read(input, file, reading),
        Format::LongBench => longbench::read(input, file, reading),
        Format::Loogle => longbench::read_loogle(input, file, reading),
        Format::SpeedBench => speed_bench::read(input, file, reading),
    }?;
    if dataset.conversations.is_empty() {
        let Dataset { rows, skipped, left_out, passed_over, .. } = dataset;
        let file = file.to_owned();
        return Err(match dataset.first_bad {
            // All that there was is malformed: that is what has to be known.
            Some(bad) if skipped == rows => DatasetError::AllBad { file, rows, bad },
            _ if passed_over > 0 => {
                DatasetError::Offset { file, offset: reading.offset, conversations: passed_over, rows }
            }
            bad => DatasetError::Empty { file, rows, skipped, bad, left_out },
        });
    }
    Ok(dataset)
}
