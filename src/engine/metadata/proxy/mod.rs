//! A proxy for a metadata service that runs at several addresses: the masters of a cluster. It
//! keeps no records, and passes each request to the service that responded last.
//!
//! The decisions are in `attempts.rs` of the crate. A request that a service cannot serve goes to
//! the next one.

mod targets;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::attempts::{AttemptOutcome, NextStep, PreferredTarget, TargetAttempts};
use crate::forward::{ForwardError, MetadataForwarder, is_proxied};
use crate::service::route;
use crate::{MetadataError, VALUE_BYTES_MAX};
use mcctl_base::HostPort;
use mcctl_base::text::one_line;
use mcctl_net::http::{
    self, BindError, Handler, HttpAccess, HttpCredentials, HttpLimits, HttpRequest, HttpServer, Method, Response,
    ResponseBody, StatusCode, answer, no_such_route,
};
use mcctl_sys::env::Env;

pub use targets::{ForwardTargets, ParseForwardTargetsError};

/// Forwards the requests of clients. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct MetadataProxy {
    shared: Arc<ProxyShared>,
}

#[derive(Debug)]
struct ProxyShared {
    forwarder: MetadataForwarder,
    targets: Vec<ProxyTarget>,
    preferred: PreferredTarget,
}

#[derive(Debug)]
struct ProxyTarget {
    base: String,
    /// The last attempt failed. For the log only.
    has_failed: AtomicBool,
}

impl MetadataProxy {
    /// Creates a proxy for `targets`. Requests without a token get that in `credentials`.
    ///
    /// # Errors
    /// The HTTP library cannot be set up on this host.
    pub fn new(targets: &ForwardTargets, credentials: &HttpCredentials) -> Result<MetadataProxy, MetadataError> {
        let bases = targets.bases(credentials.scheme()).into_iter();
        let targets = bases.map(|base| ProxyTarget { base, has_failed: AtomicBool::new(false) }).collect();
        let forwarder = MetadataForwarder::of_proxy(credentials)?;
        Ok(MetadataProxy {
            shared: Arc::new(ProxyShared { forwarder, targets, preferred: PreferredTarget::default() }),
        })
    }

    /// The URLs of the targets.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.shared.targets.iter().map(|target| &*target.base)
    }

    /// Starts listening on `at`, for the requests that `access` allows. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`BindError`] if the address is not available.
    pub async fn start_with<E: Env>(&self, env: E, at: &HostPort, access: HttpAccess) -> Result<HttpServer, BindError> {
        http::start_with(env, at, LIMITS, access, self.shared.clone()).await
    }
}

impl Handler for ProxyShared {
    fn route(&self, path: &str) -> &'static str {
        route(path)
    }

    async fn handle(&self, request: HttpRequest) -> Response {
        let is_health = match (request.path(), &request.method) {
            ("/metadata", &(Method::GET | Method::PUT | Method::DELETE)) => false,
            ("/health", &(Method::GET | Method::HEAD)) => true,
            _ => return no_such_route(),
        };
        if is_proxied(&request) {
            let text = "the request has already passed a proxy: --forward-to must name metadata services, not proxies";
            return answer(StatusCode::LOOP_DETECTED, "", text);
        }
        if is_health { self.health(&request).await } else { self.forward(&request).await }
    }
}

impl ProxyShared {
    async fn forward(&self, request: &HttpRequest) -> Response {
        let mut attempts = TargetAttempts::new(self.targets.len(), self.preferred.get(), &request.method);
        let mut errors = Vec::new();
        loop {
            let target = attempts.target();
            let attempt = self.attempt(target, request).await;
            let (outcome, response) = match attempt {
                Ok(response) => (AttemptOutcome::Served, Some(response)),
                Err((outcome, error)) => {
                    errors.push(error);
                    (outcome, None)
                }
            };
            match (attempts.after(outcome), response) {
                (NextStep::Try(_), _) => {}
                (_, Some(response)) => return response,
                (NextStep::FailUnknown, None) => return unavailable("the record may have been removed", &errors),
                (NextStep::Respond | NextStep::Fail, None) => {
                    return unavailable("no metadata service can serve the request", &errors);
                }
            }
        }
    }

    /// Sends `request` to the target with the index `target`, and notes the result for the next
    /// requests.
    async fn attempt(&self, target: usize, request: &HttpRequest) -> Result<Response, (AttemptOutcome, String)> {
        let base = &self.targets[target].base;
        let failure = match self.forwarder.forward(base, request).await {
            Ok(response) => match response.status() {
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::LOOP_DETECTED => {
                    (AttemptOutcome::Unserved, shown(base, response))
                }
                StatusCode::GATEWAY_TIMEOUT => (AttemptOutcome::Unknown, shown(base, response)),
                _ => {
                    self.note_served(target);
                    return Ok(response);
                }
            },
            Err(error @ ForwardError::NotSent { .. }) => (AttemptOutcome::Unserved, error.to_string()),
            Err(error @ ForwardError::OutcomeUnknown { .. }) => (AttemptOutcome::Unknown, error.to_string()),
        };
        self.note_failed(target, &failure.1);
        Err(failure)
    }

    fn note_served(&self, target: usize) {
        self.preferred.note_served(target);
        let ProxyTarget { base, has_failed } = &self.targets[target];
        if has_failed.swap(false, Ordering::Relaxed) {
            tracing::info!("{base} serves requests again");
        }
    }

    fn note_failed(&self, target: usize, error: &str) {
        self.preferred.note_failed(target, self.targets.len());
        if !self.targets[target].has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!("cannot forward requests: {error}");
        }
    }

    /// Returns 200 as soon as one target's `/health` returns 200. All targets get the request,
    /// because some may not respond.
    async fn health(&self, request: &HttpRequest) -> Response {
        let checks =
            self.targets.iter().map(async |target| match self.forwarder.forward(&target.base, request).await {
                Ok(response) if response.status() == StatusCode::OK => Ok(()),
                Ok(response) => Err(shown(&target.base, response)),
                Err(error) => Err(error.to_string()),
            });
        let mut checks: FuturesUnordered<_> = checks.collect();
        let mut errors = Vec::new();
        while let Some(check) = checks.next().await {
            match check {
                Ok(()) => return answer(StatusCode::OK, "", "OK"),
                Err(error) => errors.push(error),
            }
        }
        unavailable("no metadata service is healthy", &errors)
    }
}

/// The target and the start of its response, as part of an error.
fn shown(base: &str, response: Response) -> String {
    let status = response.status().as_u16();
    let text = match response.into_body() {
        ResponseBody::Whole(body) => String::from_utf8_lossy(&body).into_owned(),
        ResponseBody::Paged { .. } | ResponseBody::Streamed(_) => String::new(),
    };
    format!("{base} returned HTTP {status}: {}", one_line(text.trim(), SHOWN_MAX))
}

fn unavailable(what: &str, errors: &[String]) -> Response {
    answer(StatusCode::SERVICE_UNAVAILABLE, "", format!("{what}: {}", errors.join("; ")))
}

/// Maximum length of a response in an error.
const SHOWN_MAX: usize = 120;

/// Several targets may have to be tried, each within
/// [`PROXY_LIMIT`](crate::forward::PROXY_LIMIT).
const LIMITS: HttpLimits =
    HttpLimits { body_bytes_max: VALUE_BYTES_MAX, bodies_bytes_max: 8 * VALUE_BYTES_MAX, ..HttpLimits::SMALL };
