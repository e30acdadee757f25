//! A node: memory contributed to the store, and a client for the process in which the node runs.
//!
//! If startup fails, the completed steps are undone.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::engine::base::{ByteSize, HostPort, Mono};
use crate::engine::env::{Env, deadline};
use crate::engine::metadata::MetadataUri;
use crate::engine::rpc::CallError;
use crate::engine::store::heartbeat::{self, HeartbeatStatus};
use crate::engine::store::name::{NameError, NodeName};
use crate::engine::store::segment_manager::SegmentManager;
use crate::engine::store::{ClientConfig, NodeStore, StoreClient, StoreError};
use crate::engine::sys::memory::Memory;
use crate::engine::sys::pages::{MemoryError, MemoryPolicy, MemorySource};
use crate::engine::transfer::{Access, Registration, TransferConfig, TransferEngine, TransferError};
use crate::engine::wire::types::Segment;

/// Interval between attempts to reach the metadata service or the master at startup.
const RETRY: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The host on which peers reach the node, with or without a port.
    pub local_hostname: String,
    /// Port range for the node's name, used if the name has no port.
    pub name_ports: (u16, u16),
    /// Size of the memory to contribute, in bytes; 0 for a pure client.
    pub segment_bytes: ByteSize,
    /// Size of the registered buffer for callers without registered memory of their own, in bytes; 0 for none.
    pub local_buffer_bytes: ByteSize,
    /// How memory is allocated.
    pub memory: MemoryPolicy,
    /// Transfer engine settings; the node sets `local_server_name`.
    pub engine: TransferConfig,
    pub client: ClientConfig,
    /// How long to wait for the metadata service, and then for the master, if they are not available at startup.
    pub max_wait: Duration,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The node has no valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Other hosts cannot reach the node under its name.
    #[error(
        "'{name}' is a loopback name, but the master is on another host ({master}): with P2PHANDSHAKE, other hosts cannot reach \
         this node"
    )]
    LoopbackName { name: String, master: HostPort },
    /// Not enough memory is available for the segment.
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

impl From<StoreError> for NodeError {
    fn from(error: StoreError) -> NodeError {
        NodeError::Master(Box::new(error))
    }
}

/// A running node. Call [`Node::stop`] to stop it. If a node is dropped without being stopped, its segments remain until the master expires
/// its client.
pub struct Node<E: Env> {
    client: StoreClient<E>,
    name: NodeName,
    segment: Option<Segment>,
    local: Option<Registration>,
    segments: Arc<SegmentManager<E>>,
}

impl<E: Env> Node<E> {
    /// Allocates the memory, starts the transfer engine, connects to the master and mounts the segment.
    ///
    /// # Errors
    /// If this function fails, nothing is left running. However, if the caller drops this future, the node's
    /// records remain in the metadata service: see [`start_unless`](Node::start_unless).
    pub async fn start(config: NodeConfig, env: E) -> Result<Node<E>, NodeError> {
        Node::start_unless(config, env, std::future::pending()).await
    }

    /// Like [`start`](Node::start), but waiting for the metadata service or the master ends with [`NodeError::Stopped`] when `stop`
    /// completes. The other steps are limited by the timeouts of their calls and are not interrupted. Once waiting is over, the node starts
    /// even if `stop` completes, and the caller must then stop the node.
    ///
    /// # Errors
    /// Same as [`start`](Node::start).
    pub async fn start_unless(
        config: NodeConfig,
        env: E,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Node<E>, NodeError> {
        let mut name = NodeName::reserve(&config.local_hostname, config.name_ports, || env.rng())?;
        check_reachable(&config, &name)?;
        // With P2PHANDSHAKE, upstream's engines do not listen on the port in their name either, so two engines with the same name can
        // start.
        let is_p2p = config.engine.metadata == MetadataUri::P2p;
        if is_p2p && config.segment_bytes.0 > 0 && !name.bind_port() {
            tracing::warn!(
                name = %name.name,
                "the port in this node's name is in use by another process on this host. If that process is also a node, the \
                 master lists both under the same name: use a different port for each node, or no port"
            );
        }
        let source = MemorySource::new(config.memory);
        let local_memory =
            allocate(config.local_buffer_bytes, |bytes| source.buffer(bytes)).map_err(NodeError::LocalBuffer)?;
        let segment_memory =
            allocate(config.segment_bytes, |bytes| source.segment(bytes)).map_err(NodeError::Segment)?;
        let engine_config = TransferConfig { local_server_name: name.name.to_string(), ..config.engine.clone() };
        let mut stop = pin!(stop);
        let engine = start_engine(engine_config, config.max_wait, &env, stop.as_mut()).await?;
        let started = async {
            let client = match select(stop, pin!(find_master(&config, &env, &engine, &name))).await {
                Either::Left(((), _)) => return Err(NodeError::Stopped),
                Either::Right((found, _)) => found?,
            };
            let mut local = None;
            if let Some(memory) = &local_memory {
                local = Some(engine.register(memory, Access::Local).await?);
            }
            let segments = SegmentManager::new(client.clone(), name.name.to_string(), source);
            let mut segment = None;
            if let Some(memory) = &segment_memory {
                segment = Some(segments.mount_first(memory).await?);
            }
            Ok::<_, NodeError>((client, local, segment, segments))
        };
        let (client, local, segment, segments) = match started.await {
            Ok(started) => started,
            Err(error) => {
                stop_engine(&engine).await;
                return Err(error);
            }
        };
        Ok(Node { client, name, segment, local, segments })
    }

    /// Returns a client for the same store that shares the node's engine.
    pub fn client(&self) -> &StoreClient<E> {
        &self.client
    }

    /// Returns the name under which the master lists the node.
    pub fn name(&self) -> &HostPort {
        &self.name.name
    }

    /// Returns the node's first segment, or `None` for a pure client.
    pub fn segment(&self) -> Option<&Segment> {
        self.segment.as_ref()
    }

    /// Returns the node's objects and metrics, for [`crate::engine::store::rest`].
    pub fn store(&self) -> NodeStore<E> {
        NodeStore { client: self.client.clone(), segments: Arc::clone(&self.segments) }
    }

    /// Returns whether the master is responding to the node's heartbeats.
    pub fn heartbeat_status(&self) -> HeartbeatStatus {
        self.segments.heartbeat_status().clone()
    }

    /// Unmounts all segments and stops the node. Objects in the segments are lost.
    pub async fn stop(self) {
        let unanswered = self.segments.stop().await;
        if let Some(local) = self.local
            && let Err(error) = self.client.engine().deregister(local).await
        {
            tracing::debug!(%error, "cannot deregister the local buffer");
        }
        let withdrawn = self.client.engine().shutdown().await;
        // The master and its built-in metadata service are often stopped together with their nodes. That does not warrant a warning.
        if let Some(error) = &unanswered {
            let withdrawn = withdrawn.is_ok();
            tracing::info!(%error, withdrawn, "segments not unmounted: the master is not responding; it may have stopped as well");
        } else if let Err(error) = withdrawn {
            tracing::warn!(%error, "cannot remove the transfer engine's metadata records");
        }
    }
}

async fn stop_engine(engine: &TransferEngine) {
    if let Err(error) = engine.shutdown().await {
        tracing::warn!(%error, "cannot remove the transfer engine's metadata records");
    }
}

/// Allocates `size` bytes, or returns `None` if `size` is 0.
fn allocate(
    size: ByteSize,
    from: impl FnOnce(u64) -> Result<Memory, MemoryError>,
) -> Result<Option<Arc<Memory>>, MemoryError> {
    (size.0 > 0).then(|| from(size.0).map(Arc::new)).transpose()
}

/// Rejects a loopback name if the master is on another host.
fn check_reachable(config: &NodeConfig, name: &NodeName) -> Result<(), NodeError> {
    let far_master = !config.client.master.is_loopback();
    if config.engine.metadata == MetadataUri::P2p && name.name.is_loopback() && far_master {
        return Err(NodeError::LoopbackName { name: name.name.to_string(), master: config.client.master.clone() });
    }
    Ok(())
}

/// Starts the transfer engine. If the metadata service is unavailable, waits up to `max_wait` for it, unless `stop` completes first. An
/// attempt in progress is never dropped, because it must remove the records that it created.
async fn start_engine<E: Env>(
    config: TransferConfig,
    max_wait: Duration,
    env: &E,
    mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> Result<TransferEngine, NodeError> {
    let wait_until: Mono = env.now() + max_wait;
    let mut warned = false;
    loop {
        match TransferEngine::start(config.clone(), env.clone()).await {
            Err(TransferError::Metadata(error)) if error.is_retryable() && env.now() < wait_until => {
                if !warned {
                    tracing::warn!(%error, ?max_wait, "the metadata service is not responding yet; retrying");
                    warned = true;
                }
                if let Either::Left(_) =
                    select(stop.as_mut(), pin!(env.sleep(RETRY.min(wait_until.since(env.now()))))).await
                {
                    return Err(NodeError::Stopped);
                }
            }
            result => return Ok(result?),
        }
    }
}

/// Connects to the master. If the master is unavailable, waits up to the configured time.
async fn find_master<E: Env>(
    config: &NodeConfig,
    env: &E,
    engine: &TransferEngine,
    name: &NodeName,
) -> Result<StoreClient<E>, StoreError> {
    let wait_until: Mono = env.now() + config.max_wait;
    let own_name = name.name.to_string();
    let mut warned = false;
    loop {
        let connect = StoreClient::connect(config.client.clone(), env.clone(), engine.clone(), Some(&own_name));
        // `max_wait` also limits how long to wait for a master that accepts the connection but does not respond. If `max_wait` is zero, the
        // only attempt may take as long as its calls do.
        let left = wait_until.since(env.now()).max(RETRY);
        let silent = || CallError::ConnectTimeout { address: config.client.master.clone(), limit: config.max_wait };
        let result = match config.max_wait {
            Duration::ZERO => connect.await,
            _ => deadline(env, left, connect).await.unwrap_or_else(|_| Err(silent().into())),
        };
        match result {
            Err(error) if heartbeat::is_transient(&error) && env.now() < wait_until => {
                if !warned {
                    tracing::warn!(%error, max_wait = ?config.max_wait, "the master is not responding yet; retrying");
                    warned = true;
                }
                env.sleep(RETRY.min(wait_until.since(env.now()))).await;
            }
            result => return result,
        }
    }
}
