//! BurstGPT's CSV files: times and lengths of requests, without prefixes.
//!
//! The columns are `Timestamp` (seconds), `Request tokens` and `Response tokens`, among others.
//! Fields contain neither commas nor quotes. Every prompt is new text.

use mcctl_trace::TimeUnit;

use crate::workload::dataset::trace::session::{RecordedTurn, TraceSession};
use crate::workload::dataset::trace::{TraceReader, TraceReading};
use crate::workload::dataset::{DatasetCaveat, DatasetError, DatasetOptions, TOKENS_MAX};
use crate::workload::{Conversation, PlannedTurn, RowError, TextSpan, TurnContent};

const TIME: &str = "timestamp";
const INPUT: &str = "request tokens";
const OUTPUT: &str = "response tokens";
/// Maximum timestamp in seconds: ten years in milliseconds.
const TIME_MAX: f64 = 315_576_000_000.0;

#[derive(Default)]
pub(super) struct BurstGptReader {
    /// Names of the columns, once the header is read.
    columns: Option<Vec<String>>,
    sessions: Vec<TraceSession>,
    fractions: bool,
}

impl BurstGptReader {
    /// Returns the request in a row; `None` if it has no prompt, as failed requests.
    fn turn(&self, text: &str, number: u64, options: &DatasetOptions) -> Result<Option<RecordedTurn>, RowError> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let field = |name: &str| {
            let column = self.columns.iter().flatten().position(|column| column == name);
            column.and_then(|column| fields.get(column)).copied().unwrap_or_default()
        };
        let number_in = |name: &str, max: f64| -> Option<f64> {
            field(name).parse().ok().filter(|value| (0.0..=max).contains(value))
        };
        let tokens = |name: &str| -> Result<u32, RowError> {
            let tokens = number_in(name, f64::from(TOKENS_MAX)).filter(|tokens| tokens.fract() == 0.0);
            let wrong = || RowError::InvalidTokens { name: name.to_owned(), value: field(name).to_owned() };
            tokens.map(|tokens| tokens as u32).ok_or_else(wrong)
        };
        let wrong_time = || RowError::InvalidTime { name: TIME.to_owned(), value: field(TIME).to_owned() };
        let at = number_in(TIME, TIME_MAX).ok_or_else(wrong_time)?;
        let (input, output) = (tokens(INPUT)?, tokens(OUTPUT)?.max(1));
        if input == 0 {
            return Ok(None);
        }
        let content = TurnContent::made(vec![TextSpan::Drawn { purpose: "row", number, tokens: input }]);
        let turn = PlannedTurn::whole(content, options.output.unwrap_or(output));
        Ok(Some(RecordedTurn { turn, prompt: input, at: Some(at), delay: 0.0 }))
    }
}

impl TraceReader for BurstGptReader {
    fn row(&mut self, line: u64, text: &str, reading: &mut TraceReading<'_>) -> Result<bool, DatasetError> {
        if self.columns.is_none() {
            self.columns = Some(text.split(',').map(|name| name.trim().to_ascii_lowercase()).collect());
            return Ok(true);
        }
        reading.rows += 1;
        match self.turn(text, reading.rows, reading.options) {
            Ok(Some(turn)) => {
                self.fractions |= turn.at.is_some_and(|at| at.fract() != 0.0);
                let mut session = TraceSession::new(line);
                session.push(turn, reading.options);
                self.sessions.extend(Some(session).filter(|session| !session.turns().is_empty()));
            }
            Ok(None) => {}
            Err(reason) => reading.bad(line, reason)?,
        }
        Ok(self.sessions.len() < reading.enough())
    }

    fn finish(self: Box<Self>, reading: &mut TraceReading<'_>) -> Result<Vec<Conversation>, DatasetError> {
        reading.caveats.push(DatasetCaveat::NoReuse);
        let unit = reading.options.time_unit.unwrap_or(TimeUnit::Seconds);
        let turns = self.sessions.iter().flat_map(TraceSession::turns);
        reading.check_unit(unit, turns.filter_map(|turn| turn.at), self.fractions);
        Ok(self.sessions.into_iter().map(|session| session.finish(unit.seconds())).collect())
    }
}
