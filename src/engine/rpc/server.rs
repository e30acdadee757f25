//! The server's shell: accept, read frames, let a [`Service`] answer, write.
//!
//! Each worker is a thread with a single-threaded runtime of its own, and a connection stays with the worker it was given:
//! a request then costs one wait, one read and one write, and wakes no other thread. Every request that is already in the buffer
//! is answered before anything is written, so a pipelining client pays less than one system call per request. Connections are
//! dealt out [`TOGETHER`] at a time: a thread with a few of them sleeps and wakes less often than several with one each, which
//! is worth a third of the CPU per request. What happens on a connection is in `connection.rs`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::engine::base::HostPort;
use crate::engine::env::{Env, Listener, Net, processors};
use crate::engine::rpc::connection::{self, Shared};
use crate::engine::rpc::polls::WorkerPolls;
use crate::engine::wire::{DecodeError, Method};

/// Connections that one server holds; a further one is closed at once. 1,000 hosts with 8 ranks of 4 connections are 32,000.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Connections that a worker gets before the next worker gets some.
const TOGETHER: usize = 16;
/// Sockets handed to a worker that it has not taken up yet.
const HANDOVER_QUEUE: usize = 1024;

/// What answers requests: one call at a time per connection, from several threads.
pub trait Service: Send + Sync + 'static {
    /// Append the body of the answer to `out`. `peer` is the address of the connection's other end.
    ///
    /// # Errors
    /// The request's body is not what the method takes; `out` must be as it was.
    fn answer(&self, peer: &str, method: Method, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError>;

    /// Can an answer to this method take long, as a walk over all keys does? It is then made on a thread of its own, so that other
    /// connections of the same worker are served meanwhile. At most [`connection::LONG_CALLS_MAX`] run at once.
    fn is_long(&self, _method: Method) -> bool {
        false
    }
}

/// How a server runs.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen; port 0 takes a free one.
    pub listen: HostPort,
    /// Worker threads; 0 serves on the runtime of the caller (for simulations).
    pub threads: usize,
    /// Close a connection that sent nothing for this long.
    pub idle_timeout: Option<Duration>,
}

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: HostPort,
        /// What the system said.
        source: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a worker thread: {0}; fewer threads, or a higher limit of open files, may help")]
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
}

impl RpcServer {
    /// Listen and serve.
    ///
    /// # Errors
    /// The address is taken, or a thread cannot be started.
    pub async fn start<E: Env>(
        config: ServerConfig,
        env: E,
        service: Arc<impl Service>,
    ) -> Result<RpcServer, StartError> {
        let listener = env.net().listen(&config.listen).await;
        let listener = listener.map_err(|source| StartError::Listen { address: config.listen.clone(), source })?;
        let port = listener.port();
        let (shutdown, stopping) = watch::channel(false);
        let connections = Arc::new(AtomicUsize::new(0));
        let polls = WorkerPolls::new(config.threads, env.now());
        let shared = Arc::new(Shared::new(env, service, config.idle_timeout, config.threads > 0, stopping));
        let mut queues: Vec<Worker<E>> = Vec::new();
        let mut workers = Vec::new();
        for index in 0..config.threads {
            let (queue, sockets) = mpsc::channel(HANDOVER_QUEUE);
            let shared = shared.clone();
            // Made here, so that a server whose threads cannot work does not start.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(StartError::Thread)?;
            let thread = std::thread::Builder::new().name(format!("rpc-{index}"));
            let mine = Arc::<AtomicUsize>::default();
            let beat = polls.clone().beat(shared.env.clone(), index, mine.clone());
            let work = move || {
                run_worker(&shared, &runtime, beat, sockets);
                // A long call that is still under way is not waited for.
                runtime.shutdown_background();
            };
            workers.push(thread.spawn(work).map_err(StartError::Thread)?);
            queues.push(Worker { queue, connections: mine });
        }
        let acceptor = tokio::spawn(accept(shared, listener, queues, connections.clone()));
        Ok(RpcServer { port, shutdown, acceptor, workers, connections, polls })
    }

    /// The port that was bound.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// When the workers last polled their connections.
    pub fn polls(&self) -> WorkerPolls {
        self.polls.clone()
    }

    /// Accept no more and close all connections. A request is answered under way or not at all; only an answer that its peer was
    /// slow to take may be cut short.
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

/// Counts a connection for as long as it is open.
struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    fn new(count: &Arc<AtomicUsize>) -> Ticket {
        count.fetch_add(1, Ordering::Relaxed);
        Ticket(count.clone())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A worker thread, as the acceptor sees it.
struct Worker<E: Env> {
    queue: mpsc::Sender<Handover<E>>,
    connections: Arc<AtomicUsize>,
}

type Handover<E> = (<<E as Env>::Net as Net>::Detached, String, [Ticket; 2]);

/// Accept connections and deal them out to the workers in turn, or serve them here if there are none.
async fn accept<E: Env, S: Service>(
    shared: Arc<Shared<E, S>>,
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
                // Mostly "too many open files": the connection waits in the backlog until one is free.
                failed += 1;
                if failed.is_power_of_two() {
                    tracing::warn!(%error, failed, "cannot accept a connection");
                }
                shared.env.sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            tracing::warn!(%peer, limit = CONNECTIONS_MAX, "too many connections, this one is closed");
            continue;
        }
        let ticket = Ticket::new(&connections);
        let Some(worker) = workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed) / TOGETHER)
        else {
            here.spawn(connection::serve(shared.clone(), stream, peer, ticket));
            continue;
        };
        let Ok(socket) = E::Net::detach(stream) else { continue };
        if worker.queue.send((socket, peer, [ticket, Ticket::new(&worker.connections)])).await.is_err() {
            break;
        }
    }
}

fn run_worker<E: Env, S: Service>(
    shared: &Arc<Shared<E, S>>,
    runtime: &tokio::runtime::Runtime,
    beat: impl Future<Output = ()> + Send + 'static,
    mut sockets: mpsc::Receiver<Handover<E>>,
) {
    runtime.block_on(async {
        drop(tokio::spawn(beat));
        let mut tasks = JoinSet::new();
        let mut stop = shared.stopping.clone();
        loop {
            tokio::select! {
                handover = sockets.recv() => {
                    let Some((socket, peer, ticket)) = handover else { break };
                    match E::Net::attach(socket) {
                        Ok(stream) => drop(tasks.spawn(connection::serve(shared.clone(), stream, peer, ticket))),
                        Err(error) => tracing::warn!(%peer, %error, "a connection was lost between threads"),
                    }
                }
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
    });
}

/// The worker threads where nobody says how many: one per processor, at most `most` (upstream's default of that is
/// [`THREADS_MAX`]).
pub fn default_threads(most: usize) -> usize {
    processors().min(most)
}

/// Upstream's `--max_threads`.
pub const THREADS_MAX: usize = 16;
