//! The engine: our segment, and those of others.

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
use crate::engine::transfer::calls::Bridge;
use crate::engine::transfer::config::{Protocol, TransferConfig, TransferSettings};
use crate::engine::transfer::counters::{EngineCounters, Meter, PeerCounters, RailFigures};
use crate::engine::transfer::directory::{ANSWER_LIMIT, Directory, Finder, OwnSegment};
use crate::engine::transfer::handshake::{self, Answers, ServeLimits};
use crate::engine::transfer::local::LocalPeer;
use crate::engine::transfer::notices::Notices;
use crate::engine::transfer::rdma::Rdma;
use crate::engine::transfer::rdma::trial::Trials;
use crate::engine::transfer::region::{Access, Regions};
use crate::engine::transfer::remote::{Context, Pending, Remote};
use crate::engine::transfer::remotes::{Full, REMOTES_MAX, Remotes};
use crate::engine::transfer::tcp::Tcp;
use crate::engine::transfer::transport::{Calls, Deadline, Op, Transport};
use crate::engine::transfer::{Clock, TransferError};
use crate::engine::wire::json::{NotifyMessage, SegmentDescriptor};

/// Handshake ports that are tried.
const PORT_TRIES: u32 = 500;
/// How long opening a segment may take.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Offers this process's memory to peers, and reads and writes theirs. Cheap to clone; the last clone closes it, but only
/// [`shutdown`](TransferEngine::shutdown) removes its records from a metadata service.
#[derive(Clone)]
pub struct TransferEngine {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    endpoint: String,
    handshake: HostPort,
    regions: Arc<RwLock<Regions>>,
    /// One registration at a time, so that the transport and `regions` agree. Not held by who only reads `regions`.
    registering: Mutex<()>,
    transport: Arc<dyn Transport>,
    context: Arc<Context>,
    remotes: RwLock<Remotes<Remote>>,
    notices: Arc<Notices>,
    daemon: Mutex<Option<JoinHandle<()>>>,
}

/// A registered memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Registration {
    address: u64,
    length: u64,
}

impl Registration {
    /// Where the memory begins, as peers address it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length, bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl TransferEngine {
    /// Start: bind the handshake and data ports, make the name known, answer peers. Must be called on a tokio runtime, on which the
    /// handshake port is then served.
    ///
    /// # Errors
    /// The name or protocol cannot be used, no port is free, the metadata service refuses or does not answer. Nothing is left
    /// running or registered then.
    pub async fn start<E: Env>(config: TransferConfig, env: E) -> Result<TransferEngine, TransferError> {
        let settings = Arc::new(config.settings.clone());
        let service = match &config.metadata {
            MetadataUri::P2p => None,
            MetadataUri::Http(url) => Some(MetadataClient::http_within(url, settings.metadata)?),
        };
        let (listener, handshake) = bind_handshake(&config, &env).await?;
        let (name, endpoint) = match service {
            // Upstream's form of the endpoint has no brackets around IPv6.
            None => (handshake.to_string(), format!("{}:{}", handshake.host, handshake.port)),
            Some(_) => (config.local_server_name.clone(), config.local_server_name.clone()),
        };
        let clock: Clock = {
            let env = env.clone();
            Arc::new(move || env.now())
        };
        let regions = Arc::new(RwLock::new(Regions::default()));
        let tcp = || -> Result<Arc<dyn Transport>, TransferError> {
            let (host, regions, rng) = (handshake.host.clone(), Arc::clone(&regions), || env.rng());
            Ok(Arc::new(Tcp::start(host, regions, Arc::clone(&settings), Arc::clone(&clock), &rng)?))
        };
        let transport = match config.protocol {
            Protocol::Tcp => tcp()?,
            Protocol::Rdma => match rdma(&name, &handshake, &config, &clock, &env) {
                Err(error @ TransferError::NoRdma { .. }) if config.rdma.tcp_instead => {
                    tracing::warn!(%error, "bytes go over tcp instead, as was allowed; peers have to as well");
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
        let finder = Finder::new(env.clone(), Arc::clone(&own), handshake.clone(), Arc::clone(&settings), service);
        let directory: Arc<dyn Directory> = Arc::new(finder);
        let calls: Arc<dyn Calls> = Arc::new(Bridge::new(Arc::clone(&directory), Handle::current()));
        let notices = Arc::new(Notices::new(own, Arc::clone(&calls)));
        let runtime = Handle::current();
        // Weakly: the directory leads back to the transport.
        let weak = Arc::downgrade(&directory);
        transport.on_change(Box::new(move || {
            let Some(directory) = weak.upgrade() else { return };
            runtime.spawn(async move {
                if let Err(error) = directory.update().await {
                    tracing::warn!(%error, "what changed about this engine's devices is not announced");
                }
            });
        }));
        directory.claim().await?;
        if let Err(error) = directory.publish().await {
            // The first error is the one to tell.
            let _ = directory.withdraw().await;
            return Err(error);
        }
        let limits = ServeLimits { bytes_max: settings.handshake_bytes_max, ..ServeLimits::default() };
        let answers: Arc<dyn Answers> = Arc::clone(&notices) as _;
        let daemon = tokio::spawn(handshake::serve(env, listener, answers, limits));
        let context = Context {
            directory,
            transport: Arc::clone(&transport),
            clock,
            calls,
            descriptor_age_max: settings.descriptor_age_max,
            stopped: AtomicBool::new(false),
            issued: Meter::default(),
            local: Meter::default(),
        };
        let remotes = RwLock::new(Remotes::new((context.clock)()));
        let engine = TransferEngine {
            inner: Arc::new(Inner {
                name,
                endpoint,
                handshake,
                regions,
                registering: Mutex::default(),
                transport,
                context: Arc::new(context),
                remotes,
                notices,
                daemon: Mutex::new(Some(daemon)),
            }),
        };
        let (segment, handshake) = (engine.segment_name(), engine.handshake());
        let protocol = engine.protocol();
        tracing::info!(%segment, %handshake, protocol, data_port = engine.data_port(), "transfer engine is listening");
        Ok(engine)
    }

    /// Our segment's name: what peers open.
    pub fn segment_name(&self) -> &str {
        &self.inner.name
    }

    /// What a master is told to reach our segment by (`te_endpoint`): `host:port` of the handshake port with `P2PHANDSHAKE` (IPv6
    /// without brackets, as upstream), else the segment's name.
    pub fn endpoint(&self) -> &str {
        &self.inner.endpoint
    }

    /// Where the handshake port is, as announced.
    pub fn handshake(&self) -> &HostPort {
        &self.inner.handshake
    }

    /// What bytes are moved over: upstream's word, `tcp` or `rdma`. Not what was asked for where that could not be had and
    /// [`RdmaWish::tcp_instead`](crate::engine::transfer::RdmaWish::tcp_instead) allows it.
    pub fn protocol(&self) -> &'static str {
        self.inner.transport.protocol()
    }

    /// The port of TCP's data plane; 0 with another transport.
    pub fn data_port(&self) -> u16 {
        self.inner.data_port()
    }

    /// Is `segment` this engine's own?
    pub fn is_own(&self, segment: &str) -> bool {
        segment == self.inner.name || segment == self.inner.endpoint
    }

    /// Register `memory`: peers may reach it (with [`Access::Remote`]) from now on. The engine shares in owning it until
    /// [`deregister`](TransferEngine::deregister).
    ///
    /// # Errors
    /// The memory is empty or overlaps a registered one, or the metadata service does not take the new document; then it is not
    /// registered.
    pub async fn register(&self, memory: &Arc<Memory>, access: Access) -> Result<Registration, TransferError> {
        let mut done = self.register_all(&[(Arc::clone(memory), access)]).await?;
        Ok(done.pop().expect("one for one"))
    }

    /// The same for several stretches of memory at once, with one document written: all or none.
    ///
    /// # Errors
    /// As [`register`](TransferEngine::register).
    pub async fn register_all(&self, memories: &[(Arc<Memory>, Access)]) -> Result<Vec<Registration>, TransferError> {
        let announced = memories.iter().any(|(_, access)| *access == Access::Remote);
        let (inner, memories) = (Arc::clone(&self.inner), memories.to_vec());
        let added = tokio::task::spawn_blocking(move || inner.add(&memories)).await;
        let added = added.unwrap_or(Err(TransferError::Stopped))?;
        if announced && let Err(error) = self.inner.context.directory.publish().await {
            let inner = Arc::clone(&self.inner);
            // A runtime at its end does not run it; the engine is at its end too then.
            let _ = tokio::task::spawn_blocking(move || inner.take_back(added)).await;
            return Err(error);
        }
        Ok(added)
    }

    /// Undo a registration: no request of a peer that comes after this reaches the memory. One that is under way may still be, and
    /// keeps the memory alive as long. (Where the metadata service has lost our name but not our document, that still announces the
    /// memory until [`republish`](TransferEngine::republish).)
    ///
    /// # Errors
    /// The metadata service does not take the new document, or another engine has our name by now and its document is left alone;
    /// the memory is out of reach all the same.
    pub async fn deregister(&self, registration: Registration) -> Result<(), TransferError> {
        let (inner, address) = (Arc::clone(&self.inner), registration.address);
        let removed = tokio::task::spawn_blocking(move || inner.remove(address)).await;
        // A runtime at its end takes no more work.
        match removed.unwrap_or_else(|_| self.inner.remove(address)) {
            Some(Access::Remote) => self.inner.context.directory.update().await,
            _ => Ok(()),
        }
    }

    /// Write our records to the metadata service again, where it has lost them.
    ///
    /// # Errors
    /// It does not take them, or another engine has the name by now.
    pub async fn republish(&self) -> Result<(), TransferError> {
        self.inner.context.directory.publish().await
    }

    /// The descriptor of `segment`, from memory if it is known.
    ///
    /// # Errors
    /// It is not known, or its owner cannot be reached.
    pub async fn open(&self, segment: &str) -> Result<Arc<SegmentDescriptor>, TransferError> {
        let now = (self.inner.context.clock)();
        let remote = self.inner.remote(segment, now)?;
        let deadline = Deadline::after(now, OPEN_LIMIT);
        let described = tokio::task::spawn_blocking(move || remote.describe(deadline)).await;
        described.unwrap_or(Err(TransferError::Stopped))
    }

    /// Forget what is known of `segment`, so that the next use asks anew.
    pub fn forget(&self, segment: &str) {
        let now = (self.inner.context.clock)();
        let known = self.inner.known(segment, now);
        if let Some(remote) = known {
            remote.forget();
        }
    }

    /// Read and write `segment`'s memory: see [`Pending`]. The batch has `limit` for all of it.
    pub fn submit(&self, segment: &str, ops: Vec<Op>, limit: Duration) -> Pending {
        let now = (self.inner.context.clock)();
        Pending { remote: self.inner.remote(segment, now), ops, deadline: Deadline::after(now, limit) }
    }

    /// [`submit`](TransferEngine::submit) for async code, all in one: the first error, if there is one.
    ///
    /// # Errors
    /// Of the first operation that failed.
    pub async fn transfer(&self, segment: &str, ops: Vec<Op>, limit: Duration) -> Result<(), TransferError> {
        self.submit(segment, ops, limit).finish().await.into_iter().collect()
    }

    /// Send a message to the engine of `segment`; `false` when it does not take it.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn notify(&self, segment: &str, name: &str, message: &str) -> Result<bool, TransferError> {
        let message = NotifyMessage { name: name.to_owned(), message: message.to_owned() };
        self.inner.context.directory.notify(segment, message).await
    }

    /// The messages that peers sent since the last call; the newest of them, when nobody fetched them for long.
    pub fn take_notices(&self) -> Vec<NotifyMessage> {
        self.inner.notices.take()
    }

    /// Is the engine of `segment` there?
    ///
    /// # Errors
    /// No, and why.
    pub async fn probe(&self, segment: &str) -> Result<(), TransferError> {
        self.inner.context.directory.probe(segment, ANSWER_LIMIT).await
    }

    /// The descriptor of `segment`, asked for anew; it need not be one that this engine can reach.
    ///
    /// # Errors
    /// It is not known, or its owner cannot be reached within `limit`.
    pub async fn find(&self, segment: &str, limit: Duration) -> Result<SegmentDescriptor, TransferError> {
        self.inner.context.directory.find(segment, limit).await
    }

    /// Try every way to the segment of `descriptor`, each with connections of its own: `limit` for each answer of the peer. Those that
    /// are left when `stop` is set are not tried. With TCP there are none.
    ///
    /// # Errors
    /// The descriptor has nothing that can be reached.
    pub async fn try_ways(
        &self,
        descriptor: SegmentDescriptor,
        limit: Duration,
        stop: Arc<AtomicBool>,
    ) -> Result<Trials, TransferError> {
        let (transport, calls) = (Arc::clone(&self.inner.transport), Arc::clone(&self.inner.context.calls));
        let trying = move || transport.try_ways(&descriptor, &*calls, limit, &stop);
        tokio::task::spawn_blocking(trying).await.unwrap_or(Err(TransferError::Stopped))
    }

    /// What was moved so far.
    pub fn counters(&self) -> EngineCounters {
        let target = self.inner.transport.figures();
        EngineCounters {
            served: target.flow,
            issued: self.inner.context.issued.flow(),
            local: self.inner.context.local.flow(),
            rejected: target.rejected,
            connections_accepted: target.accepted,
            connections_open: target.open,
            connections_refused: target.refused,
            notices_dropped: self.inner.notices.dropped(),
        }
    }

    /// The RDMA devices in use, and what went through each; none with TCP.
    pub fn rails(&self) -> Vec<RailFigures> {
        self.inner.transport.rails()
    }

    /// What was moved to and from each segment that is remembered. (One that was not used for five minutes is forgotten when another
    /// is used.)
    pub fn peers(&self) -> Vec<PeerCounters> {
        let remotes = self.inner.remotes.read().unwrap_or_else(PoisonError::into_inner);
        remotes.iter().map(|remote| remote.counters()).collect()
    }

    /// Remove our records from the metadata service, close all ports and connections, let go of all memory.
    ///
    /// # Errors
    /// The records could not be removed; the rest is done all the same.
    pub async fn shutdown(&self) -> Result<(), TransferError> {
        let inner = &self.inner;
        if inner.context.stopped.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let withdrawn = inner.context.directory.withdraw().await;
        let daemon = inner.daemon.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(daemon) = daemon {
            daemon.abort();
            // It ends as cancelled, which is what was asked for.
            let _ = daemon.await;
        }
        let remotes = inner.remotes.write().unwrap_or_else(PoisonError::into_inner).take();
        for remote in remotes {
            remote.forget();
        }
        let transport = Arc::clone(&inner.transport);
        // A panic there would be the transport's, and nothing is left to be done about it.
        let _ = tokio::task::spawn_blocking(move || transport.shutdown()).await;
        let regions = std::mem::take(&mut *inner.regions.write().unwrap_or_else(PoisonError::into_inner));
        drop(regions);
        withdrawn
    }
}

impl Inner {
    fn data_port(&self) -> u16 {
        let mut document = SegmentDescriptor::default();
        self.transport.describe(&mut document);
        u16::try_from(document.tcp_data_port).unwrap_or(0)
    }

    /// Register all of `memories`, or none. Blocks: a device may pin every page.
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
        // Before a device is troubled with it.
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

    /// What is known of `segment`, if it is known.
    fn known(&self, segment: &str, now: Mono) -> Option<Arc<Remote>> {
        let segment = segment.trim_start_matches('/');
        self.remotes.read().unwrap_or_else(PoisonError::into_inner).get(segment, now)
    }

    fn remote(&self, segment: &str, now: Mono) -> Result<Arc<Remote>, TransferError> {
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
        let make = || Remote::new(segment.to_owned(), Arc::clone(&self.context), own());
        // Dropped after the lock, since that closes lanes.
        let mut gone = Vec::new();
        let mut remotes = self.remotes.write().unwrap_or_else(PoisonError::into_inner);
        let found = remotes.get_or_insert(segment, now, &mut gone, make);
        gone.extend(remotes.sweep(now));
        drop(remotes);
        if !gone.is_empty() {
            tracing::debug!(segments = gone.len(), "segments that were not used for long are forgotten");
        }
        found.map_err(|Full| TransferError::TooManyPeers { limit: REMOTES_MAX })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.lock().unwrap_or_else(PoisonError::into_inner).take() {
            daemon.abort();
        }
    }
}

/// The RDMA transport.
fn rdma<E: Env>(
    name: &str,
    handshake: &HostPort,
    config: &TransferConfig,
    clock: &Clock,
    env: &E,
) -> Result<Arc<dyn Transport>, TransferError> {
    let settings = &config.settings.rdma;
    let server = match &settings.bind_address {
        Some(host) => HostPort::new(host.as_str(), handshake.port).to_string(),
        None => name.to_owned(),
    };
    let lots = {
        let env = env.clone();
        Box::new(move || env.rng())
    };
    Ok(Arc::new(Rdma::start(server, &config.rdma, settings, Arc::clone(clock), lots)?))
}

/// Bind the handshake port, and say where peers find it.
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
            return Err(wrong("it is empty".to_owned()));
        }
        announced(config)?
    };
    let (listener, port) = listen_in_range(settings, &host, env).await?;
    Ok((listener, HostPort::new(host, port)))
}

/// The host that is announced with a metadata service.
fn announced(config: &TransferConfig) -> Result<String, TransferError> {
    let settings = &config.settings;
    if let Some(host) = config.announce_host.as_ref().or(settings.bind_address.as_ref()) {
        return Ok(host.clone());
    }
    if let Some(address) = host::lan_address(settings.ipv6) {
        return Ok(address.to_string());
    }
    // On a machine without a network, a name that is an address still says where we are.
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

/// All addresses of the family that `host` is announced in; but only the loopback when that is what is announced (upstream binds
/// all even then, and serves whoever finds the port).
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
