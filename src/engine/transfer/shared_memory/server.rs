//! The node's side: accepts clients on this host, and ends their connections.
//!
//! Only processes that may share memory with this one get beyond the first check. Each connection
//! has a thread, so a slow client delays only itself.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::thread;
use std::time::Duration;

use crate::counters::{FlowMeter, TargetCounters};
use crate::local::TransferEra;
use crate::region::Regions;
use crate::shared_memory::codec::LinkPurpose;
use crate::shared_memory::may_share;
use crate::shared_memory::received::BufferBudget;
use mcctl_sys::packet_socket::{PacketListener, PacketSocket, UnixSocketAddress, effective_user};
use mcctl_sys::shared_counter::SharedCounter;
use mcctl_wire::json::{SHARED_MEMORY_TOKEN_BYTES, SharedMemoryDescriptor};

/// Maximum number of connections: a few from each process on the host.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Time limit for the first message of a client, and for sending a message to it.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);
/// Stack size of a thread: enough for system calls and logging.
const STACK_BYTES: usize = 128 << 10;
/// Pause after a failed accept, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Number of connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Serves this process's memory to clients on this host.
pub struct SharedMemoryServer {
    state: Arc<ServerState>,
}

/// A server and its connections.
pub(super) struct ServerState {
    listener: PacketListener,
    pub(super) descriptor: SharedMemoryDescriptor,
    pub(super) regions: Arc<RwLock<Regions>>,
    pub(super) eras: Arc<TransferEra>,
    pub(super) generation: SharedCounter,
    connections: Mutex<HashMap<u64, ServedConnection>>,
    pub(super) budget: Arc<BufferBudget>,
    stopping: AtomicBool,
    pub(super) meter: FlowMeter,
    pub(super) rejected: AtomicU64,
    accepted: AtomicU64,
    refused: AtomicU64,
}

/// A connection in the table of a server.
pub(super) struct ServedConnection {
    socket: Arc<PacketSocket>,
    /// `None` before the client's first message.
    pub(super) purpose: Option<LinkPurpose>,
}

impl SharedMemoryServer {
    /// Listens at `address`, and serves the memory in `regions` that other processes can map.
    /// Clients must send `token`.
    ///
    /// # Errors
    /// Fails if the address cannot be used, or if the host does not support sealed memfds.
    pub fn start(
        address: &UnixSocketAddress,
        token: [u8; SHARED_MEMORY_TOKEN_BYTES],
        regions: Arc<RwLock<Regions>>,
        eras: Arc<TransferEra>,
    ) -> io::Result<SharedMemoryServer> {
        let state = Arc::new(ServerState {
            generation: SharedCounter::new()?,
            listener: PacketListener::bind(address, BACKLOG)?,
            descriptor: SharedMemoryDescriptor { socket: address.to_string(), token },
            regions,
            eras,
            connections: Mutex::default(),
            budget: Arc::default(),
            stopping: AtomicBool::new(false),
            meter: FlowMeter::default(),
            rejected: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let (mine, (ready, is_ready)) = (Arc::clone(&state), mpsc::channel());
        thread::Builder::new()
            .name("te-shm-accept".into())
            .stack_size(STACK_BYTES)
            .spawn(move || mine.accept_loop(&ready))?;
        is_ready.recv().map_err(io::Error::other)??;
        Ok(SharedMemoryServer { state })
    }

    /// The announcement for the segment descriptor.
    pub fn descriptor(&self) -> &SharedMemoryDescriptor {
        &self.state.descriptor
    }

    /// Makes clients fetch the list of regions again. Their transfers in progress are not affected.
    pub fn regions_added(&self) {
        self.state.end_connections(|connection| connection.purpose == Some(LinkPurpose::Regions));
    }

    /// Makes the reads of clients that have mapped memory so far fail from now on. Call it before
    /// [`TransferEra::end`]: a connection that is accepted in the next era then has the next
    /// generation, so a client does not use it for earlier writes.
    pub fn end_generation(&self) {
        self.state.generation.increment();
    }

    /// Ends all access to the memory that clients have mapped so far: their reads fail from now on,
    /// and they release their mappings. Call it after [`TransferEra::end`], or after a region has
    /// been removed. Returns the number of connections.
    pub fn end_inbound(&self) -> usize {
        self.state.generation.increment();
        self.state.end_connections(|_| true)
    }

    /// Returns the counters for writes that this node has copied. Reads are not counted, because
    /// clients copy the bytes themselves.
    pub fn counters(&self) -> TargetCounters {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ServerState { meter, rejected, accepted, refused, .. } = &*self.state;
        TargetCounters {
            flow: meter.flow(),
            rejected: count(rejected),
            accepted: count(accepted),
            open: self.state.connections().len() as u64,
            refused: count(refused),
        }
    }

    /// Returns the number of clients that have mapped this node's memory.
    pub fn clients(&self) -> usize {
        let mapped = |connection: &&ServedConnection| connection.purpose == Some(LinkPurpose::Regions);
        self.state.connections().values().filter(mapped).count()
    }

    /// Stops accepting clients, and closes all connections.
    pub fn stop(&self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        self.state.listener.stop();
        self.state.generation.increment();
        self.state.connections().values().for_each(|connection| connection.socket.close());
    }
}

impl Drop for SharedMemoryServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ServerState {
    /// By the number of the connection.
    pub(super) fn connections(&self) -> MutexGuard<'_, HashMap<u64, ServedConnection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the connections' threads answer the messages that have arrived, and end.
    fn end_connections(&self, ends: impl Fn(&ServedConnection) -> bool) -> usize {
        let connections = self.connections();
        connections.values().filter(|one| ends(one)).map(|one| one.socket.end_receiving()).count()
    }

    #[expect(clippy::disallowed_methods, reason = "data plane threads do not use Env")]
    fn accept_loop(self: &Arc<ServerState>, ready: &mpsc::Sender<io::Result<()>>) {
        // Clients see when this thread ends, and with it the process.
        let owner = self.generation.own();
        let (owner, result) = owner.map_or_else(|error| (None, Err(error)), |owner| (Some(owner), Ok(())));
        if ready.send(result).is_err() || owner.is_none() {
            return;
        }
        loop {
            let accepted = self.listener.accept();
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            match accepted {
                Ok(socket) => {
                    if let Err(error) = self.enter(socket) {
                        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
                        if refused.is_power_of_two() {
                            tracing::warn!(%error, refused, "shared memory connection refused");
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a shared memory connection");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Starts a thread that serves `socket`.
    fn enter(self: &Arc<ServerState>, socket: PacketSocket) -> io::Result<()> {
        let user = socket.peer_user()?;
        if !may_share(user, effective_user()) {
            return Err(io::Error::other(format!("the client's user {user} is neither this process's user nor root")));
        }
        socket.limit_receive(Some(CLIENT_LIMIT))?;
        socket.limit_send(CLIENT_LIMIT)?;
        let id = self.accepted.fetch_add(1, Ordering::Relaxed);
        let socket = Arc::new(socket);
        {
            let mut connections = self.connections();
            if connections.len() >= CONNECTIONS_MAX {
                return Err(io::Error::other(format!("the limit of {CONNECTIONS_MAX} connections has been reached")));
            }
            connections.insert(id, ServedConnection { socket: Arc::clone(&socket), purpose: None });
        }
        // The connection is in the table, so an era that begins from here on also ends the
        // connection.
        let era = self.eras.current();
        if self.stopping.load(Ordering::SeqCst) {
            socket.close();
        }
        let state = Arc::clone(self);
        let serve = move || {
            if let Err(error) = state.serve(id, &socket, era) {
                tracing::debug!(%error, "shared memory connection closed");
            }
            state.connections().remove(&id);
        };
        let started = thread::Builder::new().name("te-shm".into()).stack_size(STACK_BYTES).spawn(serve);
        started.map(drop).inspect_err(|_| drop(self.connections().remove(&id)))
    }
}
