//! What an exchange comes to while its answer comes in, whatever carries it.

use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::base::text::one_line;
use crate::engine::load::answer::{Arrival, Dialect, Reader, TooLong};
use crate::engine::load::target::http1::Head;
use crate::engine::load::target::{ARRIVALS_MAX, Exchange, Outcome};

/// Bytes of an error's body that are kept.
const SAID_BYTES: usize = 300;

/// See the module.
pub(super) struct Hearing<F> {
    start: Mono,
    begun: Duration,
    wrote: Option<Mono>,
    tokens: Tokens<F>,
    reader: Reader,
    /// Another status than 2xx, and what is said about it.
    refusal: Option<Refusal>,
    /// The type of a body that is no stream, by its head, and how it begins.
    other: Option<(String, Vec<u8>)>,
}

/// The tokens of an answer as they arrive.
struct Tokens<F> {
    first: Option<Duration>,
    last: Option<Duration>,
    count: u32,
    arrivals: Vec<Arrival>,
    told: F,
}

impl<F: FnMut(Arrival)> Tokens<F> {
    fn add(&mut self, arrival: Arrival) {
        self.first.get_or_insert(arrival.at);
        self.last = Some(arrival.at);
        self.count = self.count.saturating_add(arrival.tokens);
        if self.arrivals.len() < ARRIVALS_MAX {
            self.arrivals.push(arrival);
        }
        (self.told)(arrival);
    }
}

struct Refusal {
    status: u16,
    retry_after: Option<Duration>,
    location: Option<String>,
    said: Vec<u8>,
}

/// Keep of `bytes` what there is room for; is there room for more?
fn keep(said: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let room = SAID_BYTES - said.len();
    said.extend_from_slice(&bytes[..bytes.len().min(room)]);
    bytes.len() < room
}

/// The beginning of a body, fit for a line.
fn shown(said: &[u8]) -> String {
    let says = String::from_utf8_lossy(said).split_whitespace().collect::<Vec<_>>().join(" ");
    one_line(&says, SAID_BYTES)
}

/// What is known from a head, before what the body says.
fn with(before: String, says: String) -> String {
    if says.is_empty() { before } else { format!("{before}: {says}") }
}

impl<F: FnMut(Arrival)> Hearing<F> {
    /// Times count from `start`; `told` hears of tokens.
    pub(super) fn new((dialect, stream): (Dialect, bool), start: Mono, begun: Duration, told: F) -> Hearing<F> {
        Hearing {
            start,
            begun,
            wrote: None,
            tokens: Tokens { first: None, last: None, count: 0, arrivals: Vec::new(), told },
            reader: if stream { Reader::new(dialect) } else { Reader::of_document(dialect) },
            refusal: None,
            other: None,
        }
    }

    /// The last byte of the request has been written.
    pub(super) fn wrote(&mut self, at: Mono) {
        self.wrote = Some(at);
    }

    /// The head of the answer.
    pub(super) fn head(&mut self, head: Head) {
        let Head { status, retry_after, location, kind, .. } = head;
        if (200..300).contains(&status) {
            self.other = kind.map(|kind| (kind, Vec::new()));
        } else {
            self.refusal = Some(Refusal { status, retry_after, location, said: Vec::new() });
        }
    }

    /// Bytes of the body that came in at `at`. False when no more of them are of interest.
    ///
    /// # Errors
    /// The answer grows beyond all measure.
    pub(super) fn data(&mut self, bytes: &[u8], at: Mono) -> Result<bool, TooLong> {
        if let Some(refusal) = &mut self.refusal {
            return Ok(keep(&mut refusal.said, bytes));
        }
        if let Some((_, said)) = &mut self.other {
            keep(said, bytes);
        }
        let at = at.since(self.start);
        let Hearing { reader, tokens, .. } = self;
        reader.push(bytes, at, |arrival| tokens.add(arrival))?;
        Ok(true)
    }

    /// It ended at `end`, as `outcome` says; a whole answer is judged by what it says.
    pub(super) fn finish(mut self, end: Mono, outcome: Outcome) -> Exchange {
        let end = end.since(self.start).max(self.begun);
        let (answer, late) = self.reader.finish();
        if late > 0 && self.refusal.is_none() {
            self.tokens.add(Arrival { at: end, tokens: late });
        }
        let arrived = self.tokens.count;
        let outcome = match (outcome, self.refusal) {
            (Outcome::Ok, Some(Refusal { status, retry_after, location, said })) => {
                let says = match location {
                    Some(location) => with(format!("to {location}"), shown(&said)),
                    None => shown(&said),
                };
                Outcome::Status { status, says, retry_after }
            }
            (Outcome::Ok, None) if answer.error.is_some() => Outcome::Refused(answer.error.clone().unwrap_or_default()),
            (Outcome::Ok, None) if arrived == 0 && self.other.is_some() => {
                let (kind, said) = self.other.unwrap_or_default();
                Outcome::NoStream(with(kind, shown(&said)))
            }
            (Outcome::Ok, None) if !answer.done && answer.finish_reason.is_none() => Outcome::CutOff,
            (Outcome::Ok, None) if arrived == 0 => Outcome::NoTokens,
            (outcome, _) => outcome,
        };
        Exchange {
            begun: self.begun,
            waited: Duration::ZERO,
            // What could not be written whole was being written up to its end.
            wrote: self.wrote.map_or(end, |wrote| wrote.since(self.start)),
            first_token: self.tokens.first,
            last_token: self.tokens.last,
            end,
            arrived,
            arrivals: self.tokens.arrivals,
            answer,
            outcome,
        }
    }
}
