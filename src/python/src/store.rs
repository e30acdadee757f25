//! The class `MooncakeDistributedStore`: its state, and how it is closed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use mcctl_base::ErrorCode;
use pyo3::prelude::*;

use crate::interpreter::{self, detached};
use crate::session::Session;

/// The code of a method that is called before `setup` or after `close`.
pub(crate) const NOT_SET_UP: i32 = ErrorCode::INVALID_PARAMS.0;

/// All started clients, to stop them when the interpreter exits.
static SESSIONS: Mutex<Vec<Weak<Session>>> = Mutex::new(Vec::new());

/// The last process that logged that it cannot use its parent's client.
static LOGGED: AtomicU32 = AtomicU32::new(0);

/// A client of a Mooncake store, with the methods of `mooncake.store`. Call `setup` first. All
/// methods may be called from several threads at the same time, and release the interpreter's lock
/// while they wait.
#[pyclass(module = "mcctl_mooncake._native", subclass, frozen)]
pub(crate) struct MooncakeDistributedStore {
    session: RwLock<Option<Arc<Session>>>,
}

impl MooncakeDistributedStore {
    /// Returns the started client; `None` before `setup`, after `close`, and in a child process
    /// made with `fork`.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        let session = self.session.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        if session.is_of_this_process() {
            return Some(session);
        }
        if LOGGED.swap(std::process::id(), Ordering::Relaxed) != std::process::id() {
            tracing::error!(
                parent = session.process,
                "the store was set up in the parent process: create a store and call setup() in this process"
            );
        }
        // The threads and connections belong to the parent process.
        std::mem::forget(session);
        None
    }

    /// Stores a started client, and returns the one before.
    pub(crate) fn replace(&self, session: Option<Session>) -> Option<Arc<Session>> {
        let session = session.map(Arc::new);
        if let Some(session) = &session {
            let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.retain(|session| session.strong_count() > 0);
            sessions.push(Arc::downgrade(session));
        }
        std::mem::replace(&mut *self.session.write().unwrap_or_else(PoisonError::into_inner), session)
    }
}

#[pymethods]
impl MooncakeDistributedStore {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyAny>, _kwargs: Option<&Bound<'_, PyAny>>) -> MooncakeDistributedStore {
        MooncakeDistributedStore { session: RwLock::new(None) }
    }

    /// Unmounts this process's segments and stops the client. Objects in these segments are lost.
    /// Returns 0.
    fn close(&self, py: Python<'_>) -> i32 {
        end(py, self.replace(None));
        0
    }

    /// Returns 0 if the master responds to this process's heartbeats, 1 before `setup`, 2 if it
    /// does not respond.
    fn health_check(&self) -> i32 {
        let Some(session) = self.session() else { return 1 };
        let is_healthy = session.running().as_ref().is_some_and(|running| running.node.heartbeat_status().is_healthy());
        if is_healthy { 0 } else { 2 }
    }

    /// Returns the name under which the master lists this process, `HOST:PORT`; empty before
    /// `setup`.
    fn get_hostname(&self) -> String {
        let session = self.session();
        let name =
            session.and_then(|session| session.running().as_ref().map(|running| running.node.name().to_string()));
        name.unwrap_or_default()
    }

    /// Returns the client's metrics in the Prometheus text format; empty before `setup`. This
    /// method is an addition to the names of `mooncake.store`.
    fn metrics(&self) -> String {
        let session = self.session();
        session.map(|session| session.exposition()).unwrap_or_default()
    }
}

impl Drop for MooncakeDistributedStore {
    fn drop(&mut self) {
        if let Some(session) = self.replace(None) {
            Python::attach(|py| end(py, Some(session)));
        }
    }
}

/// Stops a client. In a child process made with `fork`, nothing is stopped: threads and connections
/// belong to the parent.
pub(crate) fn end(py: Python<'_>, session: Option<Arc<Session>>) {
    let Some(session) = session else { return };
    if session.is_of_this_process() {
        detached(py, || {
            session.stop();
            drop(session);
        });
    } else {
        std::mem::forget(session);
    }
}

/// Stops all clients of this process. Python calls it when the interpreter exits.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) {
    interpreter::exits();
    let sessions: Vec<_> = {
        let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.drain(..).filter_map(|session| session.upgrade()).collect()
    };
    sessions.into_iter().for_each(|session| end(py, Some(session)));
}
