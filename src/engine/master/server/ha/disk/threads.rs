//! The threads for the log of a cluster's master, and the source of its snapshots: the copy of a
//! standby, or the state of a leader.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};

use crate::SnapshotStep;
use crate::server::ha::disk::HaDisk;
use crate::server::ha::driver::context::HaContext;
use crate::server::ha::driver::event::DriverEvent;
use crate::server::ha::standby::copy::StandbyCopy;
use crate::server::log::MasterLog;
use crate::snapshot::SLOTS_PER_SLICE;
use mcctl_journal::{LogThread, SnapshotBegin, SnapshotSlice, SnapshotSource, SnapshotThread};
use mcctl_sys::env::{Env, ThreadWork};

/// Returns the threads for the newest log, if it does not have them yet.
pub(in crate::server::ha) fn log_threads<E: Env>(disk: &HaDisk, context: &HaContext<E>) -> Option<[RunningThread; 2]> {
    let (log, running) = disk.to_start()?;
    let sync = LogThread::new(context.env.clone(), context.shared.clone(), log.clone());
    let source = HaSnapshots { context: context.clone(), log: log.clone(), subject: Mutex::new(SnapshotSubject::None) };
    let snapshots = SnapshotThread::new(context.env.clone(), Box::new(source), log);
    let sync = RunningThread { work: Box::new(sync), _running: running.clone() };
    let snapshots = RunningThread { work: Box::new(snapshots), _running: running };
    Some([sync, snapshots])
}

/// The work of a thread, and the receiver that shows that the thread runs.
pub(in crate::server::ha) struct RunningThread {
    work: Box<dyn ThreadWork>,
    _running: watch::Receiver<()>,
}

impl ThreadWork for RunningThread {
    fn step(&mut self, may_wait: bool) -> bool {
        self.work.step(may_wait)
    }
}

/// Takes snapshots of the current copy or state of this master, for the thread of a log.
struct HaSnapshots<E: Env> {
    context: HaContext<E>,
    log: Arc<MasterLog>,
    subject: Mutex<SnapshotSubject>,
}

/// The source of the snapshot in progress. Other threads may use the state for snapshots as well.
enum SnapshotSubject {
    None,
    /// The driver begins a snapshot of the copy of a standby.
    Requested(oneshot::Receiver<CopyBegin>),
    /// The copy with this number, and the slice that was requested from the driver.
    Copy(u64, Option<oneshot::Receiver<Option<SnapshotStep>>>),
    /// The state that serves in this term.
    State(u64),
}

/// The result of beginning a snapshot of the copy.
enum CopyBegin {
    /// This master has no copy that follows a leader.
    NoCopy,
    NotNow,
    /// A snapshot of the copy with this number. It contains the changes up to `last`.
    Begun {
        generation: u64,
        last: u64,
    },
}

/// The driver's answer to a thread.
enum DriverAnswer<R> {
    Received(R),
    Pending(oneshot::Receiver<R>),
    DriverEnded,
}

impl<R> DriverAnswer<R> {
    /// Waits for the answer if `may_wait`.
    fn receive(mut answer: oneshot::Receiver<R>, may_wait: bool) -> DriverAnswer<R> {
        if may_wait {
            return answer.blocking_recv().map_or(DriverAnswer::DriverEnded, DriverAnswer::Received);
        }
        match answer.try_recv() {
            Ok(given) => DriverAnswer::Received(given),
            Err(TryRecvError::Empty) => DriverAnswer::Pending(answer),
            Err(TryRecvError::Closed) => DriverAnswer::DriverEnded,
        }
    }
}

impl<E: Env> HaSnapshots<E> {
    fn subject(&self) -> MutexGuard<'_, SnapshotSubject> {
        self.subject.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_subject(&self) -> SnapshotSubject {
        std::mem::replace(&mut *self.subject(), SnapshotSubject::None)
    }

    /// Requests short work on the copy from the driver.
    fn ask<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StandbyCopy) -> R + Send + 'static,
    ) -> oneshot::Receiver<R> {
        let (answer, answered) = oneshot::channel();
        let work = move |copy: &mut StandbyCopy| drop(answer.send(work(copy)));
        // After an error, the driver has ended, and there is no answer.
        let _ = self.context.events.send(DriverEvent::UseCopy(Box::new(work)));
        answered
    }

    fn ask_to_begin(&self) -> oneshot::Receiver<CopyBegin> {
        let context = self.context.clone();
        let log = self.log.clone();
        self.ask(move |copy| {
            let generation = copy.generation();
            let last = copy.applied;
            let Some(standby) = copy.following() else { return CopyBegin::NoCopy };
            let is_current = context.hub.disk.as_ref().is_some_and(|disk| disk.is_current(&log));
            if is_current && standby.begin_snapshot(context.env.now(), log.format) {
                CopyBegin::Begun { generation, last }
            } else {
                CopyBegin::NotNow
            }
        })
    }

    /// Begins a snapshot of the state, if it serves.
    fn begin_state(&self, log: &MasterLog) -> SnapshotBegin {
        let begun = self.context.shared.with_guarded(|guarded, now, _| {
            guarded.log.as_ref().filter(|current| std::ptr::eq(&raw const ***current, log))?;
            Some((guarded.state.begin_snapshot(now, log.format)?, guarded.term))
        });
        let Some((last, term)) = begun else { return SnapshotBegin::NotNow };
        *self.subject() = SnapshotSubject::State(term);
        SnapshotBegin::Begun { last, log_bytes: log.log_bytes() }
    }

    fn ask_for_slice(&self, number: u64, slots: u32) -> oneshot::Receiver<Option<SnapshotStep>> {
        self.ask(move |copy| if copy.generation() == number { copy.following()?.snapshot_slots(slots) } else { None })
    }
}

impl<E: Env> SnapshotSource for HaSnapshots<E> {
    type Log = MasterLog;

    const SLOTS_PER_STEP: u32 = SLOTS_PER_SLICE;

    fn begin(&self, log: &MasterLog, may_wait: bool) -> SnapshotBegin {
        let asked = match self.take_subject() {
            SnapshotSubject::Requested(asked) => asked,
            _ => self.ask_to_begin(),
        };
        match DriverAnswer::receive(asked, may_wait) {
            DriverAnswer::Pending(asked) => {
                *self.subject() = SnapshotSubject::Requested(asked);
                SnapshotBegin::NotYet
            }
            DriverAnswer::Received(CopyBegin::Begun { generation, last }) => {
                *self.subject() = SnapshotSubject::Copy(generation, None);
                SnapshotBegin::Begun { last, log_bytes: log.log_bytes() }
            }
            DriverAnswer::Received(CopyBegin::NoCopy) => self.begin_state(log),
            DriverAnswer::Received(CopyBegin::NotNow) | DriverAnswer::DriverEnded => SnapshotBegin::NotNow,
        }
    }

    fn slots(&self, slots: u32, may_wait: bool) -> Option<SnapshotSlice> {
        match self.take_subject() {
            SnapshotSubject::None | SnapshotSubject::Requested(_) => None,
            SnapshotSubject::Copy(number, asked) => {
                let asked = asked.unwrap_or_else(|| self.ask_for_slice(number, slots));
                match DriverAnswer::receive(asked, may_wait) {
                    DriverAnswer::Pending(asked) => {
                        *self.subject() = SnapshotSubject::Copy(number, Some(asked));
                        Some(SnapshotSlice::More)
                    }
                    DriverAnswer::Received(step) => {
                        *self.subject() = SnapshotSubject::Copy(number, None);
                        step.map(SnapshotSlice::from)
                    }
                    DriverAnswer::DriverEnded => None,
                }
            }
            SnapshotSubject::State(term) => {
                *self.subject() = SnapshotSubject::State(term);
                let step = self.context.shared.with_guarded(|guarded, _, _| {
                    if guarded.term == term { guarded.state.snapshot_slots(slots) } else { None }
                });
                step.map(SnapshotSlice::from)
            }
        }
    }

    fn cancel(&self) {
        match self.take_subject() {
            SnapshotSubject::None => {}
            SnapshotSubject::Requested(_) => drop(self.ask(cancel_copy)),
            SnapshotSubject::Copy(number, _) => drop(self.ask(move |copy| {
                if copy.generation() == number {
                    cancel_copy(copy);
                }
            })),
            SnapshotSubject::State(term) => self.context.shared.with_guarded(|guarded, _, _| {
                if guarded.term == term {
                    guarded.state.cancel_snapshot();
                }
            }),
        }
    }
}

fn cancel_copy(copy: &mut StandbyCopy) {
    if let Some(standby) = copy.following() {
        standby.cancel_snapshot();
    }
}
