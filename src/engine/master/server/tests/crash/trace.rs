//! The changes of a running master, for the checks: the records of each change, and the state after
//! it.

use super::env::CrashEnv;
use crate::server::shared::MasterShared;
use crate::slots::{ObjectSlot, SegmentSlot};
use crate::{Effects, MasterState, RestoreReport, StateAccess, StateEffect};
use mcctl_base::{Mono, Unix};
use mcctl_journal::Uuid;
use mcctl_net::rpc::Receipt;
use mcctl_sys::env::Env;

/// A change of the state, and the state after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TracedChange {
    /// Empty for a first or last change of a process, unless it was read from the disk.
    pub payload: Vec<u8>,
    pub at: Unix,
    pub behind: TracedState,
    /// The boot ID of the kernel that accepted it.
    pub boot: Uuid,
    /// The records up to this change contain everything that was acknowledged.
    pub is_complete: bool,
}

/// The values of a state that the checks compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TracedState {
    pub digest: u64,
    pub counts: RestoreReport,
    /// One bit per key that has a complete object.
    pub keys: u32,
}

impl TracedState {
    pub(super) fn of(state: &MasterState) -> TracedState {
        let mut writing = 0;
        let mut keys = 0;
        for at in (0..state.objects.slots()).map(ObjectSlot) {
            let Some(object) = state.objects.get(at) else { continue };
            if object.eviction.is_writing() {
                writing += 1;
            } else {
                keys |= 1 << key_number(state.objects.key(at));
            }
        }
        let segments = (0..state.segments.slots()).filter(|slot| state.segments.get(SegmentSlot(*slot)).is_some());
        let counts = RestoreReport {
            objects: u64::from(state.objects.len()),
            writing,
            segments: segments.count() as u64,
            clients: state.clients.len() as u64,
        };
        TracedState { digest: state.digest(), counts, keys }
    }
}

/// The name of a key.
pub(super) fn name(key: u64) -> String {
    format!("key-{key}")
}

/// The number of the key with this name.
pub(super) fn key_number(name: &[u8]) -> u64 {
    name[4..].iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0'))
}

/// The changes that the directory's processes have made and not lost. Change number n is at index n
/// - 1.
#[derive(Debug)]
pub(super) struct ChangeTrace {
    pub changes: Vec<TracedChange>,
    /// Effects that the run has not handled yet.
    pub effects: Vec<StateEffect>,
    /// The boot ID of the running kernel.
    pub boot: Uuid,
    /// Whether the records of the running process are complete at any time.
    pub is_complete: bool,
    /// Number of changes that were made, with those that were lost.
    pub made: u64,
}

impl ChangeTrace {
    /// The trace of an empty directory.
    pub(super) fn new() -> ChangeTrace {
        ChangeTrace { changes: Vec::new(), effects: Vec::new(), boot: Uuid(0), is_complete: false, made: 0 }
    }

    /// Number of changes that were made and not lost.
    pub(super) fn count(&self) -> u64 {
        self.changes.len() as u64
    }

    /// The state after change `sequence`.
    pub(super) fn state(&self, sequence: u64) -> TracedState {
        let empty = TracedState { digest: 0, counts: RestoreReport::default(), keys: 0 };
        sequence.checked_sub(1).map_or(empty, |nth| self.changes[nth as usize].behind)
    }

    /// Whether the records up to change `sequence` contain everything that was acknowledged.
    pub(super) fn is_complete(&self, sequence: u64) -> bool {
        sequence.checked_sub(1).is_none_or(|nth| self.changes[nth as usize].is_complete)
    }

    pub(super) fn push(&mut self, payload: Vec<u8>, at: Unix, state: &MasterState) {
        self.made += 1;
        let behind = TracedState::of(state);
        let boot = self.boot;
        let is_complete = self.is_complete;
        self.changes.push(TracedChange { payload, at, behind, boot, is_complete });
    }

    fn observe(&mut self, state: &MasterState, at: Unix, effects: &Effects) {
        self.effects.extend(effects.list.iter().cloned());
        let Some(records) = state.records.as_ref().filter(|records| !records.is_empty()) else { return };
        assert_eq!(records.sequence(), self.count() + 1);
        self.push(records.payload().to_vec(), at, state);
    }
}

/// The access to a running state that a connection has, with a trace of the changes.
pub(super) struct TracedAccess<'a> {
    pub shared: &'a MasterShared<CrashEnv>,
    pub trace: &'a mut ChangeTrace,
    /// The receipt that the response to the call waits for.
    pub receipt: Receipt,
}

impl<'a> TracedAccess<'a> {
    pub(super) fn new(shared: &'a MasterShared<CrashEnv>, trace: &'a mut ChangeTrace) -> TracedAccess<'a> {
        TracedAccess { shared, trace, receipt: Receipt::default() }
    }
}

impl StateAccess for TracedAccess<'_> {
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        let (result, receipt) = self.shared.call(None, |call| {
            call.0.with_state(|state, now, effects| {
                let result = work(state, now, effects);
                self.trace.observe(state, self.shared.env.unix(), effects);
                result
            })
        });
        self.receipt.merge(receipt);
        result
    }
}
