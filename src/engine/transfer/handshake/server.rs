//! Server side of the handshake protocol.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use crate::TransferError;
use mcctl_sys::env::{Env, Listener, Net, deadline};
use mcctl_wire::json::{
    ConnectionMessage, HEADER_BYTES, HandshakeFrame, HandshakeKind, NotifyMessage, is_json, payload_len, probe_answer,
};

/// Maximum number of concurrent exchanges. To admit another connection, the oldest exchange still
/// waiting for its request is closed. If all requests have arrived, the new connection waits to be
/// accepted.
const EXCHANGES_MAX: usize = 256;
/// Maximum number of connection requests handled at once. Others wait, but metadata is still
/// served.
const CONNECTIONS_MAX: usize = 64;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The engine's request handlers.
pub trait HandshakeHandler: Send + Sync {
    /// Returns our segment document, or `None` if it does not exist yet.
    fn segment(&self) -> Option<String>;
    /// Handles a connection request and returns the reply. Called on a thread that may block.
    fn on_connection(&self, request: ConnectionMessage) -> ConnectionMessage;
    /// Handles a message from a peer. Returns whether it is accepted.
    fn on_message(&self, message: NotifyMessage) -> bool;
}

/// Time and size limits for an exchange.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Timeout for each of these steps: receiving the whole request, sending the reply, and waiting
    /// for the peer to close the connection.
    pub step: Duration,
    /// Timeout for handling a connection request, which may itself require a call to a peer.
    pub connect: Duration,
    /// Maximum size of a request, in bytes.
    pub bytes_max: usize,
}

impl Default for HandshakeLimits {
    fn default() -> HandshakeLimits {
        HandshakeLimits { step: Duration::from_secs(5), connect: Duration::from_secs(30), bytes_max: 1 << 20 }
    }
}

/// Serves every connection to `listener` until dropped.
pub async fn serve<E: Env>(
    env: E,
    mut listener: <E::Net as Net>::Listener,
    answers: Arc<dyn HandshakeHandler>,
    limits: HandshakeLimits,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut exchanges = JoinSet::new();
    // In the order in which they were accepted. Each exchange has a flag that is set once its
    // request has arrived.
    let mut under_way: VecDeque<(AbortHandle, Arc<AtomicBool>)> = VecDeque::new();
    let mut failed = 0u64;
    let mut ended = 0u64;
    loop {
        while exchanges.try_join_next().is_some() {}
        if exchanges.len() >= EXCHANGES_MAX {
            under_way.retain(|(exchange, _)| !exchange.is_finished());
            let silent = under_way.iter().position(|(_, arrived)| !arrived.load(Ordering::Relaxed));
            if let Some((exchange, _)) = silent.and_then(|at| under_way.remove(at)) {
                ended += 1;
                if ended.is_power_of_two() {
                    tracing::warn!(
                        ended,
                        limit = EXCHANGES_MAX,
                        "handshake connection limit reached; closed the connection that was silent longest"
                    );
                }
                exchange.abort();
            }
            exchanges.join_next().await;
            continue;
        }
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                failed += 1;
                if failed.is_power_of_two() {
                    tracing::warn!(%error, failed, "cannot accept a connection on the handshake port");
                }
                env.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let env = env.clone();
        let answers = Arc::clone(&answers);
        let connections = Arc::clone(&connections);
        let arrived = Arc::new(AtomicBool::new(false));
        let exchange = exchanges.spawn({
            let arrived = arrived.clone();
            async move {
                if let Err(end) = exchange(&env, stream, answers, &connections, limits, &arrived).await {
                    tracing::debug!(peer = %from, %end, "handshake failed");
                }
            }
        });
        if under_way.len() >= 2 * EXCHANGES_MAX {
            under_way.retain(|(exchange, _)| !exchange.is_finished());
        }
        under_way.push_back((exchange, arrived));
    }
}

/// Why an exchange ended without a reply.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error("the exchange timed out")]
    Late,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] mcctl_wire::json::HandshakeFrameError),
    #[error("the request is not valid JSON")]
    NotJson,
}

async fn exchange<E: Env>(
    env: &E,
    mut stream: <E::Net as Net>::Stream,
    answers: Arc<dyn HandshakeHandler>,
    connections: &Semaphore,
    limits: HandshakeLimits,
    arrived: &AtomicBool,
) -> Result<(), ExchangeError> {
    let request = async {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).await?;
        let mut payload = vec![0; payload_len(header, limits.bytes_max)?];
        stream.read_exact(&mut payload).await?;
        Ok::<_, ExchangeError>(payload)
    };
    let payload = deadline(env, limits.step, request).await.map_err(|_| ExchangeError::Late)??;
    arrived.store(true, Ordering::Relaxed);
    let reply = if HandshakeFrame::split(&payload).kind() == HandshakeKind::Connection {
        let work = async {
            let _turn = connections.acquire().await;
            tokio::task::spawn_blocking(move || answer(&payload, &*answers)).await
        };
        // If the handler panics, the peer gets no reply.
        deadline(env, limits.connect, work).await.map_err(|_| ExchangeError::Late)?.unwrap_or(None)
    } else {
        answer(&payload, &*answers)
    };
    let reply = reply.ok_or(ExchangeError::NotJson)?;
    let send = async {
        stream.write_all(&reply).await?;
        stream.shutdown().await
    };
    deadline(env, limits.step, send).await.map_err(|_| ExchangeError::Late)??;
    // The peer closes the connection first. Waiting gives it time to read the reply.
    let mut rest = [0; 64];
    let _ = deadline(env, limits.step, async { while matches!(stream.read(&mut rest).await, Ok(1..)) {} }).await;
    Ok(())
}

/// Returns the reply's bytes, or `None` if the request gets no reply.
fn answer(payload: &[u8], answers: &dyn HandshakeHandler) -> Option<Vec<u8>> {
    let request = HandshakeFrame::split(payload);
    if !is_json(request.json()) {
        return None;
    }
    let json = match request.kind() {
        HandshakeKind::Connection => match ConnectionMessage::from_json(request.json()) {
            Ok(connection) => answers.on_connection(connection),
            Err(error) => ConnectionMessage::refusal(error.to_string()),
        }
        .to_json(),
        HandshakeKind::Metadata => answers.segment().unwrap_or_else(|| "null".to_owned()),
        HandshakeKind::Notify => {
            let taken = NotifyMessage::from_json(request.json()).is_ok_and(|message| answers.on_message(message));
            if taken { NotifyMessage::accepted() } else { NotifyMessage::default() }.to_json()
        }
        HandshakeKind::Probe => probe_answer().to_owned(),
    };
    let reply = match request {
        HandshakeFrame::Typed(kind, _) => HandshakeFrame::Typed(kind, json.as_bytes()),
        HandshakeFrame::Untyped(_) => HandshakeFrame::Untyped(json.as_bytes()),
    };
    Some(reply.encode())
}

/// Parses the reply to a notify request. Returns whether the message was accepted.
///
/// # Errors
/// Fails if the reply is not a notify message.
pub(crate) fn is_notify_accepted(from: &str, json: &[u8]) -> Result<bool, TransferError> {
    let reply =
        NotifyMessage::from_json(json).map_err(|source| TransferError::Document { from: from.to_owned(), source })?;
    Ok(!reply.message.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_wire::json::TCP_ONLY_CONNECTION;
    use proptest::prelude::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Fixed(Mutex<Vec<NotifyMessage>>);

    impl HandshakeHandler for Fixed {
        fn segment(&self) -> Option<String> {
            Some("{\"name\":\"me\"}".to_owned())
        }
        fn on_connection(&self, request: ConnectionMessage) -> ConnectionMessage {
            match request.peer_nic_path.as_str() {
                "" => ConnectionMessage::default(),
                path => ConnectionMessage::refusal(format!("no {path}")),
            }
        }
        fn on_message(&self, message: NotifyMessage) -> bool {
            let mut taken = self.0.lock().unwrap();
            taken.push(message);
            taken.len() < 2
        }
    }

    fn ask(payload: &[u8]) -> Option<String> {
        let reply = answer(payload, &Fixed::default())?;
        assert_eq!(reply.len() - HEADER_BYTES, usize::from(reply[0]));
        Some(String::from_utf8_lossy(&reply[HEADER_BYTES..]).into_owned())
    }

    #[test]
    fn each_request_kind_gets_its_reply() {
        assert_eq!(ask(b"\x01{}\n").unwrap(), "\x01{\"name\":\"me\"}\n");
        assert_eq!(ask(b"\x03{}\n").unwrap(), "\x03{\"status\":\"success\"}\n");
        let notify = b"\x02{\"name\":\"n1\",\"notify_msg\":\"hello\"}\n";
        assert_eq!(ask(notify).unwrap(), "\x02{\"name\":\"\",\"notify_msg\":\"success\"}\n");
        assert_eq!(ask(b"\x00{}\n").unwrap(), format!("\x00{TCP_ONLY_CONNECTION}\n"));
    }

    #[test]
    fn untyped_requests_get_untyped_replies() {
        assert_eq!(ask(b"{\"qp_num\":[1]}\n").unwrap(), format!("{TCP_ONLY_CONNECTION}\n"));
    }

    #[test]
    fn an_unreadable_connection_request_is_refused_with_a_reason() {
        let asked = |json: &str| ask(format!("\0{json}").as_bytes()).unwrap();
        assert!(asked(r#"{"peer_nic_path":"a@b"}"#).ends_with("\"reply_msg\":\"no a@b\"}\n"));
        let refused = asked(r#"{"ctrl_channel":true,"peer_nic_path":"__ctrl__"}"#);
        assert!(refused.contains("\"reply_msg\":\"the connection message: ctrl_channel requests"), "{refused}");
        assert!(asked(r#"{"qp_num":["x"]}"#).contains("qp_num[0] is not a number"));
    }

    #[test]
    fn invalid_json_gets_no_reply_and_a_refused_message_an_empty_one() {
        assert_eq!(ask(b"\x01nonsense"), None);
        assert_eq!(ask(b"GET / HTTP/1.1\r\n"), None);
        assert_eq!(ask(b""), None);
        let full = Fixed::default();
        full.on_message(NotifyMessage::default());
        let reply = answer(b"\x02{}", &full).unwrap();
        assert!(reply.ends_with(b"{\"name\":\"\",\"notify_msg\":\"\"}\n"));
        assert!(!is_notify_accepted("x", &reply[HEADER_BYTES + 1..]).unwrap());
    }

    proptest! {
        #[test]
        fn arbitrary_payloads_do_not_panic(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = answer(&payload, &Fixed::default());
        }
    }
}
