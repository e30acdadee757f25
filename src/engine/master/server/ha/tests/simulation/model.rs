//! The expected state of each key, and the responses that it permits.
//!
//! A pinned or evictable key has one writer, and each client may remove it. A shared key has
//! several writers, and only its bytes are checked. A response is checked against the last change
//! of its key. That change must have ended before the request was sent, and no other one may have
//! begun since. A lookup may also return a change whose response was not sent yet (SEMANTICS,
//! "Reads after a failover").
//!
//! A request may arrive after its client has timed out. A late end has the ID of its write, so it
//! changes nothing else. A late removal, and a late start of an upsert, apply to the object that
//! the key has then: while one of them is on its way, the key may be missing.

use std::collections::BTreeMap;
use std::sync::Weak;

use super::memory::{Memory, StoredValue};
use super::report::Violation;
use mcctl_base::rng::Rng;

/// Keys of each client that it alone writes. The first ones are pinned.
const OWN_KEYS: usize = 5;
const PINNED_KEYS: usize = 3;
/// Keys that all clients write.
const SHARED_KEYS: usize = 6;

/// The expected state of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum KeyState {
    /// The key is missing, or has any value that was written for it.
    #[default]
    Unknown,
    /// This write was acknowledged at `since`. These of its replicas are not lost.
    Stored { write: u32, since: u64, at: Vec<u64> },
    /// A removal was acknowledged at `since`.
    Removed { since: u64 },
}

/// A key, and the state that its clients expect.
#[derive(Default)]
struct KeyModel {
    state: KeyState,
    /// The writes that have begun, in the order of their numbers. The first one has the number 1.
    begun: Vec<BegunWrite>,
    /// Number of requests that may change the key and have no result yet, and whether they overlap
    /// each other, late ones, or a loss of all keys.
    in_flight: u32,
    is_contended: bool,
    /// The removals and the starts of upserts that may still arrive.
    hiding: Vec<RequestTrace>,
}

/// A write whose client has received the addresses of its replicas.
struct BegunWrite {
    at: Vec<u64>,
    /// Time at which its client received them.
    since: u64,
}

/// Can be upgraded while a copy of a request is on its way or being processed.
pub(super) type RequestTrace = Weak<()>;

/// A key's number, and how it is written.
struct Slot {
    /// All clients write it.
    is_shared: bool,
    is_pinned: bool,
}

/// The keys of all clients, and their expected states.
pub(super) struct Model {
    slots: Vec<Slot>,
    keys: BTreeMap<String, KeyModel>,
}

impl Model {
    /// The keys of this number of clients.
    pub(super) fn new(clients: usize) -> Model {
        let own =
            (0..clients).flat_map(|_| (0..OWN_KEYS).map(|nth| Slot { is_shared: false, is_pinned: nth < PINNED_KEYS }));
        let shared = (0..SHARED_KEYS).map(|_| Slot { is_shared: true, is_pinned: false });
        Model { slots: own.chain(shared).collect(), keys: BTreeMap::new() }
    }

    fn slot(&self, key: &str) -> &Slot {
        &self.slots[key.parse::<usize>().expect("a key of this model")]
    }

    /// A key that this client may write, and whether it is pinned.
    pub(super) fn key_to_write(&self, client: usize, rng: &mut Rng) -> (String, bool) {
        let own = client * OWN_KEYS + rng.below(OWN_KEYS);
        let slot = if rng.below(6) == 0 { self.slots.len() - 1 - rng.below(SHARED_KEYS) } else { own };
        (slot.to_string(), self.slots[slot].is_pinned)
    }

    /// A key to look up or to remove.
    pub(super) fn some_key(&self, rng: &mut Rng) -> String {
        rng.below(self.slots.len()).to_string()
    }

    /// The state of a key, if no change of it is on its way.
    fn settled_state(&self, key: &str) -> &KeyState {
        static UNKNOWN: KeyState = KeyState::Unknown;
        let is_shared = self.slot(key).is_shared;
        let settled = self.keys.get(key).filter(|model| model.in_flight == 0 && !is_shared);
        settled.map_or(&UNKNOWN, |model| &model.state)
    }

    /// The last change of the key is the start of an upsert or a removal, which may arrive late.
    pub(super) fn add_hiding(&mut self, key: &str, request: RequestTrace) {
        self.keys.entry(key.to_owned()).or_default().hiding.push(request);
    }

    /// A request is sent that may change the key. Returns the state before.
    pub(super) fn begin_change(&mut self, key: &str) -> KeyState {
        let model = self.keys.entry(key.to_owned()).or_default();
        model.hiding.retain(|request| request.strong_count() > 0);
        model.is_contended |= model.in_flight > 0 || !model.hiding.is_empty();
        model.in_flight += 1;
        std::mem::take(&mut model.state)
    }

    /// Records that the result of such a request is known, or never will be.
    pub(super) fn end_change(&mut self, key: &str, state: KeyState) {
        let model = self.keys.entry(key.to_owned()).or_default();
        model.in_flight -= 1;
        if !model.is_contended {
            model.state = state;
        }
        model.is_contended &= model.in_flight > 0;
    }

    /// Records that a client has received the addresses of its write. Returns the write's number.
    pub(super) fn begin_write(&mut self, key: &str, at: Vec<u64>, since: u64) -> u32 {
        let begun = &mut self.keys.entry(key.to_owned()).or_default().begun;
        begun.push(BegunWrite { at, since });
        begun.len() as u32
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

    /// Checks a response, to a request that was sent at `sent`, that the key has no complete
    /// object.
    pub(super) fn check_missing(&self, key: &str, sent: u64) -> Result<(), Violation> {
        match self.settled_state(key) {
            KeyState::Stored { since, .. } if *since <= sent && self.slot(key).is_pinned => {
                Err(Violation::Lost { key: key.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Checks such a response that the key has one. Returns the number of the oldest write that it
    /// may be of.
    pub(super) fn check_found(&self, key: &str, sent: u64) -> Result<u32, Violation> {
        match self.settled_state(key) {
            KeyState::Removed { since } if *since <= sent => Err(Violation::Resurrected { key: key.to_owned() }),
            KeyState::Stored { write, since, .. } if *since <= sent => Ok(*write),
            _ => Ok(1),
        }
    }

    /// The number of the oldest write whose bytes may be at an address of a complete object,
    /// according to a response to a request that was sent at `sent`. A write that had this address
    /// before has completed the object, or a later one has.
    pub(super) fn oldest_at(&self, key: &str, at: u64, sent: u64) -> u32 {
        let begun = self.keys.get(key).map_or(&[][..], |model| &model.begun);
        let last = begun.iter().rposition(|write| write.since <= sent && write.at.contains(&at));
        last.map_or(1, |nth| nth as u32 + 1)
    }

    /// Checks the bytes that a read of a key has found.
    pub(super) fn check_bytes(&self, key: &str, oldest: u32, found: Option<&StoredValue>) -> Result<(), Violation> {
        let is_right = |found: &&StoredValue| {
            let begun = self.keys.get(key).map_or(0, |model| model.begun.len() as u32);
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
                let oldest = oldest.max(self.oldest_at(key, at, u64::MAX));
                self.check_bytes(key, oldest, memory.read(at))?;
            }
        }
        Ok(())
    }
}
