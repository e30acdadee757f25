//! Recorded requests: every format of `mcctl_trace`, recognized by the first row, and BurstGPT.
//!
//! - `flat`: formats with one request per row; `row`: a row with Mooncake's fields
//! - `weka`, `tracelab`, `burstgpt`: formats with a reader of their own
//! - `session`: a conversation while it is read; `session_tree`: the conversations of a session,
//!   and what waits for what; `spans`: the texts of prompts
//!
//! A block with a hash ID is text that depends only on the ID. Prompts therefore share exactly the
//! prefixes that they shared when they were recorded. (The sizing commands read whole traces with
//! `mcctl_trace::read`, which keeps a sample of the hashes.)

mod burstgpt;
mod flat;
mod row;
mod session;
mod session_tree;
mod spans;
mod tracelab;
mod weka;

use std::io::BufRead;
use std::time::Duration;

use mcctl_trace::{RowReader, TimeUnit, TraceCaveat, TraceError, TraceFormat, TraceRefusal};

use crate::workload::dataset::gather::choose;
use crate::workload::dataset::{BadRow, Dataset, DatasetCaveat, DatasetError, DatasetOptions};
use crate::workload::{Conversation, PlannedTurn, RowError, TurnContent};

/// The first bytes of a file compressed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Maximum time after the first request: ten years.
const TIME_MAX: Duration = Duration::from_secs(315_576_000);

/// What the readers of all formats share: the options, and what was read so far.
struct TraceReading<'a> {
    file: &'a str,
    options: &'a DatasetOptions,
    rows: u64,
    skipped: u64,
    first_bad: Option<BadRow>,
    caveats: Vec<DatasetCaveat>,
    /// Rows of conversations after the last required one.
    unused: u64,
}

impl TraceReading<'_> {
    /// Counts the malformed row at `line`, or returns it as an error.
    fn bad(&mut self, line: u64, reason: RowError) -> Result<(), DatasetError> {
        let bad = BadRow { line, reason: reason.located(line) };
        if !self.options.skip_bad {
            return Err(DatasetError::Row { file: self.file.to_owned(), bad });
        }
        self.skipped += 1;
        // Block sizes are checked after later rows are parsed.
        if self.first_bad.as_ref().is_none_or(|first| bad.line < first.line) {
            self.first_bad = Some(bad);
        }
        Ok(())
    }

    /// Returns the number of conversations after which reading can stop, if conversations are used
    /// in the order of the file.
    fn enough(&self) -> usize {
        let all = self.options.limit == 0 || self.options.shuffle;
        if all { usize::MAX } else { self.options.limit.saturating_add(self.options.offset) }
    }

    /// Adds a caveat if the rate of requests suggests that `times`, in `unit`, have the other unit.
    fn check_unit(&mut self, unit: TimeUnit, times: impl Iterator<Item = f64> + Clone, fractions: bool) {
        let first = times.clone().fold(f64::INFINITY, f64::min);
        let last = times.clone().fold(f64::NEG_INFINITY, f64::max);
        if self.options.time_unit.is_none()
            && let Some((rate, other_rate)) = unit.doubt(times.count(), last - first, !fractions)
        {
            self.caveats.push(TraceCaveat::TimeUnitDoubt { unit, rate, other_rate }.into());
        }
    }
}

/// Reads the rows of one format.
trait TraceReader {
    /// Adds the row at `line`. Returns whether more rows are required.
    fn row(&mut self, line: u64, text: &str, reading: &mut TraceReading<'_>) -> Result<bool, DatasetError>;
    /// Checks the rows that wait for the block size, so that the first malformed row is reported.
    fn check_waiting(&mut self, reading: &mut TraceReading<'_>) -> Result<(), DatasetError> {
        let _ = reading;
        Ok(())
    }
    /// Returns the conversations. Their times may start at any instant.
    fn finish(self: Box<Self>, reading: &mut TraceReading<'_>) -> Result<Vec<Conversation>, DatasetError>;
}

pub(super) fn read(input: impl BufRead, file: &str, options: &DatasetOptions) -> Result<Dataset, DatasetError> {
    let unreadable =
        |error: std::io::Error| DatasetError::Unreadable { file: file.to_owned(), reason: error.to_string() };
    let mut rows = RowReader::new(input);
    if rows.peek().map_err(unreadable)?.starts_with(&GZIP) {
        return Err(DatasetError::Gzip { file: file.to_owned() });
    }
    let mut reading =
        TraceReading { file, options, rows: 0, skipped: 0, first_bad: None, caveats: Vec::new(), unused: 0 };
    let mut reader: Option<Box<dyn TraceReader>> = None;
    while let Some(row) = rows.next_row().map_err(unreadable)? {
        let text = match row.text {
            Ok(text) => text,
            Err(reason) => {
                if let Some(reader) = reader.as_mut().filter(|_| !options.skip_bad) {
                    reader.check_waiting(&mut reading)?;
                }
                reading.rows += 1;
                reading.bad(row.line, reason.into())?;
                continue;
            }
        };
        let needs_more = match &mut reader {
            Some(reader) => reader.row(row.line, text, &mut reading)?,
            None => match choose_reader(text, &reading) {
                Ok(Ok(found)) => reader.insert(found).row(row.line, text, &mut reading)?,
                Ok(Err(reason)) => {
                    reading.rows += 1;
                    reading.bad(row.line, reason)?;
                    true
                }
                // The first row of an array may be just its bracket.
                Err(TraceRefusal::JsonArray) if rows.finds_conversations() => {
                    return Err(DatasetError::Refused { file: file.to_owned(), refusal: TraceRefusal::ShareGpt });
                }
                Err(refusal) => return Err(DatasetError::Refused { file: file.to_owned(), refusal }),
            },
        };
        if !needs_more {
            break;
        }
    }
    let conversations = match reader {
        Some(reader) => reader.finish(&mut reading)?,
        None => Vec::new(),
    };
    Ok(assemble(conversations, reading))
}

/// Returns the reader for a file with this first row. The inner error: the row is malformed.
fn choose_reader(
    text: &str,
    reading: &TraceReading<'_>,
) -> Result<Result<Box<dyn TraceReader>, RowError>, TraceRefusal> {
    let malformed = || row::parse(text).err().unwrap_or(RowError::NoPrompt);
    Ok(match TraceFormat::detect(text) {
        Ok(TraceFormat::Weka) => Ok(Box::new(weka::WekaReader::new(reading))),
        Ok(TraceFormat::TraceLab) => Ok(Box::new(tracelab::TraceLabReader::default())),
        Ok(format) => Ok(Box::new(flat::FlatReader::new(format, reading))),
        Err(TraceError::Refused(TraceRefusal::BurstGpt)) => Ok(Box::new(burstgpt::BurstGptReader::default())),
        // Without skipping, the first line of an array ends the read with a better reason.
        Err(TraceError::Refused(TraceRefusal::JsonArray)) if reading.options.skip_bad => Err(malformed()),
        Err(TraceError::Refused(refusal)) => return Err(refusal),
        Err(_) => Err(malformed()),
    })
}

/// Builds the dataset: orders the conversations by time, and selects the required ones.
fn assemble(mut conversations: Vec<Conversation>, reading: TraceReading<'_>) -> Dataset {
    let TraceReading { options, rows, skipped, first_bad, mut caveats, unused, .. } = reading;
    conversations.retain(|conversation| !conversation.turns.is_empty());
    let mut sessions = Conversation::sessions(conversations);
    // Not all traces are sorted by time.
    let start = |session: &Vec<Conversation>| session.first().and_then(|first| first.turns[0].at);
    sessions.sort_by_key(start);
    let timed = sessions.iter().filter(|session| start(session).is_some()).count();
    if timed > 0 && timed < sessions.len() {
        caveats.push(DatasetCaveat::MissingTimes { conversations: sessions.len() - timed });
    }
    let all = || sessions.iter().flatten();
    let turns = all().map(|conversation| conversation.turns.len() as u64).sum::<u64>();
    let passed_over = sessions.len().min(options.offset);
    let mut conversations: Vec<Conversation> = choose(sessions, options).into_iter().flatten().collect();
    for conversation in &mut conversations {
        repeat_turns(conversation, options.rounds);
    }
    retime(&mut conversations, options);
    Dataset {
        conversations,
        rows,
        skipped,
        first_bad,
        left_out: rows.saturating_sub(skipped + unused + turns),
        passed_over,
        estimated: options.context.is_some() && options.tokenizer.is_none(),
        caveats,
    }
}

/// Repeats each recorded prompt `rounds` times. Each repetition follows the responses so far, and
/// is sent as soon as the previous response ends.
fn repeat_turns(conversation: &mut Conversation, rounds: u32) {
    if rounds <= 1 {
        return;
    }
    // Entire prompts, and thus all turns of sessions with several conversations.
    let is_recorded = |turn: &PlannedTurn| turn.whole && matches!(turn.content, TurnContent::Made(_));
    let more = |turn: PlannedTurn| {
        let again = PlannedTurn { whole: false, at: None, delay: Duration::ZERO, ..turn.clone() };
        let count = if is_recorded(&turn) { rounds as usize - 1 } else { 0 };
        std::iter::once(turn).chain(std::iter::repeat_n(again, count))
    };
    conversation.turns = std::mem::take(&mut conversation.turns).into_iter().flat_map(more).collect();
    if let Some(node) = &mut conversation.node {
        node.joins.iter_mut().for_each(|join| join.turn = join.turn.saturating_mul(rounds));
        if let Some(after) = &mut node.after {
            after.turn = after.turn.saturating_add(1).saturating_mul(rounds) - 1;
        }
    }
}

/// Shifts times so that they start at zero, scales them, and limits delays.
fn retime(conversations: &mut [Conversation], options: &DatasetOptions) {
    let turns = || conversations.iter().flat_map(|conversation| &conversation.turns);
    let first = turns().filter_map(|turn| turn.at).min().unwrap_or_default();
    // The result is bounded, because the command line limits the factor.
    let scaled = |time: Duration| time.min(TIME_MAX).mul_f64(options.slowdown);
    let delay = |time: Duration| scaled(time).min(options.idle_max.unwrap_or(Duration::MAX));
    for conversation in conversations {
        for turn in &mut conversation.turns {
            turn.at = turn.at.map(|at| scaled(at.saturating_sub(first)));
            turn.delay = delay(turn.delay);
        }
        if let Some(node) = &mut conversation.node {
            node.delay = delay(node.delay);
        }
    }
}

/// Converts a time that was checked when its row was parsed.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod format_tests;
#[cfg(test)]
#[path = "prefix_tests.rs"]
mod prefix_tests;
#[cfg(test)]
#[path = "reader_tests.rs"]
mod reader_tests;
#[cfg(test)]
#[path = "row_tests.rs"]
mod row_tests;
