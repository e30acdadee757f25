//! The thread that stores changes in the background: it syncs the log at its interval, creates log
//! files ahead of need, and starts snapshots.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::journal::MetadataJournal;
use crate::journal::signal::WorkerStop;
use crate::store::RecordStore;
use mcctl_base::Mono;
use mcctl_journal::{JournalError, SyncMode};
use mcctl_sys::env::Env;

/// The worker of a store with a journal. Dropping it ends the thread without waiting, and without
/// storing anything.
pub(crate) struct JournalWorker {
    store: Arc<RecordStore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl JournalWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The host cannot start a thread.
    pub(crate) fn start<E: Env>(store: Arc<RecordStore>, env: E) -> std::io::Result<JournalWorker> {
        let run = {
            let store = store.clone();
            move || run(&store, store.journal(), &env)
        };
        let thread = thread::Builder::new().name("metadata-log".to_owned()).spawn(run)?;
        Ok(JournalWorker { store, thread: Mutex::new(Some(thread)) })
    }

    /// Stores everything, writes a last snapshot, and ends the thread. Waits for the disk.
    ///
    /// # Errors
    /// The disk reports an error, now or before.
    pub(crate) fn close(&self) -> Result<(), JournalError> {
        let journal = self.store.journal();
        journal.request_stop(WorkerStop::Complete);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(panic)) = thread.map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        journal.store(true)
    }
}

impl Drop for JournalWorker {
    fn drop(&mut self) {
        self.store.journal().request_stop(WorkerStop::Abandon);
    }
}

fn run<E: Env>(store: &Arc<RecordStore>, journal: &MetadataJournal, env: &E) {
    let mut snapshot: Option<JoinHandle<()>> = None;
    let mut sync_at: Option<Mono> = None;
    loop {
        let limit = sync_at.map(|at| at.since(env.now()));
        let stop = journal.next_work(limit).stop;
        if stop == Some(WorkerStop::Abandon) {
            return;
        }
        // A write without a response, such as the removal of an expired owner's records, is passed
        // to the kernel here. After an error, the journal has decided what follows.
        let _ = journal.store(false);
        journal.prepare_next();
        if stop == Some(WorkerStop::Complete) {
            snapshot.take().map(JoinHandle::join);
            write_snapshot(store, env);
            return;
        }
        sync_at =
            if journal.has_undurable() { sync_at.or_else(|| next_sync(journal.sync_mode(), env.now())) } else { None };
        if sync_at.is_some_and(|at| at <= env.now()) {
            let _ = journal.store(true);
            sync_at = None;
        }
        let is_writing = snapshot.as_ref().is_some_and(|snapshot| !snapshot.is_finished());
        if !is_writing && journal.is_snapshot_due() {
            snapshot = start_snapshot(store, env);
        }
    }
}

/// When changes of `now` must be durable.
fn next_sync(mode: SyncMode, now: Mono) -> Option<Mono> {
    match mode {
        SyncMode::Always => Some(now),
        SyncMode::Interval(interval) => Some(now + interval),
        SyncMode::Never => None,
    }
}

/// Writes a snapshot on a thread of its own, so that the log is synced in the meantime.
fn start_snapshot<E: Env>(store: &Arc<RecordStore>, env: &E) -> Option<JoinHandle<()>> {
    let store = store.clone();
    let env = env.clone();
    let started = thread::Builder::new().name("metadata-snap".to_owned()).spawn(move || write_snapshot(&store, &env));
    started
        .inspect_err(|error| tracing::warn!(%error, "cannot start a thread for a snapshot of the metadata records"))
        .ok()
}

fn write_snapshot<E: Env>(store: &RecordStore, env: &E) {
    if let Err(error) = store.write_snapshot(env.unix()) {
        tracing::warn!(%error, "cannot write a snapshot of the metadata records; the log contains them");
    }
}
