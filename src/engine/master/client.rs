//! The clients that lend memory, and which of them are alive.
//!
//! A client is *ok* once it has said which segments it lends (`ReMountSegment`); until then every ping is answered with "remount",
//! even right after a successful mount. That is upstream's way, and its clients count on it.

use std::collections::BTreeSet;

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
    deadline: Mono,
}

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    by_id: HashMap<ClientId, Client, FixedState>,
    deadlines: BTreeSet<(Mono, ClientId)>,
}

impl Clients {
    /// None.
    pub fn new(seed: u64) -> Clients {
        Clients { by_id: HashMap::with_hasher(FixedState::with_seed(seed)), deadlines: BTreeSet::new() }
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
        let Some(client) = self.by_id.get_mut(&id) else { return false };
        self.deadlines.remove(&(client.deadline, id));
        self.deadlines.insert((deadline, id));
        client.deadline = deadline;
        true
    }

    /// The client, made if it is new; it lives until `deadline`.
    pub fn admit(&mut self, id: ClientId, deadline: Mono) -> &mut Client {
        if !self.refresh(id, deadline) {
            self.deadlines.insert((deadline, id));
        }
        self.by_id.entry(id).or_insert(Client { ok: false, segments: Vec::new(), deadline })
    }

    /// The client whose time is up first.
    pub fn first_deadline(&self) -> Option<(Mono, ClientId)> {
        self.deadlines.first().copied()
    }

    /// Forget a client.
    pub fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.by_id.remove(&id)?;
        self.deadlines.remove(&(client.deadline, id));
        Some(client)
    }
}
