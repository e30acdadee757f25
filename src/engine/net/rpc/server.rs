//! The RPC server: accepts connections, reads frames, calls an [`RpcService`] and writes the
//! responses.
//!
//! Each worker is a thread with its own single-threaded runtime, and a connection stays with its
//! worker. As a result, a request costs one wait, one read and one write, and wakes no other
//! thread. All buffered requests are processed before anything is written, so requests from a
//! client that pipelines them cost less than one system call each. Connections are assigned in
//! groups of [`GROUP_SIZE`]: one thread with several connections sleeps and wakes less often than
//! several threads with one connection each. That saves a third of the CPU time per request.
//! `connection.rs` serves the connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::rpc::connection::{self, ConnectionShared};
use crate::rpc::latency::RpcLatency;
use crate::rpc::polls::WorkerPolls;
use crate::rpc::releases::ClientReleases;
use crate::rpc::service::RpcService;
use mcctl_base::HostPort;
use mcctl_sys::env::{Env, Listener, Net, processors};
use mcctl_wire::Release;

/// Maximum number of connections per server. Further connections are closed immediately. For
/// example, 1,000 hosts with 8 ranks each and 4 connections per rank need 32,000 connections.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Number of connections assigned to a worker before the next worker gets any.
const GROUP_SIZE: usize = 16;
/// Maximum number of sockets queued for a worker.
const HANDOVER_QUEUE: usize = 1024;

/// A server's settings.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on; port 0 selects a free one.
    pub listen: HostPort,
    /// Number of worker threads. With 0, the caller's runtime serves the connections (for
    /// simulations).
    pub threads: usize,
    /// Connections that send no request for this long are closed.
    pub idle_timeout: Option<Duration>,
    /// The release of clients that have not shown another.
    pub client_release: Release,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is not available.
    #[error("cannot listen on {address}: {source}")]
    Listen { address: HostPort, source: io::Error },
    /// A thread could not be started.
    #[error("cannot start a worker thread: {0}; try fewer threads or a higher open-file limit")]
    Thread(#[source] io::Error),
}

/// A running server. Dropping it stops it without waiting; [`RpcServer::stop`] waits.
pub struct RpcServer {
    port: u16,
    shutdown: watch::Sender<bool>,
    acceptor: tokio::task::JoinHandle<()>,
    workers: Vec<JoinHandle<()>>,
    connections: Arc<AtomicUsize>,
    polls: WorkerPolls,
    latency: RpcLatency,
    releases: ClientReleases,
}

impl RpcServer {
    /// Starts listening and serving.
    ///
    /// # Errors
    /// The address is not available, or a thread cannot be started.
    pub async fn start<E: Env>(
        config: ServerConfig,
        env: E,
        service: Arc<impl RpcService>,
    ) -> Result<RpcServer, StartError> {
        let listener = env.net().listen(&config.listen).await;
        let listener = listener.map_err(|source| StartError::Listen { address: config.listen.clone(), source })?;
        let port = listener.port();
        let (shutdown, stopping) = watch::channel(false);
        let connections = Arc::new(AtomicUsize::new(0));
        let polls = WorkerPolls::new(config.threads, env.now());
        let shared = Arc::new(ConnectionShared::new(env, service, &config, stopping));
        let latency = shared.latency.clone();
        let releases = shared.releases.clone();
        let mut queues: Vec<Worker<E>> = Vec::new();
        let mut workers = Vec::new();
        for index in 0..config.threads {
            let (queue, sockets) = mpsc::channel(HANDOVER_QUEUE);
            let shared = shared.clone();
            // Created here, so that startup fails if a thread's runtime cannot be created.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(StartError::Thread)?;
            let thread = std::thread::Builder::new().name(format!("rpc-{index}"));
            let mine = Arc::<AtomicUsize>::default();
            let updates = polls.clone().keep_updated(shared.env.clone(), index, mine.clone());
            let work = move || {
                run_worker(&shared, index, &runtime, updates, sockets);
                // Do not wait for long calls in progress.
                runtime.shutdown_background();
            };
            workers.push(thread.spawn(work).map_err(StartError::Thread)?);
            queues.push(Worker { queue, connections: mine });
        }
        let acceptor = tokio::spawn(accept(shared, listener, queues, connections.clone()));
        Ok(RpcServer { port, shutdown, acceptor, workers, connections, polls, latency, releases })
    }

    /// The port on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// When each worker last polled its connections.
    pub fn polls(&self) -> WorkerPolls {
        self.polls.clone()
    }

    /// How long the server takes to answer calls, by method.
    pub fn latency(&self) -> RpcLatency {
        self.latency.clone()
    }

    /// The releases of the clients.
    pub fn releases(&self) -> ClientReleases {
        self.releases.clone()
    }

    /// Stops accepting connections and closes all open ones. A request in progress is either
    /// processed completely or not at all. A response may be cut short only if the peer was slow to
    /// read it.
    pub async fn stop(mut self) {
        let _ = self.shutdown.send(true);
        let _ = (&mut self.acceptor).await;
        let workers = std::mem::take(&mut self.workers);
        let joined = tokio::task::spawn_blocking(move || workers.into_iter().for_each(|worker| drop(worker.join())));
        let _ = joined.await;
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        let _ = self.shutdown.send(true);
    }
}

/// Counts an open connection until it is dropped.
struct ConnectionGuard(Arc<AtomicUsize>);

impl ConnectionGuard {
    fn new(count: &Arc<AtomicUsize>) -> ConnectionGuard {
        count.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(count.clone())
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker thread, from the acceptor's point of view.
struct Worker<E: Env> {
    queue: mpsc::Sender<Handover<E>>,
    connections: Arc<AtomicUsize>,
}

type Handover<E> = (<<E as Env>::Net as Net>::Detached, String, [ConnectionGuard; 2]);

/// Accepts connections and assigns them to the workers. Without workers, it serves them on this
/// runtime.
async fn accept<E: Env, S: RpcService>(
    shared: Arc<ConnectionShared<E, S>>,
    mut listener: <E::Net as Net>::Listener,
    workers: Vec<Worker<E>>,
    connections: Arc<AtomicUsize>,
) {
    let mut here = JoinSet::new();
    let mut stop = shared.stopping.clone();
    let mut failed = 0u64;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = here.join_next(), if !here.is_empty() => continue,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually "too many open files": the connection waits in the backlog until a file
                // descriptor is free.
                failed += 1;
                if failed.is_power_of_two() {
                    tracing::warn!(%error, failed, "cannot accept a connection");
                }
                shared.env.sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            tracing::warn!(%peer, limit = CONNECTIONS_MAX, "connection limit reached: closed a new connection");
            continue;
        }
        let guard = ConnectionGuard::new(&connections);
        let Some(worker) = workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed) / GROUP_SIZE)
        else {
            here.spawn(connection::serve(shared.clone(), 0, stream, peer, guard));
            continue;
        };
        let Ok(socket) = E::Net::detach(stream) else { continue };
        if worker.queue.send((socket, peer, [guard, ConnectionGuard::new(&worker.connections)])).await.is_err() {
            break;
        }
    }
}

fn run_worker<E: Env, S: RpcService>(
    shared: &Arc<ConnectionShared<E, S>>,
    index: usize,
    runtime: &tokio::runtime::Runtime,
    updates: impl Future<Output = ()> + Send + 'static,
    mut sockets: mpsc::Receiver<Handover<E>>,
) {
    runtime.block_on(async {
        drop(tokio::spawn(updates));
        let mut tasks = JoinSet::new();
        let mut stop = shared.stopping.clone();
        loop {
            tokio::select! {
                handover = sockets.recv() => {
                    let Some((socket, peer, guard)) = handover else { break };
                    match E::Net::attach(socket) {
                        Ok(stream) => drop(tasks.spawn(connection::serve(shared.clone(), index, stream, peer, guard))),
                        Err(error) => tracing::warn!(%peer, %error, "cannot move a connection to a worker thread"),
                    }
                }
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
    });
}

/// Returns the default number of worker threads: one per processor, at most `most` (upstream's
/// default maximum is [`THREADS_MAX`]).
pub fn default_threads(most: usize) -> usize {
    processors().min(most)
}

pub const THREADS_MAX: usize = 16;
