//! The transfer engine: this process's segment, and access to other processes' segments.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::TransferError;
use crate::counters::{EngineCounters, PeerCounters, RailCounters};
use crate::directory::ANSWER_LIMIT;
use crate::local::LocalPeer;
use crate::notifications::Notifications;
use crate::path_probe::PathProbes;
use crate::region::Regions;
use crate::remote::{PendingTransfer, RemoteContext, RemoteSegment};
use crate::remote_table::{REMOTES_MAX, RemoteTable, TableFull};
use crate::shared_memory::SharedMemoryHost;
use crate::transport::TransportDevices;
use crate::types::{Access, BatchRules, Deadline, Op};
use mcctl_base::{HostPort, Mono};
use mcctl_sys::Memory;
use mcctl_wire::json::{NotifyMessage, SegmentDescriptor};

/// Timeout for opening a segment.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Exposes this process's memory to peers, and reads and writes peers' memory. Cheap to clone.
/// Dropping the last clone closes the engine, but only [`shutdown`](TransferEngine::shutdown)
/// removes its records from a metadata service.
#[derive(Clone)]
pub struct TransferEngine {
    inner: Arc<EngineInner>,
}

struct EngineInner {
    names: EngineNames,
    regions: Arc<RwLock<Regions>>,
    /// Serializes registrations to keep the transport and `regions` consistent. Threads that only
    /// read `regions` do not take this lock.
    registering: Mutex<()>,
    shared: Arc<SharedMemoryHost>,
    context: Arc<RemoteContext>,
    remotes: RwLock<RemoteTable<RemoteSegment>>,
    notifications: Arc<Notifications>,
    daemon: Mutex<Option<JoinHandle<()>>>,
}

/// The names by which others know an engine.
pub(super) struct EngineNames {
    /// The name of our segment, which peers use to open it.
    pub(super) segment: String,
    /// The name by which a master identifies our segment (`te_endpoint`).
    pub(super) endpoint: String,
    /// The announced address of the handshake port.
    pub(super) handshake: HostPort,
}

/// A range of memory that peers may access.
#[derive(Debug, PartialEq, Eq)]
pub struct Registration {
    address: u64,
    length: u64,
}

impl Registration {
    /// Returns the start address, as used by peers.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl TransferEngine {
    /// Creates an engine whose handshake port is served by `daemon`.
    pub(super) fn new(
        names: EngineNames,
        regions: Arc<RwLock<Regions>>,
        shared: Arc<SharedMemoryHost>,
        context: RemoteContext,
        notifications: Arc<Notifications>,
        daemon: JoinHandle<()>,
    ) -> TransferEngine {
        let remotes = RwLock::new(RemoteTable::new((context.clock)()));
        TransferEngine {
            inner: Arc::new(EngineInner {
                names,
                regions,
                registering: Mutex::default(),
                shared,
                context: Arc::new(context),
                remotes,
                notifications,
                daemon: Mutex::new(Some(daemon)),
            }),
        }
    }

    /// Returns our segment's name, which peers use to open it.
    pub fn segment_name(&self) -> &str {
        &self.inner.names.segment
    }

    /// Returns the address by which a master identifies our segment (`te_endpoint`). With
    /// `P2PHANDSHAKE` it is the `host:port` of the handshake port (IPv6 without brackets, like
    /// upstream). Otherwise it is the segment's name.
    pub fn endpoint(&self) -> &str {
        &self.inner.names.endpoint
    }

    /// Returns the announced address of the handshake port.
    pub fn handshake(&self) -> &HostPort {
        &self.inner.names.handshake
    }

    /// Returns upstream's name for the transport in use, such as `tcp`. It differs from the
    /// configured one if [`TransportOptions::allow_tcp_fallback`](crate::TransportOptions) caused a
    /// fallback.
    pub fn protocol(&self) -> &'static str {
        self.inner.context.transport.protocol()
    }

    /// Returns the TCP data plane's port, or 0 with another transport.
    pub fn data_port(&self) -> u16 {
        self.inner.data_port()
    }

    /// Whether `segment` names this engine's own segment.
    pub fn is_own(&self, segment: &str) -> bool {
        segment == self.inner.names.segment || segment == self.inner.names.endpoint
    }

    /// Registers `memory`. If `access` is [`Access::Remote`], peers may access it from now on. The
    /// engine shares ownership until [`deregister`](TransferEngine::deregister) is called.
    ///
    /// # Errors
    /// Fails if the memory is empty or overlaps a registered region, if a device cannot register
    /// it, or if the metadata service does not accept the new document. On failure, the memory is
    /// not registered.
    pub async fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Registration, TransferError> {
        let mut done = self.register_all(&[(Arc::clone(memory), access)]).await?;
        Ok(done.pop().expect("one registration per memory region"))
    }

    /// Registers either all of `memories` or none, and writes one document.
    ///
    /// # Errors
    /// Same as [`register`](TransferEngine::register).
    pub async fn register_all(&self, memories: &[(Arc<Memory>, Access)]) -> Result<Vec<Registration>, TransferError> {
        let announced = memories.iter().any(|(_, access)| *access == Access::Remote);
        let inner = Arc::clone(&self.inner);
        let memories = memories.to_vec();
        let added = tokio::task::spawn_blocking(move || inner.add(&memories)).await;
        let added = added.unwrap_or(Err(TransferError::Stopped))?;
        if announced && let Err(error) = self.inner.context.directory.publish().await {
            let inner = Arc::clone(&self.inner);
            // A runtime that is shutting down skips this task. In that case, the engine is shutting
            // down too.
            let _ = tokio::task::spawn_blocking(move || inner.take_back(added)).await;
            return Err(error);
        }
        Ok(added)
    }

    /// Removes a registration. Peers' later requests cannot access the memory. A request in flight
    /// may still access it, and keeps it alive until the request ends. (If the metadata service has
    /// lost our name but not our document, the document announces the memory until
    /// [`republish`](TransferEngine::republish) is called.)
    ///
    /// # Errors
    /// Fails if the metadata service does not accept the new document, or if another engine now
    /// owns our name. That engine's document is left alone. Peers cannot access the memory even if
    /// this call fails.
    pub async fn deregister(&self, registration: Registration) -> Result<(), TransferError> {
        let inner = Arc::clone(&self.inner);
        let address = registration.address;
        let removed = tokio::task::spawn_blocking(move || inner.remove(address)).await;
        // A runtime that is shutting down accepts no new work.
        match removed.unwrap_or_else(|_| self.inner.remove(address)) {
            Some(Access::Remote) => self.inner.context.directory.update().await,
            _ => Ok(()),
        }
    }

    /// Writes our records to the metadata service again after it has lost them.
    ///
    /// # Errors
    /// Fails if the service does not accept them, or if another engine now owns the name.
    pub async fn republish(&self) -> Result<(), TransferError> {
        self.inner.context.directory.publish().await
    }

    /// Ends all transfers to and from our memory that peers and this process itself have begun so
    /// far, so that the memory can be used for something else. Closes the connections that peers
    /// have opened, and waits until requests in progress have ended. Connections that are opened
    /// afterward are served, and transfers that are submitted afterward are carried out. Returns
    /// the number of closed connections.
    ///
    /// # Errors
    /// [`TransferError::StillInUse`] if a request has not ended within `limit`.
    pub async fn end_inbound(&self, limit: Duration) -> Result<usize, TransferError> {
        let inner = Arc::clone(&self.inner);
        let ending = move || {
            // Before the era ends, so that a connection that is accepted meanwhile does not combine
            // the old generation with the new era.
            inner.shared.end_generation();
            // Waits for copies in progress, also those for processes on this host.
            inner.context.eras.end();
            let shared = inner.shared.end_inbound();
            Ok(shared + inner.context.transport.end_inbound(limit)?)
        };
        tokio::task::spawn_blocking(ending).await.unwrap_or(Err(TransferError::Stopped))
    }

    /// How often [`end_inbound`](TransferEngine::end_inbound) was called.
    pub fn era(&self) -> u64 {
        self.inner.context.eras.current()
    }

    /// Returns the descriptor of `segment`, from the cache if possible.
    ///
    /// # Errors
    /// Fails if the segment is unknown or its owner cannot be reached.
    pub async fn open(&self, segment: &str) -> Result<Arc<SegmentDescriptor>, TransferError> {
        let now = (self.inner.context.clock)();
        let remote = self.inner.remote(segment, now)?;
        let deadline = Deadline::after(now, OPEN_LIMIT);
        let described = tokio::task::spawn_blocking(move || remote.describe(deadline)).await;
        described.unwrap_or(Err(TransferError::Stopped))
    }

    /// Drops the cached state of `segment`, so that the next use fetches it again.
    pub fn forget(&self, segment: &str) {
        let now = (self.inner.context.clock)();
        let known = self.inner.known(segment, now);
        if let Some(remote) = known {
            remote.forget();
        }
    }

    /// Reads and writes `segment`'s memory; see [`PendingTransfer`]. `limit` applies to the whole
    /// batch.
    pub fn submit(&self, segment: &str, ops: Vec<Op>, limit: Duration) -> PendingTransfer {
        let now = (self.inner.context.clock)();
        let rules = BatchRules::until(Deadline::after(now, limit));
        PendingTransfer::new(self.inner.remote(segment, now), ops, rules)
    }

    /// Runs a batch from async code.
    ///
    /// # Errors
    /// Returns the error from the first operation that failed.
    pub async fn transfer(&self, segment: &str, ops: Vec<Op>, limit: Duration) -> Result<(), TransferError> {
        self.submit(segment, ops, limit).finish().await.into_iter().collect()
    }

    /// Sends a message to the engine that owns `segment`. Returns `false` if that engine does not
    /// accept it.
    ///
    /// # Errors
    /// Fails if the engine cannot be reached.
    pub async fn notify(&self, segment: &str, name: &str, message: &str) -> Result<bool, TransferError> {
        let message = NotifyMessage { name: name.to_owned(), message: message.to_owned() };
        self.inner.context.directory.notify(segment, message).await
    }

    /// Returns the messages received from peers since the last call. The oldest may have been
    /// dropped if this method has not been called for a long time.
    pub fn take_notifications(&self) -> Vec<NotifyMessage> {
        self.inner.notifications.take()
    }

    /// Checks that the engine that owns `segment` responds.
    ///
    /// # Errors
    /// Fails if it does not respond.
    pub async fn probe(&self, segment: &str) -> Result<(), TransferError> {
        self.inner.context.directory.probe(segment, ANSWER_LIMIT).await
    }

    /// Fetches the descriptor of `segment`, even if this engine's transport cannot reach it.
    ///
    /// # Errors
    /// Fails if the segment is unknown or its owner cannot be reached within `limit`.
    pub async fn find(&self, segment: &str, limit: Duration) -> Result<SegmentDescriptor, TransferError> {
        self.inner.context.directory.find(segment, limit).await
    }

    /// Probes every path to the segment that `descriptor` describes, using separate connections for
    /// each path. `limit` applies to each response from the peer. Setting `stop` skips the
    /// remaining paths. With TCP there are no paths to probe.
    ///
    /// # Errors
    /// Fails if the descriptor contains no reachable device.
    pub async fn probe_paths(
        &self,
        descriptor: SegmentDescriptor,
        limit: Duration,
        stop: Arc<AtomicBool>,
    ) -> Result<PathProbes, TransferError> {
        let transport = Arc::clone(&self.inner.context.transport);
        let control = Arc::clone(&self.inner.context.control);
        let trying = move || match transport.devices() {
            Some(devices) => devices.probe_paths(&descriptor, &*control, limit, &stop),
            None => Ok(PathProbes::default()),
        };
        tokio::task::spawn_blocking(trying).await.unwrap_or(Err(TransferError::Stopped))
    }

    /// Returns the engine's counters.
    pub fn counters(&self) -> EngineCounters {
        let target = self.inner.context.transport.counters();
        let shared = self.inner.shared.counters();
        EngineCounters {
            served: target.flow + shared.flow,
            issued: self.inner.context.issued.flow(),
            local: self.inner.context.local.flow(),
            rejected: target.rejected + shared.rejected,
            connections_accepted: target.accepted + shared.accepted,
            connections_open: target.open + shared.open,
            connections_refused: target.refused + shared.refused,
            notices_dropped: self.inner.notifications.dropped(),
        }
    }

    /// Returns the counters for each device in use. Empty with TCP.
    pub fn rails(&self) -> Vec<RailCounters> {
        self.inner.context.transport.devices().map(TransportDevices::rails).unwrap_or_default()
    }

    /// Returns the counters for each cached segment. (A segment that has not been used for five
    /// minutes is dropped when another one is used.)
    pub fn peers(&self) -> Vec<PeerCounters> {
        let remotes = self.inner.remotes.read().unwrap_or_else(PoisonError::into_inner);
        remotes.iter().map(|remote| remote.counters()).collect()
    }

    /// Returns the number of clients on this host that have mapped this engine's memory.
    pub fn shared_memory_clients(&self) -> usize {
        self.inner.shared.clients()
    }

    /// Returns the transport over which `segment` is reached, as in [`PeerCounters`].
    pub fn transport_to(&self, segment: &str) -> &'static str {
        let now = (self.inner.context.clock)();
        self.inner.known(segment, now).map_or(self.protocol(), |remote| remote.transport())
    }

    /// Removes our records from the metadata service, closes all ports and connections, and
    /// releases all memory.
    ///
    /// # Errors
    /// Fails if the records could not be removed. Everything else is still done.
    pub async fn shutdown(&self) -> Result<(), TransferError> {
        let inner = &self.inner;
        if inner.context.stopped.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let withdrawn = inner.context.directory.withdraw().await;
        let daemon = inner.daemon.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(daemon) = daemon {
            daemon.abort();
            // The task ends with a cancellation error, as expected.
            let _ = daemon.await;
        }
        let remotes = inner.remotes.write().unwrap_or_else(PoisonError::into_inner).take();
        for remote in remotes {
            remote.forget();
        }
        inner.shared.stop();
        let transport = Arc::clone(&inner.context.transport);
        // An error means that the transport panicked. Nothing is left to clean up.
        let _ = tokio::task::spawn_blocking(move || transport.shutdown()).await;
        let regions = std::mem::take(&mut *inner.regions.write().unwrap_or_else(PoisonError::into_inner));
        drop(regions);
        withdrawn
    }
}

impl EngineInner {
    fn data_port(&self) -> u16 {
        let mut document = SegmentDescriptor::default();
        self.context.transport.describe(&mut document);
        u16::try_from(document.tcp_data_port).unwrap_or(0)
    }

    /// Registers either all of `memories` or none. Blocks, because a device may pin every page.
    fn add(&self, memories: &[(Arc<Memory>, Access)]) -> Result<Vec<Registration>, TransferError> {
        let mut added: Vec<Registration> = Vec::with_capacity(memories.len());
        for (memory, access) in memories {
            if let Err(error) = self.add_one(memory, *access) {
                self.take_back(added);
                return Err(error);
            }
            added.push(Registration { address: memory.address(), length: memory.len() as u64 });
        }
        Ok(added)
    }

    fn add_one(&self, memory: &Arc<Memory>, access: Access) -> Result<(), TransferError> {
        let _turn = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        // Check before registering with a device.
        self.regions().check(memory)?;
        let keys = self.context.transport.register(memory, access)?;
        let inserted = self.regions().insert(Arc::clone(memory), access, keys);
        inserted.inspect_err(|_| self.context.transport.deregister(memory))?;
        self.shared.region_added(memory, access);
        Ok(())
    }

    fn take_back(&self, added: Vec<Registration>) {
        for registration in added {
            self.remove(registration.address);
        }
    }

    fn remove(&self, address: u64) -> Option<Access> {
        let _turn = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        let region = self.regions().remove(address)?;
        self.shared.region_removed(&region.memory, region.access);
        self.context.transport.deregister(&region.memory);
        Some(region.access)
    }

    fn regions(&self) -> RwLockWriteGuard<'_, Regions> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cached state of `segment`, if any.
    fn known(&self, segment: &str, now: Mono) -> Option<Arc<RemoteSegment>> {
        let segment = segment.trim_start_matches('/');
        self.remotes.read().unwrap_or_else(PoisonError::into_inner).get(segment, now)
    }

    fn remote(&self, segment: &str, now: Mono) -> Result<Arc<RemoteSegment>, TransferError> {
        let segment = segment.trim_start_matches('/');
        {
            let remotes = self.remotes.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(remote) = remotes.get(segment, now).filter(|_| !remotes.is_sweep_due(now)) {
                return Ok(remote);
            }
        }
        if self.context.stopped.load(Ordering::Relaxed) {
            return Err(TransferError::Stopped);
        }
        let own = || {
            let is_own = segment == self.names.segment || segment == self.names.endpoint;
            let eras = Arc::clone(&self.context.eras);
            is_own.then(|| LocalPeer::new(segment.to_owned(), Arc::clone(&self.regions), eras))
        };
        let make = || RemoteSegment::new(segment.to_owned(), Arc::clone(&self.context), own());
        // Dropped after the lock is released, because dropping a segment closes its connections.
        let mut evicted = Vec::new();
        let mut remotes = self.remotes.write().unwrap_or_else(PoisonError::into_inner);
        let found = remotes.get_or_insert(segment, now, &mut evicted, make);
        evicted.extend(remotes.sweep(now));
        drop(remotes);
        if !evicted.is_empty() {
            tracing::debug!(segments = evicted.len(), "dropped cached segments that were unused for five minutes");
        }
        found.map_err(|TableFull| TransferError::TooManyPeers { limit: REMOTES_MAX })
    }
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.lock().unwrap_or_else(PoisonError::into_inner).take() {
            daemon.abort();
        }
        // The daemon's task may keep the host for a moment.
        self.shared.stop();
    }
}
