//! Formats with one request per row: Mooncake and aiperf, vLLM, kvcache-simulator, Bailian, and
//! LiteLLM's spend log.
//!
//! A row with hash IDs describes an entire prompt. Rows with the same `session_id` form one
//! conversation, as does a chain of turns in Bailian's traces. A request of a spend log is a
//! conversation of its own.

use std::collections::HashMap;

use mcctl_trace::{CheckedPrompt, PromptCounts, SizeCheck, TimeUnit, TraceCaveat, TraceFormat};

use crate::workload::dataset::trace::row::{self, FlatRow, RowPrompt, RowSession};
use crate::workload::dataset::trace::session::{RecordedTurn, TraceSession};
use crate::workload::dataset::trace::spans::{IdScope, block_spans, length};
use crate::workload::dataset::trace::{TraceReader, TraceReading};
use crate::workload::dataset::{DatasetError, DatasetOptions};
use crate::workload::{Conversation, Members, PlannedTurn, RowError, TextSpan, TurnContent};

/// Default output length in tokens, for rows with messages or text.
const OUTPUT: u32 = 256;

/// Index of a conversation that is not required.
const UNUSED: usize = usize::MAX;

pub(super) struct FlatReader {
    format: TraceFormat,
    sizes: SizeCheck,
    /// Rows that wait for the block size, with their line and their number in the trace.
    waiting: Vec<(u64, u64, FlatRow)>,
    sessions: Vec<TraceSession>,
    /// Number of sessions with turns.
    usable: usize,
    named: HashMap<String, usize>,
    chats: HashMap<i64, usize>,
    /// The latest start of a conversation.
    latest: Option<f64>,
    /// Whether any time is not an integer.
    fractions: bool,
    no_tokens: u64,
    no_hashes: u64,
}

impl FlatReader {
    pub(super) fn new(format: TraceFormat, reading: &TraceReading<'_>) -> FlatReader {
        FlatReader {
            format,
            sizes: SizeCheck::new(format, reading.options.block_tokens, reading.options.skip_bad),
            waiting: Vec::new(),
            sessions: Vec::new(),
            usable: 0,
            named: HashMap::new(),
            chats: HashMap::new(),
            latest: None,
            fractions: false,
            no_tokens: 0,
            no_hashes: 0,
        }
    }

    /// Parses a row; `None` if it is not a request with a prompt.
    fn parse(&mut self, text: &str) -> Result<Option<FlatRow>, RowError> {
        if matches!(self.format, TraceFormat::Mooncake | TraceFormat::VllmTimed | TraceFormat::KvcacheSimulator) {
            return row::parse(text).map(Some);
        }
        let Some(row) = self.format.parse_row(text) else { return Ok(None) };
        let row = row?;
        if self.format == TraceFormat::LiteLlm {
            // Requests that failed, and calls that are not completions.
            let no_tokens = row.input.unwrap_or(0) == 0;
            let no_hashes = row.ids.as_ref().is_none_or(Vec::is_empty);
            self.no_tokens += u64::from(no_tokens);
            self.no_hashes += u64::from(no_hashes && !no_tokens);
            if no_tokens || no_hashes {
                return Ok(None);
            }
        }
        FlatRow::recorded(row).map(Some)
    }

    /// Adds the rows that wait.
    fn add_waiting(&mut self, reading: &mut TraceReading<'_>) -> Result<(), DatasetError> {
        for (line, number, row) in std::mem::take(&mut self.waiting) {
            if let Err(reason) = self.add(line, number, row, reading) {
                reading.bad(line, reason)?;
            }
        }
        Ok(())
    }

    /// Adds a row to its conversation.
    fn add(&mut self, line: u64, number: u64, row: FlatRow, reading: &mut TraceReading<'_>) -> Result<(), RowError> {
        let checked = match row.prompt {
            RowPrompt::Blocks(_) => Some(self.sizes.check(counts(&row))?),
            _ => None,
        };
        let found = match &row.session {
            RowSession::Own => None,
            RowSession::Named(name) => self.named.get(name).copied(),
            RowSession::Chat { parent, .. } => parent.and_then(|parent| self.chats.get(&parent)).copied(),
        };
        let at = row.at;
        let name = match &row.session {
            RowSession::Named(name) if found.is_none() => Some(name.clone()),
            _ => None,
        };
        let chat = match row.session {
            RowSession::Chat { id, .. } => Some(id),
            _ => None,
        };
        let session = match found {
            Some(UNUSED) => UNUSED,
            Some(session) => {
                add_turn(&mut self.sessions[session], row, number, checked, reading.options)?;
                session
            }
            // The conversations that are required start before this one.
            None if self.usable >= reading.enough() && at >= self.latest => UNUSED,
            None => {
                let mut new = TraceSession::new(line);
                add_turn(&mut new, row, number, checked, reading.options)?;
                let is_usable = !new.turns().is_empty();
                if is_usable && (self.usable == 0 || at > self.latest) {
                    self.latest = at;
                }
                self.usable += usize::from(is_usable);
                self.sessions.push(new);
                self.sessions.len() - 1
            }
        };
        reading.unused += u64::from(session == UNUSED);
        self.named.extend(name.map(|name| (name, session)));
        self.chats.extend(chat.map(|chat| (chat, session)));
        Ok(())
    }

    /// Returns the unit of the times.
    fn unit(&self, reading: &TraceReading<'_>) -> TimeUnit {
        let format = self.format.settled(self.fractions, self.sizes.common_sizes());
        // A spend log has absolute times.
        reading.options.time_unit.filter(|_| format != TraceFormat::LiteLlm).unwrap_or(format.time_unit())
    }
}

impl TraceReader for FlatReader {
    fn row(&mut self, line: u64, text: &str, reading: &mut TraceReading<'_>) -> Result<bool, DatasetError> {
        reading.rows += 1;
        let row = match self.parse(text) {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(true),
            Err(reason) => {
                if !reading.options.skip_bad {
                    self.check_waiting(reading)?;
                }
                return reading.bad(line, reason).map(|()| true);
            }
        };
        self.fractions |= row.at.is_some_and(|at| at.fract() != 0.0);
        // Without sessions, reading stops after the last required row. A session may continue
        // anywhere, and a spend log may be in any order.
        let may_stop =
            matches!(row.session, RowSession::Own) && self.named.is_empty() && self.format != TraceFormat::LiteLlm;
        let counts = counts(&row);
        // Rows without blocks wait only for the rows before.
        let is_ready = counts.blocks.is_none() && self.waiting.is_empty() || self.sizes.add(counts);
        self.waiting.push((line, reading.rows, row));
        let is_last = may_stop && self.usable + self.waiting.len() >= reading.enough();
        if is_last {
            self.check_waiting(reading)?;
        } else if is_ready {
            self.add_waiting(reading)?;
        }
        Ok(!(may_stop && self.named.is_empty() && self.usable >= reading.enough()))
    }

    fn check_waiting(&mut self, reading: &mut TraceReading<'_>) -> Result<(), DatasetError> {
        self.sizes.settle();
        self.add_waiting(reading)
    }

    fn finish(mut self: Box<Self>, reading: &mut TraceReading<'_>) -> Result<Vec<Conversation>, DatasetError> {
        self.check_waiting(reading)?;
        if self.sizes.mismatches() > 0 {
            reading.caveats.push(TraceCaveat::HashCount { rows: self.sizes.mismatches() }.into());
        }
        if self.no_tokens + self.no_hashes > 0 {
            let (no_tokens, no_hashes) = (self.no_tokens, self.no_hashes);
            reading.caveats.push(TraceCaveat::LeftOut { no_tokens, no_time: 0, no_hashes }.into());
        }
        let unit = self.unit(reading);
        if self.format != TraceFormat::LiteLlm {
            let turns = self.sessions.iter().flat_map(TraceSession::turns);
            reading.check_unit(unit, turns.filter_map(|turn| turn.at), self.fractions);
        }
        Ok(self.sessions.into_iter().map(|session| session.finish(unit.seconds())).collect())
    }
}

fn counts(row: &FlatRow) -> PromptCounts {
    let blocks = match &row.prompt {
        RowPrompt::Blocks(ids) => Some(ids.len() as u64),
        _ => None,
    };
    PromptCounts {
        tokens: row.input.map(u64::from),
        blocks,
        block_tokens: row.block_tokens.filter(|_| blocks.is_some()),
    }
}

/// Adds `row`, the `number`th of the trace, as the next turn.
fn add_turn(
    session: &mut TraceSession,
    row: FlatRow,
    number: u64,
    checked: Option<CheckedPrompt>,
    options: &DatasetOptions,
) -> Result<(), RowError> {
    let (content, whole, prompt, output) = match (row.prompt, checked) {
        (RowPrompt::Blocks(ids), Some(checked)) => {
            let spans = block_spans(&ids, checked, IdScope::Trace, number)?;
            (TurnContent::made(spans), true, length(checked.tokens)?, 1)
        }
        (RowPrompt::Blocks(_), None) => return Err(RowError::EmptyPrompt),
        (RowPrompt::Made(tokens), _) => {
            (TurnContent::made(vec![TextSpan::Drawn { purpose: "row", number, tokens }]), false, tokens, 1)
        }
        (RowPrompt::Text(text), _) => {
            let prompt = if options.context.is_some() { options.tokens(&text, false)? } else { 0 };
            (TurnContent::Text(text.into()), false, prompt, OUTPUT)
        }
        (RowPrompt::Messages(messages), _) => {
            session.check_mode(row.delta)?;
            (TurnContent::Messages(messages), !row.delta, 0, OUTPUT)
        }
    };
    if row.tools.is_some() && !matches!(content, TurnContent::Messages(_)) {
        return Err(RowError::ToolsWithoutMessages);
    }
    let tools = session.tools(row.tools, row.delta);
    let members = tools.map(|tools| ("tools".to_owned(), tools)).into_iter().chain(row.extra);
    let turn = PlannedTurn {
        whole,
        extra: Members::new(members),
        ..PlannedTurn::new(content, options.output.or(row.output).unwrap_or(output))
    };
    session.push(RecordedTurn { turn, prompt, at: row.at, delay: row.delay.unwrap_or_default() }, options);
    Ok(())
}
