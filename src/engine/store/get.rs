//! Reads objects: looks up the replicas, reads one, tries the next one after a failure, and checks that the lookup was still valid: its lease
//! had not ended, and the connection to the master had not been lost.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::{Mono, ObjectKey};
use crate::engine::env::Env;
use crate::engine::store::client::{ObjectStat, one};
use crate::engine::store::fence::MasterFence;
use crate::engine::store::movement::Movement;
use crate::engine::store::replica::reading_order;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::memory::{Memory, Slice};
use crate::engine::transfer::OpKind;
use crate::engine::wire::types::BufferDescriptor;

/// If memory for an object is granted within this time, the object is read under the lease granted by the lookup that returned its size.
const LEASE_REUSED_FOR: Duration = Duration::from_millis(500);
/// Maximum number of reads of an object, each with its own lookup, if the connection to the master is lost during the read.
const READS_MAX: u32 = 3;

/// What the master has reported about the objects to read.
struct Lookup {
    /// When the request was sent. The leases begin then at the earliest.
    started: Mono,
    fence: MasterFence,
    stats: Vec<Result<ObjectStat, StoreError>>,
}

/// A read in progress.
struct PendingRead {
    index: usize,
    into: Slice,
    /// Replicas that have not been tried, best last.
    left: Vec<BufferDescriptor>,
    /// The error to report when no replicas are left.
    error: StoreError,
}

impl<E: Env> StoreClient<E> {
    /// Reads objects directly into the caller's memory. Returns the size of each object. A slice may be larger than its object.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: this object was not read, and the content of its
    /// slice is unspecified.
    pub async fn batch_get_into(
        &self,
        objects: &[(ObjectKey, Slice)],
    ) -> Result<Vec<Result<usize, StoreError>>, StoreError> {
        let mut results = self.look_up_and_read(&objects.iter().collect::<Vec<_>>()).await?;
        for _ in 1..READS_MAX {
            let lost: Vec<usize> = (0..results.len()).filter(|at| is_lost(&results[*at])).collect();
            if lost.is_empty() {
                break;
            }
            let again: Vec<_> = lost.iter().map(|at| &objects[*at]).collect();
            for (at, result) in lost.into_iter().zip(self.look_up_and_read(&again).await?) {
                results[at] = result;
            }
        }
        Ok(results)
    }

    async fn look_up_and_read(
        &self,
        objects: &[&(ObjectKey, Slice)],
    ) -> Result<Vec<Result<usize, StoreError>>, StoreError> {
        let keys: Vec<ObjectKey> = objects.iter().map(|(key, _)| key.clone()).collect();
        let lookup = self.look_up(&keys).await?;
        let buffers: Vec<_> = lookup
            .stats
            .iter()
            .zip(objects)
            .map(|(stat, (key, buffer))| match stat {
                Ok(stat) => fit(key, stat.size, buffer),
                Err(error) => Err(error.clone()),
            })
            .collect();
        Ok(self.read(&keys, &lookup, buffers).await)
    }

    async fn look_up(&self, keys: &[ObjectKey]) -> Result<Lookup, StoreError> {
        let (started, fence) = (self.inner.env.now(), self.fence());
        Ok(Lookup { started, fence, stats: self.batch_stat(keys).await? })
    }

    /// [`StoreClient::batch_get_into`] for one object.
    ///
    /// # Errors
    /// The object was not read.
    pub async fn get_into(&self, key: &ObjectKey, into: Slice) -> Result<usize, StoreError> {
        one(self.batch_get_into(&[(key.clone(), into)]).await?)
    }

    /// Reads an object into newly allocated memory.
    ///
    /// # Errors
    /// The object was not read.
    pub async fn get(&self, key: &ObjectKey) -> Result<Vec<u8>, StoreError> {
        self.get_within(key, |_| std::future::ready(())).await.map(|(value, ())| value)
    }

    /// Reads an object into newly allocated memory, once `admit` has granted memory of its size. Also returns the result of `admit`. If the
    /// connection to the master is lost in between, `admit` is called again.
    ///
    /// # Errors
    /// The object was not read.
    pub async fn get_within<T, F: Future<Output = T>>(
        &self,
        key: &ObjectKey,
        admit: impl Fn(u64) -> F,
    ) -> Result<(Vec<u8>, T), StoreError> {
        for _ in 1..READS_MAX {
            let result = self.get_once(key, &admit).await;
            if !is_lost(&result) {
                return result;
            }
        }
        self.get_once(key, &admit).await
    }

    async fn get_once<T, F: Future<Output = T>>(
        &self,
        key: &ObjectKey,
        admit: impl Fn(u64) -> F,
    ) -> Result<(Vec<u8>, T), StoreError> {
        let keys = [key.clone()];
        let (lookup, size, admitted) = loop {
            let lookup = self.look_up(&keys).await?;
            let size = one(lookup.stats.clone())?.size;
            let admitted = admit(size).await;
            if self.inner.env.now().since(lookup.started) < LEASE_REUSED_FOR {
                break (lookup, size, admitted);
            }
            // The lease may have expired. The granted memory still fits if the object's size has not changed.
            let lookup = self.look_up(&keys).await?;
            if one(lookup.stats.clone())?.size == size {
                break (lookup, size, admitted);
            }
        };
        let memory = Arc::new(Memory::from_vec(zeroed(key, size)?));
        one(self.read(&keys, &lookup, vec![Ok(memory.whole())]).await)?;
        let value = Arc::try_unwrap(memory).map_or_else(
            |shared| {
                let mut copy = vec![0; shared.len()];
                shared.read_at(0, &mut copy).expect("the copy has the size of the memory");
                copy
            },
            Memory::into_vec,
        );
        Ok((value, admitted))
    }

    async fn read(
        &self,
        keys: &[ObjectKey],
        lookup: &Lookup,
        buffers: Vec<Result<Slice, StoreError>>,
    ) -> Vec<Result<usize, StoreError>> {
        let Lookup { started, fence, stats } = lookup;
        let mut results: Vec<Result<usize, StoreError>> = Vec::with_capacity(keys.len());
        let mut reads = Vec::new();
        let own: Vec<&str> = self.inner.own_endpoints.iter().map(String::as_str).collect();
        for (index, (stat, buffer)) in stats.iter().zip(buffers).enumerate() {
            match (stat, buffer) {
                (Err(error), _) => results.push(Err(error.clone())),
                (_, Err(error)) => results.push(Err(error)),
                (Ok(stat), Ok(into)) => {
                    let order = reading_order(&stat.found.replicas, &own, self.inner.env.rng());
                    let left = order.into_iter().rev().cloned().collect();
                    results.push(Ok(into.len()));
                    let error = StoreError::NoReplica { key: keys[index].clone(), replicas: stat.found.replicas.len() };
                    reads.push(PendingRead { index, into, left, error });
                }
            }
        }
        while !reads.is_empty() {
            reads = self.read_round(keys, reads, &mut results).await;
        }
        let (now, is_lost) = (self.inner.env.now(), self.fence() != *fence);
        for ((key, stat), result) in keys.iter().zip(stats).zip(&mut results) {
            let Ok(stat) = stat else { continue };
            if is_lost {
                // A node that mounts its memory again also ends the transfers in progress, so a failed read counts as lost, too.
                *result = Err(StoreError::LookupLost { key: key.clone() });
            } else if result.is_ok() {
                let lease = Duration::from_millis(stat.found.lease_ttl_ms);
                if now > *started + lease {
                    *result = Err(StoreError::LeaseExpired { key: key.clone(), lease });
                }
            }
        }
        results
    }

    /// Reads each object from its next replica. Returns failed reads that can be retried.
    async fn read_round(
        &self,
        keys: &[ObjectKey],
        reads: Vec<PendingRead>,
        results: &mut [Result<usize, StoreError>],
    ) -> Vec<PendingRead> {
        let mut movements = Vec::new();
        let mut in_progress = Vec::new();
        for mut read in reads {
            let Some(buffer) = read.left.pop() else {
                results[read.index] = Err(read.error);
                continue;
            };
            let movement = Movement::new(OpKind::Read, read.into.clone(), &buffer);
            in_progress.push((read, movement.endpoint.clone()));
            movements.push(movement);
        }
        let moved = self.run_transfers(OpKind::Read, keys.len(), movements).await;
        let mut again = Vec::new();
        for ((mut read, endpoint), moved) in in_progress.into_iter().zip(moved) {
            if let Err(source) = moved {
                let key = keys[read.index].clone();
                read.error = StoreError::Transfer { key, endpoint, writing: false, source };
                again.push(read);
            }
        }
        again
    }
}

/// Whether a read may succeed after another lookup.
fn is_lost<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::LookupLost { .. }))
}

/// Returns the part of `buffer` that the object fills.
fn fit(key: &ObjectKey, size: u64, buffer: &Slice) -> Result<Slice, StoreError> {
    usize::try_from(size).ok().and_then(|size| buffer.part(0, size).ok()).ok_or_else(|| StoreError::TooSmall {
        key: key.clone(),
        size,
        buffer: buffer.len(),
    })
}

/// Allocates memory for an object whose size was reported by another process. An impossible size causes an error, not an abort.
fn zeroed(key: &ObjectKey, size: u64) -> Result<Vec<u8>, StoreError> {
    let no_memory = |why: String| StoreError::NoMemory { key: key.clone(), size, why };
    let size = usize::try_from(size).map_err(|e| no_memory(e.to_string()))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|e| no_memory(e.to_string()))?;
    bytes.resize(size, 0);
    Ok(bytes)
}
