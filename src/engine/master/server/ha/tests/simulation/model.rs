//! The expected state of each key, and the responses that it permits.
//!
//! A pinned or evictable key has one writer, and each client may remove it. A shared key has several writers, and only its bytes are checked. A
//! response is checked against the last change of its key. That change must have ended before the request was sent, and no other one may have
//! begun since. A lookup may also return a change whose response was not sent yet (SEMANTICS, "Reads after a failover").

use std::collections::{BTreeMap, VecDeque};

use super::memory::{Memory, StoredValue};
use super::report::Violation;
use crate::engine::base::rng::Rng;

/// Keys of each client that it alone writes. The first ones are pinned.
const OWN_KEYS: usize = 5;
const PINNED_KEYS: usize = 3;
/// Keys that all clients write.
const SHARED_KEYS: usize = 6;
/// Names that are no longer written, and still read and removed.
const FORMER_NAMES_MAX: usize = 60;

/// The expected state of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KeyState {
    /// The key is missing, or has any value that was written for it.
    #[default]
    Unknown,
    /// This write was acknowledged at `since`. These of its replicas are not lost.
    Stored { write: u32, since: u64, at: Vec<u64> },
    /// A removal was acknowledged at `since`.
    Removed { since: u64 },
}

/// A key, and what its clients expect of it.
#[derive(Default)]
struct KeyModel {
    state: KeyState,
    /// Number of writes that have begun.
    begun: u32,
    /// Number of requests on their way that may change the key, and whether they overlap each other or a loss of all keys.
    in_flight: u32,
    is_contended: bool,
    /// An earlier request may still change the key.
    is_tainted: bool,
}

/// A name that is written.
struct Slot {
    /// Its number in the name. A name whose last request may still arrive gets another number.
    generation: u32,
    /// All clients write it.
    is_shared: bool,
    is_pinned: bool,
}

/// The keys of all clients, and their expected states.
pub struct Model {
    slots: Vec<Slot>,
    keys: BTreeMap<String, KeyModel>,
    /// Names that are no longer written.
    former: VecDeque<String>,
    /// Names are written again although an earlier request with them may still arrive.
    is_reusing_names: bool,
}

impl Model {
    /// The keys of this number of clients.
    pub(super) fn new(clients: usize, is_reusing_names: bool) -> Model {
        let own = (0..clients).flat_map(|_| {
            (0..OWN_KEYS).map(|nth| Slot { generation: 0, is_shared: false, is_pinned: nth < PINNED_KEYS })
        });
        let shared = (0..SHARED_KEYS).map(|_| Slot { generation: 0, is_shared: true, is_pinned: false });
        let slots = own.chain(shared).collect();
        Model { slots, keys: BTreeMap::new(), former: VecDeque::new(), is_reusing_names }
    }

    fn name(&self, slot: usize) -> String {
        format!("{slot}.{}", self.slots[slot].generation)
    }

    /// The slot of a name, also of one that is no longer written.
    fn slot(&self, key: &str) -> &Slot {
        &self.slots[slot_number(key)]
    }

    /// A key that this client may write, and whether it is pinned.
    pub(super) fn key_to_write(&self, client: usize, rng: &mut Rng) -> (String, bool) {
        let own = client * OWN_KEYS + rng.below(OWN_KEYS);
        let slot = if rng.below(6) == 0 { self.slots.len() - 1 - rng.below(SHARED_KEYS) } else { own };
        (self.name(slot), self.slots[slot].is_pinned)
    }

    /// A key to look up or to remove.
    pub(super) fn some_key(&self, rng: &mut Rng) -> String {
        let former = if rng.below(5) == 0 { self.former.get(rng.below(self.former.len().max(1))) } else { None };
        former.cloned().unwrap_or_else(|| self.name(rng.below(self.slots.len())))
    }

    /// A name that is no longer written. Its object takes space until it is removed.
    pub(super) fn former_key(&self, rng: &mut Rng) -> Option<String> {
        self.former.get(rng.below(self.former.len().max(1))).cloned()
    }

    /// A request with this name may still arrive after its client has timed out. Nothing is written under this name from now on.
    pub(super) fn retire(&mut self, key: &str) {
        self.keys.entry(key.to_owned()).or_default().is_tainted = true;
        let slot = slot_number(key);
        if self.is_reusing_names || self.name(slot) != key {
            return;
        }
        self.slots[slot].generation += 1;
        self.former.push_back(key.to_owned());
        if self.former.len() > FORMER_NAMES_MAX {
            self.former.pop_front();
        }
    }

    /// The state of a key, if no change of it is on its way.
    fn settled_state(&self, key: &str) -> &KeyState {
        static UNKNOWN: KeyState = KeyState::Unknown;
        let is_shared = self.slot(key).is_shared;
        let settled = self.keys.get(key).filter(|model| model.in_flight == 0 && !model.is_tainted && !is_shared);
        settled.map_or(&UNKNOWN, |model| &model.state)
    }

    /// A request is sent that may change the key. Returns the state before.
    pub(super) fn begin_change(&mut self, key: &str) -> KeyState {
        let model = self.keys.entry(key.to_owned()).or_default();
        model.is_contended |= model.in_flight > 0;
        model.in_flight += 1;
        std::mem::take(&mut model.state)
    }

    /// The result of such a request is known, or never will be.
    pub(super) fn end_change(&mut self, key: &str, state: KeyState) {
        let model = self.keys.entry(key.to_owned()).or_default();
        model.in_flight -= 1;
        if !model.is_contended {
            model.state = state;
        }
        model.is_contended &= model.in_flight > 0;
    }

    /// A write gets its memory. Returns its number.
    pub(super) fn begin_write(&mut self, key: &str) -> u32 {
        let model = self.keys.entry(key.to_owned()).or_default();
        model.begun += 1;
        model.begun
    }

    /// All objects were dropped.
    pub(super) fn lose_all(&mut self) {
        for model in self.keys.values_mut() {
            model.is_contended |= model.in_flight > 0;
            if matches!(model.state, KeyState::Stored { .. }) {
                model.state = KeyState::Unknown;
            }
        }
    }

    /// Memory is lost, or may be. `is_lost` returns whether an address is in it.
    pub(super) fn lose_memory(&mut self, is_lost: impl Fn(u64) -> bool) {
        for model in self.keys.values_mut() {
            // A request on its way has the state before.
            model.is_contended |= model.in_flight > 0;
            if let KeyState::Stored { at, .. } = &mut model.state {
                at.retain(|at| !is_lost(*at));
                if at.is_empty() {
                    model.state = KeyState::Unknown;
                }
            }
        }
    }

    /// Checks a response, to a request that was sent at `sent`, that the key has no complete object.
    pub(super) fn check_missing(&self, key: &str, sent: u64) -> Result<(), Violation> {
        match self.settled_state(key) {
            KeyState::Stored { since, .. } if *since <= sent && self.slot(key).is_pinned => {
                Err(Violation::Lost { key: key.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Checks such a response that the key has one. Returns the number of the oldest write whose bytes may be read.
    pub(super) fn check_found(&self, key: &str, sent: u64) -> Result<u32, Violation> {
        match self.settled_state(key) {
            KeyState::Removed { since } if *since <= sent => Err(Violation::Resurrected { key: key.to_owned() }),
            KeyState::Stored { write, since, .. } if *since <= sent => Ok(*write),
            _ => Ok(1),
        }
    }

    /// Checks the bytes that a read of a key has found.
    pub(super) fn check_bytes(&self, key: &str, oldest: u32, found: Option<&StoredValue>) -> Result<(), Violation> {
        let is_right = |found: &&StoredValue| {
            let begun = self.keys.get(key).map_or(0, |model| model.begun);
            found.key == key && (oldest..=begun).contains(&found.write)
        };
        match found.filter(is_right) {
            Some(_) => Ok(()),
            None => Err(Violation::OtherBytes { key: key.to_owned(), oldest, found: found.cloned() }),
        }
    }

    /// Checks all keys at the end of a run. `find` returns the addresses of a key at the leader.
    pub(super) fn check_end(
        &self,
        memory: &Memory,
        find: impl Fn(&str) -> Option<Vec<u64>>,
        is_lost: impl Fn(u64) -> bool,
    ) -> Result<(), Violation> {
        for key in self.keys.keys() {
            let Some(found) = find(key) else {
                self.check_missing(key, u64::MAX)?;
                continue;
            };
            let oldest = self.check_found(key, u64::MAX)?;
            for at in found.into_iter().filter(|at| !is_lost(*at)) {
                self.check_bytes(key, oldest, memory.read(at))?;
            }
        }
        Ok(())
    }
}

/// The number of the slot of a name.
fn slot_number(key: &str) -> usize {
    key.split('.').next().and_then(|slot| slot.parse().ok()).expect("a name of this model")
}
