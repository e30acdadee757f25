//! Writes objects: asks the master to allocate memory, writes every replica, and then completes or revokes the put.

use crate::engine::base::ObjectKey;
use crate::engine::env::Env;
use crate::engine::store::client::{already_exists, each, key_texts, one};
use crate::engine::store::movement::Movement;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::memory::Slice;
use crate::engine::transfer::OpKind;
use crate::engine::wire::types::{ObjectMeta, ReplicaDescriptor, ReplicaLocation, ReplicaType, ReplicateConfig};
use crate::engine::wire::{Expected, Text};

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is stored.
    Stored {
        /// Number of replicas written. It is lower than requested if there are not enough segments.
        replicas: usize,
    },
    /// The key already exists, and its object is unchanged. (Upstream's client reports success.)
    AlreadyExists,
}

/// The family of RPC methods used for a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteMethod {
    Put,
    Upsert,
}

impl<E: Env> StoreClient<E> {
    /// Stores objects directly from the caller's memory. Existing keys are left unchanged.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: this object was not stored.
    pub async fn batch_put(
        &self,
        objects: &[(ObjectKey, Slice)],
        config: &ReplicateConfig,
    ) -> Result<Vec<Result<PutOutcome, StoreError>>, StoreError> {
        self.write(WriteMethod::Put, objects, config).await
    }

    /// [`StoreClient::batch_put`] for one object.
    ///
    /// # Errors
    /// The object was not stored.
    pub async fn put(&self, key: &ObjectKey, value: Slice, config: &ReplicateConfig) -> Result<PutOutcome, StoreError> {
        one(self.batch_put(&[(key.clone(), value)], config).await?)
    }

    /// Stores an object, replacing an existing one. The old object is unavailable from the allocation until the new object is complete.
    ///
    /// # Errors
    /// The object was not stored, and the old one may have been lost.
    pub async fn upsert(
        &self,
        key: &ObjectKey,
        value: Slice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, StoreError> {
        one(self.write(WriteMethod::Upsert, &[(key.clone(), value)], config).await?)
    }

    async fn write(
        &self,
        family: WriteMethod,
        objects: &[(ObjectKey, Slice)],
        config: &ReplicateConfig,
    ) -> Result<Vec<Result<PutOutcome, StoreError>>, StoreError> {
        let fence = self.fence();
        let mut allocated = self.start(family, objects, config).await?;
        if self.fence() != fence {
            // A master without its records may assign the memory to other objects.
            for (allocated, (key, _)) in allocated.iter_mut().zip(objects).filter(|(allocated, _)| allocated.is_ok()) {
                *allocated = Err(StoreError::AllocationLost { key: key.clone() });
            }
        }
        let mut outcomes = self.write_replicas(objects, allocated).await;
        self.finish(family, objects, &mut outcomes).await;
        Ok(outcomes)
    }

    /// Asks the master to allocate memory.
    async fn start(
        &self,
        family: WriteMethod,
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
            WriteMethod::Put => {
                ("BatchPutStart", master.batch_put_start(id, key_texts(&keys), sizes, config, self.tenant()).await?)
            }
            WriteMethod::Upsert => (
                "BatchUpsertStart",
                master.batch_upsert_start(id, key_texts(&keys), sizes, config, self.tenant()).await?,
            ),
        };
        let allocated = each(what, objects.len(), answers)?;
        Ok(allocated
            .zip(objects)
            .map(
                |(allocated, (key, value))| {
                    if value.is_empty() { Err(StoreError::Empty { key: key.clone() }) } else { allocated }
                },
            )
            .collect())
    }

    /// Writes every replica of every allocated object, in a single batch of transfers.
    async fn write_replicas(
        &self,
        objects: &[(ObjectKey, Slice)],
        allocated: Vec<Result<Vec<ReplicaDescriptor>, StoreError>>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let mut movements = Vec::new();
        let mut owners = Vec::new();
        let mut outcomes = Vec::with_capacity(objects.len());
        for (index, (allocated, (key, value))) in allocated.into_iter().zip(objects).enumerate() {
            let outcome = match allocated {
                Err(error) if already_exists(&error) => Ok(PutOutcome::AlreadyExists),
                Err(error) => Err(error),
                Ok(replicas) => {
                    let mut writable = 0;
                    for replica in &replicas {
                        if let ReplicaLocation::Memory(buffer) = &replica.location
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
        let moved = self.run_transfers(OpKind::Write, objects.len(), movements).await;
        for ((index, endpoint), moved) in owners.into_iter().zip(endpoints).zip(moved) {
            // If there are several errors, keep the one that forbids revoking the put.
            if let Err(source) = moved
                && (outcomes[index].is_ok() || source.may_still_land())
            {
                let key = objects[index].0.clone();
                outcomes[index] = Err(StoreError::Transfer { key, endpoint, writing: true, source });
            }
        }
        outcomes
    }

    /// Completes the written objects and revokes the failed ones. This also applies if the connection to the master was lost during the
    /// writes. A master that has kept its records, or recovered them, completes the put: the node did not have to mount its memory again, so
    /// the bytes are in place. Any other master has no such put and returns an error. If the response to a completion is lost, the state of the object is
    /// unknown, and an error is reported. A lost response to a revocation is harmless, because the master drops unfinished objects
    /// automatically. If the bytes of a write may still arrive, the put is not revoked, because its memory would be allocated to another
    /// object immediately. The master keeps that memory until its longer timeout for unfinished puts expires.
    async fn finish(
        &self,
        family: WriteMethod,
        objects: &[(ObjectKey, Slice)],
        outcomes: &mut [Result<PutOutcome, StoreError>],
    ) {
        let (id, master) = (self.id(), self.master());
        let indices = |predicate: fn(&Result<PutOutcome, StoreError>) -> bool| -> Vec<usize> {
            outcomes.iter().enumerate().filter(|(_, outcome)| predicate(outcome)).map(|(index, _)| index).collect()
        };
        let written = indices(|outcome| matches!(outcome, Ok(PutOutcome::Stored { .. })));
        let failed = indices(|outcome| match outcome {
            Err(error @ StoreError::Transfer { .. }) => !error.may_still_land(),
            Err(StoreError::NoReplica { .. } | StoreError::Empty { .. } | StoreError::AllocationLost { .. }) => true,
            _ => false,
        });
        let key = |index: &usize| Text(objects[*index].0.as_bytes());
        if !failed.is_empty() {
            let keys: Vec<_> = failed.iter().map(key).collect();
            let revoked = match family {
                WriteMethod::Put => master.batch_put_revoke(id, keys, ReplicaType::ALL, self.tenant()).await,
                WriteMethod::Upsert => master.batch_upsert_revoke(id, keys, self.tenant()).await,
            };
            if let Err(error) = revoked {
                tracing::debug!(%error, "cannot revoke an unfinished put; the master will drop it");
            }
        }
        if written.is_empty() {
            return;
        }
        let metas = written.iter().map(|index| ObjectMeta { key: key(index), object_checksum: None }).collect();
        let (what, answers) = match family {
            WriteMethod::Put => ("BatchPutEnd", master.batch_put_end(id, metas, ReplicaType::ALL, self.tenant()).await),
            WriteMethod::Upsert => ("BatchUpsertEnd", master.batch_upsert_end(id, metas, self.tenant()).await),
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
