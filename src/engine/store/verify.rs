//! Verifies objects: reads every replica, and compares its bytes with the object's checksum.
//! Nothing is changed or withdrawn.
//!
//! Wrong bytes are confirmed like those of any read ([`mismatch`](crate::mismatch)). An object that
//! is rewritten or removed meanwhile is not damaged. Replicas of an object are read one after
//! another into the same memory, and the objects of a batch concurrently.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::checksum;
use crate::client::one;
use crate::get::{LEASE_REUSED_FOR, READS_MAX, whole, zeroed};
use crate::mismatch::ReplicaBytes;
use crate::replica::reading_order;
use crate::verify_pace::{VerifyBatch, VerifyPace};
use crate::{ObjectLookup, ObjectPart, ObjectStat, StoreClient, StoreError};
use mcctl_base::ObjectKey;
use mcctl_sys::env::Env;
use mcctl_sys::memory::Memory;
use mcctl_wire::types::BufferDescriptor;

/// The replicas of an object that was verified.
#[derive(Clone, Debug)]
pub struct ObjectVerification {
    /// Size of the object in bytes.
    pub size: u64,
    /// The complete replicas in memory.
    pub replicas: Vec<ReplicaVerification>,
}

/// A replica that was verified.
#[derive(Clone, Debug)]
pub struct ReplicaVerification {
    /// Transfer engine endpoint of the node.
    pub endpoint: String,
    /// Address of the replica in the node's memory.
    pub address: u64,
    /// Number of times that the replica was read.
    pub reads: u32,
    pub state: ReplicaState,
}

/// Whether a replica has the bytes that were written.
#[derive(Clone, Debug)]
pub enum ReplicaState {
    /// Its bytes have the object's checksum.
    Intact,
    /// Its bytes do not have the object's checksum.
    Damaged,
    /// The object has no checksum. The replica was not read.
    NoChecksum,
    /// The replica could not be read.
    Unreadable(StoreError),
}

impl<E: Env> StoreClient<E> {
    /// Verifies the first of the objects with these `keys`, as many as `pace` allows, and returns
    /// their results: at least one, unless `keys` is empty. Waits before, if `pace` limits the
    /// rate. Also compares checksums if they are switched off for this client.
    ///
    /// The result of an object is an error if it does not exist, its put has not finished, or it
    /// has no replica in memory. It is [`StoreError::LookupLost`] if the object was rewritten or
    /// moved each time that it was read.
    ///
    /// # Errors
    /// The master did not respond.
    pub async fn verify(
        &self,
        keys: &[ObjectKey],
        pace: &mut VerifyPace,
    ) -> Result<Vec<Result<ObjectVerification, StoreError>>, StoreError> {
        let env = &self.inner.env;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        env.sleep(pace.wait(env.now())).await;
        let began = env.now();
        let keys = &keys[..keys.len().min(pace.keys())];
        let lookup = self.look_up(keys).await?;
        let verified = pace.fitting(&lookup.stats);
        let each = keys.iter().zip(lookup.split()).take(verified).map(|(key, lookup)| self.verify_object(key, lookup));
        let mut objects = join_all(each).await;
        for (key, object) in keys.iter().zip(&mut objects) {
            for _ in 1..READS_MAX {
                if !may_retry(object) {
                    break;
                }
                *object = self.verify_object(key, self.look_up(std::slice::from_ref(key)).await?).await;
            }
        }
        let bytes = objects.iter().flatten().map(ObjectVerification::bytes_read).sum();
        pace.add(&VerifyBatch { began, ended: env.now(), bytes, keys: keys.len(), verified });
        Ok(objects)
    }

    /// Verifies the object that `lookup` has found.
    async fn verify_object(&self, key: &ObjectKey, mut lookup: ObjectLookup) -> Result<ObjectVerification, StoreError> {
        let stat = one(lookup.stats.clone())?;
        let buffers: Vec<BufferDescriptor> = reading_order(&stat.found.replicas, &[], 0).into_iter().cloned().collect();
        if buffers.is_empty() {
            return Err(StoreError::NoReplica { key: key.clone(), replicas: stat.found.replicas.len() });
        }
        let parts = match stat.found.object_checksum {
            None => Ok(None),
            Some(_) => zeroed(key, stat.size).map(|bytes| Some(whole(Arc::new(Memory::from_vec(bytes)).whole()))),
        };
        let mut replicas = Vec::with_capacity(buffers.len());
        for buffer in &buffers {
            let (state, reads) = match &parts {
                Ok(None) => (ReplicaState::NoChecksum, 0),
                Err(error) => (ReplicaState::Unreadable(error.clone()), 0),
                Ok(Some(parts)) => {
                    if lookup.age(self.inner.env.boottime()) > LEASE_REUSED_FOR {
                        lookup = self.look_up_unchanged(key, &stat).await?;
                    }
                    match self.verify_replica(key, &lookup, &stat, parts, buffer).await {
                        Err(error) if error.is_lookup_lost() => return Err(error),
                        Err(error) => (ReplicaState::Unreadable(error), 1),
                        Ok(done) => done,
                    }
                }
            };
            let endpoint = buffer.transport_endpoint.to_string_lossy().into_owned();
            replicas.push(ReplicaVerification { endpoint, address: buffer.buffer_address, reads, state });
        }
        Ok(ObjectVerification { size: stat.size, replicas })
    }

    /// Returns the state of a replica, and how many times it was read.
    async fn verify_replica(
        &self,
        key: &ObjectKey,
        lookup: &ObjectLookup,
        stat: &ObjectStat,
        parts: &[ObjectPart],
        buffer: &BufferDescriptor,
    ) -> Result<(ReplicaState, u32), StoreError> {
        if !ObjectPart::all_within(parts, buffer.size) {
            return Err(StoreError::NoReplica { key: key.clone(), replicas: 1 });
        }
        if self.read_replica(key, lookup, parts, buffer).await? {
            return Ok((ReplicaState::Intact, 1));
        }
        let (bytes, rounds) = self.confirm_damage(key, stat, parts, checksum::of_parts(parts), buffer).await?;
        let state = match bytes {
            ReplicaBytes::Damaged => ReplicaState::Damaged,
            ReplicaBytes::Right | ReplicaBytes::WrongHere => ReplicaState::Intact,
        };
        Ok((state, 1 + rounds))
    }
}

impl ObjectVerification {
    fn bytes_read(&self) -> u64 {
        self.replicas.iter().map(|replica| u64::from(replica.reads).saturating_mul(self.size)).sum()
    }
}

/// Whether another lookup may change the result of an object.
fn may_retry(object: &Result<ObjectVerification, StoreError>) -> bool {
    let is_late = |replica: &ReplicaVerification| {
        matches!(replica.state, ReplicaState::Unreadable(StoreError::LeaseExpired { .. }))
    };
    match object {
        Err(error) => error.is_lookup_lost(),
        Ok(object) => object.replicas.iter().any(is_late),
    }
}
