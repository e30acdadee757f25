//! Collects the response of an exchange, independently of the HTTP version.

use std::time::Duration;

use crate::answer::{AnswerReader, TokenArrival, TooLong};
use crate::target::http1::ResponseHead;
use crate::target::{ARRIVALS_MAX, Exchange, ExchangeOutcome};
use mcctl_base::Mono;
use mcctl_base::text::one_line;

/// Maximum number of bytes kept from an error body.
const EXCERPT_BYTES_MAX: usize = 300;

/// Builds an [`Exchange`] from the pieces of a response.
pub(super) struct ResponseAccumulator<F> {
    start: Mono,
    begun: Duration,
    wrote: Option<Mono>,
    tokens: TokenArrivals<F>,
    reader: AnswerReader,
    /// Set if the status is not 2xx.
    refusal: Option<ErrorStatus>,
    /// Content type and start of a body that is not an event stream.
    other: Option<(String, Vec<u8>)>,
}

/// The tokens in a response and their arrival times.
struct TokenArrivals<F> {
    first: Option<Duration>,
    last: Option<Duration>,
    count: u32,
    arrivals: Vec<TokenArrival>,
    on_arrival: F,
}

impl<F: FnMut(TokenArrival)> TokenArrivals<F> {
    fn add(&mut self, arrival: TokenArrival) {
        self.first.get_or_insert(arrival.at);
        self.last = Some(arrival.at);
        self.count = self.count.saturating_add(arrival.tokens);
        if self.arrivals.len() < ARRIVALS_MAX {
            self.arrivals.push(arrival);
        }
        (self.on_arrival)(arrival);
    }
}

struct ErrorStatus {
    status: u16,
    retry_after: Option<Duration>,
    location: Option<String>,
    excerpt: Vec<u8>,
}

/// Appends as much of `bytes` as fits. Returns whether there is room for more.
fn keep(excerpt: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let left = EXCERPT_BYTES_MAX - excerpt.len();
    excerpt.extend_from_slice(&bytes[..bytes.len().min(left)]);
    bytes.len() < left
}

/// Returns the start of a body as a single line.
fn shown(excerpt: &[u8]) -> String {
    let text = String::from_utf8_lossy(excerpt).split_whitespace().collect::<Vec<_>>().join(" ");
    one_line(&text, EXCERPT_BYTES_MAX)
}

/// Joins a string from the response head with the start of the body.
fn with(before: String, excerpt: String) -> String {
    if excerpt.is_empty() { before } else { format!("{before}: {excerpt}") }
}

impl<F: FnMut(TokenArrival)> ResponseAccumulator<F> {
    /// Parses the body with `reader`. Times are relative to `start`. `on_arrival` is called for
    /// every token arrival.
    pub(super) fn new(reader: AnswerReader, start: Mono, begun: Duration, on_arrival: F) -> ResponseAccumulator<F> {
        ResponseAccumulator {
            start,
            begun,
            wrote: None,
            tokens: TokenArrivals { first: None, last: None, count: 0, arrivals: Vec::new(), on_arrival },
            reader,
            refusal: None,
            other: None,
        }
    }

    /// Records when the last byte of the request was written.
    pub(super) fn wrote(&mut self, at: Mono) {
        self.wrote = Some(at);
    }

    /// Processes the response head.
    pub(super) fn head(&mut self, head: ResponseHead) {
        let ResponseHead { status, retry_after, location, kind, .. } = head;
        if (200..300).contains(&status) {
            self.other = kind.map(|kind| (kind, Vec::new()));
        } else {
            self.refusal = Some(ErrorStatus { status, retry_after, location, excerpt: Vec::new() });
        }
    }

    /// Processes body bytes that were read at `at`. Returns whether more bytes are needed.
    ///
    /// # Errors
    /// The response exceeds a size limit.
    pub(super) fn data(&mut self, bytes: &[u8], at: Mono) -> Result<bool, TooLong> {
        if let Some(refusal) = &mut self.refusal {
            return Ok(keep(&mut refusal.excerpt, bytes));
        }
        if let Some((_, excerpt)) = &mut self.other {
            keep(excerpt, bytes);
        }
        let at = at.since(self.start);
        let ResponseAccumulator { reader, tokens, .. } = self;
        reader.push(bytes, at, |arrival| tokens.add(arrival))?;
        Ok(true)
    }

    /// Ends the exchange at `end`. The content of a complete response may still change `outcome`.
    pub(super) fn finish(mut self, end: Mono, outcome: ExchangeOutcome) -> Exchange {
        let end = end.since(self.start).max(self.begun);
        let (answer, late) = self.reader.finish();
        if late > 0 && self.refusal.is_none() {
            self.tokens.add(TokenArrival { at: end, tokens: late });
        }
        let arrived = self.tokens.count;
        let outcome = match (outcome, self.refusal) {
            (ExchangeOutcome::Ok, Some(ErrorStatus { status, retry_after, location, excerpt })) => {
                let message = match location {
                    Some(location) => with(format!("redirect to {location}"), shown(&excerpt)),
                    None => shown(&excerpt),
                };
                ExchangeOutcome::Status { status, message, retry_after }
            }
            (ExchangeOutcome::Ok, None) if answer.error.is_some() => {
                ExchangeOutcome::Refused(answer.error.clone().unwrap_or_default())
            }
            (ExchangeOutcome::Ok, None) if arrived == 0 && self.other.is_some() => {
                let (kind, excerpt) = self.other.unwrap_or_default();
                ExchangeOutcome::NoStream(with(kind, shown(&excerpt)))
            }
            (ExchangeOutcome::Ok, None) if !answer.done && answer.finish_reason.is_none() => ExchangeOutcome::CutOff,
            (ExchangeOutcome::Ok, None) if arrived == 0 => ExchangeOutcome::NoTokens,
            (outcome, _) => outcome,
        };
        Exchange {
            begun: self.begun,
            waited: Duration::ZERO,
            // A request that was not fully written is treated as written at the end of the
            // exchange.
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
