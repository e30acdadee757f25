//! A node as its REST routes see it.

use std::sync::Arc;

use bytes::Bytes;

use crate::engine::base::ObjectKey;
use crate::engine::env::Env;
use crate::engine::store::heartbeat::Pulse;
use crate::engine::store::rest::{Held, NodeFigures, NodeHealth, ObjectStore, Refusal, Room};
use crate::engine::store::ways::Ways;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::memory::Memory;
use crate::engine::wire::types::ReplicateConfig;

/// A node's client, its pulse and its figures.
pub struct NodeStore<E: Env> {
    pub(in crate::engine::store) client: StoreClient<E>,
    /// `None` when the node lends nothing and so has no heartbeat.
    pub(in crate::engine::store) pulse: Option<Pulse>,
    pub(in crate::engine::store) segment_bytes: u64,
}

impl<E: Env> ObjectStore for NodeStore<E> {
    async fn put(&self, key: ObjectKey, value: Bytes) -> Result<(), Refusal> {
        let value = Arc::new(Memory::from_vec(value.into()));
        self.client.put(&key, value.whole(), &ReplicateConfig::default()).await.map(drop).map_err(refusal)
    }

    async fn get(&self, key: ObjectKey, room: Room) -> Result<(Bytes, Held), Refusal> {
        let read = self.client.get_within(&key, |size| {
            let room = room.clone();
            async move { room.hold(size).await }
        });
        read.await.map(|(value, held)| (Bytes::from(value), held)).map_err(refusal)
    }

    async fn exists(&self, key: ObjectKey) -> Result<bool, Refusal> {
        self.client.exists(&key).await.map_err(refusal)
    }

    async fn remove(&self, key: ObjectKey) -> Result<(), Refusal> {
        self.client.remove(&key, false).await.map_err(refusal)
    }

    async fn remove_all(&self) -> Result<u64, Refusal> {
        self.client.remove_all(false).await.map(|count| u64::try_from(count).unwrap_or(0)).map_err(refusal)
    }

    fn health(&self) -> NodeHealth {
        match &self.pulse {
            Some(pulse) if !pulse.is_healthy() => NodeHealth::MasterUnreachable,
            _ => NodeHealth::Healthy,
        }
    }

    fn figures(&self) -> NodeFigures {
        let engine = self.client.engine();
        let moved = engine.counters();
        NodeFigures {
            served_read_bytes: moved.served.read_bytes,
            served_reads: moved.served.reads,
            served_write_bytes: moved.served.written_bytes,
            served_writes: moved.served.writes,
            served_refusals: moved.rejected,
            client_read_bytes: moved.issued.read_bytes + moved.local.read_bytes,
            client_write_bytes: moved.issued.written_bytes + moved.local.written_bytes,
            segment_bytes: self.segment_bytes,
            connections: moved.connections_open,
            ways: Ways::new(engine.protocol(), engine.peers(), engine.rails()),
        }
    }
}

fn refusal(error: StoreError) -> Refusal {
    Refusal { code: error.code(), reason: error.to_string() }
}
