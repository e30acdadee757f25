//! The threads for the log of a cluster's master, and the source of its snapshots: the copy of a standby, or the state of a leader.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::engine::election::ElectionBackend;
use crate::engine::env::{Env, ThreadWork};
use crate::engine::master::SnapshotStep;
use crate::engine::master::server::ha::disk::HaDisk;
use crate::engine::master::server::ha::driver::HaDriver;
use crate::engine::master::server::log::MasterLog;
use crate::engine::master::server::log_thread::LogThread;
use crate::engine::master::server::snapshots::{SnapshotSource, SnapshotThread};

/// Takes snapshots of what this master has at the moment.
pub(in crate::engine::master::server::ha) struct HaSnapshots<E, B> {
    driver: Arc<HaDriver<E, B>>,
    /// Of what the snapshot in progress is. Others may use the state for snapshots as well.
    begun: Mutex<Option<SnapshotSubject>>,
}

#[derive(Clone, Copy, Debug)]
enum SnapshotSubject {
    /// The copy of a standby.
    Copy,
    /// The state that serves in this term.
    State(u64),
}

impl<E: Env, B: ElectionBackend> HaSnapshots<E, B> {
    /// Takes them of what `driver` has.
    pub fn new(driver: Arc<HaDriver<E, B>>) -> HaSnapshots<E, B> {
        HaSnapshots { driver, begun: Mutex::new(None) }
    }

    fn begun(&self) -> Option<SnapshotSubject> {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_begun(&self, subject: Option<SnapshotSubject>) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = subject;
    }

    fn is_current(&self, log: &MasterLog) -> bool {
        self.driver.hub.disk.as_ref().is_some_and(|disk| disk.is_current(log))
    }
}

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Starts the threads for a log that does not have them yet.
    pub(in crate::engine::master::server::ha) fn start_log_threads(self: &Arc<Self>) {
        let Some((log, running)) = self.hub.disk.as_ref().and_then(HaDisk::to_start) else { return };
        let sync = LogThread::new(self.shared.clone(), log.clone());
        let snapshots = SnapshotThread::new(Box::new(HaSnapshots::new(self.clone())), log);
        self.spawn(self.env.run_thread(RunningThread { work: sync, _running: running.clone() }));
        self.spawn(self.env.run_thread(RunningThread { work: snapshots, _running: running }));
    }
}

/// The work of a thread, and the receiver that shows that the thread runs.
struct RunningThread<W> {
    work: W,
    _running: watch::Receiver<()>,
}

impl<W: ThreadWork> ThreadWork for RunningThread<W> {
    fn step(&mut self, may_wait: bool) -> bool {
        self.work.step(may_wait)
    }
}

impl<E: Env, B: ElectionBackend> SnapshotSource for HaSnapshots<E, B> {
    type Env = E;

    fn env(&self) -> &E {
        &self.driver.env
    }

    fn begin(&self, log: &MasterLog) -> Option<(u64, u64)> {
        let (now, format) = (self.driver.env.now(), log.options.format);
        self.set_begun(None);
        let mut copy = self.driver.copy();
        let last = copy.applied;
        if let Some(standby) = copy.following() {
            if !self.is_current(log) || !standby.begin_snapshot(now, format) {
                return None;
            }
            self.set_begun(Some(SnapshotSubject::Copy));
            return Some((last, log.log_bytes()));
        }
        drop(copy);
        let begun = self.driver.shared.with_guarded(None, |guarded, now, _| {
            guarded.log.as_ref().filter(|current| std::ptr::eq(&raw const ***current, log))?;
            Some((guarded.state.begin_snapshot(now, format)?, guarded.term))
        });
        let (sequence, term) = begun?;
        self.set_begun(Some(SnapshotSubject::State(term)));
        Some((sequence, log.log_bytes()))
    }

    fn slots(&self, slots: u32) -> Option<SnapshotStep> {
        match self.begun()? {
            SnapshotSubject::Copy => self.driver.copy().following()?.snapshot_slots(slots),
            SnapshotSubject::State(term) => self.driver.shared.with_guarded(None, |guarded, _, _| {
                if guarded.term == term { guarded.state.snapshot_slots(slots) } else { None }
            }),
        }
    }

    fn cancel(&self) {
        match self.begun() {
            None => {}
            Some(SnapshotSubject::Copy) => {
                if let Some(standby) = self.driver.copy().following() {
                    standby.cancel_snapshot();
                }
            }
            Some(SnapshotSubject::State(term)) => self.driver.shared.with_guarded(None, |guarded, _, _| {
                if guarded.term == term {
                    guarded.state.cancel_snapshot();
                }
            }),
        }
        self.set_begun(None);
    }
}
