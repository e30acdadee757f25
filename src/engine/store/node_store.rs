//! A node as its REST routes see it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::engine::base::{Mono, ObjectKey, SegmentId};
use crate::engine::env::Env;
use crate::engine::store::lending::Lending;
use crate::engine::store::rest::{Held, NodeFigures, NodeHealth, ObjectStore, Refusal, Room};
use crate::engine::store::ways::Ways;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::memory::Memory;
use crate::engine::transfer::OpKind;
use crate::engine::wire::types::ReplicateConfig;

/// A node's client and what it contributes.
pub struct NodeStore<E: Env> {
    pub(in crate::engine::store) client: StoreClient<E>,
    pub(in crate::engine::store) lending: Arc<Lending<E>>,
}

impl<E: Env> ObjectStore for NodeStore<E> {
    async fn put(&self, key: ObjectKey, value: Bytes) -> Result<(), Refusal> {
        let (began, bytes) = (self.client.inner.env.now(), value.len() as u64);
        let value = Arc::new(Memory::from_vec(value.into()));
        let put = self.client.put(&key, value.whole(), &ReplicateConfig::default()).await;
        if put.is_ok() {
            self.count(OpKind::Write, "put", bytes, began);
        }
        put.map(drop).map_err(refusal)
    }

    async fn get(&self, key: ObjectKey, room: Room) -> Result<(Bytes, Held), Refusal> {
        let began = self.client.inner.env.now();
        let read = self.client.get_within(&key, |size| {
            let room = room.clone();
            async move { room.hold(size).await }
        });
        let (value, held) = read.await.map_err(refusal)?;
        self.count(OpKind::Read, "get_buffer", value.len() as u64, began);
        Ok((Bytes::from(value), held))
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

    async fn mount(&self, bytes: u64) -> Result<(SegmentId, u64), Refusal> {
        self.lending.mount_more(bytes).await.map(|segment| (segment.id, segment.size))
    }

    async fn unmount(&self, segment: SegmentId, grace: Duration) -> Result<(), Refusal> {
        self.lending.unmount(segment, grace).await
    }

    fn health(&self) -> NodeHealth {
        if self.lending.pulse().is_healthy() { NodeHealth::Healthy } else { NodeHealth::MasterUnreachable }
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
            segment_bytes: self.lending.bytes(),
            connections: moved.connections_open,
            ways: Ways::new(engine.protocol(), engine.peers(), engine.rails()),
        }
    }
}

impl<E: Env> NodeStore<E> {
    /// Count a use of the client that began at `began`, under the name of upstream's function for it.
    fn count(&self, kind: OpKind, name: &'static str, bytes: u64, began: Mono) {
        let inner = &self.client.inner;
        if let Some(metrics) = &inner.config.metrics {
            metrics.operation(kind, name, bytes, inner.env.now().since(began));
        }
    }
}

fn refusal(error: StoreError) -> Refusal {
    Refusal { code: error.code(), reason: error.to_string() }
}
