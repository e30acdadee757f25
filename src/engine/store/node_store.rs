//! Implements the REST API's operations for a node.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::client::one;
use crate::object_store::{NodeHealth, NodeMetrics, ObjectStore, ReadBudget, ReadPermit, StoreRefusal};
use crate::segment_manager::SegmentManager;
use crate::transport_stats::TransportStats;
use crate::{ObjectPart, StoreClient, StoreError, WriteMethod};
use mcctl_base::{Mono, ObjectKey, SegmentId};
use mcctl_sys::env::Env;
use mcctl_sys::memory::Memory;
use mcctl_transfer::OpKind;
use mcctl_wire::types::ReplicateConfig;

/// A node's client and its segments.
pub struct NodeStore<E: Env> {
    pub(crate) client: StoreClient<E>,
    pub(crate) segments: Arc<SegmentManager<E>>,
}

impl<E: Env> ObjectStore for NodeStore<E> {
    async fn put(&self, key: ObjectKey, value: Bytes) -> Result<(), StoreRefusal> {
        let began = self.client.inner.env.now();
        let bytes = value.len() as u64;
        let value = Arc::new(Memory::from_vec(value.into()));
        let objects = [(key, ObjectPart::consecutive([value.whole()]))];
        let put = self.client.store(WriteMethod::Put, &objects, &ReplicateConfig::default()).await.and_then(one);
        if put.is_ok() {
            self.count(OpKind::Write, "put", bytes, began);
        }
        put.map(drop).map_err(refusal)
    }

    async fn get(&self, key: ObjectKey, budget: ReadBudget) -> Result<(Bytes, ReadPermit), StoreRefusal> {
        let began = self.client.inner.env.now();
        let read = self.client.get_within(&key, |size| {
            let budget = budget.clone();
            async move { budget.acquire(size).await }
        });
        let (value, permit) = read.await.map_err(refusal)?;
        self.count(OpKind::Read, "get_buffer", value.len() as u64, began);
        Ok((Bytes::from(value), permit))
    }

    async fn exists(&self, key: ObjectKey) -> Result<bool, StoreRefusal> {
        self.client.exists(&key).await.map_err(refusal)
    }

    async fn remove(&self, key: ObjectKey) -> Result<(), StoreRefusal> {
        self.client.remove(&key, false).await.map_err(refusal)
    }

    async fn remove_all(&self) -> Result<u64, StoreRefusal> {
        self.client.remove_all(false).await.map(|count| u64::try_from(count).unwrap_or(0)).map_err(refusal)
    }

    async fn mount(&self, bytes: u64) -> Result<(SegmentId, u64), StoreRefusal> {
        self.segments.mount_more(bytes).await.map(|segment| (segment.id, segment.size))
    }

    async fn unmount(&self, segment: SegmentId, grace: Duration) -> Result<(), StoreRefusal> {
        self.segments.unmount(segment, grace).await
    }

    fn health(&self) -> NodeHealth {
        if self.segments.heartbeat_status().is_healthy() { NodeHealth::Healthy } else { NodeHealth::MasterUnreachable }
    }

    fn metrics(&self) -> NodeMetrics {
        let engine = self.client.engine();
        let moved = engine.counters();
        NodeMetrics {
            served_read_bytes: moved.served.read_bytes,
            served_reads: moved.served.reads,
            served_write_bytes: moved.served.written_bytes,
            served_writes: moved.served.writes,
            served_refusals: moved.rejected,
            client_read_bytes: moved.issued.read_bytes + moved.local.read_bytes,
            client_write_bytes: moved.issued.written_bytes + moved.local.written_bytes,
            segment_bytes: self.segments.bytes(),
            connections: moved.connections_open,
            transport: TransportStats {
                shared_memory_clients: engine.shared_memory_clients(),
                ..TransportStats::new(engine.protocol(), engine.peers(), engine.rails()).with_damage(
                    self.client.inner.shared.damage.nodes(self.client.inner.env.now()),
                    &self.client.inner.own_endpoints,
                )
            },
        }
    }
}

impl<E: Env> NodeStore<E> {
    /// Counts a client operation that started at `began`, under the name of the corresponding
    /// upstream function.
    fn count(&self, kind: OpKind, name: &'static str, bytes: u64, began: Mono) {
        let inner = &self.client.inner;
        if let Some(metrics) = &inner.config.metrics {
            metrics.operation(kind, name, bytes, inner.env.now().since(began));
        }
    }
}

fn refusal(error: StoreError) -> StoreRefusal {
    StoreRefusal { code: error.code(), reason: error.to_string() }
}
