//! A node's client HTTP server: health and client metrics, on a separate port from the REST API.
//!
//! Routes, messages and status codes match the 0.3.13 client (which uses port 9300). `HEAD` is an
//! addition.

use std::sync::Arc;

use crate::client_metrics::ClientMetrics;
use crate::object_store::{NodeHealth, ObjectStore};
use mcctl_base::{HostPort, Mono};
use mcctl_net::http::{
    self, BindError, Handler, HttpAccess, HttpLimits, HttpRequest, HttpServer, Method, OTHER_ROUTE, Response,
    StatusCode, answer, no_such_route,
};
use mcctl_sys::env::Env;

/// Serves `store`'s health and `metrics` on `at`, for the requests that `access` allows. Port
/// 0 selects a free port. Without `metrics`, the metrics routes return 503, like upstream with
/// `MC_STORE_CLIENT_METRIC=0`.
///
/// # Errors
/// [`BindError`] if the address is not available.
pub async fn start<E: Env, S: ObjectStore>(
    env: E,
    at: &HostPort,
    access: HttpAccess,
    store: Arc<S>,
    metrics: Option<Arc<ClientMetrics>>,
) -> Result<HttpServer, BindError> {
    let server = ClientHttp { started: env.now(), env: env.clone(), store, metrics };
    http::start_with(env, at, HttpLimits::SMALL, access, Arc::new(server)).await
}

struct ClientHttp<E, S> {
    env: E,
    started: Mono,
    store: Arc<S>,
    metrics: Option<Arc<ClientMetrics>>,
}

impl<E: Env, S: ObjectStore> Handler for ClientHttp<E, S> {
    fn route(&self, path: &str) -> &'static str {
        let routes = ["/health", "/metrics", "/metrics/summary"];
        routes.into_iter().find(|route| *route == path).unwrap_or(OTHER_ROUTE)
    }

    async fn handle(&self, request: HttpRequest) -> Response {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return no_such_route();
        }
        match (request.path(), &self.metrics) {
            ("/health", _) => {
                let (status, name, code) = match self.store.health() {
                    NodeHealth::Healthy => (StatusCode::OK, "healthy", 0),
                    NodeHealth::NotInitialized => (StatusCode::SERVICE_UNAVAILABLE, "not_initialized", 1),
                    NodeHealth::MasterUnreachable => (StatusCode::SERVICE_UNAVAILABLE, "master_unreachable", 2),
                };
                answer(status, "application/json", format!("{{\"status\":\"{name}\",\"code\":{code}}}"))
            }
            ("/metrics" | "/metrics/summary", None) => {
                answer(StatusCode::SERVICE_UNAVAILABLE, "", "metrics not available")
            }
            ("/metrics", Some(metrics)) => answer(StatusCode::OK, "text/plain; version=0.0.4", metrics.exposition()),
            ("/metrics/summary", Some(metrics)) => {
                let uptime = self.env.now().since(self.started);
                answer(StatusCode::OK, "text/plain", metrics.summary(uptime))
            }
            _ => no_such_route(),
        }
    }
}
