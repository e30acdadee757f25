//! The memory that a node contributes: its first segment, and those that are mounted and unmounted while it runs.
//!
//! One lock covers the list and the calls that change it at the master, so that a heartbeat never mounts again what is being
//! unmounted. Every call under it has a deadline of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as BlockingMutex, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;
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
/// Memory of a segment with a grace period is released this long after the master has dropped the segment.
const RELEASE_AFTER: Duration = Duration::from_secs(2);

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
    heartbeat: BlockingMutex<Option<JoinHandle<()>>>,
}

/// One segment.
struct Lent {
    segment: Segment,
    registration: Registration,
    /// Mounted while the node ran; only these can be unmounted on their own.
    later: bool,
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
            heartbeat: BlockingMutex::default(),
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
        self.mount_memory(memory, false).await
    }

    /// Allocate at least `wanted` bytes and mount them, rounded up to the unit of upstream's allocator.
    ///
    /// # Errors
    /// There is no memory, or the master does not take it; nothing is left then.
    pub async fn mount_more(self: &Arc<Self>, wanted: u64) -> Result<Segment, Refusal> {
        let no_memory = |reason: String| Refusal { code: ErrorCode::INTERNAL_ERROR, reason };
        let bytes = wanted.checked_next_multiple_of(SEGMENT_BYTES_MIN);
        let bytes = bytes.ok_or_else(|| no_memory(format!("{wanted} bytes are more than this machine can address")))?;
        let total = host::memory().map_or(u64::MAX, |figures| figures.total);
        if self.bytes().saturating_add(bytes) > total {
            return Err(no_memory(format!(
                "{} beside the {} that this node contributes already are more than this host's {}",
                ByteSize(bytes),
                ByteSize(self.bytes()),
                ByteSize(total)
            )));
        }
        let source = Arc::clone(self);
        let allocated = tokio::task::spawn_blocking(move || source.source.segment(bytes)).await;
        let memory = allocated.map_err(|error| no_memory(error.to_string()))?;
        let memory = Arc::new(memory.map_err(|error| no_memory(error.to_string()))?);
        self.mount_memory(&memory, true).await.map_err(|error| {
            let code = match &error {
                NodeError::Master(error) => error.code(),
                _ => ErrorCode::INTERNAL_ERROR,
            };
            Refusal { code, reason: error.to_string() }
        })
    }

    async fn mount_memory(self: &Arc<Self>, memory: &Arc<Memory>, later: bool) -> Result<Segment, NodeError> {
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
        let mut segments = self.segments.lock().await;
        let answer = self.client.master().mount_segment(segment.clone(), self.client.id()).await;
        if let Err(error) = answer.map_err(StoreError::from).and_then(|answer| refused("MountSegment", answer)) {
            drop(segments);
            self.release(registration).await;
            return Err(error.into());
        }
        segments.push(Lent { segment: segment.clone(), registration, later });
        self.bytes.fetch_add(segment.size, Ordering::Relaxed);
        drop(segments);
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
        if grace.is_zero() {
            self.release(lent.registration).await;
        } else {
            let lending = Arc::clone(self);
            tokio::spawn(async move {
                lending.client.inner.env.sleep(grace + RELEASE_AFTER).await;
                lending.release(lent.registration).await;
            });
        }
        Ok(())
    }

    /// Take everything back from the master; objects on it are lost. The result is why a call to the master had no answer.
    pub async fn stop(&self) -> Option<String> {
        let mut gone = None;
        let heartbeat = self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(heartbeat) = heartbeat {
            heartbeat.abort();
        }
        let env = &self.client.inner.env;
        for Lent { segment, registration, .. } in std::mem::take(&mut *self.segments.lock().await) {
            let unmount = self.client.master().unmount_segment(segment.id, self.client.id());
            match deadline(env, UNMOUNT, unmount).await {
                Ok(Ok(Ok(()))) => tracing::info!(segment = %segment.name, "segment unmounted"),
                Ok(Ok(Err(code))) => tracing::warn!(%code, "the master refused to unmount the segment"),
                Ok(Err(error)) => gone = Some(error.to_string()),
                Err(late) => gone = Some(late.to_string()),
            }
            self.release(registration).await;
        }
        gone
    }

    async fn release(&self, registration: Registration) {
        if let Err(error) = self.client.engine().deregister(registration).await {
            tracing::debug!(%error, "memory could not be taken out of the segment's record");
        }
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
