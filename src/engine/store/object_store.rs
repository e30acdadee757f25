//! The operations behind the REST API, the memory budget for reads, and the node's health and
//! metrics.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport_stats::TransportStats;
use mcctl_base::{ErrorCode, ObjectKey, SegmentId};

/// Maximum total size of the objects that are being read or sent in response to `GET /api/get`. An
/// object counts until its client has received it. Further reads wait. An object larger than this
/// is read alone.
pub const READING_BYTES_MAX: usize = 256 << 20;
/// Granularity of the read budget in bytes.
const BUDGET_UNIT: usize = 64 << 10;

/// The operations behind the REST API. Implemented by the node, and by a fake in tests.
pub trait ObjectStore: Send + Sync + 'static {
    /// Stores `value` under `key`. If an object already exists, it is left unchanged and no error
    /// is returned.
    fn put(&self, key: ObjectKey, value: Bytes) -> impl Future<Output = Result<(), StoreRefusal>> + Send;

    /// Returns the object's bytes, which are read once `budget` has granted memory for them.
    fn get(
        &self,
        key: ObjectKey,
        budget: ReadBudget,
    ) -> impl Future<Output = Result<(Bytes, ReadPermit), StoreRefusal>> + Send;

    /// Returns true if a readable object exists.
    fn exists(&self, key: ObjectKey) -> impl Future<Output = Result<bool, StoreRefusal>> + Send;

    /// Removes a single object by key.
    fn remove(&self, key: ObjectKey) -> impl Future<Output = Result<(), StoreRefusal>> + Send;

    /// Removes every removable object. Returns the number of removed objects.
    fn remove_all(&self) -> impl Future<Output = Result<u64, StoreRefusal>> + Send;

    /// Mounts at least `bytes` bytes of additional memory. Returns the new segment and its size in
    /// bytes.
    fn mount(&self, bytes: u64) -> impl Future<Output = Result<(SegmentId, u64), StoreRefusal>> + Send;

    /// Unmounts a segment that was created by [`mount`](ObjectStore::mount). Its objects remain
    /// readable for `grace`.
    fn unmount(&self, segment: SegmentId, grace: Duration) -> impl Future<Output = Result<(), StoreRefusal>> + Send;

    /// Returns the node's health, without contacting another process.
    fn health(&self) -> NodeHealth;

    /// Returns the node's current metrics.
    fn metrics(&self) -> NodeMetrics;

    /// Returns additional families for `/metrics`, in the Prometheus text format.
    fn extra_metrics(&self) -> String {
        String::new()
    }
}

/// Memory budget for objects that are being read. An object counts against the budget from just
/// before it is read until its last byte has been sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReadBudget(Arc<Semaphore>);

/// A share of a [`ReadBudget`], released on drop.
#[derive(Debug)]
pub struct ReadPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl ReadBudget {
    /// Creates a budget of `bytes` bytes.
    pub fn new(bytes: usize) -> ReadBudget {
        ReadBudget(Arc::new(Semaphore::new(bytes.div_ceil(BUDGET_UNIT))))
    }

    /// Waits until `bytes` bytes are granted. An object larger than the budget is granted the
    /// entire budget.
    pub async fn acquire(&self, bytes: u64) -> ReadPermit {
        let units = bytes.div_ceil(BUDGET_UNIT as u64).clamp(1, (READING_BYTES_MAX / BUDGET_UNIT) as u64);
        let permit = self.0.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await;
        // The semaphore is never closed.
        ReadPermit { _permit: permit.ok() }
    }
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRefusal {
    pub code: ErrorCode,
    pub reason: String,
}

/// The state that `/health` reports for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// The node's memory is mounted, and the master responded to the last heartbeat.
    Healthy,
    /// The node's memory is not mounted yet.
    NotInitialized,
    /// The master did not respond to the last heartbeat.
    MasterUnreachable,
}

/// A node's transfer and memory metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetrics {
    /// Bytes that peers read from this node's memory.
    pub served_read_bytes: u64,
    pub served_reads: u64,
    /// Bytes that peers wrote to this node's memory.
    pub served_write_bytes: u64,
    pub served_writes: u64,
    /// Requests from peers that were rejected (unregistered memory, invalid frames).
    pub served_refusals: u64,
    /// Bytes read by this node's own client.
    pub client_read_bytes: u64,
    /// Bytes written by this node's own client.
    pub client_write_bytes: u64,
    /// Total size of the mounted segments in bytes.
    pub segment_bytes: u64,
    /// Open connections from peers.
    pub connections: u64,
    /// Transport statistics by peer and device.
    pub transport: TransportStats,
}
