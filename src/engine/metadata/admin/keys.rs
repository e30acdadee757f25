//! A list of all keys, read line by line as it arrives.

use std::time::Duration;

use crate::admin::error::{AdminError, AdminErrorKind};
use crate::admin::routes;
use mcctl_base::HostPort;
use mcctl_net::http::FetchStream;
use mcctl_sys::env::{Env, RealEnv, deadline};

/// Maximum line length in bytes. It exceeds the maximum key length.
const LINE_BYTES_MAX: usize = 2 << 20;

/// The keys of a master. Dropping it closes the connection.
#[derive(Debug)]
pub struct KeyList {
    scheme: &'static str,
    at: HostPort,
    stream: FetchStream,
    limit: Duration,
    buffer: Vec<u8>,
    /// The position of the next line in `buffer`.
    next: usize,
    has_ended: bool,
    /// Time spent waiting since [`KeyList::PROGRESS_BYTES`] arrived. Time between two calls does
    /// not count.
    waited: Duration,
    /// Bytes received in that time.
    received: usize,
}

impl KeyList {
    /// At least this many bytes must arrive in each interval of the client's time limit.
    pub const PROGRESS_BYTES: usize = 64 << 10;

    pub(super) fn new((scheme, at): (&'static str, HostPort), stream: FetchStream, limit: Duration) -> KeyList {
        let waited = Duration::ZERO;
        let received = 0;
        KeyList { scheme, at, stream, limit, buffer: Vec::new(), next: 0, has_ended: false, waited, received }
    }

    /// Waits for the next key; `None` at the end of the list. Bytes that are not UTF-8 are
    /// replaced.
    ///
    /// # Errors
    /// As for [`next_bytes`](KeyList::next_bytes).
    pub async fn next(&mut self) -> Result<Option<String>, AdminError> {
        Ok(self.next_bytes().await?.map(|key| String::from_utf8_lossy(&key).into_owned()))
    }

    /// Waits for the bytes of the next key; `None` at the end of the list. A key with a line break
    /// appears as several keys.
    ///
    /// # Errors
    /// The connection broke, the list arrives too slowly, or the endpoint is not a Mooncake
    /// master's.
    pub async fn next_bytes(&mut self) -> Result<Option<Vec<u8>>, AdminError> {
        loop {
            let rest = &self.buffer[self.next..];
            if rest.is_empty() && self.has_ended {
                return Ok(None);
            }
            let end = rest.iter().position(|byte| *byte == b'\n').or(self.has_ended.then_some(rest.len()));
            if let Some(end) = end {
                let line = rest[..end].to_vec();
                self.next = (self.next + end + 1).min(self.buffer.len());
                if line.is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            if rest.len() > LINE_BYTES_MAX {
                return Err(self.failed(AdminErrorKind::LineTooLong(LINE_BYTES_MAX)));
            }
            self.receive().await?;
        }
    }

    /// Waits for more bytes, or for the end of the list.
    async fn receive(&mut self) -> Result<(), AdminError> {
        self.buffer.drain(..self.next);
        self.next = 0;
        let env = RealEnv::new();
        let began = env.now();
        let left = self.limit.saturating_sub(self.waited);
        let chunk = match deadline(&env, left, self.stream.chunk()).await {
            Ok(chunk) => chunk.map_err(|error| self.failed(error.into()))?,
            Err(_) => return Err(self.failed(AdminErrorKind::TooSlow(self.limit))),
        };
        let Some(chunk) = chunk else {
            self.has_ended = true;
            return Ok(());
        };
        self.waited += env.now().since(began);
        self.received += chunk.len();
        if self.received >= KeyList::PROGRESS_BYTES {
            self.waited = Duration::ZERO;
            self.received = 0;
        }
        self.buffer.extend_from_slice(&chunk);
        Ok(())
    }

    fn failed(&self, kind: AdminErrorKind) -> AdminError {
        AdminError { at: self.at.clone(), scheme: self.scheme, route: routes::ALL_KEYS, kind }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Poll;

    use bytes::Bytes;

    use super::*;
    use crate::admin::AdminClient;
    use mcctl_net::http::{
        self, Handler, HttpLimits, HttpRequest, HttpServer, Response, ResponseBody, StatusCode, answer,
    };

    /// Sends these parts, and then ends the response or sends nothing more.
    struct Parts {
        parts: &'static [&'static str],
        stalls: bool,
    }

    impl Handler for Parts {
        async fn handle(&self, _: HttpRequest) -> Response {
            let mut parts = self.parts.iter();
            let stalls = self.stalls;
            let pieces = Box::new(move |_: &mut std::task::Context<'_>| match parts.next() {
                Some(part) => Poll::Ready(Some(Bytes::from_static(part.as_bytes()))),
                None if stalls => Poll::Pending,
                None => Poll::Ready(None),
            });
            answer(StatusCode::OK, "", ResponseBody::Streamed(pieces))
        }
    }

    async fn list(parts: &'static [&'static str], stalls: bool) -> (HttpServer, KeyList) {
        let here = HostPort::new("127.0.0.1", 0);
        let handler = Arc::new(Parts { parts, stalls });
        let server = http::start(RealEnv::new(), &here, HttpLimits::SMALL, handler).await.expect("a free port");
        let limit = if stalls { Duration::from_millis(200) } else { Duration::from_secs(10) };
        let admin = AdminClient::new(server.at().clone(), limit).expect("a client");
        let keys = admin.keys().await.expect("a list");
        (server, keys)
    }

    #[tokio::test]
    async fn lines_may_be_split_empty_or_unterminated() {
        let (_server, mut keys) = list(&["a\nb", "c\n\n", "d"], false).await;
        let mut found = Vec::new();
        while let Some(key) = keys.next().await.expect("a key") {
            found.push(key);
        }
        assert_eq!(found, ["a", "bc", "d"]);
        assert_eq!(keys.next().await, Ok(None));
    }

    #[tokio::test]
    async fn a_list_that_stalls_is_an_error_after_its_first_keys() {
        let (_server, mut keys) = list(&["a\nb"], true).await;
        assert_eq!(keys.next().await, Ok(Some("a".to_owned())));
        let error = keys.next().await.expect_err("no more bytes");
        assert_eq!(error.kind, AdminErrorKind::TooSlow(Duration::from_millis(200)));
        assert!(error.to_string().contains("/get_all_keys: received less than 64 KiB"), "{error}");
    }
}
