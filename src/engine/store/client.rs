//! A client of the store: objects by key. Every operation works on a batch; the single forms are batches of one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::engine::base::{ClientId, ErrorCode, HostPort, ObjectKey};
use crate::engine::env::Env;
use crate::engine::rpc::{CallError, RpcClient, Timeouts};
use crate::engine::store::StoreError;
use crate::engine::store::client_metrics::ClientMetrics;
use crate::engine::store::movement::{self, Movement};
use crate::engine::transfer::{OpKind, TransferEngine, TransferError};
use crate::engine::wire::method::{Channel, Method};
use crate::engine::wire::types::{GetReplicaListResponse, Place};
use crate::engine::wire::{Expected, MasterCalls, Text};

/// What `ServiceReady` answers from 0.3.8 to 0.3.13.
pub const PROTOCOL_VERSION: &str = "2.0.0";
/// Upstream's name for "no tenant".
pub const DEFAULT_TENANT: &str = "default";

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The master's RPC address.
    pub master: HostPort,
    /// How long to wait for the master.
    pub timeouts: Timeouts,
    /// How long the bytes of one batch may take.
    pub transfer_deadline: Duration,
    /// Whose objects; ignored by masters without tenants.
    pub tenant: String,
    /// The host that is reported as the writer's, for masters that put objects near it; empty for none.
    pub host_id: String,
    /// Where its use is counted, if anywhere.
    pub metrics: Option<Arc<ClientMetrics>>,
}

impl ClientConfig {
    /// The usual waits, for the master at `master`.
    pub fn new(master: HostPort) -> ClientConfig {
        ClientConfig {
            master,
            timeouts: Timeouts::default(),
            transfer_deadline: Duration::from_secs(30),
            tenant: DEFAULT_TENANT.to_owned(),
            host_id: String::new(),
            metrics: None,
        }
    }
}

/// What is known of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Its size, bytes.
    pub size: u64,
    /// Its replicas and the lease that asking for them granted.
    pub found: GetReplicaListResponse,
}

/// A client of the store. Cheap to clone.
#[derive(Clone)]
pub struct StoreClient<E: Env> {
    pub(in crate::engine::store) inner: Arc<Inner<E>>,
}

pub(in crate::engine::store) struct Inner<E: Env> {
    pub env: E,
    pub id: ClientId,
    pub master: MasterCalls<MasterChannel<E>>,
    pub engine: TransferEngine,
    pub config: ClientConfig,
    /// Names by which replicas of this process are listed.
    pub own_endpoints: Vec<String>,
}

impl<E: Env> StoreClient<E> {
    /// A client with a new id, over `engine`. `own_name` is the name of this process' segments, if it has any.
    ///
    /// # Errors
    /// The master cannot be reached or speaks another version.
    pub async fn connect(
        config: ClientConfig,
        env: E,
        engine: TransferEngine,
        own_name: Option<&str>,
    ) -> Result<StoreClient<E>, StoreError> {
        let master = MasterCalls(MasterChannel {
            rpc: RpcClient::new(env.clone(), config.master.clone(), config.timeouts),
            env: env.clone(),
            metrics: config.metrics.clone(),
        });
        let version = refused("ServiceReady", master.service_ready().await?)?;
        if &version.0[..] != PROTOCOL_VERSION.as_bytes() {
            return Err(StoreError::Version { found: version.to_string(), expected: PROTOCOL_VERSION });
        }
        let id = ClientId(env.rng(), env.rng());
        let mut own_endpoints = vec![engine.endpoint().to_owned()];
        own_endpoints.extend(own_name.map(str::to_owned));
        Ok(StoreClient { inner: Arc::new(Inner { env, id, master, engine, config, own_endpoints }) })
    }

    /// The id by which the master knows this client.
    pub fn id(&self) -> ClientId {
        self.inner.id
    }

    /// The master's methods, for calls that have no form of their own here.
    pub fn master(&self) -> &MasterCalls<MasterChannel<E>> {
        &self.inner.master
    }

    /// What moves the bytes.
    pub fn engine(&self) -> &TransferEngine {
        &self.inner.engine
    }

    /// Is there a complete replica of each key? Grants a read lease to those that there are.
    ///
    /// # Errors
    /// The outer: no answer. The inner: this key was refused.
    pub async fn batch_exists(&self, keys: &[ObjectKey]) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let answers = self.inner.master.batch_exist_key(texts(keys), self.tenant()).await?;
        Ok(each("BatchExistKey", keys.len(), answers)?.collect())
    }

    /// [`StoreClient::batch_exists`] of one.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn exists(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        one(self.batch_exists(std::slice::from_ref(key)).await?)
    }

    /// Where the objects are and how large. Grants read leases.
    ///
    /// # Errors
    /// The outer: no answer. The inner: this key was refused, mostly because it is not there.
    pub async fn batch_stat(&self, keys: &[ObjectKey]) -> Result<Vec<Result<ObjectStat, StoreError>>, StoreError> {
        let answers = self.inner.master.batch_get_replica_list(texts(keys), self.tenant()).await?;
        let stats = each("BatchGetReplicaList", keys.len(), answers)?;
        Ok(stats.map(|found| found.map(|found| ObjectStat { size: object_size(&found), found })).collect())
    }

    /// [`StoreClient::batch_stat`] of one.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn stat(&self, key: &ObjectKey) -> Result<ObjectStat, StoreError> {
        one(self.batch_stat(std::slice::from_ref(key)).await?)
    }

    /// Forget objects; with `force` even leased ones.
    ///
    /// # Errors
    /// The outer: no answer. The inner: this key was refused.
    pub async fn batch_remove(
        &self,
        keys: &[ObjectKey],
        force: bool,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let answers = self.inner.master.batch_remove(texts(keys), force, self.tenant()).await?;
        Ok(each("BatchRemove", keys.len(), answers)?.collect())
    }

    /// [`StoreClient::batch_remove`] of one.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub async fn remove(&self, key: &ObjectKey, force: bool) -> Result<(), StoreError> {
        one(self.batch_remove(std::slice::from_ref(key), force).await?)
    }

    /// Forget every object in whose key the expression is found; how many went. Leased ones stay unless `force`.
    ///
    /// # Errors
    /// No answer, or the expression is none.
    pub async fn remove_by_regex(&self, regex: &str, force: bool) -> Result<i64, StoreError> {
        refused("RemoveByRegex", self.inner.master.remove_by_regex(regex.into(), force, self.tenant()).await?)
    }

    /// Forget every object; how many went. Leased ones stay unless `force`.
    ///
    /// # Errors
    /// No answer.
    pub async fn remove_all(&self, force: bool) -> Result<i64, StoreError> {
        Ok(self.inner.master.remove_all(force, self.tenant()).await?)
    }

    /// Move the bytes of a batch of `objects` objects, and count them.
    pub(in crate::engine::store) async fn carry_out(
        &self,
        kind: OpKind,
        objects: usize,
        movements: Vec<Movement>,
    ) -> Vec<Result<(), TransferError>> {
        let Inner { env, config, engine, .. } = &*self.inner;
        let Some(metrics) = &config.metrics else {
            return movement::carry_out(engine, movements, config.transfer_deadline).await;
        };
        let sizes: Vec<u64> = movements.iter().map(|movement| movement.op.local.len() as u64).collect();
        let began = env.now();
        let moved = movement::carry_out(engine, movements, config.transfer_deadline).await;
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

/// The connection to the master, with its calls counted.
#[derive(Clone)]
pub struct MasterChannel<E: Env> {
    rpc: RpcClient<E>,
    env: E,
    metrics: Option<Arc<ClientMetrics>>,
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

/// The keys, as the wire takes them.
pub(in crate::engine::store) fn texts(keys: &[ObjectKey]) -> Vec<Text<'_>> {
    keys.iter().map(|key| Text(key.as_bytes())).collect()
}

/// The answer to a call, with the refusal named after it.
pub(in crate::engine::store) fn refused<T>(what: &'static str, answer: Expected<T>) -> Result<T, StoreError> {
    answer.map_err(|code| StoreError::Refused { what, code })
}

/// The answers to a batch, one per key.
pub(in crate::engine::store) fn each<T>(
    what: &'static str,
    asked: usize,
    answers: Vec<Expected<T>>,
) -> Result<impl Iterator<Item = Result<T, StoreError>>, StoreError> {
    if answers.len() != asked {
        return Err(StoreError::BatchLength { asked, found: answers.len() });
    }
    Ok(answers.into_iter().map(move |answer| refused(what, answer)))
}

/// The answer of a batch of one.
pub(in crate::engine::store) fn one<T>(mut answers: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    answers.pop().unwrap_or(Err(StoreError::BatchLength { asked: 1, found: 0 }))
}

/// All replicas of an object have its size.
fn object_size(found: &GetReplicaListResponse) -> u64 {
    found.replicas.first().map_or(0, |replica| match &replica.place {
        Place::Memory(buffer) | Place::Nof(buffer) => buffer.size,
        Place::Disk(file) => file.object_size,
        Place::LocalDisk(object) => object.object_size,
        Place::DistributedFs(file) => file.object_size,
    })
}

/// Is this the refusal that a put of an existing key meets?
pub(in crate::engine::store) fn is_already_there(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { code: ErrorCode::OBJECT_ALREADY_EXISTS, .. })
}
