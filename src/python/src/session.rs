//! A started client, and the runtimes on which its operations run.
//!
//! A thread that calls a method runs the operation itself, on a runtime of its own: it sends the
//! requests, waits for the responses, and moves the bytes. No other thread is woken. The background
//! runtime sends the heartbeats and serves the handshake port.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use mcctl_election::LeaderSubscription;
use mcctl_net::http::HttpServer;
use mcctl_store::client_metrics::ClientMetrics;
use mcctl_store::object_store::ObjectStore;
use mcctl_store::{Node, NodeStore, StoreClient, StoreError, TransferThreads};
use mcctl_sys::caller_memory::{MemoryUse, caller_memory};
use mcctl_sys::env::RealEnv;
use mcctl_transfer::Access;
use tokio::runtime::{Builder, Runtime};

use crate::memory::CallerBuffers;
use crate::objects::INVALID_PARAMS;
use crate::put_session::PutSessions;
use crate::ranges::ReadSessions;
use crate::store::NOT_SET_UP;

/// Maximum number of idle workers that are kept.
const IDLE_MAX: usize = 64;

/// A started client, with the memory and the sessions of its caller.
pub(crate) struct Session {
    /// The process that started the client. A child made with `fork` has neither its threads nor
    /// its connections.
    pub process: u32,
    pub node: Arc<NodeStore<RealEnv>>,
    pub metrics: Option<Arc<ClientMetrics>>,
    /// The memory that the caller has registered.
    pub buffers: RwLock<CallerBuffers>,
    pub puts: PutSessions,
    pub reads: Mutex<ReadSessions>,
    idle: Mutex<Vec<Worker>>,
    running: Mutex<Option<RunningNode>>,
    /// Present until the session is dropped.
    background: Option<Runtime>,
}

/// The parts of a session that are stopped when the client is closed.
pub(crate) struct RunningNode {
    pub node: Node<RealEnv>,
    pub http: Option<HttpServer>,
    /// Follows the leader among several masters.
    pub leader: Option<LeaderSubscription>,
}

/// A runtime for one calling thread, with its own connection to the master.
pub(crate) struct Worker {
    // Dropped before the runtime, whose tasks serve its connection.
    client: StoreClient<RealEnv>,
    runtime: Runtime,
}

/// A worker that one thread uses. It is kept for other threads afterward.
pub(crate) struct WorkerLease<'a> {
    session: &'a Session,
    worker: Option<Worker>,
}

impl Deref for WorkerLease<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        self.worker.as_ref().expect("present until the lease is dropped")
    }
}

impl Drop for WorkerLease<'_> {
    fn drop(&mut self) {
        let mut idle = self.session.idle();
        if idle.len() < IDLE_MAX {
            idle.extend(self.worker.take());
        }
    }
}

/// The errors with which an operation cannot begin.
#[derive(Clone, Debug)]
pub(crate) enum SessionError {
    Store(StoreError),
    Runtime(String),
}

impl Worker {
    /// Runs an operation on this thread.
    pub(crate) fn run<T>(&self, operation: impl AsyncFnOnce(&StoreClient<RealEnv>) -> T) -> T {
        self.runtime.block_on(operation(&self.client))
    }

    /// Returns the client, for what needs no runtime.
    pub(crate) fn client(&self) -> &StoreClient<RealEnv> {
        &self.client
    }

    /// Makes the next call open a new connection if the master has closed this worker's while its
    /// runtime was idle.
    pub(crate) fn check_connection(&self) {
        self.client.check_connection();
    }
}

/// Creates the runtime for background work.
pub(crate) fn background() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name("mcctl-store").enable_all().build()
}

impl Drop for Session {
    fn drop(&mut self) {
        // Dropping a runtime would wait for its blocking work, perhaps with the interpreter's lock
        // held.
        if let Some(background) = self.background.take() {
            background.shutdown_background();
        }
    }
}

impl Session {
    /// Creates the session of a node that runs on `background`.
    pub(crate) fn new(background: Runtime, running: RunningNode, metrics: Option<Arc<ClientMetrics>>) -> Session {
        Session {
            process: std::process::id(),
            node: Arc::new(running.node.store()),
            metrics,
            buffers: RwLock::default(),
            puts: PutSessions::default(),
            reads: Mutex::default(),
            idle: Mutex::default(),
            running: Mutex::new(Some(running)),
            background: Some(background),
        }
    }

    /// Whether this process has started the client.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Runs an operation in the background, and waits for it.
    pub(crate) fn run_in_background<T>(&self, operation: impl Future<Output = T>) -> T {
        self.background.as_ref().expect("present until the session is dropped").block_on(operation)
    }

    /// Returns the node: the client and the memory that this process contributes.
    pub(crate) fn running(&self) -> MutexGuard<'_, Option<RunningNode>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation on this thread.
    ///
    /// # Errors
    /// There is no connection to the master.
    pub(crate) fn run<T>(&self, operation: impl AsyncFnOnce(&StoreClient<RealEnv>) -> T) -> Result<T, SessionError> {
        Ok(self.worker()?.run(operation))
    }

    /// Returns a worker, for several operations over the same connection.
    ///
    /// # Errors
    /// There is no connection to the master.
    pub(crate) fn worker(&self) -> Result<WorkerLease<'_>, SessionError> {
        let idle = self.idle().pop();
        let worker = match idle {
            Some(worker) => {
                worker.check_connection();
                worker
            }
            None => self.connect()?,
        };
        Ok(WorkerLease { session: self, worker: Some(worker) })
    }

    /// Creates a worker that is not shared.
    ///
    /// # Errors
    /// There is no connection to the master.
    pub(crate) fn connect(&self) -> Result<Worker, SessionError> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("mcctl-mover").build();
        let runtime = runtime.map_err(|error| SessionError::Runtime(format!("cannot create a runtime: {error}")))?;
        let client = {
            let running = self.running();
            running.as_ref().map(|running| running.node.client().clone())
        };
        let Some(client) = client else { return Err(SessionError::Runtime("the store is closed".to_owned())) };
        let client = runtime.block_on(client.with_own_connection(TransferThreads::Caller));
        Ok(Worker { client: client.map_err(SessionError::Store)?, runtime })
    }

    /// Unmounts the segments and stops the client. Objects in this process's segments are lost.
    pub(crate) fn stop(&self) {
        let Some(RunningNode { node, http, leader }) = self.running().take() else { return };
        // This ends the transfers of other threads, which then release their locks.
        self.run_in_background(async {
            if let Some(http) = http {
                http.stop().await;
            }
            node.stop().await;
        });
        drop(leader);
        self.idle().clear();
        self.puts.clear();
        self.reads.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.buffers.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the metrics in the Prometheus text format; nothing if they are off.
    pub(crate) fn exposition(&self) -> String {
        let Some(metrics) = &self.metrics else { return String::new() };
        metrics.exposition() + &self.node.metrics().transport.metrics()
    }

    /// Registers the caller's memory, all of which it must be able to read and write. Returns 0 or
    /// a negative code.
    pub(crate) fn register(&self, address: u64, size: usize) -> i32 {
        let memory = match caller_memory(address, size, MemoryUse::Both) {
            Ok(memory) if size > 0 => Arc::new(memory),
            Ok(_) => return INVALID_PARAMS,
            Err(error) => {
                tracing::error!("cannot register a buffer: {error}");
                return INVALID_PARAMS;
            }
        };
        let Some(engine) = self.running().as_ref().map(|running| running.node.client().engine().clone()) else {
            return NOT_SET_UP;
        };
        match self.run_in_background(engine.register(&memory, Access::Local)) {
            Ok(registration) => {
                self.buffers.write().unwrap_or_else(PoisonError::into_inner).insert(memory, registration);
                0
            }
            Err(error) => {
                tracing::error!(address, size, "cannot register a buffer: {error}");
                INVALID_PARAMS
            }
        }
    }

    /// Unregisters the buffer that begins at `address`. Returns 0 or a negative code.
    pub(crate) fn unregister(&self, address: u64) -> i32 {
        let registration = self.buffers.write().unwrap_or_else(PoisonError::into_inner).remove(address);
        let Some(registration) = registration else { return INVALID_PARAMS };
        let Some(engine) = self.running().as_ref().map(|running| running.node.client().engine().clone()) else {
            return NOT_SET_UP;
        };
        match self.run_in_background(engine.deregister(registration)) {
            Ok(()) => 0,
            Err(error) => {
                tracing::warn!(address, "cannot unregister a buffer: {error}");
                INVALID_PARAMS
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
