//! A store service: a node with its REST port, as `mcctl serve store` runs it.
//!
//! Start with [`StoreService::start`]. [`local_hostname`] chooses the node's name. Upstream:
//! `mooncake_store_service.py`.

mod config;
mod hostname;
mod memory_check;
mod pending_store;

pub use config::{StoreServiceConfig, StoreServiceError};
pub use hostname::{HostnameError, local_hostname};
pub use memory_check::{MemoryShortage, NodeMemory, check_memory};

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::service::pending_store::PendingStore;
use crate::{Node, StoreStartError, client_http, rest};
use mcctl_base::HostPort;
use mcctl_net::http::HttpServer;
use mcctl_sys::env::Env;
use mcctl_sys::host;

/// A running node with its HTTP ports. Call [`StoreService::stop`] to stop it.
pub struct StoreService<E: Env> {
    node: Node<E>,
    rest: HttpServer,
    client_http: Option<HttpServer>,
}

impl<E: Env> StoreService<E> {
    /// Starts a node and its HTTP ports. The ports are bound first, so that a node whose port is in
    /// use never mounts a segment.
    ///
    /// # Errors
    /// A port cannot be bound, there is not enough memory, or the master or metadata service is
    /// unreachable. Nothing is left running.
    pub async fn start(config: StoreServiceConfig, env: E) -> Result<StoreService<E>, StoreServiceError> {
        StoreService::start_unless(config, env, std::future::pending()).await
    }

    /// Like [`start`](StoreService::start), but waiting for the metadata service or the master ends
    /// with [`StoreStartError::Stopped`] when `stop` completes. Once waiting is over, the service
    /// starts even if `stop` completes, and the caller must then stop it.
    ///
    /// # Errors
    /// Same as [`start`](StoreService::start).
    pub async fn start_unless(
        config: StoreServiceConfig,
        env: E,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<StoreService<E>, StoreServiceError> {
        let StoreServiceConfig { node, rest, client_http, access } = config;
        check_memory(&node, host::memory())?;
        let pending = Arc::new(PendingStore::default());
        let rest = rest::start(env.clone(), &rest, access.clone(), Arc::clone(&pending)).await;
        let rest = rest.map_err(StoreServiceError::Rest)?;
        let client_http = match client_http {
            None => None,
            Some(at) => {
                let metrics = node.client.metrics.clone();
                let started =
                    client_http::start(env.clone(), &at, access.with_socket(None), Arc::clone(&pending), metrics).await;
                Some(started.map_err(StoreServiceError::ClientHttp)?)
            }
        };
        // Use a separate task: the memory allocation blocks its thread, but the caller must still
        // handle signals. Dropping this future drops `cancel`, which ends the task.
        let (cancel, cancelled) = oneshot::channel::<()>();
        let stop = async move {
            tokio::select! {
                () = stop => {}
                _ = cancelled => {}
            }
        };
        let started = tokio::spawn(Node::start_unless(node, env, stop)).await;
        drop(cancel);
        let node = match started {
            Ok(Ok(node)) => node,
            Ok(Err(error)) => {
                if matches!(error, StoreStartError::Stopped) {
                    rest.stop().await;
                    stop_running(client_http).await;
                }
                return Err(error.into());
            }
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        pending.set(node.store());
        Ok(StoreService { node, rest, client_http })
    }

    /// Returns the node of this service.
    pub fn node(&self) -> &Node<E> {
        &self.node
    }

    /// Address of the REST port.
    pub fn rest_at(&self) -> &HostPort {
        self.rest.at()
    }

    /// Address of the client HTTP server, if it is enabled.
    pub fn client_http_at(&self) -> Option<&HostPort> {
        self.client_http.as_ref().map(HttpServer::at)
    }

    /// Stops the HTTP servers, then the node, which unmounts its segments.
    pub async fn stop(self) {
        self.rest.stop().await;
        stop_running(self.client_http).await;
        self.node.stop().await;
    }
}

async fn stop_running(running: Option<HttpServer>) {
    if let Some(running) = running {
        running.stop().await;
    }
}
