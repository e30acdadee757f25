//! Waits for a server that is starting, and reads what it serves.

use std::time::Duration;

use crate::server::{ServerCallError, ServerClient, ServerDescription};
use crate::target::{ConnectError, LoadTarget, check_reachable};
use mcctl_sys::env::{Elapsed, Env, deadline};

/// Timeout for one request to a server that is starting.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two requests.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a server is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    #[error("the server is not ready yet (HTTP 5xx)")]
    Starting,
    #[error(transparent)]
    Call(#[from] ServerCallError),
    #[error(transparent)]
    Elapsed(#[from] Elapsed),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Checks once whether the server is ready: it lists its models or, without a client, accepts a
/// connection.
async fn check<E: Env + Unpin>(env: &E, target: &LoadTarget, server: Option<&ServerClient>) -> Result<(), NotReady> {
    let Some(server) = server else { return Ok(check_reachable(env, target).await?) };
    let models = deadline(env, REQUEST_LIMIT, server.models()).await??;
    if models.ready { Ok(()) } else { Err(NotReady::Starting) }
}

/// Polls the server at `target` until it is ready. `on_wait` is called once, with the first reason
/// why it is not.
///
/// # Errors
/// The server is not ready after `wait`.
pub async fn wait_until_ready<E: Env + Unpin>(
    env: &E,
    target: &LoadTarget,
    server: Option<&ServerClient>,
    wait: Duration,
    on_wait: impl FnOnce(&NotReady),
) -> Result<(), NotReady> {
    let begun = env.now();
    let mut on_wait = Some(on_wait);
    loop {
        let Err(reason) = check(env, target, server).await else { return Ok(()) };
        if env.now().since(begun) >= wait {
            return Err(reason);
        }
        if let Some(on_wait) = on_wait.take() {
            on_wait(&reason);
        }
        env.sleep(RETRY_AFTER).await;
    }
}

impl ServerClient {
    /// Returns whether the server responds within `limit`. An error response and a closed
    /// connection are responses, too.
    pub async fn responds<E: Env>(&self, env: &E, limit: Duration) -> bool {
        deadline(env, limit, self.models()).await.is_ok()
    }

    /// Returns what the server reports about itself. Empty if the server does not respond within
    /// ten seconds.
    pub async fn describe<E: Env>(&self, env: &E) -> ServerDescription {
        deadline(env, REQUEST_LIMIT * 2, self.description()).await.unwrap_or_default()
    }

    /// Returns the name of the first model that the server reports, within five seconds.
    pub async fn served_model<E: Env>(&self, env: &E) -> Option<String> {
        deadline(env, REQUEST_LIMIT, self.models()).await.ok()?.ok()?.first
    }

    /// Returns the path or name of the tokenizer that the server reports, within five seconds.
    pub async fn served_tokenizer<E: Env>(&self, env: &E) -> Option<String> {
        deadline(env, REQUEST_LIMIT, self.tokenizer()).await.ok()?
    }
}
