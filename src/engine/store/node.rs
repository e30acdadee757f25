//! A node: memory contributed to the store, and a client for the process that runs it.
//!
//! A start that fails undoes the completed steps.

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

/// Pause between two attempts to reach the metadata service or the master at the start.
const RETRY: Duration = Duration::from_millis(250);

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The host at which peers reach the node, with or without a port.
    pub local_hostname: String,
    /// Port range for the name, if it has no port.
    pub name_ports: (u16, u16),
    /// Bytes of memory to contribute; 0 = a pure client.
    pub segment_bytes: ByteSize,
    /// Bytes of registered memory for callers without their own; 0 = none.
    pub local_buffer_bytes: ByteSize,
    /// How memory is allocated.
    pub memory: MemoryPolicy,
    /// The transfer engine; its `local_server_name` is set by the node.
    pub engine: TransferConfig,
    pub client: ClientConfig,
    /// How long to wait for the metadata service, and then for the master, if they are not available at the start.
    pub max_wait: Duration,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The node has no valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Other hosts could not reach the node under its name.
    #[error(
        "'{name}' is a loopback name, but the master is on another host ({master}): with P2PHANDSHAKE, other hosts cannot reach \
         this node"
    )]
    LoopbackName { name: String, master: HostPort },
    /// Not enough memory for the segment.
    #[error("cannot allocate the segment: {0}")]
    Segment(#[source] MemoryError),
    /// Not enough memory for the local buffer, which is allocated before the segment.
    #[error("cannot allocate the local buffer: {0}")]
    LocalBuffer(#[source] MemoryError),
    /// The transfer engine did not start.
    #[error(transparent)]
    Engine(#[from] TransferError),
    /// The master did not answer in time, or refused.
    #[error(transparent)]
    Master(Box<StoreError>),
    /// The start was cancelled while it waited for the metadata service or the master.
    #[error("stopped before the metadata service and the master were reached")]
    Stopped,
}

impl From<StoreError> for NodeError {
    fn from(error: StoreError) -> NodeError {
        NodeError::Master(Box::new(error))
    }
}

/// A running node. Call [`Node::stop`]. If a node is only dropped, its segments remain until the master expires its client.
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
    /// After an error nothing is left running. But a caller that drops this future leaves the node's records in the metadata service:
    /// see [`start_unless`](Node::start_unless).
    pub async fn start(config: NodeConfig, env: E) -> Result<Node<E>, NodeError> {
        Node::start_unless(config, env, std::future::pending()).await
    }

    /// Like [`start`](Node::start), but waiting for the metadata service or the master ends with [`NodeError::Stopped`] when `stop`
    /// completes. The other steps take only as long as their calls and are not interrupted. A node that is past the waiting starts, and
    /// the caller must stop it.
    ///
    /// # Errors
    /// As [`start`](Node::start).
    pub async fn start_unless(
        config: NodeConfig,
        env: E,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Node<E>, NodeError> {
        let mut name = NodeName::reserve(&config.local_hostname, config.name_ports, || env.rng())?;
        check_reachable(&config, &name)?;
        // With P2PHANDSHAKE, upstream's engines do not listen on the port in their name either, so two of one name can start.
        let is_p2p = config.engine.metadata == MetadataUri::P2p;
        if is_p2p && config.segment_bytes.0 > 0 && !name.bind_port() {
            tracing::warn!(
                name = %name.name,
                "another process on this host has the port in this node's name. If it is also a node, the master lists both under \
                 one name: configure a different port for each, or none"
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

    /// A client of the same store that shares the node's engine.
    pub fn client(&self) -> &StoreClient<E> {
        &self.client
    }

    /// The name under which the master lists the node.
    pub fn name(&self) -> &HostPort {
        &self.name.name
    }

    /// The node's first segment; `None` for a pure client.
    pub fn segment(&self) -> Option<&Segment> {
        self.segment.as_ref()
    }

    /// The node's objects and metrics, for [`crate::engine::store::rest`].
    pub fn store(&self) -> NodeStore<E> {
        NodeStore { client: self.client.clone(), segments: Arc::clone(&self.segments) }
    }

    /// Whether the node's heartbeats are answered.
    pub fn heartbeat_status(&self) -> HeartbeatStatus {
        self.segments.heartbeat_status().clone()
    }

    /// Unmounts all segments, then stops the node. Objects in the segments are lost.
    pub async fn stop(self) {
        let unanswered = self.segments.stop().await;
        if let Some(local) = self.local
            && let Err(error) = self.client.engine().deregister(local).await
        {
            tracing::debug!(%error, "cannot deregister the local buffer");
        }
        let withdrawn = self.client.engine().shutdown().await;
        // The master, and the metadata service in it, are often stopped together with their nodes. That is not worth a warning.
        if let Some(error) = &unanswered {
            let withdrawn = withdrawn.is_ok();
            tracing::info!(%error, withdrawn, "segments not unmounted: the master does not answer, or has stopped as well");
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

/// Allocates `size` bytes; `None` for 0.
fn allocate(
    size: ByteSize,
    from: impl FnOnce(u64) -> Result<Memory, MemoryError>,
) -> Result<Option<Arc<Memory>>, MemoryError> {
    (size.0 > 0).then(|| from(size.0).map(Arc::new)).transpose()
}

/// Refuses a loopback name if the master is on another host.
fn check_reachable(config: &NodeConfig, name: &NodeName) -> Result<(), NodeError> {
    let far_master = !config.client.master.is_loopback();
    if config.engine.metadata == MetadataUri::P2p && name.name.is_loopback() && far_master {
        return Err(NodeError::LoopbackName { name: name.name.to_string(), master: config.client.master.clone() });
    }
    Ok(())
}

/// Starts the transfer engine. Waits up to `max_wait` for an unavailable metadata service, unless `stop` completes. A running attempt is
/// never dropped, because it must remove the records that it created.
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
                    tracing::warn!(%error, ?max_wait, "the metadata service does not answer yet; waiting for it");
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

/// Connects to the master. Waits for an unavailable one up to the configured time.
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
        // A master that accepts the connection but does not answer is also limited by `max_wait`. Without a wait, the one attempt may
        // take as long as its calls.
        let left = wait_until.since(env.now()).max(RETRY);
        let silent = || CallError::ConnectTimeout { address: config.client.master.clone(), limit: config.max_wait };
        let result = match config.max_wait {
            Duration::ZERO => connect.await,
            _ => deadline(env, left, connect).await.unwrap_or_else(|_| Err(silent().into())),
        };
        match result {
            Err(error) if heartbeat::is_transient(&error) && env.now() < wait_until => {
                if !warned {
                    tracing::warn!(%error, max_wait = ?config.max_wait, "the master does not answer yet; waiting for it");
                    warned = true;
                }
                env.sleep(RETRY.min(wait_until.since(env.now()))).await;
            }
            result => return result,
        }
    }
}
