//! A master of a cluster: it takes part in the election, streams its changes to standbys or follows
//! a leader, and takes over.
//!
//! [`HaCore`](mcctl_election::ha::HaCore) has the rules. The driver performs its actions on one
//! thread, which also serves the streams. The threads that serve clients use the [`HaHub`]: the
//! gate, which limits the requests that are processed and the responses that are sent, the tail of
//! the changes, and the data directory, if there is one.

mod disk;
mod driver;
mod handshake;
mod leader;
mod standby;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::record::DataFormat;
use crate::server::log::MasterLog;
use crate::state::MasterState;
use crate::view::HaView;
use mcctl_base::{HostPort, Mono, Unix};
use mcctl_election::ha::{HaConfig, HandOverProblem, MemberId};
use mcctl_net::rpc::{CommitWait, Receipt};
use mcctl_sys::env::Env;

pub use handshake::HaSecret;

pub(super) use disk::{HaDisk, open};
pub(super) use driver::HaDriver;
use leader::tail::ChangeTail;
pub(super) use leader::tail::TailLimits;

pub(super) use driver::promotion::CLIENT_CALL_MAX;
pub(super) use leader::gate::{HaGate, NOT_SERVING};

/// The driver's loop runs more often than this, unless the process is paused.
const DRIVER_PAUSE: Duration = Duration::from_millis(500);
/// After a pause, the driver has received the changes in etcd within this time.
const INFORMED_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of requests of other threads that wait for the driver. Further callers wait.
const COMMANDS_MAX: usize = 16;

/// The options of a master in a cluster.
#[derive(Clone, Debug)]
pub struct HaSettings {
    pub config: HaConfig,
    /// The cluster's name. Masters of other clusters cannot follow.
    pub cluster: String,
    /// The host under which clients and other masters reach this one.
    pub host: String,
    /// The address of the port for standbys; port 0 selects a free one.
    pub listen: HostPort,
    pub secret: HaSecret,
    /// The format of the records that a leader writes.
    pub format: DataFormat,
    /// The address at which the other masters reach this one's metadata service, for example
    /// `http://10.0.0.1:8080`; `None` without an embedded one.
    pub metadata: Option<String>,
}

/// The values that all threads of a cluster's master share.
pub(in crate::server) struct HaHub {
    pub gate: HaGate,
    pub tail: Arc<ChangeTail>,
    /// The data directory, if there is one.
    pub disk: Option<HaDisk>,
    view: Mutex<HaView>,
    /// The other master that leads, and the address of its metadata service, if they are known.
    leader_metadata: Mutex<Option<(MemberId, String)>>,
    commands: mpsc::Sender<HaCommand>,
    /// When the driver's loop has run last, and since when it has run without a pause, on the clock
    /// that counts suspended time, in nanoseconds.
    ran_at: AtomicU64,
    running_since: AtomicU64,
    /// The process is about to end, so it does not follow another leader.
    is_ending: AtomicBool,
    /// The state of the core after its last event, for the simulation.
    #[cfg(test)]
    probe: Mutex<tests::HaProbe>,
}

/// A request of another thread to the driver.
#[derive(Debug)]
pub(super) enum HaCommand {
    /// Hand over to a standby in sync. `is_ending`: this process is about to end. The response
    /// comes when the standby leads.
    StepDown { is_ending: bool, answer: oneshot::Sender<Result<(), HandOverProblem>> },
    /// Notify the leader that this standby leaves. The response is true if it followed a leader.
    Leave(oneshot::Sender<bool>),
}

impl HaHub {
    /// The hub, and the requests to its driver.
    pub(super) fn new(disk: Option<HaDisk>) -> (HaHub, mpsc::Receiver<HaCommand>) {
        let (commands, requests) = mpsc::channel(COMMANDS_MAX);
        let hub = HaHub {
            gate: HaGate::new(),
            tail: Arc::new(ChangeTail::new()),
            disk,
            view: Mutex::default(),
            leader_metadata: Mutex::default(),
            commands,
            ran_at: AtomicU64::new(0),
            running_since: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            #[cfg(test)]
            probe: Mutex::default(),
        };
        (hub, requests)
    }

    /// The view of this master at `now`, on the clock that counts suspended time.
    pub(super) fn view(&self, now: Mono) -> HaView {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner).clone();
        HaView { serving: view.serving && self.gate.is_serving(now), ..view }
    }

    /// The address of the metadata service of the other master that leads, if it is known.
    pub(super) fn leader_metadata(&self) -> Option<String> {
        let leader = self.leader_metadata.lock().unwrap_or_else(PoisonError::into_inner);
        leader.as_ref().map(|(_, address)| address.clone())
    }

    /// Sets the address of the metadata service of this leader; `None`: it has none.
    fn set_leader_metadata(&self, leader: MemberId, address: Option<String>) {
        let known = address.map(|address| (leader, address));
        *self.leader_metadata.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// Drops the address, unless it is that of `leader`.
    fn keep_leader_metadata(&self, leader: Option<MemberId>) {
        let mut known = self.leader_metadata.lock().unwrap_or_else(PoisonError::into_inner);
        known.take_if(|(id, _)| Some(*id) != leader);
    }

    /// The driver's loop runs.
    fn note_run(&self, now: Mono) {
        let before = Mono(self.ran_at.swap(now.0, Ordering::AcqRel));
        if now.since(before) > DRIVER_PAUSE {
            self.running_since.store(now.0, Ordering::Release);
        }
    }

    /// Whether the driver has run for long enough to have received what happened while this process
    /// was paused, for example that another master leads.
    pub(super) fn is_informed(&self, now: Mono) -> bool {
        let since = |at: &AtomicU64| now.since(Mono(at.load(Ordering::Acquire)));
        since(&self.ran_at) <= DRIVER_PAUSE && since(&self.running_since) >= INFORMED_AFTER
    }

    fn set_view(&self, view: HaView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    /// Requests a hand-over from the driver, and waits until the standby leads. `is_ending`: this
    /// process is about to end.
    ///
    /// # Errors
    /// The hand-over was not completed.
    pub(super) async fn step_down(&self, is_ending: bool) -> Result<(), HandOverProblem> {
        let (answer, answered) = oneshot::channel();
        match self.commands.send(HaCommand::StepDown { is_ending, answer }).await {
            Ok(()) => answered.await.unwrap_or(Err(HandOverProblem::Ending)),
            Err(_) => Err(HandOverProblem::Ending),
        }
    }

    /// From now on, this process does not follow a leader. If it does now, it notifies the leader.
    /// Returns true if it did.
    pub(super) async fn leave(&self) -> bool {
        self.is_ending.store(true, Ordering::Release);
        let (answer, answered) = oneshot::channel();
        self.commands.send(HaCommand::Leave(answer)).await.is_ok() && answered.await.unwrap_or(false)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Appends the change that the state has made since it was locked, if there is one. For use
    /// before the state is unlocked. `term` is that of the state, and `log` its log. Returns the
    /// receipt that a response from this state waits for, even if nothing has changed.
    #[inline]
    pub(super) fn close_change(
        &self,
        state: &mut MasterState,
        term: u64,
        log: Option<&MasterLog>,
        now: impl FnOnce() -> Unix,
    ) -> Receipt {
        let closed = state.close_change(|change| {
            self.tail.append(change.sequence, change.payload);
            let needs_sync = log.map_or(0, |log| log.append_own(&change, now));
            let needs_standby = if change.needs_standby { change.sequence } else { 0 };
            let needs_barrier = change.needs_barrier;
            Receipt { term, last: change.sequence, needs_sync, needs_standby, needs_barrier }
        });
        let mut receipt = closed.unwrap_or(Receipt { term, ..Receipt::default() });
        if let Some(repeated) = state.take_repeated() {
            let needs_sync = log.map_or(0, |log| log.sync_of_repeated(repeated));
            let last = self.tail.appended();
            let needs_standby = if repeated.needs_standby { last } else { 0 };
            let needs_barrier = if repeated.needs_sync { state.last_barrier_change() } else { 0 };
            receipt.merge(Receipt { term, last, needs_sync, needs_standby, needs_barrier });
        }
        receipt
    }

    /// Waits until the responses of `receipt` may be sent. See
    /// [`RpcService::commit`](mcctl_net::rpc::RpcService::commit).
    pub(super) fn commit<'a, E: Env>(&'a self, receipt: Receipt, env: &'a E) -> Option<CommitWait<'a>> {
        if receipt.term != 0 && receipt.term != self.gate.term() {
            // The log may be that of another copy, with other numbers.
            return Some(Box::pin(std::future::ready(false)));
        }
        // Without a log, the responses wait for the gate only: the next log may never contain these
        // changes.
        let log = self.disk.as_ref().and_then(HaDisk::log);
        match log.and_then(|log| log.commit_owned(receipt)) {
            Some(stored) => Some(self.gate.commit_behind(receipt, env, stored)),
            None => self.gate.commit(receipt, env),
        }
    }
}
