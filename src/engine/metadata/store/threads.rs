//! The threads for the log of a store.

use std::panic::resume_unwind;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::store::RecordStore;
use mcctl_journal::{JournalError, LogOutcome, LogThread, SnapshotThread, complete_log};
use mcctl_sys::env::Env;

/// The threads of a store with a log. Dropping it ends them without waiting, and without storing
/// anything.
pub(crate) struct RecordThreads {
    store: Arc<RecordStore>,
    running: Mutex<JoinSet<()>>,
}

impl RecordThreads {
    /// Starts the threads. For use in a runtime.
    pub(crate) fn start<E: Env>(store: Arc<RecordStore>, env: &E) -> RecordThreads {
        let mut running = JoinSet::new();
        let log = store.log();
        running.spawn(env.run_thread(LogThread::new(env.clone(), store.clone(), log.clone())));
        running.spawn(env.run_thread(SnapshotThread::new(env.clone(), store.clone(), log.clone())));
        RecordThreads { store, running: Mutex::new(running) }
    }

    /// Ends the threads, stores everything, and writes a last snapshot of changes.
    ///
    /// # Errors
    /// The disk reports an error, now or before.
    pub(crate) async fn close<E: Env>(&self, env: &E) -> Result<(), JournalError> {
        let log = self.store.log().clone();
        log.stop_threads();
        while let Some(ended) = self.running.lock().await.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
        match log.outcome() {
            LogOutcome::MemoryOnly => Ok(()),
            LogOutcome::Failed(error) => Err(error),
            LogOutcome::Working => {
                let env = env.clone();
                let store = self.store.clone();
                env.clone().run_blocking(move || complete_log(&env, &*store, &log)).await
            }
        }
    }
}

impl Drop for RecordThreads {
    fn drop(&mut self) {
        self.store.log().stop_threads();
    }
}
