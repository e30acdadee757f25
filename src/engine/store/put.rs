//! Writes objects: asks the master to allocate memory, writes every replica, and then completes or
//! revokes the put.
//!
//! The replicas on each node are one transfer. The objects of a node are completed as soon as all
//! their replicas are written, while the transfers to other nodes go on.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;

use crate::client::{already_exists, one};
use crate::movement::{NodeBatch, NodeBatches};
use crate::{Allocation, KeyHold, ObjectPart, StoreClient, StoreError, WriteEnd, WriteMethod};
use mcctl_base::{ClientId, ObjectKey};
use mcctl_sys::env::Env;
use mcctl_sys::memory::Slice;
use mcctl_transfer::{OpKind, TransferError};
use mcctl_wire::types::{BufferDescriptor, ReplicateConfig};

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is stored.
    Stored {
        /// Number of replicas written. It is lower than requested if there are not enough segments.
        replicas: usize,
    },
    /// The key already exists, and its object is unchanged. Another write of it may be unfinished.
    /// (Upstream's client reports success.)
    AlreadyExists,
}

/// Parts of an object to write to its replicas.
#[derive(Debug)]
pub struct PartialWrite<'a> {
    pub key: &'a ObjectKey,
    pub replicas: &'a [BufferDescriptor],
    pub parts: Vec<ObjectPart>,
}

/// A write of a batch of objects.
struct BatchWrite<'a> {
    method: WriteMethod,
    writer: ClientId,
    objects: &'a [(ObjectKey, Vec<ObjectPart>)],
    /// Time limit for the transfers, which must end long before the master assigns the memory to
    /// other objects.
    limit: Duration,
    state: Mutex<Vec<WrittenObject>>,
}

/// The progress of writing an object.
struct WrittenObject {
    /// Number of replicas whose transfers have not ended.
    left: usize,
    outcome: Result<PutOutcome, StoreError>,
    replicas: Vec<BufferDescriptor>,
    /// The checksum of its bytes, if it was computed.
    checksum: Option<u64>,
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
        let whole = |(key, value): &(ObjectKey, Slice)| (key.clone(), ObjectPart::consecutive([value.clone()]));
        let objects: Vec<_> = objects.iter().map(whole).collect();
        self.write(WriteMethod::Put, &objects, config).await
    }

    /// [`StoreClient::batch_put`] for one object.
    ///
    /// # Errors
    /// The object was not stored.
    pub async fn put(&self, key: &ObjectKey, value: Slice, config: &ReplicateConfig) -> Result<PutOutcome, StoreError> {
        one(self.batch_put(&[(key.clone(), value)], config).await?)
    }

    /// Stores an object, replacing an existing one. The old object is unavailable from the
    /// allocation until the new object is complete.
    ///
    /// # Errors
    /// The object was not stored, and the old one may have been lost.
    pub async fn upsert(
        &self,
        key: &ObjectKey,
        value: Slice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, StoreError> {
        let objects = [(key.clone(), ObjectPart::consecutive([value]))];
        one(self.write(WriteMethod::Upsert, &objects, config).await?)
    }

    /// Stores objects directly from the caller's memory. The parts of an object must cover it
    /// without gaps.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: this object was not stored.
    pub async fn write(
        &self,
        method: WriteMethod,
        objects: &[(ObjectKey, Vec<ObjectPart>)],
        config: &ReplicateConfig,
    ) -> Result<Vec<Result<PutOutcome, StoreError>>, StoreError> {
        let (keys, sizes): (Vec<_>, Vec<_>) =
            objects.iter().map(|(key, parts)| (key.clone(), ObjectPart::total(parts) as u64)).unzip();
        let mut allocation = self.allocate(method, &keys, sizes, config, KeyHold::Call).await?;
        let checksum = |(replicas, (_, parts)): (&Result<_, _>, &(_, Vec<_>))| {
            replicas.as_ref().ok().and_then(|_: &Vec<BufferDescriptor>| self.checksum_of(parts))
        };
        // Before the check, after which the bytes are sent at once.
        let checksums = allocation.replicas.iter().zip(objects).map(checksum).collect();
        self.check_connection();
        let limit = self.check(&keys, &mut allocation, self.inner.config.transfer_deadline);
        self.revoke_lost(method, &keys, &allocation).await;
        Ok(self.write_allocated(method, objects, allocation, checksums, limit).await)
    }

    /// Writes every replica of every allocated object, and completes or revokes the objects.
    async fn write_allocated(
        &self,
        method: WriteMethod,
        objects: &[(ObjectKey, Vec<ObjectPart>)],
        allocation: Allocation,
        checksums: Vec<Option<u64>>,
        limit: Duration,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        // The keys are held until the objects are complete or revoked.
        let Allocation { writer, replicas, held: _held, .. } = allocation;
        let began = self.inner.env.now();
        let mut batches = NodeBatches::new();
        let mut state = Vec::with_capacity(objects.len());
        for (index, ((replicas, (_, parts)), checksum)) in replicas.into_iter().zip(objects).zip(checksums).enumerate()
        {
            let unwritten = |outcome| WrittenObject { left: 0, outcome, replicas: Vec::new(), checksum: None };
            state.push(match replicas {
                Err(error) if already_exists(&error) => unwritten(Ok(PutOutcome::AlreadyExists)),
                Err(error) => unwritten(Err(error)),
                Ok(replicas) => {
                    for buffer in &replicas {
                        let batch = batches.of(buffer);
                        let ops = batch.add(OpKind::Write, parts, buffer);
                        batch.items.push((index, ops));
                    }
                    let outcome = Ok(PutOutcome::Stored { replicas: replicas.len() });
                    WrittenObject { left: replicas.len(), outcome, replicas, checksum }
                }
            });
        }
        let unwritten = (0..state.len()).filter(|index| state[*index].outcome.is_err()).collect();
        let write = BatchWrite { method, writer, objects, limit, state: Mutex::new(state) };
        let batches = batches.into_batches();
        let is_alone = batches.len() == 1;
        let each = batches.into_iter().map(|(node, batch)| self.write_to_node(&write, node, batch, is_alone));
        let (bytes, ()) = futures_util::future::join(join_all(each), self.finish(&write, unwritten)).await;
        if let Some(metrics) = &self.inner.config.metrics {
            let bytes: u64 = bytes.into_iter().sum();
            if bytes > 0 {
                metrics.transfer(OpKind::Write, objects.len(), bytes, self.inner.env.now().since(began));
            }
        }
        write.into_outcomes()
    }

    /// Writes the replicas on one node, and finishes the objects that have no other replicas left.
    /// Returns the number of bytes written.
    async fn write_to_node(
        &self,
        write: &BatchWrite<'_>,
        endpoint: String,
        batch: NodeBatch<usize>,
        is_alone: bool,
    ) -> u64 {
        let lengths: Vec<u64> = batch.ops.iter().map(|op| op.local.len() as u64).collect();
        let mut moved = self.transfer(&endpoint, batch.ops, write.limit, is_alone).await.into_iter();
        let mut lengths = lengths.into_iter();
        let mut bytes = 0;
        let mut ended = Vec::new();
        {
            let mut state = write.state.lock().unwrap_or_else(PoisonError::into_inner);
            for (index, ops) in batch.items {
                let length: u64 = lengths.by_ref().take(ops).sum();
                // Of several errors, the one that forbids revoking the put is kept.
                let worse = |a: Result<(), _>, b: Result<(), _>| match (&a, &b) {
                    (Err(first), Err(second)) if may_still_land(second) && !may_still_land(first) => b,
                    (Err(_), _) => a,
                    _ => b,
                };
                let object = &mut state[index];
                object.left -= 1;
                match moved.by_ref().take(ops).fold(Ok(()), worse) {
                    Ok(()) => bytes += length,
                    Err(source) if object.outcome.is_ok() || source.may_still_land() => {
                        let key = write.objects[index].0.clone();
                        let endpoint = endpoint.clone();
                        object.outcome = Err(StoreError::Transfer { key, endpoint, writing: true, source });
                    }
                    Err(_) => {}
                }
                if object.left == 0 {
                    ended.push(index);
                }
            }
        }
        self.finish(write, ended).await;
        bytes
    }

    /// Completes the written objects among those at `indices` and revokes the failed ones. This
    /// also applies if the connection to the master was lost during the writes. A master that has
    /// kept its records, or recovered them, completes the put: the node did not have to mount its
    /// memory again, so the bytes are in place. Any other master has no such put and returns an
    /// error. A lost response to a revocation is harmless, because the master drops unfinished
    /// objects automatically. If the bytes of a write may still arrive, the put is not revoked,
    /// because its memory would be allocated to another object immediately. The master keeps that
    /// memory until its longer timeout for unfinished puts expires.
    async fn finish(&self, write: &BatchWrite<'_>, indices: Vec<usize>) {
        let mut written = Vec::new();
        let mut failed = Vec::new();
        {
            let mut state = write.state.lock().unwrap_or_else(PoisonError::into_inner);
            for index in indices {
                let object = &mut state[index];
                match &object.outcome {
                    Ok(PutOutcome::Stored { .. }) => {
                        written.push((index, std::mem::take(&mut object.replicas), object.checksum));
                    }
                    Ok(PutOutcome::AlreadyExists) => {}
                    Err(error) if is_revocable(error) => failed.push(write.objects[index].0.clone()),
                    Err(_) => {}
                }
            }
        }
        if !failed.is_empty() {
            self.revoke(write.method, write.writer, &failed).await;
        }
        if written.is_empty() {
            return;
        }
        let ends = written.iter().map(|(index, replicas, checksum)| {
            let key = &write.objects[*index].0;
            WriteEnd { key, replicas, checksum: *checksum }
        });
        let results = self.complete(write.method, write.writer, &ends.collect::<Vec<_>>()).await;
        let mut state = write.state.lock().unwrap_or_else(PoisonError::into_inner);
        for ((index, ..), result) in written.iter().zip(results) {
            if let Err(error) = result {
                state[*index].outcome = Err(error);
            }
        }
    }

    /// Writes parts of objects, each to all of its replicas, within `limit`. The memory comes from
    /// [`allocate`](StoreClient::allocate). Returns a result per object. If its
    /// [`StoreError::may_still_land`] returns true, the put must not be revoked.
    pub async fn write_parts(&self, writes: &[PartialWrite<'_>], limit: Duration) -> Vec<Result<(), StoreError>> {
        let mut batches = NodeBatches::new();
        for (index, write) in writes.iter().enumerate() {
            for buffer in write.replicas {
                let batch = batches.of(buffer);
                let ops = batch.add(OpKind::Write, &write.parts, buffer);
                batch.items.push((index, ops));
            }
        }
        let batches = batches.into_batches();
        let is_alone = batches.len() == 1;
        let each = batches.into_iter().map(async |(endpoint, NodeBatch { items, ops })| {
            let mut moved = self.transfer(&endpoint, ops, limit, is_alone).await.into_iter();
            let failed = |(index, ops)| {
                let failed = moved.by_ref().take(ops).filter_map(Result::err).max_by_key(may_still_land);
                failed.map(|source| (index, endpoint.clone(), source))
            };
            items.into_iter().filter_map(failed).collect::<Vec<(usize, String, TransferError)>>()
        });
        let mut results: Vec<Result<(), StoreError>> = writes.iter().map(|_| Ok(())).collect();
        for (index, endpoint, source) in join_all(each).await.into_iter().flatten() {
            // Of several errors, the one that forbids revoking the put is kept.
            if results[index].is_ok() || source.may_still_land() {
                let key = writes[index].key.clone();
                results[index] = Err(StoreError::Transfer { key, endpoint, writing: true, source });
            }
        }
        results
    }
}

impl BatchWrite<'_> {
    /// Returns the outcome of each object. A key that the batch contains twice exists already for
    /// the second object, and has the outcome of the first one if that failed.
    fn into_outcomes(self) -> Vec<Result<PutOutcome, StoreError>> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut outcomes: Vec<_> = state.into_iter().map(|object| object.outcome).collect();
        let failed: HashMap<&ObjectKey, StoreError> = (self.objects.iter().zip(&outcomes))
            .filter_map(|((key, _), outcome)| Some((key, outcome.as_ref().err()?.clone())))
            .collect();
        if !failed.is_empty() {
            for ((key, _), outcome) in self.objects.iter().zip(&mut outcomes) {
                if matches!(outcome, Ok(PutOutcome::AlreadyExists))
                    && let Some(error) = failed.get(key)
                {
                    *outcome = Err(error.clone());
                }
            }
        }
        outcomes
    }
}

/// Whether an object with this error was allocated, and nothing more is written to it.
pub fn is_revocable(error: &StoreError) -> bool {
    match error {
        StoreError::Transfer { .. } => !error.may_still_land(),
        StoreError::NoReplica { .. } | StoreError::Empty { .. } => true,
        _ => false,
    }
}

fn may_still_land(error: &TransferError) -> bool {
    error.may_still_land()
}
