//! Memory that the master has allocated for objects, before they are written.

use std::time::Duration;

use crate::client::{each, key_texts};
use crate::fence::MasterFence;
use crate::writing_keys::{HeldKeys, KeyHold};
use crate::{StoreClient, StoreError};
use mcctl_base::{ClientId, ErrorCode, Mono, ObjectKey};
use mcctl_sys::env::{Env, deadline};
use mcctl_wire::types::{BufferDescriptor, ReplicaDescriptor, ReplicaLocation, ReplicateConfig, SliceLength};

/// Time limit for a revocation. Its result has no effect on the caller. The master drops unfinished
/// objects by itself later.
const REVOKE_LIMIT: Duration = Duration::from_secs(1);

/// The family of RPC methods used for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMethod {
    /// Existing objects are left unchanged.
    Put,
    /// Existing objects are replaced. The old object is unavailable from the allocation until the
    /// new object is complete.
    Upsert,
}

/// Memory that the master has allocated for objects. No other write of this client has their keys
/// meanwhile.
#[derive(Debug)]
pub struct Allocation {
    /// The id of this write, which completes or revokes it. The master identifies an unfinished
    /// object by its key and this id. Each request has a new one, so that a late request of one
    /// write has no effect on another write of the same key.
    pub writer: ClientId,
    /// When the request was sent, on the clock that counts while the host is suspended.
    pub(crate) started: Mono,
    fence: MasterFence,
    /// The memory replicas to write, one list per object; [`StoreError::Refused`] with
    /// OBJECT_ALREADY_EXISTS for a put of an existing key.
    pub replicas: Vec<Result<Vec<BufferDescriptor>, StoreError>>,
    pub(crate) held: HeldKeys,
}

impl Allocation {
    /// Returns an allocation for each object. `keys` are those of the request.
    pub fn into_single(self, keys: &[ObjectKey]) -> Vec<Result<Allocation, StoreError>> {
        let Allocation { writer, started, fence, replicas, held } = self;
        let single = |(replicas, held): (Result<_, StoreError>, HeldKeys)| {
            replicas.map(|found| Allocation { writer, started, fence, replicas: vec![Ok(found)], held })
        };
        replicas.into_iter().zip(held.into_single(keys)).map(single).collect()
    }

    fn lose(&mut self, keys: &[ObjectKey]) {
        for (replicas, key) in self.replicas.iter_mut().zip(keys).filter(|(replicas, _)| replicas.is_ok()) {
            *replicas = Err(StoreError::AllocationLost { key: key.clone() });
        }
    }
}

impl<E: Env> StoreClient<E> {
    /// Requests memory from the master for objects of these `sizes` in bytes, once no other call of
    /// this client writes their keys. The caller writes the objects with
    /// [`write_allocated`](StoreClient::write_allocated), or in pieces.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: no memory was allocated for this
    /// object. The code is REPLICA_IS_NOT_READY if a session of this client writes its key, and
    /// OBJECT_ALREADY_EXISTS if this request begins a session, too.
    pub async fn allocate(
        &self,
        method: WriteMethod,
        keys: &[ObjectKey],
        sizes: Vec<u64>,
        config: &ReplicateConfig,
        hold: KeyHold,
    ) -> Result<Allocation, StoreError> {
        let (held, in_sessions) = self.inner.shared.writing.take(keys, hold, || self.inner.env.boottime()).await;
        if in_sessions.is_empty() {
            return self.allocate_held(method, keys, sizes, config.clone(), held).await;
        }
        let others: Vec<usize> = (0..keys.len()).filter(|at| in_sessions.binary_search(at).is_err()).collect();
        let mut config = config.clone();
        if let Some(groups) = config.group_ids.as_mut().filter(|groups| groups.len() == keys.len()) {
            *groups = others.iter().map(|at| groups[*at].clone()).collect();
        }
        let (free, sizes) =
            (others.iter().map(|at| keys[*at].clone()).collect::<Vec<_>>(), others.iter().map(|at| sizes[*at]));
        let mut allocation = self.allocate_held(method, &free, sizes.collect(), config, held).await?;
        // The master would respond OBJECT_ALREADY_EXISTS to each put. But a call returns success
        // for that code, although nothing is stored, and the session's object may never be
        // complete.
        let code = match (method, hold) {
            (WriteMethod::Put, KeyHold::Session { .. }) => ErrorCode::OBJECT_ALREADY_EXISTS,
            (WriteMethod::Put, KeyHold::Call) | (WriteMethod::Upsert, _) => ErrorCode::REPLICA_IS_NOT_READY,
        };
        for at in in_sessions {
            allocation
                .replicas
                .insert(at, Err(StoreError::Refused { what: "a write of a key with a write session", code }));
        }
        Ok(allocation)
    }

    async fn allocate_held(
        &self,
        method: WriteMethod,
        keys: &[ObjectKey],
        sizes: Vec<u64>,
        mut config: ReplicateConfig,
        held: HeldKeys,
    ) -> Result<Allocation, StoreError> {
        let env = &self.inner.env;
        let master = self.master();
        let writer = ClientId(env.rng(), env.rng());
        if config.host_id.is_empty() {
            config.host_id = self.inner.config.host_id.as_str().into();
        }
        let started = self.inner.env.boottime();
        let fence = self.fence();
        let texts = key_texts(keys);
        let lengths = sizes.iter().copied().map(SliceLength).collect();
        let tenant = self.tenant();
        let (what, answers) = match method {
            WriteMethod::Put => ("BatchPutStart", master.batch_put_start(writer, texts, lengths, config, tenant).await),
            WriteMethod::Upsert => {
                ("BatchUpsertStart", master.batch_upsert_start(writer, texts, lengths, config, tenant).await)
            }
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => {
                if !error.is_unsent() {
                    self.revoke_unanswered(method, writer, keys).await;
                }
                return Err(error.into());
            }
        };
        let replicas = each(what, keys.len(), answers)?.zip(keys).zip(&sizes).map(|((allocated, key), size)| {
            if *size == 0 {
                return Err(StoreError::Empty { key: key.clone() });
            }
            writable(key, *size, allocated?)
        });
        Ok(Allocation { writer, started, fence, replicas: replicas.collect(), held })
    }

    /// Revokes objects whose allocation was requested without a response, or was lost, so that the
    /// next write of their keys need not wait for the discard time. Nothing was written to them.
    /// The id is that of this request alone, so other writes of the keys are not affected.
    async fn revoke_unanswered(&self, method: WriteMethod, writer: ClientId, keys: &[ObjectKey]) {
        _ = deadline(&self.inner.env, REVOKE_LIMIT, self.revoke(method, writer, keys)).await;
    }

    /// Revokes the objects of an `allocation` that was lost before anything was written to it.
    pub(crate) async fn revoke_lost(&self, method: WriteMethod, keys: &[ObjectKey], allocation: &Allocation) {
        let is_lost = |replicas: &Result<_, StoreError>| matches!(replicas, Err(StoreError::AllocationLost { .. }));
        let lost = allocation.replicas.iter().zip(keys).filter(|(replicas, _)| is_lost(replicas));
        let lost: Vec<ObjectKey> = lost.map(|(_, key)| key.clone()).collect();
        if !lost.is_empty() {
            self.revoke_unanswered(method, allocation.writer, &lost).await;
        }
    }

    /// Replaces the memory in `allocation` by errors if the connection to the master was lost
    /// before the last [`check_connection`](StoreClient::check_connection), or if the memory was
    /// allocated longer than `age_max` ago. The master may have assigned it to other objects: a
    /// master without its records at once, others when the release timeout for unfinished puts has
    /// ended (600 s by default). Returns the time left.
    pub fn check(&self, keys: &[ObjectKey], allocation: &mut Allocation, age_max: Duration) -> Duration {
        let left = self.time_left(allocation, age_max);
        if self.fence() == allocation.fence && !left.is_zero() {
            return left;
        }
        allocation.lose(keys);
        left
    }

    /// Returns the time until `allocation` is older than `age_max`.
    pub fn time_left(&self, allocation: &Allocation, age_max: Duration) -> Duration {
        (allocation.started + age_max).since(self.inner.env.boottime())
    }

    /// The same as [`check`](StoreClient::check) for a write in several calls that ends now. Its
    /// keys are then held until the allocation is dropped, which the caller does after it has
    /// completed or revoked the objects. Also replaces the memory by errors if another write has
    /// one of the keys, because the session has ended.
    pub fn check_last(&self, keys: &[ObjectKey], allocation: &mut Allocation, age_max: Duration) {
        if !allocation.held.keep() {
            allocation.lose(keys);
        }
        self.check(keys, allocation, age_max);
    }
}

/// Returns the memory of `replicas`, which must all be memory replicas of `size` bytes.
fn writable(key: &ObjectKey, size: u64, replicas: Vec<ReplicaDescriptor>) -> Result<Vec<BufferDescriptor>, StoreError> {
    let found = replicas.len();
    let memory = |replica: ReplicaDescriptor| match replica.location {
        ReplicaLocation::Memory(buffer) if buffer.size == size => Some(buffer),
        _ => None,
    };
    let buffers: Vec<_> = replicas.into_iter().filter_map(memory).collect();
    if buffers.is_empty() || buffers.len() < found {
        return Err(StoreError::NoReplica { key: key.clone(), replicas: found });
    }
    Ok(buffers)
}
