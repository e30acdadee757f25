//! What an exchange comes to while its answer comes in, whatever carries it.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::base::text::one_line;
use crate::engine::load::answer::{Arrival, Dialect, Reader, TooLong};
use crate::engine::load::target::{ARRIVALS_MAX, Exchange, Outcome};

/// Bytes of an error's body that are kept.
const SAID_BYTES: usize = 300;

/// See the module.
pub(super) struct Hearing<F> {
    start: Mono,
    begun: Duration,
    wrote: Option<Mono>,
    first_token: Option<Duration>,
    last_token: Option<Duration>,
    arrived: u32,
    arrivals: Vec<Arrival>,
    reader: Reader,
    /// Another status than 2xx, and what is said about it.
    refusal: Option<Refusal>,
    told: F,
}

struct Refusal {
    status: u16,
    retry_after: Option<Duration>,
    said: Vec<u8>,
}

impl<F: FnMut(Arrival)> Hearing<F> {
    /// Times count from `start`; `told` hears of tokens.
    pub(super) fn new(dialect: Dialect, start: Mono, begun: Duration, told: F) -> Hearing<F> {
        Hearing {
            start,
            begun,
            wrote: None,
            first_token: None,
            last_token: None,
            arrived: 0,
            arrivals: Vec::new(),
            reader: Reader::new(dialect),
            refusal: None,
            told,
        }
    }

    /// The last byte of the request has been written.
    pub(super) fn wrote(&mut self, at: Mono) {
        self.wrote = Some(at);
    }

    /// The head of the answer.
    pub(super) fn head(&mut self, status: u16, retry_after: Option<Duration>) {
        if !(200..300).contains(&status) {
            self.refusal = Some(Refusal { status, retry_after, said: Vec::new() });
        }
    }

    /// Bytes of the body that came in at `at`. False when no more of them are of interest.
    ///
    /// # Errors
    /// The answer grows beyond all measure.
    pub(super) fn data(&mut self, bytes: &[u8], at: Mono) -> Result<bool, TooLong> {
        if let Some(refusal) = &mut self.refusal {
            let room = SAID_BYTES - refusal.said.len();
            refusal.said.extend_from_slice(&bytes[..bytes.len().min(room)]);
            return Ok(bytes.len() < room);
        }
        let at = at.since(self.start);
        let Hearing { reader, first_token, last_token, arrived, arrivals, told, .. } = self;
        reader.push(bytes, at, |arrival| {
            first_token.get_or_insert(arrival.at);
            *last_token = Some(arrival.at);
            *arrived = arrived.saturating_add(arrival.tokens);
            if arrivals.len() < ARRIVALS_MAX {
                arrivals.push(arrival);
            }
            told(arrival);
        })?;
        Ok(true)
    }

    /// It ended at `end`, as `outcome` says; a whole answer is judged by what it says.
    pub(super) fn finish(self, end: Mono, outcome: Outcome) -> Exchange {
        let end = end.since(self.start).max(self.begun);
        let answer = self.reader.finish();
        let outcome = match (outcome, self.refusal) {
            (Outcome::Ok, Some(Refusal { status, retry_after, said })) => {
                let says = String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>().join(" ");
                let says = one_line(&says, SAID_BYTES);
                Outcome::Status { status, says, retry_after }
            }
            (Outcome::Ok, None) if answer.error.is_some() => Outcome::Refused(answer.error.clone().unwrap_or_default()),
            (Outcome::Ok, None) if !answer.done && answer.finish_reason.is_none() => Outcome::CutOff,
            (Outcome::Ok, None) if self.arrived == 0 => Outcome::NoTokens,
            (outcome, _) => outcome,
        };
        Exchange {
            begun: self.begun,
            waited: Duration::ZERO,
            // What could not be written whole was being written up to its end.
            wrote: self.wrote.map_or(end, |wrote| wrote.since(self.start)),
            first_token: self.first_token,
            last_token: self.last_token,
            end,
            arrived: self.arrived,
            arrivals: self.arrivals,
            answer,
            outcome,
        }
    }
}
