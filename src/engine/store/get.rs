//! Reads whole objects, with another lookup if the connection to the master is lost meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::client::one;
use crate::{ObjectPart, StoreClient, StoreError};
use mcctl_base::ObjectKey;
use mcctl_sys::env::Env;
use mcctl_sys::memory::{Memory, Slice};

/// If memory for an object is granted within this time, the object is read under the lease granted
/// by the lookup that returned its size.
pub(crate) const LEASE_REUSED_FOR: Duration = Duration::from_millis(500);
/// Maximum number of reads of an object, each with its own lookup, if the connection to the master
/// is lost during the read.
pub const READS_MAX: u32 = 3;

impl<E: Env> StoreClient<E> {
    /// Reads objects directly into the caller's memory. Returns the size of each object. A slice
    /// may be larger than its object.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: this object was not read, and the
    /// content of its slice is unspecified.
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
        let parts = lookup.stats.iter().zip(objects).map(|(stat, (key, buffer))| match stat {
            Ok(stat) => fit(key, stat.size, buffer).map(whole),
            Err(error) => Err(error.clone()),
        });
        let parts = parts.collect();
        Ok(self.read_parts(&keys, &lookup, parts).await)
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

    /// Reads an object into newly allocated memory, once `admit` has granted memory of its size.
    /// Also returns the result of `admit`. If the connection to the master is lost in between,
    /// `admit` is called again.
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
            if let (Err(_), Some(metrics)) = (&lookup.stats[0], &self.inner.config.metrics) {
                metrics.object_reads(&lookup.stats);
            }
            let size = one(lookup.stats.clone())?.size;
            let admitted = admit(size).await;
            if lookup.age(self.inner.env.boottime()) < LEASE_REUSED_FOR {
                break (lookup, size, admitted);
            }
            // The lease may have expired. The granted memory still fits if the object's size has
            // not changed.
            let lookup = self.look_up(&keys).await?;
            if one(lookup.stats.clone())?.size == size {
                break (lookup, size, admitted);
            }
        };
        let memory = Arc::new(Memory::from_vec(zeroed(key, size)?));
        one(self.read_parts(&keys, &lookup, vec![Ok(whole(memory.whole()))]).await)?;
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
}

/// The only part of an object that is read as a whole.
pub(crate) fn whole(local: Slice) -> Vec<ObjectPart> {
    vec![ObjectPart { offset: 0, local }]
}

fn is_lost<T>(result: &Result<T, StoreError>) -> bool {
    result.as_ref().is_err_and(StoreError::is_lookup_lost)
}

/// Returns the part of `buffer` that the object fills.
fn fit(key: &ObjectKey, size: u64, buffer: &Slice) -> Result<Slice, StoreError> {
    usize::try_from(size).ok().and_then(|size| buffer.part(0, size).ok()).ok_or_else(|| StoreError::TooSmall {
        key: key.clone(),
        size,
        buffer: buffer.len(),
    })
}

/// Allocates memory for an object whose size was reported by another process. An impossible size
/// causes an error, not an abort.
pub(crate) fn zeroed(key: &ObjectKey, size: u64) -> Result<Vec<u8>, StoreError> {
    let no_memory = |why: String| StoreError::NoMemory { key: key.clone(), size, why };
    let size = usize::try_from(size).map_err(|e| no_memory(e.to_string()))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|e| no_memory(e.to_string()))?;
    bytes.resize(size, 0);
    Ok(bytes)
}
