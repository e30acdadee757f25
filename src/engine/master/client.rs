//! The clients that lend memory, and which of them are alive.
//!
//! A client is *ok* once it has said which segments it lends (`ReMountSegment`); until then every ping is answered with "remount",
//! even right after a successful mount. That is upstream's way, and its clients count on it.
//!
//! A master that was stopped for a minute would take everybody for dead whose pings it has not read yet. So deadlines are kept on a
//! clock from which such time is missing (`standstill` says how much of it).

use std::collections::BTreeSet;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::engine::base::{ClientId, Mono};

/// Clients that are kept at most.
pub(super) const CLIENTS_MAX: usize = 1 << 18;

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    /// It has told us its segments.
    pub ok: bool,
    /// Slots of its mounted segments.
    pub segments: Vec<u32>,
    /// Without the time that the master has lost.
    deadline: Mono,
}

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    by_id: HashMap<ClientId, Client, FixedState>,
    deadlines: BTreeSet<(Mono, ClientId)>,
    /// How much is missing from the clients' clock in all.
    lost: Duration,
}

impl Clients {
    /// None.
    pub fn new(seed: u64) -> Clients {
        let by_id = HashMap::with_hasher(FixedState::with_seed(seed));
        Clients { by_id, deadlines: BTreeSet::new(), lost: Duration::ZERO }
    }

    /// How many are alive.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Is there no room for one that is not known yet?
    pub fn is_full_for(&self, id: ClientId) -> bool {
        self.by_id.len() >= CLIENTS_MAX && !self.by_id.contains_key(&id)
    }

    /// The client, if it is alive.
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.by_id.get(&id)
    }

    /// The client, if it is alive.
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.by_id.get_mut(&id)
    }

    /// Something was heard of a client that is known: it lives until `deadline`. Was it known?
    pub fn refresh(&mut self, id: ClientId, deadline: Mono) -> bool {
        let deadline = deadline - self.lost;
        let Some(client) = self.by_id.get_mut(&id) else { return false };
        self.deadlines.remove(&(client.deadline, id));
        self.deadlines.insert((deadline, id));
        client.deadline = deadline;
        true
    }

    /// The client, made if it is new; it lives until `deadline`.
    pub fn admit(&mut self, id: ClientId, deadline: Mono) -> &mut Client {
        let known = self.refresh(id, deadline);
        let deadline = deadline - self.lost;
        if !known {
            self.deadlines.insert((deadline, id));
        }
        self.by_id.entry(id).or_insert(Client { ok: false, segments: Vec::new(), deadline })
    }

    /// The client whose time is up first.
    pub fn first_deadline(&self) -> Option<(Mono, ClientId)> {
        self.deadlines.first().map(|(deadline, client)| (*deadline + self.lost, *client))
    }

    /// All that are alive live `gap` longer.
    pub fn postpone(&mut self, gap: Duration) {
        self.lost += gap;
    }

    /// Forget a client.
    pub fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.by_id.remove(&id)?;
        self.deadlines.remove(&(client.deadline, id));
        Some(client)
    }
}
