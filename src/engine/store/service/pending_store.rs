//! The store behind the REST port while the node is still starting.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;

use crate::NodeStore;
use crate::object_store::{NodeHealth, NodeMetrics, ObjectStore, ReadBudget, ReadPermit, StoreRefusal};
use mcctl_base::{ErrorCode, ObjectKey, SegmentId};
use mcctl_sys::env::{Env, address_filter};
use mcctl_sys::process_metrics;

/// The store of a node that is still starting. REST requests are rejected until the store is set.
pub(super) struct PendingStore<E: Env>(OnceLock<NodeStore<E>>);

impl<E: Env> Default for PendingStore<E> {
    fn default() -> PendingStore<E> {
        PendingStore(OnceLock::new())
    }
}

impl<E: Env> PendingStore<E> {
    /// Sets the store of the node, which has started. Call this once.
    pub(super) fn set(&self, store: NodeStore<E>) {
        let is_first = self.0.set(store).is_ok();
        debug_assert!(is_first, "a node starts once");
    }

    fn ready(&self) -> Result<&NodeStore<E>, StoreRefusal> {
        self.0.get().ok_or_else(|| StoreRefusal {
            code: ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS,
            reason: "the node is still starting".to_owned(),
        })
    }
}

impl<E: Env> ObjectStore for PendingStore<E> {
    async fn put(&self, key: ObjectKey, value: Bytes) -> Result<(), StoreRefusal> {
        self.ready()?.put(key, value).await
    }

    async fn get(&self, key: ObjectKey, budget: ReadBudget) -> Result<(Bytes, ReadPermit), StoreRefusal> {
        self.ready()?.get(key, budget).await
    }

    async fn exists(&self, key: ObjectKey) -> Result<bool, StoreRefusal> {
        self.ready()?.exists(key).await
    }

    async fn remove(&self, key: ObjectKey) -> Result<(), StoreRefusal> {
        self.ready()?.remove(key).await
    }

    async fn remove_all(&self) -> Result<u64, StoreRefusal> {
        self.ready()?.remove_all().await
    }

    async fn mount(&self, bytes: u64) -> Result<(SegmentId, u64), StoreRefusal> {
        self.ready()?.mount(bytes).await
    }

    async fn unmount(&self, segment: SegmentId, grace: Duration) -> Result<(), StoreRefusal> {
        self.ready()?.unmount(segment, grace).await
    }

    fn health(&self) -> NodeHealth {
        self.0.get().map_or(NodeHealth::NotInitialized, ObjectStore::health)
    }

    fn metrics(&self) -> NodeMetrics {
        self.0.get().map_or_else(NodeMetrics::default, ObjectStore::metrics)
    }

    fn extra_metrics(&self) -> String {
        process_metrics::exposition() + &address_filter::exposition()
    }
}
