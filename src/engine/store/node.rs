//! A node: a client, and the memory that its process contributes to the store.
//!
//! If startup fails, the completed steps are undone.

use std::sync::Arc;

use crate::client_start::{PreparedClient, StoreStartError, allocate, stop_engine};
use crate::heartbeat;
use crate::heartbeat_status::HeartbeatStatus;
use crate::segment_manager::SegmentManager;
use crate::{ClientConfig, NodeStore, StoreClient};
use mcctl_base::{ByteSize, HostPort};
use mcctl_sys::env::Env;
use mcctl_sys::pages::MemorySource;
use mcctl_wire::types::Segment;

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub client: ClientConfig,
    /// Size of the memory to contribute, in bytes. With 0, memory is only contributed on request,
    /// through the REST API.
    pub segment_bytes: ByteSize,
}

/// A running node. Call [`Node::stop`] to stop it. If a node is dropped without being stopped, its
/// segments remain until the master expires its client.
pub struct Node<E: Env> {
    client: StoreClient<E>,
    segment: Option<Segment>,
    segments: Arc<SegmentManager<E>>,
}

impl<E: Env> Node<E> {
    /// Allocates the memory, starts the client and mounts the segment.
    ///
    /// # Errors
    /// If this function fails, nothing is left running. However, if the caller drops this future,
    /// the node's records remain in the metadata service: see [`start_unless`](Node::start_unless).
    pub async fn start(config: NodeConfig, env: E) -> Result<Node<E>, StoreStartError> {
        Node::start_unless(config, env, std::future::pending()).await
    }

    /// Like [`start`](Node::start), but waiting for the metadata service or the master ends with
    /// [`StoreStartError::Stopped`] when `stop` completes. The other steps are limited by the
    /// timeouts of their calls and are not interrupted. Once waiting is over, the node starts even
    /// if `stop` completes, and the caller must then stop the node.
    ///
    /// # Errors
    /// Same as [`start`](Node::start).
    pub async fn start_unless(
        config: NodeConfig,
        env: E,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Node<E>, StoreStartError> {
        let source = MemorySource::new(config.client.memory_policy());
        let mut prepared = PreparedClient::new(config.client, env, &source)?;
        if config.segment_bytes.0 > 0 {
            prepared.reserve_name();
        }
        let memory = allocate(config.segment_bytes, |bytes| source.segment(bytes)).map_err(StoreStartError::Segment)?;
        let client = prepared.start(stop).await?;
        let segments = SegmentManager::new(client.clone(), client.name().to_string(), source, heartbeat::start);
        let segment = match &memory {
            None => None,
            Some(memory) => match segments.mount_first(memory).await {
                Ok(segment) => Some(segment),
                Err(error) => {
                    stop_engine(client.engine()).await;
                    return Err(error);
                }
            },
        };
        Ok(Node { client, segment, segments })
    }

    /// Returns the node's own client.
    pub fn client(&self) -> &StoreClient<E> {
        &self.client
    }

    /// Returns the name under which the master lists the node.
    pub fn name(&self) -> &HostPort {
        self.client.name()
    }

    /// Returns the segment mounted at startup, or `None` if its configured size is 0.
    pub fn segment(&self) -> Option<&Segment> {
        self.segment.as_ref()
    }

    /// Returns the node's objects and metrics, for [`crate::rest`].
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
        let withdrawn = self.client.inner.shared.stop().await;
        // The master and its built-in metadata service are often stopped together with their nodes.
        // That does not warrant a warning.
        if let Some(error) = &unanswered {
            let withdrawn = withdrawn.is_ok();
            tracing::info!(%error, withdrawn, "segments not unmounted: the master is not responding; it may have stopped as well");
        } else if let Err(error) = withdrawn {
            tracing::warn!(%error, "cannot remove the transfer engine's metadata records");
        }
    }
}
