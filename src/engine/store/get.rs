//! Reading objects: find the replicas, read one, try the next when that fails, and check that the lease still held.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::{Mono, ObjectKey};
use crate::engine::env::Env;
use crate::engine::store::client::{ObjectStat, one};
use crate::engine::store::movement::Movement;
use crate::engine::store::replica::reading_order;
use crate::engine::store::{StoreClient, StoreError};
use crate::engine::sys::memory::{Memory, Slice};
use crate::engine::transfer::OpKind;
use crate::engine::wire::types::BufferDescriptor;

/// An object that found room within this time is read under the lease of the look that said its size.
const ADMITTED_SOON: Duration = Duration::from_millis(500);

/// An object on its way in: where it goes and which replicas are still to be tried.
struct Reading {
    index: usize,
    into: Slice,
    /// Best last, so that the next one is popped.
    left: Vec<BufferDescriptor>,
    /// What to report when none is left.
    error: StoreError,
}

impl<E: Env> StoreClient<E> {
    /// Read objects into the caller's memory, without a copy; how many bytes each has. A slice may be larger than its object.
    ///
    /// # Errors
    /// The outer: the master did not answer. The inner: this object was not read, and what its slice holds is unspecified.
    pub async fn batch_get_into(
        &self,
        objects: &[(ObjectKey, Slice)],
    ) -> Result<Vec<Result<usize, StoreError>>, StoreError> {
        let asked = self.inner.env.now();
        let keys: Vec<ObjectKey> = objects.iter().map(|(key, _)| key.clone()).collect();
        let stats = self.batch_stat(&keys).await?;
        let rooms: Vec<_> = stats
            .iter()
            .zip(objects)
            .map(|(stat, (key, room))| match stat {
                Ok(stat) => fit(key, stat.size, room),
                Err(error) => Err(error.clone()),
            })
            .collect();
        Ok(self.read(&keys, &stats, rooms, asked).await)
    }

    /// [`StoreClient::batch_get_into`] of one.
    ///
    /// # Errors
    /// The object was not read.
    pub async fn get_into(&self, key: &ObjectKey, into: Slice) -> Result<usize, StoreError> {
        one(self.batch_get_into(&[(key.clone(), into)]).await?)
    }

    /// Read an object into memory of its own.
    ///
    /// # Errors
    /// The object was not read.
    pub async fn get(&self, key: &ObjectKey) -> Result<Vec<u8>, StoreError> {
        self.get_within(key, |_| std::future::ready(())).await.map(|(value, ())| value)
    }

    /// Read an object into memory of its own, once `admit` has found room for its size; with what `admit` gave for it.
    ///
    /// # Errors
    /// The object was not read.
    pub async fn get_within<T, F: Future<Output = T>>(
        &self,
        key: &ObjectKey,
        admit: impl Fn(u64) -> F,
    ) -> Result<(Vec<u8>, T), StoreError> {
        let keys = [key.clone()];
        let (asked, stats, size, admitted) = loop {
            let asked = self.inner.env.now();
            let stats = self.batch_stat(&keys).await?;
            let size = one(stats.clone())?.size;
            let admitted = admit(size).await;
            if self.inner.env.now().since(asked) < ADMITTED_SOON {
                break (asked, stats, size, admitted);
            }
            // The lease may be over by now. The room stays ours if the object still has this size.
            let asked = self.inner.env.now();
            let stats = self.batch_stat(&keys).await?;
            if one(stats.clone())?.size == size {
                break (asked, stats, size, admitted);
            }
        };
        let memory = Arc::new(Memory::from_vec(zeroed(key, size)?));
        one(self.read(&keys, &stats, vec![Ok(memory.whole())], asked).await)?;
        let value = Arc::try_unwrap(memory).map_or_else(
            |shared| {
                let mut copy = vec![0; shared.len()];
                shared.read_at(0, &mut copy).expect("as long as the memory");
                copy
            },
            Memory::into_vec,
        );
        Ok((value, admitted))
    }

    async fn read(
        &self,
        keys: &[ObjectKey],
        stats: &[Result<ObjectStat, StoreError>],
        rooms: Vec<Result<Slice, StoreError>>,
        asked: Mono,
    ) -> Vec<Result<usize, StoreError>> {
        let mut results: Vec<Result<usize, StoreError>> = Vec::with_capacity(keys.len());
        let mut readings = Vec::new();
        let own: Vec<&str> = self.inner.own_endpoints.iter().map(String::as_str).collect();
        for (index, (stat, room)) in stats.iter().zip(rooms).enumerate() {
            match (stat, room) {
                (Err(error), _) => results.push(Err(error.clone())),
                (_, Err(error)) => results.push(Err(error)),
                (Ok(stat), Ok(into)) => {
                    let order = reading_order(&stat.found.replicas, &own, self.inner.env.rng());
                    let left = order.into_iter().rev().cloned().collect();
                    results.push(Ok(into.len()));
                    let error = StoreError::NoReplica { key: keys[index].clone(), replicas: stat.found.replicas.len() };
                    readings.push(Reading { index, into, left, error });
                }
            }
        }
        while !readings.is_empty() {
            readings = self.read_round(keys, readings, &mut results).await;
        }
        let now = self.inner.env.now();
        for ((key, stat), result) in keys.iter().zip(stats).zip(&mut results) {
            if let (Ok(stat), Ok(_)) = (stat, &result) {
                let lease = Duration::from_millis(stat.found.lease_ttl_ms);
                if now > asked + lease {
                    *result = Err(StoreError::LeaseExpired { key: key.clone(), lease });
                }
            }
        }
        results
    }

    /// Read each object from its next replica; those that failed and may be tried again.
    async fn read_round(
        &self,
        keys: &[ObjectKey],
        readings: Vec<Reading>,
        results: &mut [Result<usize, StoreError>],
    ) -> Vec<Reading> {
        let mut movements = Vec::new();
        let mut under_way = Vec::new();
        for mut reading in readings {
            let Some(buffer) = reading.left.pop() else {
                results[reading.index] = Err(reading.error);
                continue;
            };
            let movement = Movement::new(OpKind::Read, reading.into.clone(), &buffer);
            under_way.push((reading, movement.endpoint.clone()));
            movements.push(movement);
        }
        let moved = self.carry_out(OpKind::Read, keys.len(), movements).await;
        let mut again = Vec::new();
        for ((mut reading, endpoint), moved) in under_way.into_iter().zip(moved) {
            if let Err(source) = moved {
                let key = keys[reading.index].clone();
                reading.error = StoreError::Transfer { key, endpoint, writing: false, source };
                again.push(reading);
            }
        }
        again
    }
}

/// The part of `room` that the object fills.
fn fit(key: &ObjectKey, size: u64, room: &Slice) -> Result<Slice, StoreError> {
    usize::try_from(size).ok().and_then(|size| room.part(0, size).ok()).ok_or_else(|| StoreError::TooSmall {
        key: key.clone(),
        size,
        room: room.len(),
    })
}

/// Room for an object whose size another process told us: an impossible one is an error, not an abort.
fn zeroed(key: &ObjectKey, size: u64) -> Result<Vec<u8>, StoreError> {
    let no_memory = |why: String| StoreError::NoMemory { key: key.clone(), size, why };
    let size = usize::try_from(size).map_err(|e| no_memory(e.to_string()))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|e| no_memory(e.to_string()))?;
    bytes.resize(size, 0);
    Ok(bytes)
}
