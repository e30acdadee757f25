//! Requests to a master that does not lead: the leader answers, or this master if it is elected
//! meanwhile. If no leader can be reached, a read is answered from the copy.

use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;

use crate::backend::NotServed;
use crate::forward::{ForwardError, is_forwarded, is_proxied};
use crate::service::{MetadataShared, found, not_served};
use mcctl_net::http::{HttpRequest, Method, Response, StatusCode};
use mcctl_sys::env::Env;

/// Time for which a master that does not lead tries to reach the leader, or waits to be elected.
/// With the last attempt, this is less than the 3 s for which upstream's client waits.
const FORWARD_FOR: Duration = Duration::from_secs(2);
/// The same for requests of a proxy, which tries another master after 2 s.
const FORWARD_FOR_PROXIED: Duration = Duration::from_secs(1);
/// Time between two attempts: at first, and at most.
const FORWARD_PAUSE: Duration = Duration::from_millis(50);
const FORWARD_PAUSE_MAX: Duration = Duration::from_millis(400);

/// Whether a request that was not served is tried again. A PUT is, although another client may have
/// written its key meanwhile: the records of a segment have one writer, and the owner of a name is
/// compared.
pub(super) fn may_retry(request: &HttpRequest, error: &NotServed) -> bool {
    match error {
        NotServed::NotLeading { .. } => true,
        NotServed::Unknown { .. } => request.method == Method::PUT,
        _ => false,
    }
}

/// The leader may have received the request.
fn unknown() -> NotServed {
    NotServed::Unknown { cause: "the leader has changed, or does not respond".to_owned() }
}

impl<E: Env> MetadataShared<E> {
    /// The response to a request that this master has not served, because of `first`.
    pub(super) async fn forward(&self, request: &HttpRequest, key: &[u8], first: NotServed) -> Response {
        if is_forwarded(request) {
            // The sender assumed that this master leads. It retries.
            return not_served(&first);
        }
        let patience = if is_proxied(request) { FORWARD_FOR_PROXIED } else { FORWARD_FOR };
        let end = self.env.now() + patience;
        let mut pause = FORWARD_PAUSE;
        let mut is_unknown = false;
        let mut problem = None;
        let mut last = first;
        loop {
            is_unknown |= matches!(last, NotServed::Unknown { .. });
            match self.ask_leader(request, &last).await {
                Some(Ok(response)) if response.status() == StatusCode::GATEWAY_TIMEOUT => is_unknown = true,
                // The other master does not lead now.
                Some(Ok(response)) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {}
                Some(Ok(response)) => {
                    self.last_problem.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    return response;
                }
                failed => {
                    is_unknown |= matches!(failed, Some(Err(ForwardError::OutcomeUnknown { .. })));
                    problem = failed.and_then(Result::err).map(|error| error.to_string());
                    if let Some(value) = self.last_known(request, key) {
                        return found(value);
                    }
                }
            }
            if is_unknown && request.method == Method::DELETE {
                return not_served(&unknown());
            }
            if self.env.now() >= end {
                return match self.last_known(request, key) {
                    Some(value) => found(value),
                    None if is_unknown && request.method != Method::GET => not_served(&unknown()),
                    None => {
                        let problem =
                            problem.unwrap_or_else(|| "the leader is not known, or has no metadata service".to_owned());
                        self.report(&problem);
                        not_served(&NotServed::NotForwarded { problem })
                    }
                };
            }
            self.env.sleep(pause).await;
            pause = (pause * 2).min(FORWARD_PAUSE_MAX);
            last = match self.answer(request, key).await {
                Err(error) if may_retry(request, &error) => error,
                Err(error) => return not_served(&error),
                Ok(response) => return response,
            };
        }
    }

    /// The response of the leader; `None` if it is not known.
    async fn ask_leader(&self, request: &HttpRequest, last: &NotServed) -> Option<Result<Response, ForwardError>> {
        let NotServed::NotLeading { leader: Some(leader) } = last else { return None };
        Some(self.forwarder.as_ref()?.forward(leader, request).await)
    }

    /// Logs why requests cannot be forwarded, unless the last problem was the same.
    fn report(&self, problem: &str) {
        let mut last = self.last_problem.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != problem {
            tracing::warn!("cannot forward metadata requests to the leader: {problem}");
            problem.clone_into(&mut last);
        }
    }

    fn last_known(&self, request: &HttpRequest, key: &[u8]) -> Option<Option<Bytes>> {
        let backend = self.backend.get().filter(|_| request.method == Method::GET)?;
        backend.last_known(key)
    }
}
