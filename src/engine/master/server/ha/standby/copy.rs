//! The copy of the state that a standby keeps, until it becomes the state of a leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::apply::{ApplyError, StandbyState};
use crate::config::StorePolicy;
use crate::server::ha::disk::FoundCopy;
use crate::server::ha::disk::copy_note::{CopyNote, CopyStored};
use crate::server::ha::standby::copy_to_store::CopyToStore;
use crate::server::ha::standby::preparation::{CopyLoss, Preparation, PreparedObjects, ServedCopy};
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_election::ha::message::StateDigest;
use mcctl_election::ha::{HistoryId, MemberId};

/// The copy of a standby, and its history.
#[derive(Debug)]
pub(in crate::server::ha) struct StandbyCopy {
    pub policy: StorePolicy,
    /// Counts the copies of this process. The result of work on a former copy has no effect.
    generation: u64,
    content: CopyContent,
    /// A snapshot that is being received.
    loading: Option<Box<StandbyState>>,
    /// The history of the changes that the copy contains last; `None` if it is empty, or its
    /// history is not known.
    pub history: Option<HistoryId>,
    /// The history before this one, and the last change that was taken over from it.
    pub parent: Option<(HistoryId, u64)>,
    /// Its last changes may be missing, because its host lost power.
    pub is_uncertain: bool,
    /// The last change that it contains.
    pub applied: u64,
    /// Time of each client's last call to the leader.
    calls: BTreeMap<ClientId, Mono>,
}

/// The state of a copy.
#[derive(Debug)]
enum CopyContent {
    Following(Box<StandbyState>),
    /// It has replaced another copy, and a thread stores it in the data directory. No change is
    /// applied to it.
    Storing {
        objects: u64,
        is_cancelled: Arc<AtomicBool>,
    },
    /// A thread is making it ready to serve.
    Preparing,
    /// A thread is preparing it to follow again.
    Resuming,
    Ready(ReadyCopy),
    /// It has become the state of the leader.
    Serving,
}

/// A copy that is ready to serve.
#[derive(Debug)]
struct ReadyCopy {
    state: Box<MasterState>,
    since: Mono,
    /// Its changes will belong to this history.
    history: HistoryId,
    loss: CopyLoss,
}

impl StandbyCopy {
    /// An empty copy, which belongs to no history.
    pub(crate) fn new(policy: StorePolicy) -> StandbyCopy {
        let content = CopyContent::Following(Box::new(StandbyState::following(policy.clone())));
        StandbyCopy {
            policy,
            generation: 0,
            content,
            loading: None,
            history: None,
            parent: None,
            is_uncertain: false,
            applied: 0,
            calls: BTreeMap::new(),
        }
    }

    /// A copy that was read from a data directory.
    pub(crate) fn found(policy: StorePolicy, found: FoundCopy) -> StandbyCopy {
        StandbyCopy {
            content: CopyContent::Following(Box::new(found.standby)),
            history: found.note.history,
            parent: found.note.parent,
            is_uncertain: found.is_uncertain,
            applied: found.last,
            ..StandbyCopy::new(policy)
        }
    }

    /// The number of this copy among those of this process.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The copy, while it follows a leader.
    pub(crate) fn following(&mut self) -> Option<&mut StandbyState> {
        match &mut self.content {
            CopyContent::Following(standby) => Some(standby),
            _ => None,
        }
    }

    /// The note about it for the data directory, which adds the place of the changes.
    pub(crate) fn note(&self, member: MemberId) -> CopyNote {
        CopyNote::new(member, self.history, self.parent, CopyStored::OnDisk)
    }

    /// The history before the next one, and the last change that the next one takes over from it.
    pub(crate) fn parent_of_next(&self) -> Option<(HistoryId, u64)> {
        self.history.map(|history| (history, self.applied))
    }

    /// The history of the copy's own changes, if it is ready to serve.
    pub(crate) fn next_history(&self) -> HistoryId {
        if let CopyContent::Ready(ready) = &self.content { ready.history } else { HistoryId(0) }
    }

    /// Sets the history of the following changes.
    pub(crate) fn continue_history(&mut self, history: HistoryId) {
        self.parent = self.parent_of_next();
        self.history = Some(history);
    }

    /// Discards the copy. Returns its contents, because dropping them may take long.
    pub(crate) fn discard(&mut self) -> impl Send + use<> {
        self.cancel_store();
        let empty = StandbyCopy { generation: self.generation + 1, ..StandbyCopy::new(self.policy.clone()) };
        std::mem::replace(self, empty)
    }

    /// Whether it can follow a leader. Until a copy is stored, it cannot: the data directory has no
    /// log for changes.
    pub(crate) fn is_following(&self) -> bool {
        matches!(self.content, CopyContent::Following(_))
    }

    /// Whether a thread is making it ready, or preparing it to follow again.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.content, CopyContent::Preparing | CopyContent::Resuming)
    }

    /// Takes the copy that is ready to serve, to follow again with it; `None` if it is not ready.
    /// Its objects must not have been dropped.
    pub(crate) fn begin_resume(&mut self) -> Option<Box<MasterState>> {
        match std::mem::replace(&mut self.content, CopyContent::Resuming) {
            CopyContent::Ready(ready) => Some(ready.state),
            other => {
                self.content = other;
                None
            }
        }
    }

    /// Follows again.
    ///
    /// # Errors
    /// The copy was discarded since. Drop it on another thread, because that may take long.
    pub(crate) fn end_resume(&mut self, generation: u64, standby: Box<StandbyState>) -> Result<(), Box<StandbyState>> {
        if generation != self.generation || !matches!(self.content, CopyContent::Resuming) {
            return Err(standby);
        }
        self.content = CopyContent::Following(standby);
        Ok(())
    }

    /// Whether a leader's snapshot may replace it without a new ID: no other master can confuse it
    /// with a copy whose history is known.
    pub(crate) fn is_replaceable(&self) -> bool {
        self.history.is_none() && self.applied == 0
    }

    /// Number of objects that a promotion would keep.
    pub(crate) fn objects(&self) -> u64 {
        match &self.content {
            CopyContent::Following(standby) => standby.objects(),
            CopyContent::Storing { objects, .. } => *objects,
            CopyContent::Ready(ready) => ready.state.gauges().keys,
            CopyContent::Preparing | CopyContent::Resuming | CopyContent::Serving => 0,
        }
    }

    /// Applies change number `sequence`. Changes that the copy contains are skipped. Returns
    /// whether it was applied.
    ///
    /// # Errors
    /// The change does not fit the copy.
    pub(crate) fn apply(&mut self, now: Mono, sequence: u64, change: &[u8]) -> Result<bool, ApplyError> {
        let CopyContent::Following(standby) = &mut self.content else { return Ok(false) };
        if sequence <= self.applied {
            return Ok(false);
        }
        standby.apply_payload(now, Duration::ZERO, change)?;
        self.applied = sequence;
        self.calls.extend(standby.registered().iter().map(|client| (*client, now)));
        Ok(true)
    }

    /// Adds a chunk of the leader's snapshot.
    ///
    /// # Errors
    /// The chunk is damaged.
    pub(crate) fn load(&mut self, now: Mono, chunk: &[u8]) -> Result<(), ApplyError> {
        let policy = &self.policy;
        let loading = self.loading.get_or_insert_with(|| Box::new(StandbyState::new(policy.clone())));
        loading.apply_payload(now, Duration::ZERO, chunk).map(drop)
    }

    /// Removes an incomplete snapshot. Drop it on another thread, because that may take long.
    pub(crate) fn cancel_load(&mut self) -> impl Send + use<> {
        self.loading.take()
    }

    /// Takes the snapshot that was received, to check and use it.
    pub(crate) fn take_load(&mut self) -> Box<StandbyState> {
        self.loading.take().unwrap_or_else(|| Box::new(StandbyState::new(self.policy.clone())))
    }

    /// Replaces the copy by a snapshot, which contains all changes up to `last` of this history.
    /// Returns the former copy, because dropping it may take long.
    pub(crate) fn replace(&mut self, snapshot: Box<StandbyState>, history: HistoryId, last: u64) -> impl Send + use<> {
        self.history = Some(history);
        self.parent = None;
        self.applied = last;
        self.is_uncertain = false;
        std::mem::replace(&mut self.content, CopyContent::Following(snapshot))
    }

    /// Hands the copy over to a thread that stores it; `None` if it follows no leader. `member` is
    /// its ID.
    pub(crate) fn begin_store(&mut self, member: MemberId) -> Option<CopyToStore> {
        let note = self.note(member);
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let storing = CopyContent::Storing { objects: self.objects(), is_cancelled: is_cancelled.clone() };
        match std::mem::replace(&mut self.content, storing) {
            CopyContent::Following(standby) => {
                let generation = self.generation;
                Some(CopyToStore { standby, generation, applied: self.applied, note, is_cancelled })
            }
            other => {
                self.content = other;
                None
            }
        }
    }

    /// Ends the storing of the copy soon. Returns false if it is not being stored.
    pub(crate) fn cancel_store(&mut self) -> bool {
        let CopyContent::Storing { is_cancelled, .. } = &self.content else { return false };
        is_cancelled.store(true, Ordering::Relaxed);
        true
    }

    /// Takes the copy back.
    ///
    /// # Errors
    /// The copy was discarded since. Drop it on another thread, because that may take long.
    pub(crate) fn end_store(&mut self, copy: CopyToStore) -> Result<(), CopyToStore> {
        if copy.generation != self.generation {
            return Err(copy);
        }
        self.content = CopyContent::Following(copy.standby);
        Ok(())
    }

    /// Compares a part of the copy with the leader's state after change number `sequence`. Returns
    /// false if they differ.
    pub(crate) fn agrees(&self, sequence: u64, digest: &StateDigest) -> bool {
        match &self.content {
            CopyContent::Following(standby) if self.applied == sequence => {
                standby.part_digests(&digest.part) == (digest.objects, digest.tables)
            }
            _ => true,
        }
    }

    /// Records that a client called the leader at `at`.
    pub(crate) fn record_call(&mut self, client: ClientId, at: Mono) {
        let last = self.calls.entry(client).or_insert(at);
        *last = (*last).max(at);
    }

    /// Drops the calls of clients that have expired since.
    pub(crate) fn drop_old_calls(&mut self, now: Mono) {
        let since = now - self.policy.client_ttl;
        self.calls.retain(|_, at| *at >= since);
    }

    /// Begins to make the copy ready to serve; `None` if it is ready already, or in use. `lossy`:
    /// changes may be missing that were acknowledged. Then the objects are dropped, unless
    /// `is_proven`. `lossy` may also be determined after the copy is ready.
    pub(crate) fn begin_prepare(&mut self, lossy: bool, is_proven: bool) -> Option<Preparation> {
        let mut standby = match std::mem::replace(&mut self.content, CopyContent::Preparing) {
            CopyContent::Following(standby) => standby,
            CopyContent::Ready(ready) if lossy => Box::new(StandbyState::of(*ready.state)),
            other => {
                self.content = other;
                return None;
            }
        };
        standby.cancel_snapshot();
        let objects = match lossy || self.is_uncertain {
            false => PreparedObjects::Complete,
            true if is_proven && !self.is_uncertain => PreparedObjects::Proven,
            true => PreparedObjects::Dropped,
        };
        if objects != PreparedObjects::Complete {
            // No other copy that has the same changes is equal to this one.
            self.history = None;
            self.parent = None;
        }
        let parent = self.parent_of_next();
        Some(Preparation { standby, objects, generation: self.generation, applied: self.applied, parent })
    }

    /// Whether this is the copy that is being made ready, and not a former one.
    pub(crate) fn is_preparing(&self, generation: u64) -> bool {
        generation == self.generation && matches!(self.content, CopyContent::Preparing)
    }

    /// The copy is ready. Its changes will belong to `history`.
    pub(crate) fn keep_ready(&mut self, now: Mono, state: MasterState, history: HistoryId, loss: CopyLoss) {
        if matches!(self.content, CopyContent::Preparing) {
            self.content = CopyContent::Ready(ReadyCopy { state: Box::new(state), since: now, history, loss });
        }
    }

    /// Takes the state that is ready, to serve it.
    pub(crate) fn take(&mut self) -> Option<ServedCopy> {
        match std::mem::replace(&mut self.content, CopyContent::Serving) {
            CopyContent::Ready(ReadyCopy { state, since, history, loss }) => {
                self.continue_history(history);
                Some(ServedCopy { state, since, calls: std::mem::take(&mut self.calls), loss })
            }
            other => {
                self.content = other;
                None
            }
        }
    }

    /// Whether the copy begins with all changes up to `applied` of this history.
    pub(crate) fn includes(&self, history: Option<HistoryId>, applied: u64) -> bool {
        history.is_some()
            && (history == self.history
                || self.parent.is_some_and(|(parent, last)| history == Some(parent) && applied <= last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preparation_of_a_discarded_copy_has_no_effect() {
        let mut copy = StandbyCopy::new(StorePolicy::default());
        let former = copy.begin_prepare(false, false).unwrap().generation;
        assert!(copy.is_preparing(former));
        drop(copy.discard());
        assert!(!copy.is_preparing(former));
        let current = copy.begin_prepare(false, false).unwrap().generation;
        assert!(!copy.is_preparing(former) && copy.is_preparing(current));
    }

    /// A copy of a leader's snapshot, which is being stored.
    fn storing() -> (StandbyCopy, CopyToStore) {
        let mut copy = StandbyCopy::new(StorePolicy::default());
        let snapshot = copy.take_load();
        drop(copy.replace(snapshot, HistoryId(1), 7));
        let stored = copy.begin_store(MemberId(1)).expect("it follows a leader");
        (copy, stored)
    }

    #[test]
    fn a_copy_is_not_used_while_it_is_stored() {
        let (mut copy, stored) = storing();
        assert!(
            !copy.is_following()
                && copy.begin_prepare(true, false).is_none()
                && copy.begin_store(MemberId(1)).is_none()
        );
        assert_eq!((stored.applied, stored.is_cancelled.load(Ordering::Relaxed)), (7, false));
        assert!(copy.end_store(stored).is_ok());
        assert!(copy.is_following() && !copy.cancel_store() && copy.begin_prepare(false, false).is_some());
    }

    #[test]
    fn storing_a_copy_is_cancelled_when_the_copy_is_discarded() {
        let (mut copy, stored) = storing();
        drop(copy.discard());
        assert!(stored.is_cancelled.load(Ordering::Relaxed));
        assert!(copy.end_store(stored).is_err(), "the copy was discarded");
        assert!(copy.is_following() && copy.applied == 0);
    }
}
