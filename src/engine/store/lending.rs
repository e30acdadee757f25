//! The memory that a node contributes: its first segment, and those that are mounted and unmounted while it runs.
//!
//! One lock covers the list and the calls that change it at the master, so that a heartbeat never mounts again what is being
//! unmounted. Every call under it has a deadline of its own. Mounting and unmounting run to their end even when their caller does not
//! wait for it: the list, the engine and the master always agree.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as BlockingMutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

use crate::engine::base::{ByteSize, ErrorCode, SegmentId};
use crate::engine::env::{Env, deadline};
use crate::engine::store::client::refused;
use crate::engine::store::heartbeat::{self, Pulse};
use crate::engine::store::rest::Refusal;
use crate::engine::store::{NodeError, StoreClient, StoreError};
use crate::engine::sys::host;
use crate::engine::sys::memory::Memory;
use crate::engine::sys::pages::{MemorySource, SEGMENT_BYTES_MIN};
use crate::engine::transfer::{Access, Registration, TransferError};
use crate::engine::wire::types::Segment;

/// What taking a segment back may take when the master does not answer.
const UNMOUNT: Duration = Duration::from_secs(2);
/// A segment with a grace period is deregistered this long after the master has dropped it.
const RELEASE_AFTER: Duration = Duration::from_secs(2);
/// The addresses of an unmounted segment are not used again for this long. Peers address memory by numbers alone: one that still holds a
/// descriptor of an object there is refused, where it would else read or write what was mounted at the same addresses since. A
/// descriptor is in use for a read lease (10 s by default) and the longest wait of a transfer (60 s).
const ADDRESSES_KEPT: Duration = Duration::from_secs(90);

/// What a node contributes.
pub(in crate::engine::store) struct Lending<E: Env> {
    client: StoreClient<E>,
    /// The name of all segments.
    name: String,
    source: MemorySource,
    pulse: Pulse,
    segments: Mutex<Vec<Lent>>,
    /// Bytes of all segments.
    bytes: AtomicU64,
    /// Bytes that are allocated: those of all segments, of segments that are about to be mounted, and of unmounted ones until they are
    /// freed.
    allocated: Arc<AtomicU64>,
    heartbeat: BlockingMutex<Option<JoinHandle<()>>>,
    /// Nothing is mounted any more. Set and read with `segments` locked.
    stopped: AtomicBool,
}

/// One segment.
struct Lent {
    segment: Segment,
    registration: Registration,
    /// Mounted while the node ran; only these can be unmounted on their own.
    later: bool,
    memory: Arc<Memory>,
    reserved: Reserved,
}

/// A part of [`Lending::allocated`], until it is dropped.
struct Reserved {
    allocated: Arc<AtomicU64>,
    bytes: u64,
}

impl Reserved {
    /// Add `bytes` to `allocated`, unless that makes more than `total`; the error is how much is allocated.
    fn new(allocated: &Arc<AtomicU64>, bytes: u64, total: u64) -> Result<Reserved, u64> {
        let sum = |before: u64| before.checked_add(bytes).filter(|sum| *sum <= total);
        allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)?;
        Ok(Reserved { allocated: Arc::clone(allocated), bytes })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.allocated.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<E: Env> Lending<E> {
    /// Nothing, yet.
    pub fn new(client: StoreClient<E>, name: String, source: MemorySource) -> Arc<Lending<E>> {
        Arc::new(Lending {
            client,
            name,
            source,
            pulse: Pulse::beating(),
            segments: Mutex::default(),
            bytes: AtomicU64::new(0),
            allocated: Arc::default(),
            heartbeat: BlockingMutex::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// Whether heartbeats are answered. A node that contributes nothing has none, and is taken for healthy.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Mount the node's first segment.
    ///
    /// # Errors
    /// The memory cannot be registered, or the master does not take it; nothing is left then.
    pub async fn mount_first(self: &Arc<Self>, memory: &Arc<Memory>) -> Result<Segment, NodeError> {
        // Its memory is allocated already.
        let bytes = memory.len() as u64;
        let reserved = Reserved::new(&self.allocated, bytes, u64::MAX).map_err(|_| NodeError::Stopped)?;
        self.mount_memory(memory, reserved, false).await
    }

    /// Allocate at least `wanted` bytes and mount them, rounded up to the unit of upstream's allocator. A segment whose caller has
    /// stopped waiting is unmounted again, because its id is lost.
    ///
    /// # Errors
    /// There is no memory, or the master does not take it; nothing is left then.
    pub async fn mount_more(self: &Arc<Self>, wanted: u64) -> Result<Segment, Refusal> {
        let (lending, (answer, mounted)) = (Arc::clone(self), oneshot::channel());
        tokio::spawn(async move {
            if let Err(Ok(segment)) = answer.send(lending.allocate_and_mount(wanted).await) {
                tracing::warn!(segment = %segment.id, "mounted memory is unmounted again: its caller did not wait");
                if let Err(error) = lending.unmount_now(segment.id, Duration::ZERO).await {
                    tracing::warn!(segment = %segment.id, error = %error.reason, "mounted memory could not be unmounted");
                }
            }
        });
        mounted.await.unwrap_or_else(|_| Err(interrupted("mount")))
    }

    async fn allocate_and_mount(self: &Arc<Self>, wanted: u64) -> Result<Segment, Refusal> {
        let no_memory = |reason: String| Refusal { code: ErrorCode::INTERNAL_ERROR, reason };
        let bytes = wanted.checked_next_multiple_of(SEGMENT_BYTES_MIN);
        let bytes = bytes.ok_or_else(|| no_memory(format!("{wanted} bytes are more than this machine can address")))?;
        let total = host::memory().map_or(u64::MAX, |figures| figures.total);
        let reserved = Reserved::new(&self.allocated, bytes, total).map_err(|allocated| {
            no_memory(format!(
                "{} beside the {} that this node has allocated already are more than this host's {}",
                ByteSize(bytes),
                ByteSize(allocated),
                ByteSize(total)
            ))
        })?;
        let source = Arc::clone(self);
        let allocated = tokio::task::spawn_blocking(move || source.source.segment(bytes)).await;
        let memory = allocated.map_err(|error| no_memory(error.to_string()))?;
        let memory = Arc::new(memory.map_err(|error| no_memory(error.to_string()))?);
        self.mount_memory(&memory, reserved, true).await.map_err(|error| {
            let code = match &error {
                NodeError::Master(error) => error.code(),
                _ => ErrorCode::INTERNAL_ERROR,
            };
            Refusal { code, reason: error.to_string() }
        })
    }

    async fn mount_memory(
        self: &Arc<Self>,
        memory: &Arc<Memory>,
        reserved: Reserved,
        later: bool,
    ) -> Result<Segment, NodeError> {
        let (engine, env) = (self.client.engine(), &self.client.inner.env);
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
        let lent = Lent { segment: segment.clone(), registration, later, memory: Arc::clone(memory), reserved };
        let mut segments = self.segments.lock().await;
        if self.stopped.load(Ordering::Relaxed) {
            self.release(lent).await;
            return Err(NodeError::Stopped);
        }
        let answer = self.client.master().mount_segment(segment.clone(), self.client.id()).await;
        if answer.is_err() {
            // The master may have mounted it all the same, and would keep it as long as this node sends heartbeats.
            if let Err(error) = self.unmount_within(segment.id).await {
                tracing::warn!(segment = %segment.id, error, "the master may have mounted a segment that is now released");
            }
        }
        if let Err(error) = answer.map_err(StoreError::from).and_then(|answer| refused("MountSegment", answer)) {
            drop(segments);
            self.release(lent).await;
            return Err(error.into());
        }
        segments.push(lent);
        self.bytes.fetch_add(segment.size, Ordering::Relaxed);
        let mut heartbeat = self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner);
        if heartbeat.is_none() {
            *heartbeat = Some(tokio::spawn(heartbeat::run(Arc::clone(self))));
        }
        Ok(segment)
    }

    /// Unmount a segment that [`mount_more`](Lending::mount_more) mounted, and release its memory; readers keep it for `grace`.
    ///
    /// # Errors
    /// There is no such segment, or the master does not answer; the segment stays then.
    pub async fn unmount(self: &Arc<Self>, id: SegmentId, grace: Duration) -> Result<(), Refusal> {
        let lending = Arc::clone(self);
        let unmounted = tokio::spawn(async move { lending.unmount_now(id, grace).await }).await;
        unmounted.unwrap_or_else(|_| Err(interrupted("unmount")))
    }

    async fn unmount_now(self: &Arc<Self>, id: SegmentId, grace: Duration) -> Result<(), Refusal> {
        let mut segments = self.segments.lock().await;
        let Some(at) = segments.iter().position(|lent| lent.later && lent.segment.id == id) else {
            return Err(Refusal {
                code: ErrorCode::INTERNAL_ERROR,
                reason: format!("this node has mounted no segment {id} while it ran"),
            });
        };
        let (master, client) = (self.client.master(), self.client.id());
        let answer = if grace.is_zero() {
            master.unmount_segment(id, client).await
        } else {
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            master.graceful_unmount_segment(id, client, grace_ms).await
        };
        answer
            .map_err(StoreError::from)
            .and_then(|answer| refused("UnmountSegment", answer))
            .map_err(|error| Refusal { code: error.code(), reason: error.to_string() })?;
        let lent = segments.remove(at);
        self.bytes.fetch_sub(lent.segment.size, Ordering::Relaxed);
        drop(segments);
        let lending = Arc::clone(self);
        if grace.is_zero() {
            let kept = self.deregister(lent).await;
            tokio::spawn(async move { lending.keep_addresses(kept).await });
        } else {
            tokio::spawn(async move {
                lending.client.inner.env.sleep(grace + RELEASE_AFTER).await;
                let kept = lending.deregister(lent).await;
                lending.keep_addresses(kept).await;
            });
        }
        Ok(())
    }

    /// Take everything back from the master; objects on it are lost. The result is why a call to the master had no answer.
    pub async fn stop(&self) -> Option<String> {
        // A heartbeat that mounts everything again holds the lock.
        self.end_heartbeat();
        let mut segments = self.segments.lock().await;
        self.stopped.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut *segments);
        drop(segments);
        // A mount may have started it again before.
        self.end_heartbeat();
        let mut gone = None;
        for lent in all {
            match self.unmount_within(lent.segment.id).await {
                Ok(Ok(())) => tracing::info!(segment = %lent.segment.name, "segment unmounted"),
                Ok(Err(code)) => tracing::warn!(%code, "the master refused to unmount the segment"),
                Err(why) => gone = Some(why),
            }
            self.release(lent).await;
        }
        gone
    }

    fn end_heartbeat(&self) {
        let heartbeat = self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(heartbeat) = heartbeat {
            heartbeat.abort();
        }
    }

    /// Have the master unmount `segment`; the outer error is why it did not answer within [`UNMOUNT`].
    async fn unmount_within(&self, segment: SegmentId) -> Result<Result<(), ErrorCode>, String> {
        let unmount = self.client.master().unmount_segment(segment, self.client.id());
        match deadline(&self.client.inner.env, UNMOUNT, unmount).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(late) => Err(late.to_string()),
        }
    }

    /// Deregister a segment's memory and free it.
    async fn release(&self, lent: Lent) {
        drop(self.deregister(lent).await);
    }

    /// Deregister a segment's memory, so that peers are refused; it is freed when what is returned is dropped.
    async fn deregister(&self, lent: Lent) -> (Arc<Memory>, Reserved) {
        if let Err(error) = self.client.engine().deregister(lent.registration).await {
            tracing::debug!(%error, "memory could not be taken out of the segment's record");
        }
        (lent.memory, lent.reserved)
    }

    /// Free deregistered memory after [`ADDRESSES_KEPT`].
    async fn keep_addresses(&self, kept: (Arc<Memory>, Reserved)) {
        self.client.inner.env.sleep(ADDRESSES_KEPT).await;
        drop(kept);
    }

    /// The client whose id the segments are mounted under.
    pub fn client(&self) -> &StoreClient<E> {
        &self.client
    }

    /// Mount all segments again, at a master that does not know this client.
    ///
    /// # Errors
    /// The master does not answer, or another engine has this node's name.
    pub async fn remount(&self) -> Result<(), StoreError> {
        let segments = self.segments.lock().await;
        // The master that forgot us may be a new one with a new metadata service.
        match self.client.engine().republish().await {
            Ok(()) => {}
            // Peers would be sent to the other one for our objects.
            Err(error @ TransferError::NameTaken { .. }) => return Err(StoreError::Name(error)),
            Err(error) => tracing::warn!(%error, "the segment's record could not be published again"),
        }
        let all = segments.iter().map(|lent| lent.segment.clone()).collect();
        refused("ReMountSegment", self.client.master().remount_segment(all, self.client.id()).await?)
    }
}

fn interrupted(what: &str) -> Refusal {
    Refusal { code: ErrorCode::INTERNAL_ERROR, reason: format!("the {what} was interrupted") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_until_it_is_freed_and_never_exceeds_the_host() {
        let allocated = Arc::default();
        let first = Reserved::new(&allocated, 6, 10).map_err(drop);
        assert_eq!(Reserved::new(&allocated, 5, 10).err(), Some(6));
        assert_eq!(Reserved::new(&allocated, u64::MAX, u64::MAX).err(), Some(6));
        drop(first);
        assert!(Reserved::new(&allocated, 10, 10).is_ok());
        assert_eq!(allocated.load(Ordering::Relaxed), 0);
    }
}
