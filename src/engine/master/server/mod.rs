//! Runs a [`MasterState`](crate::engine::master::MasterState): the lock, the clock, the RPC server, and the ticker.

mod effect_log;
mod handle;
mod shared;
mod ticker;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::engine::env::{Env, RealEnv};
use crate::engine::master::config::MasterConfig;
use crate::engine::master::server::shared::MasterShared;
use crate::engine::master::server::ticker::run_ticker;
use crate::engine::rpc::{RpcServer, ServerConfig, StartError};

pub use handle::{MasterHandle, WORKER_STUCK_AFTER};

/// Why a master could not start.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The RPC server could not start.
    #[error(transparent)]
    Rpc(#[from] StartError),
}

impl MasterServer<RealEnv> {
    /// Calls [`start`](MasterServer::start) on this host. This function is not generic, so the code of the connections is compiled with this
    /// crate, as one unit. The generic function is compiled with its caller's crate, in many units, and uses up to 40 % more CPU time per
    /// batch.
    ///
    /// # Errors
    /// Same as [`start`](MasterServer::start).
    pub fn start_here(config: MasterConfig, env: RealEnv) -> MasterStart {
        Box::pin(MasterServer::start(config, env))
    }
}

/// The start of a master on this host.
pub type MasterStart = Pin<Box<dyn Future<Output = Result<MasterServer<RealEnv>, MasterError>> + Send>>;

/// A running master. Dropping it stops it without waiting; [`MasterServer::stop`] waits.
pub struct MasterServer<E: Env> {
    handle: MasterHandle<E>,
    rpc: RpcServer,
    stop: watch::Sender<bool>,
    ticker: tokio::task::JoinHandle<()>,
}

impl<E: Env> MasterServer<E> {
    /// Starts listening and serving.
    ///
    /// # Errors
    /// The address is not available, or a thread cannot be started.
    pub async fn start(mut config: MasterConfig, env: E) -> Result<MasterServer<E>, MasterError> {
        if config.policy.seed == 0 {
            config.policy.seed = env.rng();
        }
        let shared = Arc::new(MasterShared::new(config.policy, env.clone()));
        let server = ServerConfig { listen: config.listen, threads: config.threads, idle_timeout: config.idle_timeout };
        let rpc = RpcServer::start(server, env, shared.clone()).await?;
        let (stop, stopping) = watch::channel(false);
        let handle = MasterHandle { shared, polls: rpc.polls() };
        let ticker = tokio::spawn(run_ticker(handle.clone(), stopping));
        Ok(MasterServer { handle, rpc, stop, ticker })
    }

    /// The port that the RPC server listens on.
    pub fn rpc_port(&self) -> u16 {
        self.rpc.port()
    }

    /// Number of open RPC connections.
    pub fn connections(&self) -> usize {
        self.rpc.connections()
    }

    /// Returns access to the state, for the admin API.
    pub fn handle(&self) -> MasterHandle<E> {
        self.handle.clone()
    }

    /// Waits until a panic has made the state unusable, and then resumes the panic. Does not return while the master works.
    pub async fn failed(&mut self) -> Infallible {
        match (&mut self.ticker).await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            _ => std::future::pending().await,
        }
    }

    /// Stops accepting connections, waits for calls in progress, and stops the ticker. If a panic has made the state unusable, resumes
    /// the panic.
    pub async fn stop(self) {
        self.rpc.stop().await;
        let _ = self.stop.send(true);
        match self.ticker.await {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The ticker may have ended without locking the state.
            _ if self.handle.shared.guarded.is_poisoned() => {
                std::panic::resume_unwind(Box::new("a panic interrupted a change of the master's state"))
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;
    use crate::engine::base::HostPort;
    use crate::engine::master::StateAccess;

    #[tokio::test]
    async fn no_call_uses_the_state_after_a_panic() {
        let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
        config.threads = 1;
        let mut server = MasterServer::start(config, RealEnv::new()).await.unwrap();
        let handle = server.handle();
        assert!(!handle.has_segment_named("node:1"));
        let ends = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
        assert!(ends(&|| handle.access().with_state(|_, _, _| resume_unwind(Box::new("on purpose")))));
        assert!(ends(&|| assert!(!handle.has_segment_named("node:1"))));
        let failed = tokio::spawn(async move { server.failed().await }).await;
        assert!(failed.is_err_and(|error| error.is_panic()));
    }
}
