//! One connection of HTTP/1.1, and one exchange after the other over it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

use crate::engine::base::Mono;
use crate::engine::env::{Env, Net, deadline};
use crate::engine::http::Body;
use crate::engine::load::answer::{Arrival, Reader};
use crate::engine::load::target::stamped::{Stamped, Stamps};
use crate::engine::load::target::{Exchange, Outcome, Target};

/// Bytes of an error's body that are kept.
const SAID_BYTES: usize = 300;

type Stream<E> = TokioIo<Stamped<<<E as Env>::Net as Net>::Stream, E>>;

/// An open connection. Its input and output are driven by the exchange that uses it, in the same task: no other task is woken for
/// a token.
pub struct Connection<E: Env + Unpin> {
    env: E,
    start: Mono,
    sender: http1::SendRequest<Body>,
    drive: Pin<Box<http1::Connection<Stream<E>, Body>>>,
    stamps: Arc<Stamps>,
}

/// How the head or a piece of an answer was waited for.
enum Wait<T> {
    Came(T),
    Broken(String),
    TooSlow(Duration),
}

impl<E: Env + Unpin> Connection<E> {
    /// Connect to `target`. Times are told since `start`.
    ///
    /// # Errors
    /// Why not, in words.
    pub async fn open(env: &E, target: &Target, start: Mono) -> Result<Connection<E>, String> {
        let stream = match deadline(env, target.limits.connect, env.net().connect(&target.at)).await {
            Ok(stream) => stream.map_err(|error| error.to_string())?,
            Err(late) => return Err(late.to_string()),
        };
        let (stream, stamps) = Stamped::new(stream, env.clone(), start);
        let (sender, drive) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        Ok(Connection { env: env.clone(), start, sender, drive: Box::pin(drive), stamps })
    }

    /// Can it take another request?
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// The run starts: times count from here on.
    pub fn starts(&mut self, start: Mono) {
        self.start = start;
        self.stamps.starts(start);
    }

    fn now(&self) -> Duration {
        self.env.now().since(self.start)
    }

    /// Send `body` and read the answer; `arrived` hears of tokens as they come. The exchange was taken up at `begun`.
    pub async fn exchange(
        &mut self,
        target: &Target,
        body: Bytes,
        begun: Duration,
        mut arrived: impl FnMut(Arrival),
    ) -> Exchange {
        let mut reader = Reader::new(target.dialect);
        let mut exchange = Exchange {
            begun,
            wrote: begun,
            first_token: None,
            last_token: None,
            end: begun,
            arrived: 0,
            answer: Default::default(),
            outcome: Outcome::Ok,
        };
        let note = |exchange: &mut Exchange, arrival: Arrival, arrived: &mut dyn FnMut(Arrival)| {
            exchange.first_token.get_or_insert(arrival.at);
            exchange.last_token = Some(arrival.at);
            exchange.arrived += arrival.tokens;
            arrived(arrival);
        };
        let outcome =
            self.transfer(target, body, &mut reader, &mut |arrival| note(&mut exchange, arrival, &mut arrived)).await;
        exchange.end = self.now();
        exchange.wrote = self.stamps.wrote();
        exchange.answer = reader.finish();
        exchange.outcome = match outcome {
            Outcome::Ok => verdict(&exchange),
            other => other,
        };
        exchange
    }

    /// The bytes of an exchange, both ways.
    async fn transfer(
        &mut self,
        target: &Target,
        body: Bytes,
        reader: &mut Reader,
        arrived: &mut impl FnMut(Arrival),
    ) -> Outcome {
        let until = self.env.now() + target.limits.whole;
        let response = match self.wait(target, until, request(target, body)).await {
            Wait::Came(response) => response,
            Wait::Broken(why) => return Outcome::Broken(why),
            Wait::TooSlow(limit) => return Outcome::TooSlow(limit),
        };
        let (head, mut body) = response.into_parts();
        if !head.status.is_success() {
            return self.refusal(target, until, head.status.as_u16(), &head.headers, &mut body).await;
        }
        loop {
            match self.piece(target, until, &mut body).await {
                Wait::Came(None) => return Outcome::Ok,
                Wait::Came(Some(piece)) => {
                    if let Err(long) = reader.push(&piece, self.stamps.read(), &mut *arrived) {
                        return Outcome::Broken(long.to_string());
                    }
                }
                Wait::Broken(why) => return Outcome::Broken(why),
                Wait::TooSlow(limit) => return Outcome::TooSlow(limit),
            }
        }
    }

    /// Send the request; the head of its answer.
    async fn wait(&mut self, target: &Target, until: Mono, request: Request<Body>) -> Wait<Response<Incoming>> {
        let mut sent = pin!(self.sender.send_request(request));
        let (drive, mut over) = (&mut self.drive, false);
        let head = poll_fn(|cx| {
            // The connection first: it is what makes progress.
            if !over && drive.as_mut().poll(cx).is_ready() {
                over = true;
            }
            sent.as_mut().poll(cx)
        });
        let limit = target.limits.silence.min(until.since(self.env.now()));
        match deadline(&self.env, limit, head).await {
            Ok(Ok(response)) => Wait::Came(response),
            Ok(Err(error)) => Wait::Broken(reason(&error)),
            Err(late) => Wait::TooSlow(late.0),
        }
    }

    /// The next piece of an answer; `None` at its end.
    async fn piece(&mut self, target: &Target, until: Mono, body: &mut Incoming) -> Wait<Option<Bytes>> {
        let drive = &mut self.drive;
        let mut over = false;
        let frame = poll_fn(|cx| {
            if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
                return Poll::Ready(frame);
            }
            if !over && drive.as_mut().poll(cx).is_ready() {
                over = true;
            }
            Pin::new(&mut *body).poll_frame(cx)
        });
        let limit = target.limits.silence.min(until.since(self.env.now()));
        match deadline(&self.env, limit, frame).await {
            Ok(None) => Wait::Came(None),
            // Trailers carry nothing for us.
            Ok(Some(Ok(frame))) => Wait::Came(Some(frame.into_data().unwrap_or_default())),
            Ok(Some(Err(error))) => Wait::Broken(reason(&error)),
            Err(late) => Wait::TooSlow(late.0),
        }
    }

    /// What another status than 2xx says.
    async fn refusal(
        &mut self,
        target: &Target,
        until: Mono,
        status: u16,
        headers: &HeaderMap,
        body: &mut Incoming,
    ) -> Outcome {
        let seconds = headers.get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.trim().parse::<u64>().ok());
        let mut said = Vec::new();
        while said.len() < SAID_BYTES
            && let Wait::Came(Some(piece)) = self.piece(target, until, body).await
        {
            said.extend_from_slice(&piece[..piece.len().min(SAID_BYTES - said.len())]);
        }
        let says = String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>().join(" ");
        Outcome::Status { status, says, retry_after: seconds.map(Duration::from_secs) }
    }
}

/// Is an answer that came to its end a good one?
fn verdict(exchange: &Exchange) -> Outcome {
    let answer = &exchange.answer;
    match () {
        () if answer.error.is_some() => Outcome::Refused(answer.error.clone().unwrap_or_default()),
        () if !answer.done && answer.finish_reason.is_none() => Outcome::CutOff,
        () if exchange.arrived == 0 => Outcome::NoTokens,
        () => Outcome::Ok,
    }
}

fn reason(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

fn request(target: &Target, body: Bytes) -> Request<Body> {
    let length = body.len();
    let mut request = Request::new(Body::Whole(body));
    *request.method_mut() = Method::POST;
    // The path was checked when the target was made.
    *request.uri_mut() = target.path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    if let Ok(host) = HeaderValue::from_str(&target.at.to_string()) {
        headers.insert(HOST, host);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    for (name, value) in &target.headers {
        headers.insert(name.clone(), value.clone());
    }
    request
}
