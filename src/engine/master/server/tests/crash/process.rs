//! One process of the master: the production code of the server with its threads, which run one at
//! a time.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::env::CrashEnv;
use super::memory::{LeasedReader, SlowWriter};
use super::trace::TracedAccess;
use super::transfers::is_in;
use super::world::World;
use crate::server::log::MasterLog;
use crate::server::shared::MasterShared;
use crate::{MasterCall, StateAccess};
use mcctl_base::{ClientId, SegmentId};
use mcctl_journal::{LogThread, SnapshotRun, StateSnapshots};
use mcctl_net::rpc::{CommitWait, Receipt};
use mcctl_sys::env::Env;

/// Number of threads that serve connections.
const THREADS: usize = 3;
/// Slots per slice of a snapshot. Small, so that many changes happen during one.
const SLOTS: u32 = 3;

/// A running process of a master: the state, its log, and the threads that use them.
pub(super) struct Process<'a> {
    pub shared: &'a MasterShared<CrashEnv>,
    pub log: &'a MasterLog,
    log_thread: LogThread<CrashEnv, &'a MasterShared<CrashEnv>, &'a MasterLog>,
    log_thread_has_ended: bool,
    snapshots: StateSnapshots<CrashEnv, &'a MasterShared<CrashEnv>, &'a MasterLog>,
    snapshot: Option<SnapshotRun>,
    threads: [ServingThread; THREADS],
    /// The thread that has served the last call.
    current: usize,
    waiting: Vec<WaitingCommit<'a>>,
}

/// A thread that serves connections.
#[derive(Default)]
struct ServingThread {
    /// Of the calls that were processed since its last commit.
    receipt: Receipt,
    /// Calls that were processed. Their responses are sent after a commit.
    answered: Vec<PendingResponse>,
}

/// Responses that wait until their changes are stored.
struct WaitingCommit<'a> {
    wait: CommitWait<'a>,
    answered: Vec<PendingResponse>,
}

/// A response that has not reached its caller.
pub(super) struct PendingResponse {
    pub outcome: CallOutcome,
    /// The change that the response acknowledges, or 0.
    pub made: u64,
    /// The change must be durable in every mode.
    pub needs_sync: bool,
    /// The last change before the commit.
    pub seen: u64,
}

/// The result of a call, for the action of its caller when it receives the response.
#[derive(Clone, Debug)]
pub(super) enum CallOutcome {
    Nothing,
    Started(SlowWriter),
    Ended { client: u64, key: u64, value: u64 },
    Revoked { client: u64, key: u64 },
    Read(LeasedReader),
    Pinged { client: ClientId, must_remount: bool },
    Remounted { client: ClientId },
    Mounted { client: ClientId, segment: SegmentId },
    Unmounted { client: ClientId, segment: SegmentId, gracefully: bool },
}

impl CallOutcome {
    /// The segment is removed before the response arrives. A write that begins afterwards ends
    /// until `end`.
    pub(super) fn limit_transfers(&mut self, segment: SegmentId, end: u64) {
        if let CallOutcome::Started(writer) = self
            && writer.ranges.iter().any(is_in(segment))
        {
            writer.until = writer.until.min(end);
        }
    }

    /// The client has a response to another call that ended this write.
    pub(super) fn ignore_end(&mut self, of_client: u64, of_key: u64) {
        if matches!(self, CallOutcome::Ended { client, key, .. } if (*client, *key) == (of_client, of_key)) {
            *self = CallOutcome::Nothing;
        }
    }

    /// The object of `key` is removed, although the lease of this read has not ended.
    pub(super) fn end_read(&mut self, key: u64) {
        if let CallOutcome::Read(reader) = self
            && reader.key == key
        {
            reader.ranges.clear();
        }
    }
}

impl<'a> Process<'a> {
    pub(super) fn new(shared: &'a MasterShared<CrashEnv>, log: &'a MasterLog) -> Process<'a> {
        let mut snapshots = StateSnapshots::new(shared.env.clone(), shared, log);
        snapshots.slots = SLOTS;
        Process {
            shared,
            log,
            log_thread: LogThread::new(shared.env.clone(), shared, log),
            log_thread_has_ended: false,
            snapshots,
            snapshot: None,
            threads: Default::default(),
            current: 0,
            waiting: Vec::new(),
        }
    }

    /// Whether the log thread has decided that the process must end.
    pub(super) fn has_failed(&self) -> bool {
        let mut failure = std::pin::pin!(self.log.failure());
        failure.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Whether a caller waits for a response.
    pub(super) fn has_responses(&self) -> bool {
        !self.waiting.is_empty() || self.threads.iter().any(|thread| !thread.answered.is_empty())
    }

    /// The responses that were not sent.
    pub(super) fn unsent(&mut self) -> impl Iterator<Item = &mut PendingResponse> {
        let answered = self.threads.iter_mut().flat_map(|thread| &mut thread.answered);
        answered.chain(self.waiting.iter_mut().flat_map(|waiting| &mut waiting.answered))
    }

    /// A call that may be sent again, because its caller does not wait any longer for the response,
    /// and the change that it made.
    pub(super) fn resendable(&self) -> Option<(CallOutcome, u64)> {
        let mut responses = self.waiting.iter().flat_map(|waiting| &waiting.answered);
        let is_resendable = |response: &&PendingResponse| {
            matches!(response.outcome, CallOutcome::Ended { .. } | CallOutcome::Unmounted { gracefully: false, .. })
        };
        responses.find(is_resendable).map(|response| (response.outcome.clone(), response.made))
    }

    /// Runs the log thread once.
    pub(super) fn run_log_thread(&mut self) {
        if !self.log_thread_has_ended {
            self.log_thread_has_ended = !self.log_thread.run(self.log.next_work(Duration::ZERO));
        }
    }
}

impl World {
    /// Runs `work` as a call on one of the threads.
    pub(super) fn call<R>(
        &mut self,
        process: &mut Process<'_>,
        work: impl FnOnce(&mut MasterCall<TracedAccess<'_>>) -> R,
    ) -> R {
        process.current = self.rng.below(THREADS);
        let before = self.trace.count();
        let mut call = MasterCall(TracedAccess::new(process.shared, &mut self.trace));
        let result = work(&mut call);
        process.threads[process.current].receipt.merge(call.0.receipt);
        self.made = if self.trace.count() > before { self.trace.count() } else { 0 };
        result
    }

    /// Adds the response to the last call. `needs_sync`: its change must be durable in every mode.
    pub(super) fn respond(&mut self, process: &mut Process<'_>, outcome: CallOutcome, needs_sync: bool) {
        let made = self.made;
        process.threads[process.current].answered.push(PendingResponse { outcome, made, needs_sync, seen: 0 });
    }

    /// A thread ends its turn: it commits the changes of its calls, and sends the responses.
    pub(super) fn commit(&mut self, process: &mut Process<'_>, thread: usize) {
        let mut answered = std::mem::take(&mut process.threads[thread].answered);
        if answered.is_empty() {
            return;
        }
        let seen = process.log.writer.appended();
        answered.iter_mut().for_each(|response| response.seen = seen);
        let receipt = std::mem::take(&mut process.threads[thread].receipt);
        match process.log.commit(receipt) {
            None => self.send(process, answered),
            Some(wait) => {
                self.counts.count_many("responses that waited", answered.len() as u64);
                process.waiting.push(WaitingCommit { wait, answered });
            }
        }
    }

    /// All threads end their turns, or each with a probability of three quarters.
    pub(super) fn commit_some(&mut self, process: &mut Process<'_>, all: bool) {
        for thread in 0..THREADS {
            if all || !self.chance(4) {
                self.commit(process, thread);
            }
        }
    }

    /// Sends the responses whose changes are stored.
    pub(super) fn poll_responses(&mut self, process: &mut Process<'_>) {
        let mut context = Context::from_waker(Waker::noop());
        for mut waiting in std::mem::take(&mut process.waiting) {
            match waiting.wait.as_mut().poll(&mut context) {
                Poll::Pending => process.waiting.push(waiting),
                Poll::Ready(true) => self.send(process, waiting.answered),
                Poll::Ready(false) => waiting.answered.into_iter().for_each(|response| self.lose(response)),
            }
        }
    }

    fn send(&mut self, process: &mut Process<'_>, answered: Vec<PendingResponse>) {
        for response in answered {
            if self.is_dead() {
                self.lose(response);
            } else {
                self.deliver(process, response);
            }
        }
    }

    /// Handles the death of the process. Responses that it has not sent are lost.
    pub(super) fn lose_responses(&mut self, process: &mut Process<'_>) {
        let waiting = std::mem::take(&mut process.waiting).into_iter().flat_map(|waiting| waiting.answered);
        let answered = process.threads.iter_mut().flat_map(|thread| std::mem::take(&mut thread.answered));
        let lost: Vec<PendingResponse> = waiting.chain(answered).collect();
        lost.into_iter().for_each(|response| self.lose(response));
    }

    /// The snapshot thread begins or continues a snapshot.
    pub(super) fn run_snapshot_thread(&mut self, process: &mut Process<'_>) {
        let mut run = match process.snapshot.take() {
            Some(run) => run,
            None if process.snapshots.is_due() => process.snapshots.start(),
            None => return,
        };
        let done = process.log.view().snapshots;
        if process.snapshots.step(&mut run, true) {
            process.snapshot = Some(run);
        } else if process.log.view().snapshots > done {
            self.counts.count("snapshots");
        } else {
            self.counts.count("interrupted snapshots");
        }
    }

    /// The snapshot thread ends the snapshot in progress when the process stops.
    pub(super) fn end_snapshot_thread(&mut self, process: &mut Process<'_>) {
        while process.snapshot.is_some() {
            self.run_snapshot_thread(process);
        }
    }

    /// Runs the ticker once. No response waits for its changes.
    pub(super) fn tick(&mut self, process: &mut Process<'_>) {
        let shared = process.shared;
        let now = shared.env.now();
        shared.lock(now).0.stalls.expect_by(now);
        let mut access = TracedAccess::new(shared, &mut self.trace);
        while access.with_state(|state, now, effects| state.tick(now, now, effects)) {}
        self.handle_effects(process);
    }
}
