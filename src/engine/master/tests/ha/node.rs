//! A simulated master.

use std::cell::Cell;
use std::collections::VecDeque;

use crate::engine::base::Mono;
use crate::engine::ha::stage::HaStage;
use crate::engine::ha::{
    AckMode, HaAction, HaConfig, HaCore, HaEvent, HaRole, HistoryId, MemberId, MemberInfo, ResponseGate, ResponseLimits,
};
use crate::engine::master::tests::ha::event::Event;
use crate::engine::master::tests::ha::request::PendingReply;
use crate::engine::master::tests::ha::stream::Change;
use crate::engine::master::{DATA_FORMAT, Effects, MasterState, RecordBuffer, SnapshotStep, StandbyState, StorePolicy};

/// What a node has of the state.
pub enum StateCopy {
    /// It follows a leader.
    Standby(Box<StandbyState>),
    /// Ready to serve, or serving.
    Active(Box<MasterState>),
}

/// The last change of a node, and the limits that its core has published.
struct NodeGate {
    appended: u64,
    limits: Cell<ResponseLimits>,
}

impl ResponseGate for NodeGate {
    fn appended(&self) -> u64 {
        self.appended
    }

    fn publish(&self, limits: ResponseLimits) {
        self.limits.set(limits);
    }

    fn appended_before_publish(&self) -> u64 {
        self.appended
    }
}

/// The process of a simulated master.
pub struct Node {
    pub core: HaCore,
    /// Actions of the core that have not been performed.
    pub actions: VecDeque<HaAction>,
    /// Which responses may be sent.
    limits: ResponseLimits,
    /// The number of the core's next timeout. Events with other numbers have no effect.
    pub timeout: u64,
    /// When it is due. It may come a little later.
    pub timeout_due: Option<u64>,
    pub copy: StateCopy,
    /// All changes of the state's history that this node has, in order; the first is number `history_from`.
    pub history: Vec<Change>,
    pub history_from: u64,
    /// The snapshot before them.
    base: Vec<Vec<u8>>,
    /// The history of the changes that the copy contains last; `None` if it is empty.
    pub origin: Option<HistoryId>,
    /// The history before this one, and the last change that was taken over from it.
    pub parent: Option<(HistoryId, u64)>,
    pub applied: u64,
    /// The last change that is certainly in the data directory.
    pub stored: u64,
    /// When a slow disk has stored everything so far.
    pub disk_busy_until: u64,
    /// The last changes may be missing.
    pub is_uncertain: bool,
    pub following: Option<MemberInfo>,
    pub is_up: bool,
    /// Events of an earlier process are ignored.
    pub incarnation: u64,
    pub paused_until: u64,
    /// Events that came during a pause.
    pub deferred: Vec<Event>,
    pub is_holding: bool,
    pub is_serving: bool,
    pub is_preparing: bool,
    /// The stage after the last event.
    pub stage: HaStage,
    pub pending: Vec<PendingReply>,
    pub effects: Effects,
    policy: StorePolicy,
    /// The node's clock: an offset in nanoseconds, and its rate in parts per thousand.
    offset: u64,
    rate: u64,
}

impl Node {
    pub(super) fn new(nth: usize, id: MemberId, policy: StorePolicy, ack: AckMode, offset: u64, rate: u64) -> Node {
        let config = HaConfig { ack, ..HaConfig::default() };
        let address = |port: u16| format!("node-{nth}:{port}").parse().expect("an address");
        let me = MemberInfo { id, rpc: address(50051), replication: address(50052) };
        Node {
            core: HaCore::new(config, me),
            actions: VecDeque::new(),
            limits: ResponseLimits { fence: None, acked: None },
            timeout: 0,
            timeout_due: None,
            copy: StateCopy::Standby(Box::new(StandbyState::new(policy.clone()))),
            history: Vec::new(),
            history_from: 1,
            base: Vec::new(),
            origin: None,
            parent: None,
            applied: 0,
            stored: 0,
            disk_busy_until: 0,
            is_uncertain: false,
            following: None,
            is_up: true,
            incarnation: 0,
            paused_until: 0,
            deferred: Vec::new(),
            is_holding: false,
            is_serving: false,
            is_preparing: false,
            stage: HaStage::Following,
            pending: Vec::new(),
            effects: Effects::default(),
            policy,
            offset,
            rate,
        }
    }

    /// Another process on the same host.
    pub(super) fn restarted(&self, nth: usize, id: MemberId) -> Node {
        let fresh = Node::new(nth, id, self.policy.clone(), AckMode::Sync, self.offset, self.rate);
        Node { incarnation: self.incarnation + 1, ..fresh }
    }

    /// Another process on the same host, which reads the data directory. Its log ends behind change number `last`.
    /// `new_id`: the ID of a copy whose last changes may be missing.
    pub(super) fn reopened(&self, nth: usize, us: u64, last: u64, new_id: Option<MemberId>) -> Node {
        let mut standby = StandbyState::new(self.policy.clone());
        let kept = usize::try_from(last + 1 - self.history_from).expect("small");
        let history = self.history[..kept].to_vec();
        let changes = history.iter().map(|change| &change.payload);
        for payload in self.base.iter().chain(changes) {
            standby.apply_payload(self.clock(us), std::time::Duration::ZERO, payload).expect("the directory is valid");
        }
        let restarted = self.restarted(nth, new_id.unwrap_or(self.id()));
        Node {
            core: HaCore::with_copy(HaConfig::default(), restarted.core.me().clone(), self.clock(us), last),
            copy: StateCopy::Standby(Box::new(standby)),
            history,
            history_from: self.history_from,
            base: self.base.clone(),
            origin: self.origin,
            parent: self.parent,
            applied: last,
            stored: last,
            is_uncertain: new_id.is_some(),
            ..restarted
        }
    }

    /// Passes an event to the core. Its actions are performed later.
    pub(super) fn handle(&mut self, now: Mono, event: HaEvent) {
        let gate = NodeGate { appended: self.applied, limits: Cell::new(self.limits) };
        self.actions.extend(self.core.handle(now, event, &gate));
        self.limits = gate.limits.get();
    }

    /// Responses to changes up to this one may be sent.
    pub(super) fn acked(&self) -> u64 {
        self.limits.acked.unwrap_or(u64::MAX)
    }

    /// The node's clock at `us`.
    pub(super) fn clock(&self, us: u64) -> Mono {
        Mono(self.offset + us * self.rate)
    }

    /// When the node's clock reaches `at`, in microseconds.
    pub(super) fn time_of(&self, at: Mono) -> u64 {
        at.0.saturating_sub(self.offset).div_ceil(self.rate)
    }

    pub(super) fn id(&self) -> MemberId {
        self.core.me().id
    }

    /// Discards the state, and becomes another copy.
    pub(super) fn discard(&mut self) {
        self.copy = StateCopy::Standby(Box::new(StandbyState::new(self.policy.clone())));
        self.history.clear();
        self.base.clear();
        (self.history_from, self.applied, self.stored, self.is_uncertain) = (1, 0, 0, false);
        (self.origin, self.parent) = (None, None);
        (self.is_holding, self.is_serving, self.is_preparing) = (false, false, false);
        self.pending.clear();
    }

    /// Applies changes of the leader.
    pub(super) fn apply(&mut self, now: Mono, changes: &[Change]) {
        let StateCopy::Standby(standby) = &mut self.copy else { return };
        if self.is_preparing {
            return;
        }
        for change in changes {
            assert!(change.sequence <= self.applied + 1, "a stream has no gaps");
            if change.sequence == self.applied + 1 {
                standby.apply_payload(now, std::time::Duration::ZERO, &change.payload).expect("a change applies");
                self.applied = change.sequence;
                self.history.push(change.clone());
            }
        }
    }

    /// The changes that follow belong to this history.
    pub(super) fn continue_history(&mut self, history: HistoryId) {
        if self.origin != Some(history) {
            self.parent = self.origin.map(|before| (before, self.applied));
            self.origin = Some(history);
        }
        self.is_uncertain = false;
    }

    /// Replaces the copy by a snapshot of the leader.
    pub(super) fn load(&mut self, now: Mono, from: HistoryId, last: u64, chunks: &[Vec<u8>]) {
        let mut standby = StandbyState::new(self.policy.clone());
        for chunk in chunks {
            standby.apply_payload(now, std::time::Duration::ZERO, chunk).expect("a chunk applies");
        }
        self.copy = StateCopy::Standby(Box::new(standby));
        self.history.clear();
        self.base = chunks.to_vec();
        (self.history_from, self.applied, self.stored) = (last + 1, last, last);
        (self.origin, self.parent, self.is_uncertain) = (Some(from), None, false);
    }

    /// Makes the copy ready to serve. Returns false if it is damaged.
    pub(super) fn prepare(&mut self, now: Mono, hold: std::time::Duration) -> bool {
        let empty = StateCopy::Standby(Box::new(StandbyState::new(self.policy.clone())));
        match std::mem::replace(&mut self.copy, empty) {
            StateCopy::Standby(standby) => match standby.activate(now, hold) {
                Ok((state, _)) => self.copy = StateCopy::Active(Box::new(state)),
                Err(_) => return false,
            },
            active @ StateCopy::Active(_) => self.copy = active,
        }
        true
    }

    /// Begins to serve.
    pub(super) fn serve(&mut self, now: Mono, history: HistoryId) {
        let StateCopy::Active(state) = &mut self.copy else { return };
        state.start_recording(now, RecordBuffer::new(DATA_FORMAT, self.applied + 1), false);
        while self.is_uncertain && state.discard_restored_writes(now) {}
        self.parent = self.origin.map(|origin| (origin, self.applied));
        self.origin = Some(history);
        self.is_serving = true;
        self.is_preparing = false;
        self.close_change();
    }

    /// Ends the change in progress.
    pub(super) fn close_change(&mut self) -> Vec<Change> {
        let StateCopy::Active(state) = &mut self.copy else { return Vec::new() };
        let closed =
            state.close_change(|change| Change { sequence: change.sequence, payload: change.payload.to_vec() });
        let Some(change) = closed else { return Vec::new() };
        self.applied = change.sequence;
        self.history.push(change.clone());
        vec![change]
    }

    /// A copy of the state for a standby.
    pub(super) fn snapshot(&mut self, now: Mono) -> Option<(u64, Vec<Vec<u8>>)> {
        let StateCopy::Active(state) = &mut self.copy else { return None };
        let last = state.begin_snapshot(now, DATA_FORMAT)?;
        let mut chunks = Vec::new();
        loop {
            match state.snapshot_slice()? {
                SnapshotStep::More => {}
                SnapshotStep::Chunk(chunk) => chunks.push(chunk),
                SnapshotStep::Done(_) => return Some((last, chunks)),
            }
        }
    }

    /// The changes behind `applied`, for a standby whose copy has this origin; `None` if it needs a snapshot.
    pub(super) fn changes_behind(&self, origin: Option<HistoryId>, applied: u64) -> Option<Vec<Change>> {
        let is_own = origin.is_some() && origin == self.origin;
        let is_parent = self.parent.is_some_and(|(parent, last)| origin == Some(parent) && applied <= last);
        let is_covered = applied + 1 >= self.history_from && applied <= self.applied;
        let skipped = usize::try_from(applied + 1 - self.history_from.min(applied + 1)).expect("small");
        ((is_own || is_parent) && is_covered).then(|| self.history[skipped.min(self.history.len())..].to_vec())
    }

    pub(super) fn is_leader(&self) -> bool {
        self.is_serving && matches!(self.core.role(), HaRole::Leader | HaRole::HandingOver)
    }
}
