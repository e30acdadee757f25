//! Starting a client: its name, its local buffer, the transfer engine, and the connection to the
//! master.
//!
//! If startup fails, the completed steps are undone.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::client_shared::{ClientShared, FailureLog, HeldByClient};
use crate::name::{NameError, NodeName};
use crate::{ClientConfig, StoreClient, StoreError};
use mcctl_base::time::RoundedDuration;
use mcctl_base::{ByteSize, ClientId, HostPort, Mono};
use mcctl_metadata::MetadataUri;
use mcctl_net::rpc::CallError;
use mcctl_sys::env::{Env, deadline};
use mcctl_sys::memory::Memory;
use mcctl_sys::pages::{MemoryError, MemorySource};
use mcctl_transfer::{Access, TransferConfig, TransferEngine, TransferError};

/// Interval between attempts to reach the metadata service or the master at startup.
const RETRY: Duration = Duration::from_millis(250);

/// Why a client or a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StoreStartError {
    /// There is no valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Other hosts cannot reach this process under its name.
    #[error(
        "'{name}' is a loopback name, but the master is on another host ({master}): with P2PHANDSHAKE, other hosts cannot reach \
         this node"
    )]
    LoopbackName { name: String, master: HostPort },
    /// Not enough memory is available for a node's segment.
    #[error("cannot allocate the segment: {0}")]
    Segment(#[source] MemoryError),
    /// Not enough memory is available for the local buffer, which is allocated before the segment.
    #[error("cannot allocate the local buffer: {0}")]
    LocalBuffer(#[source] MemoryError),
    /// The transfer engine could not be started.
    #[error(transparent)]
    Engine(#[from] TransferError),
    /// The master did not respond in time or returned an error.
    #[error(transparent)]
    Master(Box<StoreError>),
    /// Startup was cancelled while waiting for the metadata service or the master.
    #[error("stopped before the metadata service and the master could be reached")]
    Stopped,
}

impl From<StoreError> for StoreStartError {
    fn from(error: StoreError) -> StoreStartError {
        StoreStartError::Master(Box::new(error))
    }
}

/// A client that has its name and its local buffer, but has not contacted another process.
pub(crate) struct PreparedClient<E: Env> {
    config: ClientConfig,
    env: E,
    name: NodeName,
    local_buffer: Option<Arc<Memory>>,
}

impl<E: Env> PreparedClient<E> {
    /// Chooses the client's name, and allocates its local buffer from `source`.
    ///
    /// # Errors
    /// There is no valid name, other hosts cannot reach it, or there is not enough memory.
    pub(crate) fn new(
        config: ClientConfig,
        env: E,
        source: &MemorySource,
    ) -> Result<PreparedClient<E>, StoreStartError> {
        let name = NodeName::reserve(&config.local_hostname, config.name_ports, || env.rng())?;
        check_reachable(&config, &name)?;
        let local_buffer = allocate(config.local_buffer_bytes, |bytes| source.buffer(bytes));
        let local_buffer = local_buffer.map_err(StoreStartError::LocalBuffer)?;
        Ok(PreparedClient { config, env, name, local_buffer })
    }

    /// Reserves the port in the name of a process that contributes memory. Logs a warning if
    /// another process uses the port.
    pub(crate) fn reserve_name(&mut self) {
        // With P2PHANDSHAKE, upstream's engines do not listen on the port in their name either, so
        // two engines with the same name can start.
        if self.config.engine.metadata == MetadataUri::P2p && !self.name.bind_port() {
            tracing::warn!(
                name = %self.name.name,
                "the port in this node's name is in use by another process on this host. If that process is also a node, the \
                 master lists both under the same name: use a different port for each node, or no port"
            );
        }
    }

    /// Starts the transfer engine and connects to the master. Waiting for the metadata service or
    /// the master ends with [`StoreStartError::Stopped`] when `stop` completes.
    ///
    /// # Errors
    /// Nothing is left running.
    pub(crate) async fn start(self, stop: impl Future<Output = ()> + Send) -> Result<StoreClient<E>, StoreStartError> {
        let PreparedClient { config, env, name, local_buffer } = self;
        let engine_config = TransferConfig { local_server_name: name.name.to_string(), ..config.engine.clone() };
        let mut stop = pin!(stop);
        let engine = start_engine(engine_config, config.wait_left(), &env, stop.as_mut()).await?;
        let shared = Arc::new(ClientShared {
            engine: engine.clone(),
            callers: Arc::default(),
            failure_log: FailureLog::default(),
            damage: Default::default(),
            writing: Arc::default(),
            name: name.name.clone(),
            held: Mutex::new(Some(HeldByClient { name, local_buffer: None })),
        });
        let started = async {
            let client = match select(stop, pin!(find_master(&config, &env, &shared))).await {
                Either::Left(((), _)) => return Err(StoreStartError::Stopped),
                Either::Right((found, _)) => found?,
            };
            if let Some(memory) = &local_buffer {
                let registration = engine.register(memory, Access::Local).await?;
                if let Some(held) = shared.held().as_mut() {
                    held.local_buffer = Some(registration);
                }
            }
            Ok(client)
        };
        match started.await {
            Ok(client) => Ok(client),
            Err(error) => {
                stop_engine(&engine).await;
                Err(error)
            }
        }
    }
}

/// Stops the engine of a client or a node that did not start.
pub(crate) async fn stop_engine(engine: &TransferEngine) {
    if let Err(error) = engine.shutdown().await {
        tracing::warn!(%error, "cannot remove the transfer engine's metadata records");
    }
}

/// Allocates `size` bytes, or returns `None` if `size` is 0.
pub(crate) fn allocate(
    size: ByteSize,
    from: impl FnOnce(u64) -> Result<Memory, MemoryError>,
) -> Result<Option<Arc<Memory>>, MemoryError> {
    (size.0 > 0).then(|| from(size.0).map(Arc::new)).transpose()
}

/// Rejects a loopback name if the master is on another host.
fn check_reachable(config: &ClientConfig, name: &NodeName) -> Result<(), StoreStartError> {
    let far_master = !config.master.is_loopback();
    if config.engine.metadata == MetadataUri::P2p && name.name.is_loopback() && far_master {
        return Err(StoreStartError::LoopbackName { name: name.name.to_string(), master: config.master.clone() });
    }
    Ok(())
}

/// Starts the transfer engine. If the metadata service is unavailable, waits up to `max_wait` for
/// it, unless `stop` completes first. An attempt in progress is never dropped, because it must
/// remove the records that it created.
async fn start_engine<E: Env>(
    config: TransferConfig,
    max_wait: Duration,
    env: &E,
    mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> Result<TransferEngine, StoreStartError> {
    let wait_until: Mono = env.now() + max_wait;
    let mut warned = false;
    loop {
        match TransferEngine::start(config.clone(), env.clone()).await {
            Err(TransferError::Metadata(error)) if error.is_retryable() && env.now() < wait_until => {
                if !warned {
                    tracing::warn!(%error, max_wait = %RoundedDuration(max_wait), "the metadata service is not responding yet; retrying");
                    warned = true;
                }
                if let Either::Left(_) =
                    select(stop.as_mut(), pin!(env.sleep(RETRY.min(wait_until.since(env.now()))))).await
                {
                    return Err(StoreStartError::Stopped);
                }
            }
            result => return Ok(result?),
        }
    }
}

/// Connects to the master. If the master is unavailable, waits up to the configured time.
async fn find_master<E: Env>(
    config: &ClientConfig,
    env: &E,
    shared: &Arc<ClientShared>,
) -> Result<StoreClient<E>, StoreError> {
    let max_wait = config.wait_left();
    let wait_until: Mono = env.now() + max_wait;
    let mut warned = false;
    loop {
        let id = ClientId(env.rng(), env.rng());
        let connect = StoreClient::connect(id, config.clone(), env.clone(), Arc::clone(shared));
        // `max_wait` also limits how long to wait for a master that accepts the connection but does
        // not respond. If `max_wait` is zero, the only attempt may take as long as its calls do.
        let left = wait_until.since(env.now()).max(RETRY);
        let silent = || CallError::ConnectTimeout { address: config.master.clone(), limit: max_wait };
        let result = match max_wait {
            Duration::ZERO => connect.await,
            _ => deadline(env, left, connect).await.unwrap_or_else(|_| Err(silent().into())),
        };
        match result {
            Err(error) if error.is_transient() && env.now() < wait_until => {
                if !warned {
                    tracing::warn!(%error, max_wait = %RoundedDuration(max_wait), "the master is not responding yet; retrying");
                    warned = true;
                }
                env.sleep(RETRY.min(wait_until.since(env.now()))).await;
            }
            result => return result,
        }
    }
}
