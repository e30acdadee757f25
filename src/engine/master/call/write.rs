//! The calls that write objects, singly and in batches.
//!
//! They form two families with the same arguments. Only the start of a write and the counters of
//! the batches differ.

use bytes::Bytes;

use crate::call::access::StateAccess;
use crate::call::{BatchCounter, MasterCall};
use crate::put::{PutOptions, PutSpec, PutStartResult};
use crate::refusal::MasterRefusal;
use crate::restarted_writes::Caller;
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};
use mcctl_wire::types::{ObjectMeta, ReplicaDescriptor, ReplicaLocation, ReplicaType, ReplicateConfig, SliceLength};
use mcctl_wire::{Expected, Text};

/// A family of write calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum WriteFamily {
    /// Refuses a key that exists.
    Put,
    /// Replaces an object that exists.
    Upsert,
}

impl WriteFamily {
    fn start(self, state: &mut MasterState, now: Mono, by: Caller, spec: &PutSpec<'_>) -> PutStartResult {
        match self {
            WriteFamily::Put => state.put_start(now, by, spec),
            WriteFamily::Upsert => state.upsert_start(now, by, spec),
        }
    }

    /// The counter of a batch. Upstream has none for batches of upserts. Single upserts are counted
    /// as puts.
    fn counter(self, of_puts: BatchCounter) -> Option<BatchCounter> {
        match self {
            WriteFamily::Put => Some(of_puts),
            WriteFamily::Upsert => None,
        }
    }
}

impl<A: StateAccess> MasterCall<A> {
    fn caller(&self, client: ClientId) -> Caller {
        Caller { client: self.writer(client), connection: self.0.connection() }
    }

    /// The client of a write; `client` is the default if the call contains none.
    fn writer(&self, client: ClientId) -> ClientId {
        if client == ClientId::default() { self.0.unnamed_client() } else { client }
    }

    /// Starts one write. Both families are counted as puts.
    pub(super) fn start(
        &mut self,
        family: WriteFamily,
        client: ClientId,
        key: Text<'_>,
        length: u64,
        config: &ReplicateConfig,
    ) -> Expected<Vec<ReplicaDescriptor>> {
        let by = self.caller(client);
        self.counted(
            |counters| &mut counters.put_start,
            |state, now, _| {
                let options = PutOptions::new(config, 1, state.policy());
                let spec = PutSpec::new(key.0, length, options.as_ref(), 0)?;
                family.start(state, now, by, &spec)
            },
        )
    }

    /// Ends one write. The same for both families.
    pub(super) fn end(&mut self, client: ClientId, object: &ObjectMeta<'_>, kind: ReplicaType) -> Expected<()> {
        let by = self.caller(client);
        self.counted(
            |counters| &mut counters.put_end,
            |state, now, _| state.put_end(now, by, object.key.0, object.object_checksum, kind),
        )
    }

    /// Revokes one write. The same for both families.
    pub(super) fn revoke(&mut self, client: ClientId, key: Text<'_>, kind: ReplicaType) -> Expected<()> {
        let client = self.writer(client);
        self.counted(|counters| &mut counters.put_revoke, |state, now, _| state.put_revoke(now, client, key.0, kind))
    }

    /// Starts a batch of writes. The options are validated once, each key and size when its write
    /// starts.
    pub(super) fn start_batch(
        &mut self,
        family: WriteFamily,
        client: ClientId,
        keys: &[Text<'_>],
        lengths: &[SliceLength],
        config: &ReplicateConfig,
    ) -> Vec<Expected<Vec<ReplicaDescriptor>>> {
        let counter = family.counter(|counters| &mut counters.batch_put_start);
        // A batch with inconsistent lengths is refused before it is checked for other errors.
        let groups = config.group_ids.as_ref().map_or(keys.len(), Vec::len);
        if keys.len() != lengths.len() || keys.len() != groups {
            return self.batch(keys, counter, |_, _, _, _| Err(MasterRefusal::BadArguments));
        }
        let by = self.caller(client);
        let mut options = self.0.with_state(|state, _, _| PutOptions::new(config, keys.len(), state.policy()));
        self.batch(keys, counter, |state, now, key, nth| {
            let spec = PutSpec::new(key.0, lengths[nth].0, options.as_ref(), nth)?;
            let replicas = family.start(state, now, by, &spec)?;
            if nth == 0
                && config.prefer_alloc_in_same_node
                && let Ok(options) = &mut options
                && let Some(endpoint) = endpoint(&replicas)
            {
                // Like upstream, use the first replica's endpoint as the preferred segment name. In
                // P2P mode, the endpoint is not a segment name, so the preference is ignored.
                options.prefer(endpoint);
            }
            Ok(replicas)
        })
    }

    /// Ends a batch of writes.
    pub(super) fn end_batch(
        &mut self,
        family: WriteFamily,
        client: ClientId,
        objects: &[ObjectMeta<'_>],
        kind: ReplicaType,
    ) -> Vec<Expected<()>> {
        let counter = family.counter(|counters| &mut counters.batch_put_end);
        let by = self.caller(client);
        self.batch(objects, counter, |state, now, object, _| {
            state.put_end(now, by, object.key.0, object.object_checksum, kind)
        })
    }

    /// Revokes a batch of writes.
    pub(super) fn revoke_batch(
        &mut self,
        family: WriteFamily,
        client: ClientId,
        keys: &[Text<'_>],
        kind: ReplicaType,
    ) -> Vec<Expected<()>> {
        let counter = family.counter(|counters| &mut counters.batch_put_revoke);
        let client = self.writer(client);
        self.batch(keys, counter, |state, now, key, _| state.put_revoke(now, client, key.0, kind))
    }
}

fn endpoint(replicas: &[ReplicaDescriptor]) -> Option<Bytes> {
    match &replicas.first()?.location {
        ReplicaLocation::Memory(buffer) => Some(buffer.transport_endpoint.0.clone()),
        _ => None,
    }
}
