//! The clients that contribute memory, and their expiry.
//!
//! A client is *ok* once it has registered its segments with `ReMountSegment`. Until then, the
//! response to every ping is "remount", even right after a successful mount. Upstream does the
//! same, and its clients rely on it.
//!
//! After a stall of a minute, the master would expire every client whose pings it has not read yet.
//! To prevent this, deadlines refer to a clock from which stalls are subtracted (the `stall` module
//! computes the amount).

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::digest::client_digest;
use crate::slots::SegmentSlot;
use mcctl_base::{ClientId, Mono};

/// Maximum number of clients.
pub(super) const CLIENTS_MAX: usize = 1 << 18;

#[derive(Debug)]
pub(super) struct ClientRecord {
    /// The client has registered its segments.
    pub ok: bool,
    /// The client was restored from records, and has not called since.
    pub restored: bool,
    /// Slots of its mounted segments.
    pub segments: Vec<SegmentSlot>,
    /// The last call to the master before this one, if that is known.
    pub called_before: Option<Mono>,
    /// Deadline on the clock that excludes stalls.
    deadline: Mono,
}

/// All clients, and their deadlines in order.
#[derive(Debug)]
pub(super) struct ClientTable {
    by_id: HashMap<ClientId, ClientRecord, FixedState>,
    deadlines: BTreeSet<(Mono, ClientId)>,
    /// Total time subtracted from the client clock.
    lost: Duration,
    /// The sum of the hashes of all clients.
    digest: u64,
}

impl ClientTable {
    /// Creates an empty table.
    pub(crate) fn new(seed: u64) -> ClientTable {
        let by_id = HashMap::with_hasher(FixedState::with_seed(seed));
        ClientTable { by_id, deadlines: BTreeSet::new(), lost: Duration::ZERO, digest: 0 }
    }

    /// Number of live clients.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns true if `id` is new and the table is full.
    pub(crate) fn is_full_for(&self, id: ClientId) -> bool {
        self.by_id.len() >= CLIENTS_MAX && !self.by_id.contains_key(&id)
    }

    /// Returns the client if it is alive.
    pub(crate) fn get(&self, id: ClientId) -> Option<&ClientRecord> {
        self.by_id.get(&id)
    }

    /// Returns the client if it is alive.
    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut ClientRecord> {
        self.by_id.get_mut(&id)
    }

    /// Extends the deadline of a registered client to `deadline`. Returns false if the client is
    /// unknown.
    pub(crate) fn refresh(&mut self, id: ClientId, deadline: Mono) -> bool {
        let deadline = deadline - self.lost;
        let Some(client) = self.by_id.get_mut(&id) else { return false };
        self.deadlines.remove(&(client.deadline, id));
        self.deadlines.insert((deadline, id));
        client.deadline = deadline;
        true
    }

    /// The clients with their ids, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &ClientRecord)> {
        self.by_id.iter().map(|(id, client)| (*id, client))
    }

    /// Marks all clients as restored, and sets their deadlines.
    pub(crate) fn restore_all(&mut self, deadline: Mono) {
        let ids: Vec<ClientId> = self.by_id.keys().copied().collect();
        for id in ids {
            self.admit(id, deadline).restored = true;
        }
    }

    /// Sets whether a client has registered its segments. Returns false if it is unknown.
    pub(crate) fn mark(&mut self, id: ClientId, ok: bool) -> bool {
        let Some(client) = self.by_id.get_mut(&id) else { return false };
        let before = std::mem::replace(&mut client.ok, ok);
        self.digest = self.digest.wrapping_sub(client_digest(id, before)).wrapping_add(client_digest(id, ok));
        true
    }

    /// All clients must register again.
    pub(crate) fn unmark_all(&mut self) {
        let ids: Vec<ClientId> = self.by_id.keys().copied().collect();
        for id in ids {
            self.mark(id, false);
        }
    }

    /// The sum of the hashes of all clients, in a time that does not depend on their number.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the client, creating it if necessary, and extends its deadline to `deadline`.
    pub(crate) fn admit(&mut self, id: ClientId, deadline: Mono) -> &mut ClientRecord {
        let known = self.refresh(id, deadline);
        let deadline = deadline - self.lost;
        if !known {
            self.deadlines.insert((deadline, id));
            self.digest = self.digest.wrapping_add(client_digest(id, false));
        }
        self.by_id.entry(id).or_insert(ClientRecord {
            ok: false,
            restored: false,
            segments: Vec::new(),
            called_before: None,
            deadline,
        })
    }

    /// The time at which the client expires unless it calls again: one time to live after its last
    /// call.
    pub(crate) fn deadline(&self, id: ClientId) -> Option<Mono> {
        self.by_id.get(&id).map(|client| client.deadline + self.lost)
    }

    /// Up to `limit` clients after `cursor`, in the order of their deadlines.
    pub(crate) fn deadlines_behind(
        &self,
        cursor: Option<(Mono, ClientId)>,
        limit: usize,
    ) -> impl Iterator<Item = (Mono, ClientId)> {
        let from = cursor.map_or(Bound::Unbounded, |(at, id)| Bound::Excluded((at - self.lost, id)));
        self.deadlines.range((from, Bound::Unbounded)).take(limit).map(|(deadline, id)| (*deadline + self.lost, *id))
    }

    /// Returns the client that expires first.
    pub(crate) fn first_deadline(&self) -> Option<(Mono, ClientId)> {
        self.deadlines.first().map(|(deadline, client)| (*deadline + self.lost, *client))
    }

    /// Extends all clients' deadlines by `gap`.
    pub(crate) fn postpone(&mut self, gap: Duration) {
        self.lost += gap;
    }

    /// Removes a client and its deadline.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<ClientRecord> {
        let client = self.by_id.remove(&id)?;
        self.deadlines.remove(&(client.deadline, id));
        self.digest = self.digest.wrapping_sub(client_digest(id, client.ok));
        Some(client)
    }
}
