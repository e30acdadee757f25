//! A client for objects in the store. Every operation works on a batch; an operation on a single object is a batch of
//! one.

use std::sync::Arc;

use bytes::Bytes;

use crate::engine::base::{ClientId, ErrorCode, HostPort, ObjectKey};
use crate::engine::env::Env;
use crate::engine::rpc::{CallError, RpcClient};
use crate::engine::store::client_metrics::ClientMetrics;
use crate::engine::store::client_shared::ClientShared;
use crate::engine::store::movement::{self, Movement};
use crate::engine::store::{ClientConfig, StoreError};
use crate::engine::transfer::{OpKind, TransferEngine, TransferError};
use crate::engine::upstream::PROTOCOL_VERSION;
use crate::engine::wire::method::{Channel, Method};
use crate::engine::wire::types::{GetReplicaListResponse, ReplicaLocation};
use crate::engine::wire::{Expected, MasterCalls, Text};

/// What the master reports about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    pub size: u64,
    /// The replicas and the lease granted by this lookup.
    pub found: GetReplicaListResponse,
}

/// A client for objects in the store. Cheap to clone. Call [`StoreClient::stop`] to stop the client and all its clones. If it is not
/// stopped, its records remain in the metadata service.
#[derive(Clone)]
pub struct StoreClient<E: Env> {
    pub(in crate::engine::store) inner: Arc<StoreClientInner<E>>,
}

pub(in crate::engine::store) struct StoreClientInner<E: Env> {
    pub env: E,
    pub id: ClientId,
    pub master: MasterCalls<MasterChannel<E>>,
    pub shared: Arc<ClientShared>,
    pub config: ClientConfig,
    /// Endpoints under which the master lists replicas in this process.
    pub own_endpoints: Vec<String>,
}

impl<E: Env> StoreClient<E> {
    /// Connects a client with a new ID.
    ///
    /// # Errors
    /// The master cannot be reached, or it uses a different protocol version.
    pub(in crate::engine::store) async fn connect(
        config: ClientConfig,
        env: E,
        shared: Arc<ClientShared>,
    ) -> Result<StoreClient<E>, StoreError> {
        let master = MasterCalls(MasterChannel {
            rpc: RpcClient::new(env.clone(), config.server(), config.timeouts),
            env: env.clone(),
            metrics: config.metrics.clone(),
        });
        let version = refused("ServiceReady", master.service_ready().await?)?;
        if &version.0[..] != PROTOCOL_VERSION.as_bytes() {
            return Err(StoreError::Version { found: version.to_string(), expected: PROTOCOL_VERSION });
        }
        let id = ClientId(env.rng(), env.rng());
        let own_endpoints = vec![shared.engine.endpoint().to_owned(), shared.name.to_string()];
        Ok(StoreClient { inner: Arc::new(StoreClientInner { env, id, master, shared, config, own_endpoints }) })
    }

    /// Connects another client, with its own ID and its own connection to the master, which shares this client's transfer engine.
    ///
    /// # Errors
    /// The master cannot be reached, or it uses a different protocol version.
    pub async fn another(&self) -> Result<StoreClient<E>, StoreError> {
        let StoreClientInner { env, config, shared, .. } = &*self.inner;
        StoreClient::connect(config.clone(), env.clone(), Arc::clone(shared)).await
    }

    /// Stops the transfer engine and removes its records from the metadata service. This also ends the clones of this client and the
    /// clients from [`another`](StoreClient::another).
    pub async fn stop(self) {
        if let Err(error) = self.inner.shared.stop().await {
            tracing::warn!(%error, "cannot remove the transfer engine's metadata records");
        }
    }

    /// Returns the name of this process, under which the master lists its segments, if it has any.
    pub fn name(&self) -> &HostPort {
        &self.inner.shared.name
    }

    /// Returns the client ID that the master uses for this client.
    pub fn id(&self) -> ClientId {
        self.inner.id
    }

    /// Returns the master's RPC methods, for calls that this type does not wrap.
    pub fn master(&self) -> &MasterCalls<MasterChannel<E>> {
        &self.inner.master
    }

    /// Returns this client's transfer engine.
    pub fn engine(&self) -> &TransferEngine {
        &self.inner.shared.engine
    }

    /// Returns, for each key, whether it has a complete replica. Grants a read lease on existing keys.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: the master rejected this key.
    pub async fn batch_exists(&self, keys: &[ObjectKey]) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let answers = self.inner.master.batch_exist_key(key_texts(keys), self.tenant()).await?;
        Ok(each("BatchExistKey", keys.len(), answers)?.collect())
    }

    /// [`StoreClient::batch_exists`] for one key.
    ///
    /// # Errors
    /// The master did not respond or rejected the key.
    pub async fn exists(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        one(self.batch_exists(std::slice::from_ref(key)).await?)
    }

    /// Returns the size and replicas of each object. Grants read leases.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: the master rejected this key, usually because it
    /// does not exist.
    pub async fn batch_stat(&self, keys: &[ObjectKey]) -> Result<Vec<Result<ObjectStat, StoreError>>, StoreError> {
        let answers = self.inner.master.batch_get_replica_list(key_texts(keys), self.tenant()).await?;
        let stats = each("BatchGetReplicaList", keys.len(), answers)?;
        Ok(stats.map(|found| found.map(|found| ObjectStat { size: object_size(&found), found })).collect())
    }

    /// [`StoreClient::batch_stat`] for one key.
    ///
    /// # Errors
    /// The master did not respond or rejected the key.
    pub async fn stat(&self, key: &ObjectKey) -> Result<ObjectStat, StoreError> {
        one(self.batch_stat(std::slice::from_ref(key)).await?)
    }

    /// Removes objects. Leased objects are removed only with `force`.
    ///
    /// # Errors
    /// Outer error: the master did not respond. Inner error: the master rejected this key.
    pub async fn batch_remove(
        &self,
        keys: &[ObjectKey],
        force: bool,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let answers = self.inner.master.batch_remove(key_texts(keys), force, self.tenant()).await?;
        Ok(each("BatchRemove", keys.len(), answers)?.collect())
    }

    /// [`StoreClient::batch_remove`] for one key.
    ///
    /// # Errors
    /// The master did not respond or rejected the key.
    pub async fn remove(&self, key: &ObjectKey, force: bool) -> Result<(), StoreError> {
        one(self.batch_remove(std::slice::from_ref(key), force).await?)
    }

    /// Removes every object whose key matches the expression. Returns the number of removed objects. Leased objects remain unless `force`
    /// is set.
    ///
    /// # Errors
    /// The master did not respond or rejected the expression.
    pub async fn remove_by_regex(&self, regex: &str, force: bool) -> Result<i64, StoreError> {
        refused("RemoveByRegex", self.inner.master.remove_by_regex(regex.into(), force, self.tenant()).await?)
    }

    /// Removes every object. Returns the number of removed objects. Leased objects remain unless `force` is set.
    ///
    /// # Errors
    /// The master did not respond.
    pub async fn remove_all(&self, force: bool) -> Result<i64, StoreError> {
        Ok(self.inner.master.remove_all(force, self.tenant()).await?)
    }

    /// Transfers the bytes of a batch of `objects` objects and updates the metrics.
    pub(in crate::engine::store) async fn run_transfers(
        &self,
        kind: OpKind,
        objects: usize,
        movements: Vec<Movement>,
    ) -> Vec<Result<(), TransferError>> {
        let StoreClientInner { env, config, shared, .. } = &*self.inner;
        let engine = &shared.engine;
        let Some(metrics) = &config.metrics else {
            return movement::run_transfers(engine, movements, config.transfer_deadline).await;
        };
        let sizes: Vec<u64> = movements.iter().map(|movement| movement.op.local.len() as u64).collect();
        let began = env.now();
        let moved = movement::run_transfers(engine, movements, config.transfer_deadline).await;
        let bytes = sizes.iter().zip(&moved).filter(|(_, moved)| moved.is_ok()).map(|(bytes, _)| bytes).sum();
        if bytes > 0 {
            metrics.transfer(kind, objects, bytes, env.now().since(began));
        }
        moved
    }

    pub(in crate::engine::store) fn tenant(&self) -> Text<'_> {
        self.inner.config.tenant.as_str().into()
    }
}

/// The connection to the master, which counts calls.
#[derive(Clone)]
pub struct MasterChannel<E: Env> {
    rpc: RpcClient<E>,
    env: E,
    metrics: Option<Arc<ClientMetrics>>,
}

impl<E: Env> MasterChannel<E> {
    /// Number of connections to the master that were lost ([`RpcClient::losses`]).
    pub(in crate::engine::store) fn losses(&self) -> u64 {
        self.rpc.losses()
    }
}

impl<E: Env> Channel for MasterChannel<E> {
    type Error = CallError;

    async fn call(&self, method: Method, body: Vec<u8>) -> Result<Bytes, CallError> {
        let Some(metrics) = &self.metrics else { return self.rpc.call(method, body).await };
        let began = self.env.now();
        let answer = self.rpc.call(method, body).await;
        metrics.call(method, self.env.now().since(began));
        answer
    }
}

/// Returns the keys in the form required by the wire methods.
pub(in crate::engine::store) fn key_texts(keys: &[ObjectKey]) -> Vec<Text<'_>> {
    keys.iter().map(|key| Text(key.as_bytes())).collect()
}

/// Converts an error code from the master to a [`StoreError`] that names the call.
pub(in crate::engine::store) fn refused<T>(what: &'static str, answer: Expected<T>) -> Result<T, StoreError> {
    answer.map_err(|code| StoreError::Refused { what, code })
}

/// Converts the results of a batch, which must contain one result per key.
pub(in crate::engine::store) fn each<T>(
    what: &'static str,
    requested: usize,
    answers: Vec<Expected<T>>,
) -> Result<impl Iterator<Item = Result<T, StoreError>>, StoreError> {
    if answers.len() != requested {
        return Err(StoreError::BatchLength { requested, found: answers.len() });
    }
    Ok(answers.into_iter().map(move |answer| refused(what, answer)))
}

/// Returns the result of a batch of one.
pub(in crate::engine::store) fn one<T>(mut answers: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    answers.pop().unwrap_or(Err(StoreError::BatchLength { requested: 1, found: 0 }))
}

/// Returns the object's size, which equals the size of each replica.
fn object_size(found: &GetReplicaListResponse) -> u64 {
    found.replicas.first().map_or(0, |replica| match &replica.location {
        ReplicaLocation::Memory(buffer) | ReplicaLocation::Nof(buffer) => buffer.size,
        ReplicaLocation::Disk(file) => file.object_size,
        ReplicaLocation::LocalDisk(object) => object.object_size,
        ReplicaLocation::DistributedFs(file) => file.object_size,
    })
}

/// Returns true if a put failed because the key exists.
pub(in crate::engine::store) fn already_exists(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { code: ErrorCode::OBJECT_ALREADY_EXISTS, .. })
}
