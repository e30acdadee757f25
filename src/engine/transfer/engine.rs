//! The transfer engine: this process's segment, and access to other processes' segments.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::engine::base::addr::loopback_to_bind;
use crate::engine::base::{HostPort, Mono};
use crate::engine::env::{Env, Listener, Net};
use crate::engine::metadata::{MetadataClient, MetadataUri};
use crate::engine::sys::{Memory, host};
use crate::engine::transfer::config::{TransferConfig, TransferProtocol, TransferSettings};
use crate::engine::transfer::control_plane::BlockingControlPlane;
use crate::engine::transfer::counters::{EngineCounters, FlowMeter, PeerCounters, RailCounters};
use crate::engine::transfer::directory::{ANSWER_LIMIT, OwnSegment, SegmentDirectory, SegmentResolver};
use crate::engine::transfer::handshake::{self, HandshakeHandler, HandshakeLimits};
use crate::engine::transfer::local::LocalPeer;
use crate::engine::transfer::notifications::Notifications;
use crate::engine::transfer::rdma::RdmaTransport;
use crate::engine::transfer::rdma::path_probe::PathProbes;
use crate::engine::transfer::region::{Access, Regions};
use crate::engine::transfer::remote::{PendingTransfer, RemoteContext, RemoteSegment};
use crate::engine::transfer::remote_table::{REMOTES_MAX, RemoteTable, TableFull};
use crate::engine::transfer::tcp::TcpTransport;
use crate::engine::transfer::transport::{ControlPlane, DataTransport, Deadline, Op};
use crate::engine::transfer::{MonoClock, TransferError};
use crate::engine::wire::json::{NotifyMessage, SegmentDescriptor};

/// Number of handshake ports to try.
const PORT_TRIES: u32 = 500;
/// Timeout for opening a segment.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Exposes this process's memory to peers, and reads and writes peers' memory. Cheap to clone. Dropping the last clone
/// closes the engine, but only [`shutdown`](TransferEngine::shutdown) removes its records from a metadata service.
#[derive(Clone)]
pub struct TransferEngine {
    inner: Arc<EngineInner>,
}

struct EngineInner {
    name: String,
    endpoint: String,
    handshake: HostPort,
    regions: Arc<RwLock<Regions>>,
    /// Serializes registrations to keep the transport and `regions` consistent. Threads that only read `regions` do not take this lock.
    registering: Mutex<()>,
    transport: Arc<dyn DataTransport>,
    context: Arc<RemoteContext>,
    remotes: RwLock<RemoteTable<RemoteSegment>>,
    notifications: Arc<Notifications>,
    daemon: Mutex<Option<JoinHandle<()>>>,
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
    /// Starts an engine: binds the handshake and data ports, publishes the name, and starts serving peers. Must be
    /// called on a tokio runtime, which then serves the handshake port.
    ///
    /// # Errors
    /// Fails if the name or protocol is invalid, if no port is free, or if the metadata service rejects the request or
    /// does not respond. On failure, nothing is left running or registered.
    pub async fn start<E: Env>(config: TransferConfig, env: E) -> Result<TransferEngine, TransferError> {
        let settings = Arc::new(config.settings.clone());
        let service = match &config.metadata {
            MetadataUri::P2p => None,
            MetadataUri::Http(url) => Some(MetadataClient::http_within(url, settings.metadata)?),
        };
        let (listener, handshake) = bind_handshake(&config, &env).await?;
        let (name, endpoint) = match service {
            // Upstream writes IPv6 endpoints without brackets.
            None => (handshake.to_string(), format!("{}:{}", handshake.host, handshake.port)),
            Some(_) => (config.local_server_name.clone(), config.local_server_name.clone()),
        };
        let clock: MonoClock = {
            let env = env.clone();
            Arc::new(move || env.now())
        };
        let regions = Arc::new(RwLock::new(Regions::default()));
        let tcp = || -> Result<Arc<dyn DataTransport>, TransferError> {
            let (host, regions, rng) = (handshake.host.clone(), Arc::clone(&regions), || env.rng());
            Ok(Arc::new(TcpTransport::start(host, regions, Arc::clone(&settings), Arc::clone(&clock), &rng)?))
        };
        let transport = match config.protocol {
            TransferProtocol::Tcp => tcp()?,
            TransferProtocol::Rdma => match rdma(&name, &handshake, &config, &clock, &env) {
                Err(error @ TransferError::NoRdma { .. }) if config.rdma.allow_tcp_fallback => {
                    tracing::warn!(%error, "falling back to tcp (allowed by the configuration); peers must use tcp too");
                    tcp()?
                }
                started => started?,
            },
        };
        let own = Arc::new(OwnSegment {
            name: name.clone(),
            regions: Arc::clone(&regions),
            transport: Arc::clone(&transport),
            unix: {
                let env = env.clone();
                Box::new(move || env.unix())
            },
        });
        let finder =
            SegmentResolver::new(env.clone(), Arc::clone(&own), handshake.clone(), Arc::clone(&settings), service);
        let directory: Arc<dyn SegmentDirectory> = Arc::new(finder);
        let control: Arc<dyn ControlPlane> =
            Arc::new(BlockingControlPlane::new(Arc::clone(&directory), Handle::current()));
        let notifications = Arc::new(Notifications::new(own, Arc::clone(&control)));
        let runtime = Handle::current();
        // A weak reference, because the directory has a reference to the transport.
        let weak = Arc::downgrade(&directory);
        transport.on_change(Box::new(move || {
            let Some(directory) = weak.upgrade() else { return };
            runtime.spawn(async move {
                if let Err(error) = directory.update().await {
                    tracing::warn!(%error, "cannot publish the changed RDMA devices of this segment");
                }
            });
        }));
        directory.claim().await?;
        if let Err(error) = directory.publish().await {
            // Report the original error, not one from the cleanup.
            let _ = directory.withdraw().await;
            return Err(error);
        }
        let limits = HandshakeLimits { bytes_max: settings.handshake_bytes_max, ..HandshakeLimits::default() };
        let answers: Arc<dyn HandshakeHandler> = Arc::clone(&notifications) as _;
        let daemon = tokio::spawn(handshake::serve(env, listener, answers, limits));
        let context = RemoteContext {
            directory,
            transport: Arc::clone(&transport),
            clock,
            control,
            descriptor_age_max: settings.descriptor_age_max,
            stopped: AtomicBool::new(false),
            issued: FlowMeter::default(),
            local: FlowMeter::default(),
        };
        let remotes = RwLock::new(RemoteTable::new((context.clock)()));
        let engine = TransferEngine {
            inner: Arc::new(EngineInner {
                name,
                endpoint,
                handshake,
                regions,
                registering: Mutex::default(),
                transport,
                context: Arc::new(context),
                remotes,
                notifications,
                daemon: Mutex::new(Some(daemon)),
            }),
        };
        let (segment, handshake) = (engine.segment_name(), engine.handshake());
        let protocol = engine.protocol();
        tracing::info!(%segment, %handshake, protocol, data_port = engine.data_port(), "transfer engine is listening");
        Ok(engine)
    }

    /// Returns our segment's name, which peers use to open it.
    pub fn segment_name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the address by which a master identifies our segment (`te_endpoint`). With `P2PHANDSHAKE` it is the
    /// `host:port` of the handshake port (IPv6 without brackets, like upstream). Otherwise it is the segment's name.
    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    /// Returns the announced address of the handshake port.
    pub fn handshake(&self) -> &HostPort {
        &self.inner.handshake
    }

    /// Returns upstream's name for the transport in use, `tcp` or `rdma`. It differs from the configured one if
    /// [`RdmaOptions::allow_tcp_fallback`](crate::engine::transfer::RdmaOptions::allow_tcp_fallback) caused a fallback.
    pub fn protocol(&self) -> &'static str {
        self.inner.transport.protocol()
    }

    /// Returns the TCP data plane's port, or 0 with another transport.
    pub fn data_port(&self) -> u16 {
        self.inner.data_port()
    }

    /// Whether `segment` names this engine's own segment.
    pub fn is_own(&self, segment: &str) -> bool {
        segment == self.inner.name || segment == self.inner.endpoint
    }

    /// Registers `memory`. If `access` is [`Access::Remote`], peers may access it from now on. The engine shares
    /// ownership until [`deregister`](TransferEngine::deregister) is called.
    ///
    /// # Errors
    /// Fails if the memory is empty or overlaps a registered region, if a device cannot register it, or if the metadata
    /// service does not accept the new document. On failure, the memory is not registered.
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
        let (inner, memories) = (Arc::clone(&self.inner), memories.to_vec());
        let added = tokio::task::spawn_blocking(move || inner.add(&memories)).await;
        let added = added.unwrap_or(Err(TransferError::Stopped))?;
        if announced && let Err(error) = self.inner.context.directory.publish().await {
            let inner = Arc::clone(&self.inner);
            // A runtime that is shutting down skips this task. In that case, the engine is shutting down too.
            let _ = tokio::task::spawn_blocking(move || inner.take_back(added)).await;
            return Err(error);
        }
        Ok(added)
    }

    /// Removes a registration. Peers' later requests cannot access the memory. A request in flight may still access it,
    /// and keeps it alive until the request ends. (If the metadata service has lost our name but not our document, the
    /// document announces the memory until [`republish`](TransferEngine::republish) is called.)
    ///
    /// # Errors
    /// Fails if the metadata service does not accept the new document, or if another engine now owns our name.
    /// That engine's document is left alone. Peers cannot access the memory even if this call fails.
    pub async fn deregister(&self, registration: Registration) -> Result<(), TransferError> {
        let (inner, address) = (Arc::clone(&self.inner), registration.address);
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

    /// Reads and writes `segment`'s memory; see [`PendingTransfer`]. `limit` applies to the whole batch.
    pub fn submit(&self, segment: &str, ops: Vec<Op>, limit: Duration) -> PendingTransfer {
        let now = (self.inner.context.clock)();
        PendingTransfer { remote: self.inner.remote(segment, now), ops, deadline: Deadline::after(now, limit) }
    }

    /// Runs a batch from async code.
    ///
    /// # Errors
    /// Returns the error from the first operation that failed.
    pub async fn transfer(&self, segment: &str, ops: Vec<Op>, limit: Duration) -> Result<(), TransferError> {
        self.submit(segment, ops, limit).finish().await.into_iter().collect()
    }

    /// Sends a message to the engine that owns `segment`. Returns `false` if that engine does not accept it.
    ///
    /// # Errors
    /// Fails if the engine cannot be reached.
    pub async fn notify(&self, segment: &str, name: &str, message: &str) -> Result<bool, TransferError> {
        let message = NotifyMessage { name: name.to_owned(), message: message.to_owned() };
        self.inner.context.directory.notify(segment, message).await
    }

    /// Returns the messages received from peers since the last call. The oldest may have been dropped if this method
    /// has not been called for a long time.
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

    /// Probes every path to the segment that `descriptor` describes, using separate connections for each path. `limit`
    /// applies to each response from the peer. Setting `stop` skips the remaining paths. With TCP there are no paths to
    /// probe.
    ///
    /// # Errors
    /// Fails if the descriptor contains no reachable device.
    pub async fn probe_paths(
        &self,
        descriptor: SegmentDescriptor,
        limit: Duration,
        stop: Arc<AtomicBool>,
    ) -> Result<PathProbes, TransferError> {
        let (transport, control) = (Arc::clone(&self.inner.transport), Arc::clone(&self.inner.context.control));
        let trying = move || transport.probe_paths(&descriptor, &*control, limit, &stop);
        tokio::task::spawn_blocking(trying).await.unwrap_or(Err(TransferError::Stopped))
    }

    /// Returns the engine's counters.
    pub fn counters(&self) -> EngineCounters {
        let target = self.inner.transport.counters();
        EngineCounters {
            served: target.flow,
            issued: self.inner.context.issued.flow(),
            local: self.inner.context.local.flow(),
            rejected: target.rejected,
            connections_accepted: target.accepted,
            connections_open: target.open,
            connections_refused: target.refused,
            notices_dropped: self.inner.notifications.dropped(),
        }
    }

    /// Returns the counters for each RDMA device in use. Empty with TCP.
    pub fn rails(&self) -> Vec<RailCounters> {
        self.inner.transport.rails()
    }

    /// Returns the counters for each cached segment. (A segment that has not been used for five minutes is dropped when
    /// another one is used.)
    pub fn peers(&self) -> Vec<PeerCounters> {
        let remotes = self.inner.remotes.read().unwrap_or_else(PoisonError::into_inner);
        remotes.iter().map(|remote| remote.counters()).collect()
    }

    /// Removes our records from the metadata service, closes all ports and connections, and releases all memory.
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
        let transport = Arc::clone(&inner.transport);
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
        self.transport.describe(&mut document);
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
        let keys = self.transport.register(memory, access)?;
        let inserted = self.regions().insert(Arc::clone(memory), access, keys);
        inserted.inspect_err(|_| self.transport.deregister(memory))
    }

    fn take_back(&self, added: Vec<Registration>) {
        for registration in added {
            self.remove(registration.address);
        }
    }

    fn remove(&self, address: u64) -> Option<Access> {
        let _turn = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
        let region = self.regions().remove(address)?;
        self.transport.deregister(&region.memory);
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
            let is_own = segment == self.name || segment == self.endpoint;
            is_own.then(|| LocalPeer::new(segment.to_owned(), Arc::clone(&self.regions)))
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
    }
}

/// Starts the RDMA transport.
fn rdma<E: Env>(
    name: &str,
    handshake: &HostPort,
    config: &TransferConfig,
    clock: &MonoClock,
    env: &E,
) -> Result<Arc<dyn DataTransport>, TransferError> {
    let settings = &config.settings.rdma;
    let server = match &settings.bind_address {
        Some(host) => HostPort::new(host.as_str(), handshake.port).to_string(),
        None => name.to_owned(),
    };
    let lots = {
        let env = env.clone();
        Box::new(move || env.rng())
    };
    Ok(Arc::new(RdmaTransport::start(server, &config.rdma, settings, Arc::clone(clock), lots)?))
}

/// Binds the handshake port. Returns the listener and the address that peers use.
async fn bind_handshake<E: Env>(
    config: &TransferConfig,
    env: &E,
) -> Result<(<E::Net as Net>::Listener, HostPort), TransferError> {
    let settings = &config.settings;
    let p2p = config.metadata == MetadataUri::P2p;
    let wrong = |problem: String| TransferError::Name { name: config.local_server_name.clone(), problem };
    let split = || HostPort::split(&config.local_server_name).map_err(|e| wrong(e.to_string()));
    if settings.legacy_port_binding && !p2p {
        let (host, port) = split()?;
        let at = HostPort::new(host, port.unwrap_or(settings.handshake_port));
        let listener = env.net().listen(&wildcard(settings, &at.host, at.port)).await;
        let listener = listener.map_err(|e| no_port(at.port..=at.port, 1, e))?;
        let bound = HostPort::new(at.host, listener.port());
        return Ok((listener, bound));
    }
    let host = if p2p {
        split()?.0
    } else {
        if config.local_server_name.is_empty() {
            return Err(wrong("the name is empty".to_owned()));
        }
        announced(config)?
    };
    let (listener, port) = listen_in_range(settings, &host, env).await?;
    Ok((listener, HostPort::new(host, port)))
}

/// Returns the host to announce when a metadata service is used.
fn announced(config: &TransferConfig) -> Result<String, TransferError> {
    let settings = &config.settings;
    if let Some(host) = config.announce_host.as_ref().or(settings.bind_address.as_ref()) {
        return Ok(host.clone());
    }
    if let Some(address) = host::lan_address(settings.ipv6) {
        return Ok(address.to_string());
    }
    // Without a network, a name that is a loopback address is still usable.
    match HostPort::split(&config.local_server_name) {
        Ok((host, _)) if crate::engine::base::addr::host_is_loopback(&host) => Ok(host),
        _ => Err(TransferError::NoAddress),
    }
}

async fn listen_in_range<E: Env>(
    settings: &TransferSettings,
    host: &str,
    env: &E,
) -> Result<(<E::Net as Net>::Listener, u16), TransferError> {
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrInUse);
    for _ in 0..PORT_TRIES {
        let port = crate::engine::transfer::tcp::draw(&settings.ports, env.rng());
        match env.net().listen(&wildcard(settings, host, port)).await {
            Ok(listener) => {
                let port = listener.port();
                return Ok((listener, port));
            }
            Err(error) => last = error,
        }
    }
    Err(no_port(settings.ports.clone(), PORT_TRIES, last))
}

/// Returns the address to bind for an announced `host`: the wildcard address for its family, or the loopback address if
/// that is what is announced. (Upstream always binds the wildcard address, and so serves any client that finds the
/// port.)
fn wildcard(settings: &TransferSettings, host: &str, port: u16) -> HostPort {
    if let Some(loopback) = loopback_to_bind(host) {
        return HostPort::new(loopback.to_string(), port);
    }
    let any = if settings.ipv6 || host.contains(':') { "::" } else { "0.0.0.0" };
    HostPort::new(any, port)
}

fn no_port(ports: std::ops::RangeInclusive<u16>, tries: u32, source: std::io::Error) -> TransferError {
    let (first, last) = (*ports.start(), *ports.end());
    TransferError::NoPort { what: "handshake port", first, last, tries, source: Arc::new(source) }
}
