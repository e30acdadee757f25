//! Forwards a request of the metadata API to another metadata service, and returns its response
//! unchanged.
//!
//! Proxies from the environment are not used, and redirects are not followed. The timeouts use the
//! HTTP library's clock, so a forwarder cannot be used in simulated runs.

use std::error::Error;
use std::sync::OnceLock;
use std::time::Duration;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};

use crate::response_body;
use crate::{MetadataError, VALUE_BYTES_MAX};
use mcctl_base::text::masked;
use mcctl_base::time::RoundedDuration;
use mcctl_net::http::client::builder;
use mcctl_net::http::{ClientTls, HttpCredentials, HttpRequest, Response, ResponseBody, TlsMistake};

/// Forwards requests to other metadata services. Keeps connections open for the next requests.
#[derive(Debug)]
pub struct MetadataForwarder {
    /// For `http`, and for `https` if the credentials contain the CAs.
    http: reqwest::Client,
    /// For `https` if they do not: trusts the CAs of the host, which may have none. Created for the
    /// first such request.
    host: OnceLock<Result<reqwest::Client, String>>,
    has_tls: bool,
    authorization: Option<HeaderValue>,
    mark: HeaderName,
    /// Timeout for a request with its response. A connection has half of it.
    limit: Duration,
}

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The service has not received the request, so that another one may be tried.
    #[error("cannot reach {target}: {reason}")]
    NotSent { target: String, reason: String },
    /// The service may have received the request and made the change.
    #[error("no valid response from {target}: {reason}")]
    OutcomeUnknown { target: String, reason: String },
}

/// Timeout of a proxy for a request with its response. Mooncake's clients wait 3 seconds, so that
/// there is time for another service.
pub(crate) const PROXY_LIMIT: Duration = Duration::from_secs(2);
/// Timeout of a standby for a request to the leader. A proxy still waits for the standby's own
/// answer after that.
const LEADER_LIMIT: Duration = Duration::from_millis(800);
/// Maximum number of idle connections per service.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// Marks a request that a master has forwarded to the leader.
const FORWARDED: HeaderName = HeaderName::from_static("x-mcctl-forwarded");
/// Marks a request that a proxy (`serve metadata --forward-to`) has forwarded.
const PROXIED: HeaderName = HeaderName::from_static("x-mcctl-proxied");

/// Whether a master has forwarded `request`. Such a request must not be forwarded again: two
/// masters may each take the other for the leader.
pub fn is_forwarded(request: &HttpRequest) -> bool {
    request.headers.contains_key(FORWARDED)
}

/// Whether a proxy has forwarded `request`.
pub(crate) fn is_proxied(request: &HttpRequest) -> bool {
    request.headers.contains_key(PROXIED)
}

impl MetadataForwarder {
    /// Creates a forwarder from a master to the leader. Requests are marked ([`is_forwarded`]), and
    /// have only the token that they were received with.
    /// Without certificates in `credentials`, `https://` uses those that the host trusts.
    ///
    /// # Errors
    /// [`MetadataError::BadUrl`] or [`MetadataError::Setup`] if the HTTP library cannot be set up.
    pub fn new(credentials: &HttpCredentials) -> Result<MetadataForwarder, MetadataError> {
        // A request without a token was accepted without one, so it gets none here.
        let forwarder = MetadataForwarder::marking(credentials, FORWARDED, LEADER_LIMIT)?;
        Ok(MetadataForwarder { authorization: None, ..forwarder })
    }

    /// Creates a forwarder from a proxy to masters, which may forward the requests once more.
    ///
    /// # Errors
    /// The same as [`new`](MetadataForwarder::new).
    pub(crate) fn of_proxy(credentials: &HttpCredentials) -> Result<MetadataForwarder, MetadataError> {
        MetadataForwarder::marking(credentials, PROXIED, PROXY_LIMIT)
    }

    fn marking(
        credentials: &HttpCredentials,
        mark: HeaderName,
        limit: Duration,
    ) -> Result<MetadataForwarder, MetadataError> {
        Ok(MetadataForwarder {
            http: client(credentials.client_tls(), limit)?,
            host: OnceLock::new(),
            has_tls: credentials.tls.is_some(),
            authorization: credentials.authorization(),
            mark,
            limit,
        })
    }

    /// Sends `request` to the service at `base` (`http(s)://HOST:PORT`), and returns its response:
    /// status, content type and body. The path, the query and the body are sent as they were
    /// received; only a `'` in the query becomes `%27`. The `Authorization` header of the request
    /// takes precedence over the forwarder's token.
    ///
    /// # Errors
    /// [`ForwardError::NotSent`] or [`ForwardError::OutcomeUnknown`].
    pub async fn forward(&self, base: &str, request: &HttpRequest) -> Result<Response, ForwardError> {
        let not_sent = |reason: String| ForwardError::NotSent { target: masked(base).into_owned(), reason };
        let unknown = |reason: String| ForwardError::OutcomeUnknown { target: masked(base).into_owned(), reason };
        let target = request.target.path_and_query().map_or("/", |target| target.as_str());
        let http = self.client_for(base).map_err(not_sent)?;
        let mut forwarded = http
            .request(request.method.clone(), format!("{}{target}", base.trim_end_matches('/')))
            .header(&self.mark, HeaderValue::from_static("1"));
        if let Some(authorization) = request.headers.get(AUTHORIZATION).or(self.authorization.as_ref()) {
            forwarded = forwarded.header(AUTHORIZATION, authorization);
        }
        for name in [CONTENT_TYPE, FORWARDED, PROXIED].iter().filter(|name| **name != self.mark) {
            if let Some(value) = request.headers.get(name) {
                forwarded = forwarded.header(name, value);
            }
        }
        if !request.body.is_empty() {
            forwarded = forwarded.body(request.body.clone());
        }
        let failed = |error: reqwest::Error| match was_sent(&error) {
            true => unknown(reason(error, self.limit)),
            false => not_sent(reason(error, self.limit)),
        };
        let mut received = forwarded.send().await.map_err(failed)?;
        let body = response_body::read(&mut received, VALUE_BYTES_MAX).await;
        let body = body.map_err(|error| unknown(reason(error, self.limit)))?;
        let body = body.ok_or_else(|| unknown(format!("the response is longer than {VALUE_BYTES_MAX} bytes")))?;
        let mut response = Response::new(ResponseBody::Whole(body));
        *response.status_mut() = received.status();
        for name in [CONTENT_TYPE, WWW_AUTHENTICATE] {
            if let Some(value) = received.headers().get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        Ok(response)
    }

    fn client_for(&self, base: &str) -> Result<&reqwest::Client, String> {
        if self.has_tls || !base.starts_with("https://") {
            return Ok(&self.http);
        }
        let host = self.host.get_or_init(|| client(ClientTls::Host, self.limit).map_err(|error| innermost(&error)));
        host.as_ref().map_err(Clone::clone)
    }
}

fn client(tls: ClientTls, limit: Duration) -> Result<reqwest::Client, MetadataError> {
    let url = || "other metadata services".to_owned();
    let builder = builder(tls).map_err(|error| MetadataError::BadUrl { url: url(), reason: error.to_string() })?;
    builder
        .connect_timeout(limit / 2)
        .timeout(limit)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .build()
        .map_err(|source| MetadataError::Setup { url: url(), source })
}

/// Whether the service may have received the request.
pub(crate) fn was_sent(error: &reqwest::Error) -> bool {
    // The connection was closed before the request was written to it.
    let is_canceled = causes(error).any(|cause| cause.downcast_ref().is_some_and(hyper::Error::is_canceled));
    !(error.is_connect() || error.is_builder() || is_canceled)
}

/// The cause of `error`, in a few words.
fn reason(error: reqwest::Error, limit: Duration) -> String {
    if let Some(mistake) = TlsMistake::of_client(&error) {
        // Services have variables instead of the flags of the commands.
        let remedy =
            mistake.remedy().replace("--ca FILE or MCCTL_CA", "MCCTL_CA").replace("--ca and MCCTL_CA", "MCCTL_CA");
        let remedy = remedy.replace("--client-cert and --client-key", "MCCTL_CLIENT_CERT and MCCTL_CLIENT_KEY");
        return format!("{mistake}; {remedy}");
    }
    match (error.is_timeout(), error.is_connect()) {
        (true, true) => format!("no connection within {}", RoundedDuration(limit / 2)),
        (true, false) => format!("no response within {}", RoundedDuration(limit)),
        (false, _) => innermost(&error.without_url()),
    }
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map_or_else(String::new, ToString::to_string)
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests;
