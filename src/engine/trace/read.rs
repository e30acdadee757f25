//! Reads a whole trace for sizing.

use std::io::BufRead;

use crate::block_size::BlockSizes;
use crate::builder::{Prompt, PromptContent, TraceBuilder};
use crate::caveat::TraceCaveat;
use crate::error::{BadRow, RowError, TraceError, TraceRefusal};
use crate::format::TraceFormat;
use crate::prefix_key::PrefixKeys;
use crate::request::{SessionId, TracePrompt, TraceRequest};
use crate::rows::RowReader;
use crate::sessions::Sessions;
use crate::times::TimeUnit;
use crate::tracelab::TraceLabRounds;
use crate::weka::{LiveSessions, WekaSession};

/// Bytes between two calls of `progress`.
const PROGRESS_BYTES: u64 = 1 << 20;
/// The first bytes of a file compressed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The default number of sessions that are live at a time.
pub const LIVE_SESSIONS: u32 = 64;

/// How to read a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Tokens per block. By default, it is recorded in the trace or derived from it.
    pub block_tokens: Option<u64>,
    /// Unit of the timestamps. By default, the format's unit. Absolute times (TraceLab, LiteLLM) do
    /// not depend on it.
    pub time_unit: Option<TimeUnit>,
    /// Whether bad rows are skipped and counted. By default, a bad row is an error.
    pub skip_bad: bool,
    /// Maximum number of prefix keys. Above it, a sample is kept.
    pub keys_max: usize,
    /// Number of sessions that are live at a time, for formats that do not record the start of a
    /// session.
    pub live_sessions: u32,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions {
            block_tokens: None,
            time_unit: None,
            skip_bad: false,
            keys_max: 1 << 26,
            live_sessions: LIVE_SESSIONS,
        }
    }
}

/// A trace with all its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub format: TraceFormat,
    /// Tokens per block; without meaning if no request has blocks.
    pub block_tokens: u64,
    /// The block sizes that fit all rows; `None` if a row fits none.
    pub common_sizes: Option<BlockSizes>,
    /// The requests in the order in which they are served: by time, otherwise in file order.
    pub requests: Vec<TraceRequest>,
    /// Prefix keys, to which the requests refer. A request without keys in the sample has an empty
    /// range, and a last block of 0 tokens.
    pub keys: Vec<u64>,
    /// A key is in `keys` if and only if its `sample_shift` most significant bits are 0.
    pub sample_shift: u32,
    /// Number of hash IDs read.
    pub block_ids: u64,
    /// Prompt tokens in the blocks of these IDs.
    pub keyed_tokens: u64,
    /// Number of rows read; for sessions, their requests.
    pub rows: u64,
    /// Number of bad rows among them.
    pub skipped: u64,
    pub first_bad: Option<BadRow>,
    pub caveats: Vec<TraceCaveat>,
    /// Whether all requests have a time. Otherwise, none has.
    pub has_times: bool,
}

/// Reads a trace of any format. `progress` is called with the number of bytes read so far.
///
/// # Errors
/// The input cannot be read, is empty, has an unknown format or one without prefixes, or has an
/// invalid row. With [`TraceOptions::skip_bad`], invalid rows are an error only if all are.
pub fn read(input: impl BufRead, options: &TraceOptions, mut progress: impl FnMut(u64)) -> Result<Trace, TraceError> {
    let mut rows = RowReader::new(input);
    if rows.peek().map_err(|source| TraceError::Io { line: 1, source })?.starts_with(&GZIP) {
        return Err(TraceError::Gzip);
    }
    let mut reading: Option<Reading<'_>> = None;
    let mut broken = BrokenRows::default();
    let mut reported = 0;
    loop {
        let bytes = rows.bytes();
        if bytes - reported >= PROGRESS_BYTES {
            reported = bytes;
            progress(bytes);
        }
        let line = rows.next_line_number();
        let Some(row) = rows.next_row().map_err(|source| TraceError::Io { line, source })? else { break };
        match (&mut reading, row.text) {
            (Some(reading), text) => reading.row(row.line, text)?,
            (None, Err(reason)) => broken.add(BadRow { line: row.line, request: None, reason }, options)?,
            (None, Ok(text)) => match TraceFormat::detect(text) {
                Ok(format) => {
                    let reading = reading.insert(Reading::new(format, options, std::mem::take(&mut broken))?);
                    reading.row(row.line, Ok(text))?;
                }
                Err(TraceError::Row(bad)) => broken.add(BadRow { line: row.line, ..bad }, options)?,
                // The first row of an array may be just its bracket.
                Err(TraceError::Refused(TraceRefusal::JsonArray)) if rows.finds_conversations() => {
                    return Err(TraceRefusal::ShareGpt.into());
                }
                Err(error) => return Err(error),
            },
        }
    }
    progress(rows.bytes());
    match (reading, broken.first) {
        (Some(reading), _) => reading.finish(),
        (None, Some(first)) => Err(TraceError::AllRowsBad { rows: broken.rows, first }),
        (None, None) => Err(TraceError::Empty),
    }
}

/// Bad rows before the first valid one.
#[derive(Default)]
struct BrokenRows {
    rows: u64,
    first: Option<BadRow>,
}

impl BrokenRows {
    fn add(&mut self, bad: BadRow, options: &TraceOptions) -> Result<(), TraceError> {
        if !options.skip_bad {
            return Err(bad.into());
        }
        self.rows += 1;
        self.first.get_or_insert(bad);
        Ok(())
    }
}

/// A trace while it is read.
struct Reading<'a> {
    format: TraceFormat,
    options: &'a TraceOptions,
    trace: TraceBuilder<'a>,
    sessions: Sessions,
    rounds: TraceLabRounds,
    live: LiveSessions,
    /// Number of sessions, for formats with one session per row.
    session_rows: SessionId,
    subagents: (u64, u64, u64),
    no_tokens: u64,
    no_hashes: u64,
}

impl<'a> Reading<'a> {
    fn new(format: TraceFormat, options: &'a TraceOptions, broken: BrokenRows) -> Result<Reading<'a>, TraceError> {
        let mut trace = TraceBuilder::new(format, options);
        if let Some(first) = broken.first {
            trace.bad_rows(broken.rows, first);
        }
        Ok(Reading {
            format,
            options,
            trace,
            sessions: Sessions::default(),
            rounds: TraceLabRounds::default(),
            live: LiveSessions::new(options.live_sessions),
            session_rows: 0,
            subagents: (0, 0, 0),
            no_tokens: 0,
            no_hashes: 0,
        })
    }

    fn row(&mut self, line: u64, text: Result<&str, RowError>) -> Result<(), TraceError> {
        let added = match (text, self.format) {
            (Err(reason), _) => Err(reason),
            (Ok(text), TraceFormat::Weka) => match WekaSession::parse(text) {
                Ok(session) => return self.session(line, session),
                Err(reason) => Err(reason),
            },
            (Ok(text), TraceFormat::TraceLab) => self.rounds.add(line, text)?,
            (Ok(text), format) => match format.parse_row(text) {
                Some(Ok(row)) => self.request(line, row)?,
                Some(Err(reason)) => Err(reason),
                None => Ok(()),
            },
        };
        self.trace.rows += 1;
        added.or_else(|reason| self.trace.bad(BadRow { line, request: None, reason }))
    }

    /// Adds a row of a format with one request per row.
    fn request(&mut self, line: u64, row: crate::TraceRow) -> Result<Result<(), RowError>, TraceError> {
        if self.format == TraceFormat::LiteLlm {
            // Requests that failed, and calls that are not completions.
            let (no_tokens, no_hashes) = (row.input.unwrap_or(0) == 0, row.ids.as_ref().is_none_or(Vec::is_empty));
            self.no_tokens += u64::from(no_tokens);
            self.no_hashes += u64::from(no_hashes && !no_tokens);
            if no_tokens || no_hashes {
                return Ok(Ok(()));
            }
        }
        match self.sessions.prompt(line, row)? {
            Ok(prompt) => self.trace.add(prompt).map(Ok),
            Err(RowError::TextOnly) if self.trace.rows == 0 => Err(TraceRefusal::TextOnly.into()),
            Err(reason) => Ok(Err(reason)),
        }
    }

    /// Adds a session with all its requests.
    fn session(&mut self, line: u64, session: WekaSession) -> Result<(), TraceError> {
        let id = self.session_rows;
        self.session_rows = id.checked_add(1).ok_or(TraceError::TooManySessions)?;
        let scale = self.options.time_unit.unwrap_or(TimeUnit::Seconds).seconds();
        let start = self.live.start(session.duration * scale);
        self.subagents.0 += session.relative;
        self.subagents.1 += session.absolute;
        self.subagents.2 += session.ambiguous;
        for (at, request) in (1..).zip(session.requests) {
            self.trace.rows += 1;
            self.trace.add(Prompt {
                line,
                request: Some(at),
                session: id,
                at: Some(start + request.at * scale),
                input: Some(request.input),
                output: Some(request.output),
                block_tokens: session.block_tokens,
                content: PromptContent::Blocks { ids: request.ids, keys: PrefixKeys::local(u64::from(id)) },
            })?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Trace, TraceError> {
        let flat = !matches!(self.format, TraceFormat::Weka | TraceFormat::TraceLab);
        if flat && !self.sessions.has_prefixes() && self.trace.rows > self.trace.skipped() {
            return Err(TraceRefusal::NoPrefixes.into());
        }
        match self.format {
            TraceFormat::TraceLab => {
                let (rounds, caveats) = self.rounds.finish();
                self.trace.caveats.extend(caveats);
                self.trace.reserve(rounds.len());
                for round in rounds {
                    self.trace.push(TraceRequest {
                        line: round.line,
                        session: round.session,
                        at: Some(round.at),
                        input: round.input,
                        output: round.output,
                        prompt: TracePrompt::Continued { prefix: round.prefix },
                    });
                }
            }
            TraceFormat::Weka => {
                let (live, sessions) = (self.options.live_sessions.max(1), u64::from(self.session_rows));
                self.trace.caveats.push(TraceCaveat::AssumedSessionStarts { live, sessions });
                let (relative, absolute, ambiguous) = self.subagents;
                if ambiguous > 0 || relative > 0 && absolute > 0 {
                    self.trace.caveats.push(TraceCaveat::SubagentTimes { relative, absolute, ambiguous });
                }
            }
            _ => {
                if self.no_tokens + self.no_hashes > 0 {
                    let (no_tokens, no_hashes) = (self.no_tokens, self.no_hashes);
                    self.trace.caveats.push(TraceCaveat::LeftOut { no_tokens, no_time: 0, no_hashes });
                }
            }
        }
        let mut trace = self.trace.finish()?;
        if flat {
            trace.format = trace.format.settled(self.sessions.has_fractions(), trace.common_sizes);
            trace.settle_times(&self.sessions, self.options);
        } else {
            trace.has_times = true;
        }
        trace.sort();
        Ok(trace)
    }
}

impl Trace {
    /// Time from the first to the last request, in seconds; `None` without times.
    pub fn duration(&self) -> Option<f64> {
        let times = || self.requests.iter().filter_map(|request| request.at);
        Some(times().max_by(f64::total_cmp)? - times().min_by(f64::total_cmp)?)
    }

    /// Converts times to seconds, and drops them if some are missing.
    fn settle_times(&mut self, sessions: &Sessions, options: &TraceOptions) {
        let absent = self.requests.iter().filter(|request| request.at.is_none()).count();
        self.has_times = absent == 0;
        if !self.has_times {
            if absent < self.requests.len() {
                self.caveats.push(TraceCaveat::MissingTimes { rows: absent as u64 });
            }
            for request in &mut self.requests {
                request.at = None;
            }
            return;
        }
        // A spend log is not expected to be in order.
        let ordered = |caveat: &TraceCaveat| !matches!(caveat, TraceCaveat::NotInTimeOrder { .. });
        let is_log = self.format == TraceFormat::LiteLlm;
        self.caveats.extend(sessions.caveats().filter(|caveat| !is_log || ordered(caveat)));
        let unit = options.time_unit.filter(|_| !is_log).unwrap_or(self.format.time_unit());
        let times = || self.requests.iter().filter_map(|request| request.at);
        let first = times().fold(f64::INFINITY, f64::min);
        let last = times().fold(f64::NEG_INFINITY, f64::max);
        if options.time_unit.is_none()
            && !is_log
            && let Some((rate, other_rate)) = unit.doubt(self.requests.len(), last - first, !sessions.has_fractions())
        {
            self.caveats.push(TraceCaveat::TimeUnitDoubt { unit, rate, other_rate });
        }
        for request in &mut self.requests {
            request.at = request.at.map(|at| (at - first) * unit.seconds());
        }
    }

    /// Sorts the requests by time, which then counts from the first request.
    fn sort(&mut self) {
        if !self.has_times {
            return;
        }
        self.requests.sort_by(|a, b| a.at.unwrap_or(0.0).total_cmp(&b.at.unwrap_or(0.0)));
        let first = self.requests.first().and_then(|request| request.at).unwrap_or(0.0);
        for request in &mut self.requests {
            request.at = request.at.map(|at| at - first);
        }
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
