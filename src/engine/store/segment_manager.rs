//! A node's memory segments: the first segment, and the segments that are mounted and unmounted at
//! runtime.
//!
//! A single lock covers the list and the calls that change it on the master, so that a heartbeat
//! never remounts a segment that is being unmounted. Every call made under the lock has a deadline.
//! Mounts and unmounts always complete, even if their caller stops waiting, so the list, the engine
//! and the master always agree.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as BlockingMutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

use crate::client::refused;
use crate::heartbeat_status::HeartbeatStatus;
use crate::object_store::StoreRefusal;
use crate::registration::MasterRegistration;
use crate::{StoreClient, StoreError, StoreStartError};
use mcctl_base::{ByteSize, ErrorCode, SegmentId};
use mcctl_net::rpc::CallError;
use mcctl_sys::env::{Elapsed, Env, deadline};
use mcctl_sys::host;
use mcctl_sys::memory::Memory;
use mcctl_sys::pages::{MemorySource, SEGMENT_BYTES_MIN};
use mcctl_transfer::{Access, Registration, TransferError};
use mcctl_wire::types::Segment;

/// Timeout for an unmount call.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(2);
/// A segment with a grace period is deregistered this long after the master has dropped it.
const RELEASE_AFTER: Duration = Duration::from_secs(2);
/// The addresses of an unmounted segment are not reused for this long. Peers access memory by its
/// address alone. During this time, a peer that still has the descriptor of an object in that
/// segment gets an error. If the addresses were reused, the peer would read or write whatever is
/// mounted there now. A descriptor is used for at most a read lease (10 s by default) plus the
/// longest transfer (60 s).
const ADDRESS_QUARANTINE: Duration = Duration::from_secs(90);

/// Timeout for transfers in progress to end after their connections have been closed. They usually
/// end within a millisecond.
const TRANSFERS_END_LIMIT: Duration = Duration::from_secs(2);
/// Time in which a peer whose connection was closed repeats its transfer over another one.
const RECONNECT_TIME: Duration = Duration::from_millis(100);
/// Connections that are opened this soon after the others have been closed may be closed, too. See
/// `TcpTarget::end_inbound`.
const KERNEL_TICKS: Duration = Duration::from_millis(25);

/// Mounts, remounts and unmounts the segments of a node.
pub(crate) struct SegmentManager<E: Env> {
    client: StoreClient<E>,
    /// The name shared by all segments.
    name: String,
    source: MemorySource,
    heartbeat_status: HeartbeatStatus,
    segments: Mutex<SegmentList>,
    /// Total size of all segments in bytes.
    bytes: AtomicU64,
    /// Allocated bytes: mounted segments, segments about to be mounted, and unmounted segments that
    /// have not been freed.
    allocated: Arc<AtomicU64>,
    /// Starts the task that sends heartbeats.
    start_heartbeat: fn(Arc<SegmentManager<E>>) -> JoinHandle<()>,
    heartbeat: BlockingMutex<Option<JoinHandle<()>>>,
    /// Set once no more segments may be mounted. Read and written with `segments` locked.
    stopped: AtomicBool,
}

/// The mounted segments, and their registration at the master.
#[derive(Default)]
struct SegmentList {
    all: Vec<ManagedSegment>,
    registration: MasterRegistration,
}

/// A mounted segment and its resources.
struct ManagedSegment {
    segment: Segment,
    registration: Registration,
    /// Whether the segment was mounted at runtime. Only such segments can be unmounted
    /// individually.
    at_run_time: bool,
    memory: Arc<Memory>,
    reservation: Reservation,
}

/// A share of [`SegmentManager::allocated`], released on drop.
struct Reservation {
    allocated: Arc<AtomicU64>,
    bytes: u64,
}

impl Reservation {
    /// Adds `bytes` to `allocated` if the sum does not exceed `total`. On error, returns the amount
    /// that is already allocated.
    fn new(allocated: &Arc<AtomicU64>, bytes: u64, total: u64) -> Result<Reservation, u64> {
        let sum = |before: u64| before.checked_add(bytes).filter(|sum| *sum <= total);
        allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)?;
        Ok(Reservation { allocated: Arc::clone(allocated), bytes })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.allocated.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<E: Env> SegmentManager<E> {
    /// Creates a manager without segments. It calls `start_heartbeat` when it mounts the first one.
    pub(crate) fn new(
        client: StoreClient<E>,
        name: String,
        source: MemorySource,
        start_heartbeat: fn(Arc<SegmentManager<E>>) -> JoinHandle<()>,
    ) -> Arc<SegmentManager<E>> {
        Arc::new(SegmentManager {
            client,
            name,
            source,
            heartbeat_status: HeartbeatStatus::healthy(),
            segments: Mutex::default(),
            bytes: AtomicU64::new(0),
            allocated: Arc::default(),
            start_heartbeat,
            heartbeat: BlockingMutex::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Returns whether the master is responding to heartbeats. A node without segments sends none
    /// and counts as healthy.
    pub(crate) fn heartbeat_status(&self) -> &HeartbeatStatus {
        &self.heartbeat_status
    }

    /// Returns the total size of all segments in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Mounts the node's first segment.
    ///
    /// # Errors
    /// The memory cannot be registered, or the master rejects the segment. Nothing remains mounted.
    pub(crate) async fn mount_first(self: &Arc<Self>, memory: &Arc<Memory>) -> Result<Segment, StoreStartError> {
        // Its memory is already allocated.
        let bytes = memory.len() as u64;
        let reservation = Reservation::new(&self.allocated, bytes, u64::MAX).map_err(|_| StoreStartError::Stopped)?;
        self.mount_memory(memory, reservation, false).await
    }

    /// Allocates at least `requested` bytes, rounded up to the unit of upstream's allocator, and
    /// mounts them. If the caller stops waiting, the segment is unmounted again, because its ID
    /// would be lost.
    ///
    /// # Errors
    /// No memory is available, or the master rejects the segment. Nothing remains mounted.
    pub(crate) async fn mount_more(self: &Arc<Self>, requested: u64) -> Result<Segment, StoreRefusal> {
        let (manager, (answer, mounted)) = (Arc::clone(self), oneshot::channel());
        tokio::spawn(async move {
            if let Err(Ok(segment)) = answer.send(manager.allocate_and_mount(requested).await) {
                tracing::warn!(segment = %segment.id, "segment unmounted again because the caller stopped waiting");
                if let Err(error) = manager.unmount_now(segment.id, Duration::ZERO).await {
                    tracing::warn!(segment = %segment.id, error = %error.reason, "cannot unmount the segment");
                }
            }
        });
        mounted.await.unwrap_or_else(|_| Err(interrupted("mount")))
    }

    async fn allocate_and_mount(self: &Arc<Self>, requested: u64) -> Result<Segment, StoreRefusal> {
        let no_memory = |reason: String| StoreRefusal { code: ErrorCode::INTERNAL_ERROR, reason };
        let bytes = requested.checked_next_multiple_of(SEGMENT_BYTES_MIN);
        let bytes = bytes.ok_or_else(|| no_memory(format!("{requested} bytes exceed this machine's address space")))?;
        let total = host::memory().map_or(u64::MAX, |figures| figures.total);
        let reservation = Reservation::new(&self.allocated, bytes, total).map_err(|allocated| {
            no_memory(format!(
                "cannot allocate {} in addition to the {} that this node has already allocated: the host has only {}",
                ByteSize(bytes),
                ByteSize(allocated),
                ByteSize(total)
            ))
        })?;
        let source = Arc::clone(self);
        let allocated = tokio::task::spawn_blocking(move || source.source.segment(bytes)).await;
        let memory = allocated.map_err(|error| no_memory(error.to_string()))?;
        let memory = Arc::new(memory.map_err(|error| no_memory(error.to_string()))?);
        self.mount_memory(&memory, reservation, true).await.map_err(|error| {
            let code = match &error {
                StoreStartError::Master(error) => error.code(),
                _ => ErrorCode::INTERNAL_ERROR,
            };
            StoreRefusal { code, reason: error.to_string() }
        })
    }

    async fn mount_memory(
        self: &Arc<Self>,
        memory: &Arc<Memory>,
        reservation: Reservation,
        at_run_time: bool,
    ) -> Result<Segment, StoreStartError> {
        let engine = self.client.engine();
        let env = &self.client.inner.env;
        let registration = engine.register(memory, Access::Remote).await?;
        let segment = Segment {
            id: SegmentId(env.rng(), env.rng()),
            name: self.name.as_str().into(),
            base: memory.address(),
            size: memory.len() as u64,
            te_endpoint: engine.endpoint().into(),
            protocol: engine.protocol().into(),
            host_id: self.client.inner.config.host_id.as_str().into(),
        };
        let managed = ManagedSegment {
            segment: segment.clone(),
            registration,
            at_run_time,
            memory: Arc::clone(memory),
            reservation,
        };
        let mut segments = self.segments.lock().await;
        if self.stopped.load(Ordering::Relaxed) {
            self.release(managed).await;
            return Err(StoreStartError::Stopped);
        }
        let losses = self.client.master().0.losses();
        let answer = self.client.master().mount_segment(segment.clone(), self.client.id()).await;
        if answer.is_err() {
            // The master may have mounted the segment anyway, and would keep it as long as this
            // node sends heartbeats.
            if let Err(error) = self.unmount_at_master(segment.id).await {
                tracing::warn!(segment = %segment.id, %error, "the master may have mounted a segment that this node has released");
            }
        }
        if let Err(error) = answer.map_err(StoreError::from).and_then(|answer| refused("MountSegment", answer)) {
            drop(segments);
            self.release(managed).await;
            return Err(error.into());
        }
        segments.all.push(managed);
        segments.registration.mounted(losses);
        self.bytes.fetch_add(segment.size, Ordering::Relaxed);
        let mut heartbeat = self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner);
        if heartbeat.is_none() {
            *heartbeat = Some((self.start_heartbeat)(Arc::clone(self)));
        }
        Ok(segment)
    }

    /// Unmounts a segment that was mounted by [`mount_more`](SegmentManager::mount_more), and frees
    /// its memory after `grace`. Until then, the memory remains readable.
    ///
    /// # Errors
    /// The segment is unknown, or the master does not respond. The segment remains mounted.
    pub(crate) async fn unmount(self: &Arc<Self>, id: SegmentId, grace: Duration) -> Result<(), StoreRefusal> {
        let manager = Arc::clone(self);
        let unmounted = tokio::spawn(async move { manager.unmount_now(id, grace).await }).await;
        unmounted.unwrap_or_else(|_| Err(interrupted("unmount")))
    }

    async fn unmount_now(self: &Arc<Self>, id: SegmentId, grace: Duration) -> Result<(), StoreRefusal> {
        let mut segments = self.segments.lock().await;
        let Some(at) = segments.all.iter().position(|managed| managed.at_run_time && managed.segment.id == id) else {
            return Err(StoreRefusal {
                code: ErrorCode::INTERNAL_ERROR,
                reason: format!("segment {id} was not mounted at runtime by this node"),
            });
        };
        let master = self.client.master();
        let client = self.client.id();
        let answer = if grace.is_zero() {
            master.unmount_segment(id, client).await
        } else {
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            master.graceful_unmount_segment(id, client, grace_ms).await
        };
        answer
            .map_err(StoreError::from)
            .and_then(|answer| refused("UnmountSegment", answer))
            .map_err(|error| StoreRefusal { code: error.code(), reason: error.to_string() })?;
        let managed = segments.all.remove(at);
        self.bytes.fetch_sub(managed.segment.size, Ordering::Relaxed);
        drop(segments);
        let manager = Arc::clone(self);
        if grace.is_zero() {
            let kept = self.deregister(managed).await;
            tokio::spawn(async move { manager.quarantine(kept).await });
        } else {
            tokio::spawn(async move {
                manager.client.inner.env.sleep(grace.saturating_add(RELEASE_AFTER)).await;
                let kept = manager.deregister(managed).await;
                manager.quarantine(kept).await;
            });
        }
        Ok(())
    }

    /// Unmounts all segments. Their objects are lost. Returns an error if the master did not
    /// respond.
    pub(crate) async fn stop(&self) -> Option<UnmountError> {
        // A heartbeat that is remounting segments holds the lock.
        self.end_heartbeat();
        let mut segments = self.segments.lock().await;
        self.stopped.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut segments.all);
        drop(segments);
        // A mount may have restarted the heartbeat before it saw `stopped`.
        self.end_heartbeat();
        let mut unanswered = None;
        for managed in all {
            match self.unmount_at_master(managed.segment.id).await {
                Ok(Ok(())) => tracing::info!(segment = %managed.segment.name, "segment unmounted"),
                Ok(Err(code)) => tracing::warn!(%code, "the master failed to unmount the segment"),
                Err(error) => unanswered = Some(error),
            }
            self.release(managed).await;
        }
        unanswered
    }

    fn end_heartbeat(&self) {
        let heartbeat = self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(heartbeat) = heartbeat {
            heartbeat.abort();
        }
    }

    /// Asks the master to unmount `segment`. The inner result is the master's response.
    async fn unmount_at_master(&self, segment: SegmentId) -> Result<Result<(), ErrorCode>, UnmountError> {
        let unmount = self.client.master().unmount_segment(segment, self.client.id());
        Ok(deadline(&self.client.inner.env, UNMOUNT_TIMEOUT, unmount).await??)
    }

    /// Deregisters a segment's memory and frees it.
    async fn release(&self, managed: ManagedSegment) {
        drop(self.deregister(managed).await);
    }

    /// Deregisters a segment's memory, so that requests from peers are rejected. The memory is
    /// freed when the returned value is dropped.
    async fn deregister(&self, managed: ManagedSegment) -> (Arc<Memory>, Reservation) {
        if let Err(error) = self.client.engine().deregister(managed.registration).await {
            tracing::debug!(%error, "cannot remove the memory from the segment's metadata record");
        }
        (managed.memory, managed.reservation)
    }

    /// Frees deregistered memory after [`ADDRESS_QUARANTINE`].
    async fn quarantine(&self, kept: (Arc<Memory>, Reservation)) {
        self.client.inner.env.sleep(ADDRESS_QUARANTINE).await;
        drop(kept);
    }

    /// Returns the client that owns the mounted segments.
    pub(crate) fn client(&self) -> &StoreClient<E> {
        &self.client
    }

    /// Remounts all segments on a master that has no record of this client.
    ///
    /// Unless this is the registration that follows the first mount, the memory may contain objects
    /// of which the master no longer has records, and will contain new ones. Transfers in progress
    /// belong to the former, and are ended first.
    ///
    /// # Errors
    /// The master does not respond, another engine uses this node's name, or transfers have not
    /// ended.
    pub(crate) async fn remount(&self) -> Result<(), StoreError> {
        let mut segments = self.segments.lock().await;
        // A master that lost its state may be a new instance with a new metadata service.
        match self.client.engine().republish().await {
            Ok(()) => {}
            // Peers would look for this node's objects in the other engine.
            Err(error @ TransferError::NameTaken { .. }) => return Err(StoreError::Name(error)),
            Err(error) => tracing::warn!(%error, "cannot republish the segment's metadata record"),
        }
        // This is the last step before the call, because it does not affect connections that peers
        // open afterward.
        if !segments.registration.register(self.client.master().0.losses()) {
            self.end_transfers().await.map_err(StoreError::StillInUse)?;
        }
        let all = segments.all.iter().map(|managed| managed.segment.clone()).collect();
        refused("ReMountSegment", self.client.master().remount_segment(all, self.client.id()).await?)
    }

    /// Ends all transfers to and from this node's memory. A peer whose connection is closed may
    /// open another one at once and repeat its transfer, so the connections are closed twice.
    async fn end_transfers(&self) -> Result<(), TransferError> {
        let engine = self.client.engine();
        let env = &self.client.inner.env;
        let mut connections = engine.end_inbound(TRANSFERS_END_LIMIT).await?;
        env.sleep(RECONNECT_TIME).await;
        connections += engine.end_inbound(TRANSFERS_END_LIMIT).await?;
        env.sleep(KERNEL_TICKS).await;
        tracing::info!(connections, "closed the data connections of peers before mounting the memory again");
        Ok(())
    }
}

/// Why the master did not respond to an unmount call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnmountError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Timeout(#[from] Elapsed),
}

fn interrupted(what: &str) -> StoreRefusal {
    StoreRefusal { code: ErrorCode::INTERNAL_ERROR, reason: format!("the {what} was interrupted") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_until_it_is_freed_and_never_exceeds_the_host() {
        let allocated = Arc::default();
        let first = Reservation::new(&allocated, 6, 10).map_err(drop);
        assert_eq!(Reservation::new(&allocated, 5, 10).err(), Some(6));
        assert_eq!(Reservation::new(&allocated, u64::MAX, u64::MAX).err(), Some(6));
        drop(first);
        assert!(Reservation::new(&allocated, 10, 10).is_ok());
        assert_eq!(allocated.load(Ordering::Relaxed), 0);
    }
}
