//! A node: memory lent to the store, and a client for whoever runs it.
//!
//! Started all or nothing: what was set up before a step that failed is taken down again.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::engine::base::{ByteSize, HostPort, Mono};
use crate::engine::env::{Env, deadline};
use crate::engine::metadata::MetadataUri;
use crate::engine::rpc::CallError;
use crate::engine::store::heartbeat::{self, Pulse};
use crate::engine::store::lending::Lending;
use crate::engine::store::name::{NameError, NodeName};
use crate::engine::store::{ClientConfig, NodeStore, StoreClient, StoreError};
use crate::engine::sys::memory::Memory;
use crate::engine::sys::pages::{MemoryError, MemoryPolicy, MemorySource};
use crate::engine::transfer::{Access, Registration, TransferConfig, TransferEngine, TransferError};
use crate::engine::wire::types::Segment;

/// Waits between two tries to reach the master or the metadata service at the start.
const RETRY: Duration = Duration::from_millis(250);

/// What a node is.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Host by which others reach it, with or without a port.
    pub local_hostname: String,
    /// Ports for its name, if it has none.
    pub name_ports: (u16, u16),
    /// Bytes it lends; 0 = none, it is only a client.
    pub segment_bytes: ByteSize,
    /// Bytes of registered memory for callers without their own; 0 = none.
    pub local_buffer_bytes: ByteSize,
    /// How memory is taken.
    pub memory: MemoryPolicy,
    /// The transfer engine; its `local_server_name` is set by the node.
    pub engine: TransferConfig,
    /// The master.
    pub client: ClientConfig,
    /// How long to wait for a metadata service, and then for a master, that is not there yet.
    pub max_wait: Duration,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It has no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Others could not reach it under that name.
    #[error(
        "'{name}' is a loopback name, but the master is on another host ({master}): with P2PHANDSHAKE other hosts could not \
         reach this node"
    )]
    LoopbackName {
        /// The name.
        name: String,
        /// The master.
        master: HostPort,
    },
    /// No memory for the segment.
    #[error("no memory for the segment: {0}")]
    Segment(#[source] MemoryError),
    /// No memory for the local buffer, which is taken before the segment.
    #[error("no memory for the local buffer: {0}")]
    LocalBuffer(#[source] MemoryError),
    /// The transfer engine did not start.
    #[error(transparent)]
    Engine(#[from] TransferError),
    /// The master did not answer in time, or refused.
    #[error(transparent)]
    Master(Box<StoreError>),
    /// It was told to stop before it had found its metadata service and its master.
    #[error("the node was told to stop before it had found its metadata service and its master")]
    Stopped,
}

impl From<StoreError> for NodeError {
    fn from(error: StoreError) -> NodeError {
        NodeError::Master(Box::new(error))
    }
}

/// A running node. Call [`Node::stop`]; a node that is only dropped leaves its segment to the master's patience.
pub struct Node<E: Env> {
    client: StoreClient<E>,
    name: NodeName,
    segment: Option<Segment>,
    local: Option<Registration>,
    lending: Arc<Lending<E>>,
}

impl<E: Env> Node<E> {
    /// Take the memory, start the transfer engine, find the master, mount.
    ///
    /// # Errors
    /// Nothing is left running then. But a caller that drops this before its end leaves the node's records in the metadata
    /// service: see [`start_unless`](Node::start_unless).
    pub async fn start(config: NodeConfig, env: E) -> Result<Node<E>, NodeError> {
        Node::start_unless(config, env, std::future::pending()).await
    }

    /// The same, but waiting for the metadata service or the master ends with [`NodeError::Stopped`] when `stop` does. The other
    /// steps, which take no longer than their calls may, are not interrupted: a node that was past the waiting starts, and is to be
    /// stopped.
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
        // With P2PHANDSHAKE upstream's engines do not listen on the port in their name, either, and two of one name both start.
        let is_p2p = config.engine.metadata == MetadataUri::P2p;
        if is_p2p && config.segment_bytes.0 > 0 && !name.hold() {
            tracing::warn!(
                name = %name.name,
                "another process of this host has the port of this node's name; if it is a node, too, the master lists both under \
                 one name: give each its own port in the name, or none"
            );
        }
        let source = MemorySource::new(config.memory);
        let local_memory =
            take(config.local_buffer_bytes, |bytes| source.buffer(bytes)).map_err(NodeError::LocalBuffer)?;
        let segment_memory = take(config.segment_bytes, |bytes| source.segment(bytes)).map_err(NodeError::Segment)?;
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
            let lending = Lending::new(client.clone(), name.name.to_string(), source);
            let mut segment = None;
            if let Some(memory) = &segment_memory {
                segment = Some(lending.mount_first(memory).await?);
            }
            Ok::<_, NodeError>((client, local, segment, lending))
        };
        let (client, local, segment, lending) = match started.await {
            Ok(started) => started,
            Err(error) => {
                stop_engine(&engine).await;
                return Err(error);
            }
        };
        Ok(Node { client, name, segment, local, lending })
    }

    /// A client of the same store over the same engine.
    pub fn client(&self) -> &StoreClient<E> {
        &self.client
    }

    /// The name by which the master lists it.
    pub fn name(&self) -> &HostPort {
        &self.name.name
    }

    /// Its first segment, if it has one.
    pub fn segment(&self) -> Option<&Segment> {
        self.segment.as_ref()
    }

    /// Its objects and figures, for [`crate::engine::store::rest`].
    pub fn store(&self) -> NodeStore<E> {
        NodeStore { client: self.client.clone(), lending: Arc::clone(&self.lending) }
    }

    /// Whether its heartbeats are answered.
    pub fn pulse(&self) -> Pulse {
        self.lending.pulse().clone()
    }

    /// Take all segments back from the master, then stop. Objects on it are lost.
    pub async fn stop(self) {
        let gone = self.lending.stop().await;
        if let Some(local) = self.local
            && let Err(error) = self.client.engine().deregister(local).await
        {
            tracing::debug!(%error, "the local buffer could not be deregistered");
        }
        let withdrawn = self.client.engine().shutdown().await;
        // The master, and the metadata service in it, are often stopped together with their nodes: no reason to warn.
        if let Some(error) = &gone {
            let withdrawn = withdrawn.is_ok();
            tracing::info!(error, withdrawn, "segments not unmounted: the master does not answer, or has stopped too");
        } else if let Err(error) = withdrawn {
            tracing::warn!(%error, "the transfer engine's records could not be removed");
        }
    }
}

async fn stop_engine(engine: &TransferEngine) {
    if let Err(error) = engine.shutdown().await {
        tracing::warn!(%error, "the transfer engine's records could not be removed");
    }
}

/// Memory of that many bytes, or none for 0.
fn take(
    size: ByteSize,
    from: impl FnOnce(u64) -> Result<Memory, MemoryError>,
) -> Result<Option<Arc<Memory>>, MemoryError> {
    (size.0 > 0).then(|| from(size.0).map(Arc::new)).transpose()
}

/// A loopback name works only where everybody is on this host.
fn check_reachable(config: &NodeConfig, name: &NodeName) -> Result<(), NodeError> {
    let far_master = !config.client.master.is_loopback();
    if config.engine.metadata == MetadataUri::P2p && name.name.is_loopback() && far_master {
        return Err(NodeError::LoopbackName { name: name.name.to_string(), master: config.client.master.clone() });
    }
    Ok(())
}

/// Start the transfer engine, waiting up to `max_wait` for a metadata service that is not there yet, unless `stop` ends. A try is
/// never dropped: it takes back the records that it made.
async fn start_engine<E: Env>(
    config: TransferConfig,
    max_wait: Duration,
    env: &E,
    mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> Result<TransferEngine, NodeError> {
    let give_up: Mono = env.now() + max_wait;
    let mut told = false;
    loop {
        match TransferEngine::start(config.clone(), env.clone()).await {
            Err(TransferError::Metadata(error)) if error.is_retryable() && env.now() < give_up => {
                if !told {
                    tracing::warn!(%error, ?max_wait, "the metadata service does not answer yet; waiting for it");
                    told = true;
                }
                if let Either::Left(_) =
                    select(stop.as_mut(), pin!(env.sleep(RETRY.min(give_up.since(env.now()))))).await
                {
                    return Err(NodeError::Stopped);
                }
            }
            tried => return Ok(tried?),
        }
    }
}

/// Connect to the master, waiting for one that is not there yet for as long as the configuration says.
async fn find_master<E: Env>(
    config: &NodeConfig,
    env: &E,
    engine: &TransferEngine,
    name: &NodeName,
) -> Result<StoreClient<E>, StoreError> {
    let give_up: Mono = env.now() + config.max_wait;
    let own_name = name.name.to_string();
    let mut told = false;
    loop {
        let connect = StoreClient::connect(config.client.clone(), env.clone(), engine.clone(), Some(&own_name));
        // A master that accepts and says nothing costs no more than the operator allows, either. Who does not wait at all gives
        // the one try the time that its calls may take.
        let left = give_up.since(env.now()).max(RETRY);
        let silent = || CallError::ConnectTimeout { address: config.client.master.clone(), limit: config.max_wait };
        let tried = match config.max_wait {
            Duration::ZERO => connect.await,
            _ => deadline(env, left, connect).await.unwrap_or_else(|_| Err(silent().into())),
        };
        match tried {
            Err(error) if heartbeat::is_worth_waiting(&error) && env.now() < give_up => {
                if !told {
                    tracing::warn!(%error, max_wait = ?config.max_wait, "the master does not answer yet; waiting for it");
                    told = true;
                }
                env.sleep(RETRY.min(give_up.since(env.now()))).await;
            }
            tried => return tried,
        }
    }
}
