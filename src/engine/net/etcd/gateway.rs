//! Requests to the gateway: their deadlines, the choice of the server, and the login.

use std::future::Future;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::Response;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::etcd::error::EtcdError;
use crate::etcd::json::{ErrorJson, LoginJson, TokenJson};
use crate::etcd::options::{EtcdEndpoint, EtcdOptions, EtcdUser};
use crate::etcd::rotation::ServerRotation;
use crate::http::client::{ClientTls, builder};
use crate::http::fetch::root_cause;
use crate::http::tls_mistake::{TlsMistake, causes};
use mcctl_base::Mono;
use mcctl_sys::env::{Env, RealEnv, deadline};

/// Maximum size of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// gRPC code of a login if authentication is not enabled.
const FAILED_PRECONDITION: u32 = 9;
/// gRPC code: the request has no valid token.
const UNAUTHENTICATED: u32 = 16;

/// Whether a request may be processed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeatable {
    /// It is sent to the next server if one does not respond.
    Yes,
    /// It is sent to the next server only if one does not accept a connection.
    No,
}

/// The JSON gateway of a cluster.
pub(super) struct EtcdGateway {
    env: RealEnv,
    http: reqwest::Client,
    servers: ServerRotation,
    user: Option<EtcdUser>,
    token: Mutex<Option<String>>,
    /// Total time for a request, over all servers.
    limit: Duration,
}

impl EtcdGateway {
    /// # Errors
    /// TLS cannot be set up on this host.
    pub(super) fn new(options: EtcdOptions) -> Result<EtcdGateway, EtcdError> {
        let EtcdOptions { endpoints, tls, user, request_timeout: limit } = options;
        let uses_tls = endpoints.iter().any(|endpoint| endpoint.tls);
        let tls = match tls {
            Some(config) => ClientTls::Config(config),
            None if uses_tls => ClientTls::Host,
            None => ClientTls::None,
        };
        let http = builder(tls).map_err(|error| EtcdError::Unusable(error.to_string()))?;
        // A watch on a dead connection ends after the keep-alive probes.
        let http = http.tcp_keepalive(Duration::from_secs(2)).connect_timeout(connect_limit(limit, endpoints.len()));
        let http = http.build().map_err(|error| EtcdError::Unusable(root_cause(&error)))?;
        let servers = ServerRotation::new(endpoints);
        let token = Mutex::new(None);
        Ok(EtcdGateway { env: RealEnv::new(), http, servers, user, token, limit })
    }

    /// Sends a request and reads the response.
    pub(super) async fn send<Q: Serialize, R: DeserializeOwned>(
        &self,
        path: &str,
        body: &Q,
        repeatable: Repeatable,
    ) -> Result<R, EtcdError> {
        let body = &json_text(body)?;
        self.try_servers(repeatable, |server| async move {
            let response = self.authorized(server, path, body).await?;
            parse(&self.read(server, response).await?)
        })
        .await
    }

    /// Sends a request whose response does not end. It may be processed twice.
    pub(super) async fn open<Q: Serialize>(&self, path: &str, body: &Q) -> Result<Response, EtcdError> {
        let body = &json_text(body)?;
        self.try_servers(Repeatable::Yes, |server| self.authorized(server, path, body)).await
    }

    /// Makes an attempt with one server after the other, until one responds.
    async fn try_servers<'a, T, F: Future<Output = Result<T, EtcdError>>>(
        &'a self,
        repeatable: Repeatable,
        attempt: impl Fn(&'a EtcdEndpoint) -> F,
    ) -> Result<T, EtcdError> {
        let began = self.env.now();
        let position = self.servers.position();
        let mut last = EtcdError::Unreachable("no server".to_owned());
        for (nth, server) in self.servers.servers_from(position).enumerate() {
            let time = self.attempt_limit(began, nth, repeatable);
            let done = deadline(&self.env, time, attempt(server)).await;
            match done.unwrap_or(Err(EtcdError::Timeout(self.limit))) {
                Err(error @ EtcdError::Unreachable(_)) => last = error,
                Err(error) if error.outcome_is_unknown() && repeatable == Repeatable::Yes => last = error,
                done => {
                    let has_failed = done.as_ref().is_err_and(EtcdError::outcome_is_unknown);
                    self.servers.advance(position, nth + usize::from(has_failed));
                    return done;
                }
            }
        }
        Err(last)
    }

    /// Time for attempt `nth` of a request. One that may be repeated leaves an equal share to each
    /// of the other servers.
    fn attempt_limit(&self, began: Mono, nth: usize, repeatable: Repeatable) -> Duration {
        let left = self.limit.saturating_sub(self.env.now().since(began));
        match repeatable {
            Repeatable::Yes => left.div_f64((self.servers.len() - nth) as f64),
            Repeatable::No => left,
        }
    }

    /// Sends a request with the user's token, and logs in again if the token has expired.
    async fn authorized(&self, server: &EtcdEndpoint, path: &str, body: &str) -> Result<Response, EtcdError> {
        let Some(user) = &self.user else { return self.post(server, path, body, None).await };
        let token = self.token(server, user).await?;
        match self.post(server, path, body, Some(&token)).await {
            Err(EtcdError::Refused { code: UNAUTHENTICATED, .. }) => {
                self.drop_token(&token);
                let token = self.token(server, user).await?;
                self.post(server, path, body, Some(&token)).await
            }
            done => done,
        }
    }

    /// The user's token. The lock is not held during the login: a server that does not respond must
    /// not block other requests.
    async fn token(&self, server: &EtcdEndpoint, user: &EtcdUser) -> Result<String, EtcdError> {
        if let Some(token) = self.lock_token().clone() {
            return Ok(token);
        }
        let login = json_text(&LoginJson { name: &user.name, password: &user.password })?;
        let response = self.post(server, "auth/authenticate", &login, None).await;
        let response = response.map_err(|error| match error {
            EtcdError::Refused { code: FAILED_PRECONDITION, .. } => EtcdError::NoAuthentication,
            error => error,
        })?;
        let TokenJson { token } = parse(&self.read(server, response).await?)?;
        *self.lock_token() = Some(token.clone());
        Ok(token)
    }

    /// Drops an expired token, unless another request has replaced it.
    fn drop_token(&self, expired: &str) {
        self.lock_token().take_if(|token| token == expired);
    }

    fn lock_token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to one server. Returns a response with a status of success.
    async fn post(
        &self,
        server: &EtcdEndpoint,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> Result<Response, EtcdError> {
        let scheme = if server.tls { "https" } else { "http" };
        let mut request = self.http.post(format!("{scheme}://{}/v3/{path}", server.at)).body(body.to_owned());
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let response = request.send().await.map_err(|error| self.failed(server, &error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = self.read(server, response).await?;
        let found = serde_json::from_str::<ErrorJson>(&text).map(ErrorJson::into_parts);
        Err(match (found, status.as_u16()) {
            (Ok((Some(code), message)), _) => EtcdError::of_code(code, message),
            (_, 404) => EtcdError::NoGateway(server.at.to_string()),
            _ => EtcdError::Unexpected(format!("HTTP {status}")),
        })
    }

    async fn read(&self, server: &EtcdEndpoint, mut response: Response) -> Result<String, EtcdError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(server, &error))? {
            body.extend_from_slice(&chunk);
            if body.len() > RESPONSE_BYTES_MAX {
                return Err(EtcdError::Unexpected(format!("more than {RESPONSE_BYTES_MAX} bytes")));
            }
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    fn failed(&self, server: &EtcdEndpoint, error: &reqwest::Error) -> EtcdError {
        let cause = || format!("{}{}", root_cause(error), scheme_hint(server, error));
        match error {
            _ if error.is_connect() => EtcdError::Unreachable(cause()),
            _ if error.is_timeout() => EtcdError::Timeout(self.limit),
            _ => EtcdError::Unanswered(cause()),
        }
    }
}

/// What to change if the server uses TLS and the address does not, or the reverse. Empty if the
/// error has another cause.
fn scheme_hint(server: &EtcdEndpoint, error: &reqwest::Error) -> String {
    let at = &server.at;
    if server.tls && error.is_connect() && has_no_tls(error) {
        return format!("; if {at} does not use TLS, write http://{at}");
    }
    if !server.tls && (is_incomplete(error) || TlsMistake::of_client(error) == Some(TlsMistake::ServerNeedsTls)) {
        return format!("; if {at} uses TLS, write https://{at}");
    }
    String::new()
}

/// Whether the peer closed the connection during the TLS handshake, or sent bytes that are not TLS.
fn has_no_tls(error: &reqwest::Error) -> bool {
    let is_end = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    causes(error).any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(is_end)
            || matches!(cause.downcast_ref(), Some(rustls::Error::InvalidMessage(_)))
    })
}

/// Whether the peer closed the connection before it sent a response.
fn is_incomplete(error: &reqwest::Error) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(hyper::Error::is_incomplete_message)
}

/// Time for a connection to one of `servers` servers. After attempts to connect to all of them, the
/// same time is left for the response.
fn connect_limit(limit: Duration, servers: usize) -> Duration {
    limit.div_f64((servers + 1) as f64)
}

fn json_text<Q: Serialize>(body: &Q) -> Result<String, EtcdError> {
    serde_json::to_string(body).map_err(|error| EtcdError::Unusable(error.to_string()))
}

fn parse<R: DeserializeOwned>(text: &str) -> Result<R, EtcdError> {
    serde_json::from_str(text).map_err(|error| EtcdError::Unexpected(error.to_string()))
}
