//! Writing objects: ask for room, write every replica, say that it is done, or take it back.

use crate::engine::base::ObjectKey;
use crate::engine::env::Env;
use crate::engine::store::client::{each, is_already_there, one, texts};
use crate::engine::store::movement::Movement;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::memory::Slice;
use crate::engine::transfer::OpKind;
use crate::engine::wire::types::{ObjectMeta, Place, ReplicaDescriptor, ReplicaType, ReplicateConfig};
use crate::engine::wire::{Expected, Text};

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is stored, this many times.
    Stored {
        /// Replicas written; fewer than asked for when there were not enough segments.
        replicas: usize,
    },
    /// The key is taken, and its object was left alone. (Upstream's client reports this as success.)
    AlreadyExists,
}

/// Which of the two families of calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Put,
    Upsert,
}

impl<E: Env> StoreClient<E> {
    /// Store objects, from the caller's memory without a copy. An existing key is left alone.
    ///
    /// # Errors
    /// The outer: the master did not answer. The inner: this object is not stored.
    pub async fn batch_put(
        &self,
        objects: &[(ObjectKey, Slice)],
        config: &ReplicateConfig,
    ) -> Result<Vec<Result<PutOutcome, StoreError>>, StoreError> {
        self.write(Family::Put, objects, config).await
    }

    /// [`StoreClient::batch_put`] of one.
    ///
    /// # Errors
    /// The object is not stored.
    pub async fn put(&self, key: &ObjectKey, value: Slice, config: &ReplicateConfig) -> Result<PutOutcome, StoreError> {
        one(self.batch_put(&[(key.clone(), value)], config).await?)
    }

    /// Store an object whether or not the key is taken. The old object is gone from when room is given until the new one is
    /// whole.
    ///
    /// # Errors
    /// The object is not stored; the old one may be gone.
    pub async fn upsert(
        &self,
        key: &ObjectKey,
        value: Slice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, StoreError> {
        one(self.write(Family::Upsert, &[(key.clone(), value)], config).await?)
    }

    async fn write(
        &self,
        family: Family,
        objects: &[(ObjectKey, Slice)],
        config: &ReplicateConfig,
    ) -> Result<Vec<Result<PutOutcome, StoreError>>, StoreError> {
        let placed = self.start(family, objects, config).await?;
        let mut outcomes = self.write_replicas(objects, placed).await;
        self.finish(family, objects, &mut outcomes).await;
        Ok(outcomes)
    }

    /// Ask for room.
    async fn start(
        &self,
        family: Family,
        objects: &[(ObjectKey, Slice)],
        config: &ReplicateConfig,
    ) -> Result<Vec<Result<Vec<ReplicaDescriptor>, StoreError>>, StoreError> {
        let (id, master, mut config) = (self.id(), self.master(), config.clone());
        if config.host_id.is_empty() {
            config.host_id = self.inner.config.host_id.as_str().into();
        }
        let keys: Vec<ObjectKey> = objects.iter().map(|(key, _)| key.clone()).collect();
        let sizes = objects.iter().map(|(_, value)| value.len() as u64).collect();
        let (what, answers) = match family {
            Family::Put => {
                ("BatchPutStart", master.batch_put_start(id, texts(&keys), sizes, config, self.tenant()).await?)
            }
            Family::Upsert => {
                ("BatchUpsertStart", master.batch_upsert_start(id, texts(&keys), sizes, config, self.tenant()).await?)
            }
        };
        let placed = each(what, objects.len(), answers)?;
        Ok(placed
            .zip(objects)
            .map(
                |(placed, (key, value))| {
                    if value.is_empty() { Err(StoreError::Empty { key: key.clone() }) } else { placed }
                },
            )
            .collect())
    }

    /// Write every replica of every object that got room, all in one batch of transfers.
    async fn write_replicas(
        &self,
        objects: &[(ObjectKey, Slice)],
        placed: Vec<Result<Vec<ReplicaDescriptor>, StoreError>>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let mut movements = Vec::new();
        let mut owners = Vec::new();
        let mut outcomes = Vec::with_capacity(objects.len());
        for (index, (placed, (key, value))) in placed.into_iter().zip(objects).enumerate() {
            let outcome = match placed {
                Err(error) if is_already_there(&error) => Ok(PutOutcome::AlreadyExists),
                Err(error) => Err(error),
                Ok(replicas) => {
                    let mut writable = 0;
                    for replica in &replicas {
                        if let Place::Memory(buffer) = &replica.place
                            && buffer.size == value.len() as u64
                        {
                            movements.push(Movement::new(OpKind::Write, value.clone(), buffer));
                            owners.push(index);
                            writable += 1;
                        }
                    }
                    if writable > 0 && writable == replicas.len() {
                        Ok(PutOutcome::Stored { replicas: writable })
                    } else {
                        Err(StoreError::NoReplica { key: key.clone(), replicas: replicas.len() })
                    }
                }
            };
            outcomes.push(outcome);
        }
        let endpoints: Vec<_> = movements.iter().map(|movement| movement.endpoint.clone()).collect();
        let moved = self.carry_out(OpKind::Write, objects.len(), movements).await;
        for ((index, endpoint), moved) in owners.into_iter().zip(endpoints).zip(moved) {
            // Of several failures the one that forbids taking the put back counts.
            if let Err(source) = moved
                && (outcomes[index].is_ok() || source.may_still_land())
            {
                let key = objects[index].0.clone();
                outcomes[index] = Err(StoreError::Transfer { key, endpoint, writing: true, source });
            }
        }
        outcomes
    }

    /// Tell the master what is whole, and take back what got room but could not be written. An answer to the former that never
    /// came leaves the object's fate unknown, which is reported as a failure; one to the latter does not matter, since the
    /// master forgets unfinished objects by itself. A write whose bytes may still arrive is not taken back, for its room would go
    /// to another object at once: the master keeps it until its own, longer time for unfinished puts is over.
    async fn finish(
        &self,
        family: Family,
        objects: &[(ObjectKey, Slice)],
        outcomes: &mut [Result<PutOutcome, StoreError>],
    ) {
        let (id, master) = (self.id(), self.master());
        let indices = |wanted: fn(&Result<PutOutcome, StoreError>) -> bool| -> Vec<usize> {
            outcomes.iter().enumerate().filter(|(_, outcome)| wanted(outcome)).map(|(index, _)| index).collect()
        };
        let written = indices(|outcome| matches!(outcome, Ok(PutOutcome::Stored { .. })));
        let failed = indices(|outcome| match outcome {
            Err(error @ StoreError::Transfer { .. }) => !error.may_still_land(),
            Err(StoreError::NoReplica { .. } | StoreError::Empty { .. }) => true,
            _ => false,
        });
        let key = |index: &usize| Text(objects[*index].0.as_bytes());
        if !failed.is_empty() {
            let keys: Vec<_> = failed.iter().map(key).collect();
            let revoked = match family {
                Family::Put => master.batch_put_revoke(id, keys, ReplicaType::ALL, self.tenant()).await,
                Family::Upsert => master.batch_upsert_revoke(id, keys, self.tenant()).await,
            };
            if let Err(error) = revoked {
                tracing::debug!(%error, "an unfinished put could not be taken back; the master will forget it");
            }
        }
        if written.is_empty() {
            return;
        }
        let metas = written.iter().map(|index| ObjectMeta { key: key(index), object_checksum: None }).collect();
        let (what, answers) = match family {
            Family::Put => ("BatchPutEnd", master.batch_put_end(id, metas, ReplicaType::ALL, self.tenant()).await),
            Family::Upsert => ("BatchUpsertEnd", master.batch_upsert_end(id, metas, self.tenant()).await),
        };
        let ends: Vec<Result<(), StoreError>> = match answers
            .map_err(StoreError::from)
            .and_then(|answers: Vec<Expected<()>>| each(what, written.len(), answers))
        {
            Ok(ends) => ends.collect(),
            Err(error) => vec![Err(error); written.len()],
        };
        for (index, end) in written.into_iter().zip(ends) {
            if let Err(error) = end {
                outcomes[index] = Err(error);
            }
        }
    }
}
