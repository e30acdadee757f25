//! The driver of a master in a cluster: it owns the core and the copy of the state, and performs
//! the core's actions.
//!
//! One loop on one thread handles one event after the other, and never waits. Work that may take
//! long runs as a task. It receives its input by value, and reports its result through the queue.
//! The loop itself reads the frames of the leader and the acknowledgements of standbys, so that a
//! change and its acknowledgement do not pass through the queue.

mod acceptor;
mod background;
pub(in crate::server::ha) mod context;
mod etcd;
mod etcd_errors;
pub(in crate::server::ha) mod event;
mod following;
mod frames;
mod perform;
pub(in crate::server::ha) mod promotion;
mod redundancy;
mod repeats;
mod run;
mod snapshots;
mod standbys;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::io::ReadHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::config::StorePolicy;
use crate::server::ha::disk::FoundCopy;
use crate::server::ha::driver::background::FIRST_DIGEST;
use crate::server::ha::driver::context::HaContext;
use crate::server::ha::driver::etcd_errors::EtcdErrors;
use crate::server::ha::driver::event::DriverEvent;
use crate::server::ha::driver::redundancy::KnownStandby;
use crate::server::ha::driver::repeats::RepeatedMessages;
use crate::server::ha::leader::standby_streams::StandbyStreams;
use crate::server::ha::standby::copy::StandbyCopy;
use crate::server::ha::standby::leader_stream::FollowedLeader;
use crate::server::ha::{HaHub, HaSettings};
use crate::server::shared::MasterShared;
use mcctl_base::{HostPort, Mono};
use mcctl_election::ElectionBackend;
use mcctl_election::ha::message::DigestPart;
use mcctl_election::ha::{HaAction, HaCore, HaEvent, HaMessage, HandOverProblem, MemberId, MemberInfo};
use mcctl_sys::env::{Env, Net};

/// The type of a connection.
type StreamOf<E> = <<E as Env>::Net as Net>::Stream;

/// The use of a copy after a thread has returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyStep {
    /// It is made ready to serve. `lossy`: changes may be missing.
    Prepare { lossy: bool },
    /// It follows a leader again.
    Resume,
}

/// Runs the core of one master, and performs its actions.
pub(in crate::server) struct HaDriver<E: Env, B> {
    context: HaContext<E>,
    backend: B,
    queue: mpsc::UnboundedReceiver<DriverEvent<StreamOf<E>>>,
    tasks: JoinSet<()>,
    core: HaCore,
    /// Events and actions of the core that are still to be handled.
    events: VecDeque<HaEvent>,
    actions: VecDeque<HaAction>,
    copy: StandbyCopy,
    /// The leader that this standby follows.
    followed: Option<FollowedLeader<StreamOf<E>>>,
    /// Counts the attempts to connect to a leader, including the work that follows from them.
    attempts: u64,
    /// The ID of the copy that a snapshot of the leader will be. Until then, the present copy is
    /// kept under its own.
    replacement: Option<MemberId>,
    /// The use of the copy after a thread has returned it.
    copy_next: Option<CopyStep>,
    /// The progress of the copy that is being made ready, and its value at the last check.
    progress: (Arc<AtomicU64>, u64),
    /// The callers of the hand-over in progress.
    hand_over_requests: Vec<oneshot::Sender<Result<(), HandOverProblem>>>,
    /// The streams to this leader's standbys, and their addresses.
    standbys: StandbyStreams<ReadHalf<StreamOf<E>>>,
    known: BTreeMap<MemberId, KnownStandby>,
    /// A read of the records is in progress, and whether another one must follow.
    observing: Option<bool>,
    next_tick: Mono,
    /// Earliest time at which this leader may hand over again because its disk has stalled.
    leave_disk_at: Mono,
    clients_at: Mono,
    /// When this leader logs that no standby has joined it.
    no_standby_report_at: Option<Mono>,
    /// The slots of the next digest.
    digest_part: DigestPart,
    /// Number of digests of the leader that agreed with the copy.
    digests: u64,
    /// The leader's last change, from its last ping.
    leader_last: u64,
    etcd_errors: EtcdErrors,
    /// Standbys of the sync record that were reported as disconnected.
    lost_standbys: BTreeSet<MemberId>,
    /// etcd has not responded since this time.
    etcd_silent_since: Option<Mono>,
    /// Limits repeated log messages.
    repeated_messages: RepeatedMessages,
    /// If this master leads, or is about to, without having been in sync: number of the former
    /// leader's announced changes that it does not have.
    may_lack: Option<u64>,
    /// Number of objects that this process has dropped for that reason.
    dropped_objects: u64,
    promotions: u64,
    demotions: u64,
    /// Whether the view of this master may have changed.
    is_view_old: bool,
}

impl<E: Env, B: ElectionBackend> HaDriver<E, B> {
    /// Creates a driver for `shared`, whose RPC port is `rpc_port`.
    pub(crate) fn new(
        shared: Arc<MasterShared<E>>,
        hub: Arc<HaHub>,
        backend: B,
        settings: HaSettings,
        rpc_port: u16,
        found: Option<FoundCopy>,
        policy: StorePolicy,
    ) -> HaDriver<E, B> {
        let env = shared.env.clone();
        let address = |port| HostPort::new(settings.host.clone(), port);
        let id = found.as_ref().map_or_else(|| MemberId(env.rng()), |found| found.note.member);
        let me = MemberInfo { id, rpc: address(rpc_port), replication: address(0) };
        let (core, copy) = match found {
            Some(found) => {
                hub.tail.restart(found.last + 1);
                let is_original = found.note.history.is_none() && !found.is_uncertain;
                let core = HaCore::with_copy(settings.config, me, env.boottime(), found.last, is_original);
                (core, StandbyCopy::found(policy, found))
            }
            None => (HaCore::new(settings.config, me), StandbyCopy::new(policy)),
        };
        let (events, queue) = mpsc::unbounded_channel();
        let mut driver = HaDriver {
            context: HaContext { env, shared, hub, settings: Arc::new(settings), events },
            backend,
            queue,
            tasks: JoinSet::new(),
            core,
            events: VecDeque::new(),
            actions: VecDeque::new(),
            copy,
            followed: None,
            attempts: 0,
            replacement: None,
            copy_next: None,
            progress: Default::default(),
            hand_over_requests: Vec::new(),
            standbys: StandbyStreams::default(),
            known: BTreeMap::new(),
            observing: None,
            next_tick: Mono::ZERO,
            leave_disk_at: Mono::ZERO,
            clients_at: Mono::ZERO,
            no_standby_report_at: None,
            digest_part: FIRST_DIGEST,
            digests: 0,
            leader_last: 0,
            etcd_errors: EtcdErrors::default(),
            lost_standbys: BTreeSet::new(),
            etcd_silent_since: None,
            repeated_messages: RepeatedMessages::default(),
            may_lack: None,
            dropped_objects: 0,
            promotions: 0,
            demotions: 0,
            is_view_old: true,
        };
        driver.publish_metadata();
        driver
    }

    /// Runs a task on this thread.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.tasks.spawn(task)
    }

    /// Passes an event to the core, and performs its actions.
    fn update(&mut self, event: HaEvent) {
        self.events.push_back(event);
        self.run_core();
    }

    /// Handles the events of the core, and performs its actions. These may add further events.
    fn run_core(&mut self) {
        while let Some(event) = self.events.pop_front() {
            self.is_view_old |= !comes_with_changes(&event);
            let now = self.context.env.boottime();
            self.actions.extend(self.core.handle(now, event, &self.context));
            #[cfg(test)]
            self.context.hub.note_core(&self.core);
            while let Some(action) = self.actions.pop_front() {
                self.perform(action);
            }
        }
    }

    /// Whether a message about a peer is to be logged now. Repetitions are limited.
    fn is_message_due(&mut self, peer: &str, message: &str) -> bool {
        self.repeated_messages.is_due(self.context.env.now(), peer, message)
    }
}

/// Whether an event comes with each change. The view of this master is then updated a little later.
fn comes_with_changes(event: &HaEvent) -> bool {
    match event {
        HaEvent::ChangesReceived { .. } | HaEvent::Applied { .. } => true,
        HaEvent::Received { message, .. } => matches!(message, HaMessage::Ack(_)),
        _ => false,
    }
}
