//! A client for objects in the store. Every operation works on a batch; an operation on a single
//! object is a batch of one.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};

use crate::client_metrics::ClientMetrics;
use crate::client_shared::ClientShared;
use crate::peer_metrics::EndedTransfer;
use crate::{ClientConfig, StoreError, TransferThreads};
use mcctl_base::upstream::PROTOCOL_VERSION;
use mcctl_base::{ClientId, ErrorCode, HostPort, ObjectKey};
use mcctl_net::rpc::{CallError, RpcClient};
use mcctl_sys::env::{Env, processors};
use mcctl_transfer::{Op, OpKind, TransferEngine, TransferError, WriteRetry};
use mcctl_wire::method::{Channel, Method};
use mcctl_wire::types::{GetReplicaListResponse, ReplicaLocation, ServiceVersion, Tenant};
use mcctl_wire::{Expected, MasterCalls, Release, Text};

/// What the master reports about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    pub size: u64,
    /// The replicas and the lease granted by this lookup.
    pub found: GetReplicaListResponse,
}

/// A client for objects in the store. Cheap to clone. Call [`StoreClient::stop`] to stop the client
/// and all its clones. If it is not stopped, its records remain in the metadata service.
#[derive(Clone)]
pub struct StoreClient<E: Env> {
    pub(crate) inner: Arc<StoreClientInner<E>>,
}

pub(crate) struct StoreClientInner<E: Env> {
    pub env: E,
    pub id: ClientId,
    pub master: MasterCalls<MasterChannel<E>>,
    pub shared: Arc<ClientShared>,
    pub config: ClientConfig,
    /// Endpoints under which the master lists replicas in this process.
    pub own_endpoints: Vec<String>,
}

impl<E: Env> StoreClient<E> {
    /// Connects a client with this ID.
    ///
    /// # Errors
    /// The master cannot be reached, or it uses a different protocol version.
    pub(crate) async fn connect(
        id: ClientId,
        config: ClientConfig,
        env: E,
        shared: Arc<ClientShared>,
    ) -> Result<StoreClient<E>, StoreError> {
        let master = MasterCalls(MasterChannel {
            rpc: RpcClient::new(env.clone(), config.server(), config.timeouts),
            env: env.clone(),
            metrics: config.metrics.clone(),
            busy_wait: (config.transfer_threads == TransferThreads::Caller).then(|| Arc::clone(&shared.callers)),
        });
        // Older masters have no handshake, or one without a version.
        if master.0.release().await? >= Release::V0_3_8 {
            let ServiceVersion(version) = refused("ServiceReady", master.service_ready().await?)?;
            if version.0 != PROTOCOL_VERSION.as_bytes() {
                return Err(StoreError::Version { found: version.to_string(), expected: PROTOCOL_VERSION });
            }
        }
        let own_endpoints = vec![shared.engine.endpoint().to_owned(), shared.name.to_string()];
        Ok(StoreClient { inner: Arc::new(StoreClientInner { env, id, master, shared, config, own_endpoints }) })
    }

    /// Connects another client, with its own ID and its own connection to the master, which shares
    /// this client's transfer engine.
    ///
    /// # Errors
    /// The master cannot be reached, or it uses a different protocol version.
    pub async fn another(&self) -> Result<StoreClient<E>, StoreError> {
        let StoreClientInner { env, config, shared, .. } = &*self.inner;
        let id = ClientId(env.rng(), env.rng());
        StoreClient::connect(id, config.clone(), env.clone(), Arc::clone(shared)).await
    }

    /// Connects this client once more. The result is the same client to the master, but has its own
    /// connection, which belongs to the runtime that polls this future. `threads` run its
    /// transfers.
    ///
    /// # Errors
    /// The master cannot be reached, or it uses a different protocol version.
    pub async fn with_own_connection(&self, threads: TransferThreads) -> Result<StoreClient<E>, StoreError> {
        let StoreClientInner { env, id, config, shared, .. } = &*self.inner;
        let config = ClientConfig { transfer_threads: threads, ..config.clone() };
        StoreClient::connect(*id, config, env.clone(), Arc::clone(shared)).await
    }

    /// Stops the transfer engine and removes its records from the metadata service. This also ends
    /// the clones of this client and the clients from [`another`](StoreClient::another).
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

    /// Returns, for each key, whether it has a complete replica. Grants a read lease on existing
    /// keys.
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
    /// Outer error: the master did not respond. Inner error: the master rejected this key, usually
    /// because it does not exist.
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
        let master = &self.inner.master;
        let tenant = self.tenant();
        if Method::BatchRemove.layout(master.0.release().await?).is_some() {
            let answers = master.batch_remove(key_texts(keys), force, tenant).await?;
            return Ok(each("BatchRemove", keys.len(), answers)?.collect());
        }
        let mut answers = Vec::new();
        for key in key_texts(keys) {
            answers.push(refused("Remove", master.remove(key, force, tenant).await?));
        }
        Ok(answers)
    }

    /// [`StoreClient::batch_remove`] for one key.
    ///
    /// # Errors
    /// The master did not respond or rejected the key.
    pub async fn remove(&self, key: &ObjectKey, force: bool) -> Result<(), StoreError> {
        one(self.batch_remove(std::slice::from_ref(key), force).await?)
    }

    /// Removes every object whose key matches the expression. Returns the number of removed
    /// objects. Leased objects remain unless `force` is set.
    ///
    /// # Errors
    /// The master did not respond or rejected the expression.
    pub async fn remove_by_regex(&self, regex: &str, force: bool) -> Result<i64, StoreError> {
        refused("RemoveByRegex", self.inner.master.remove_by_regex(regex.into(), force, self.tenant()).await?)
    }

    /// Removes every object. Returns the number of removed objects. Leased objects remain unless
    /// `force` is set.
    ///
    /// # Errors
    /// The master did not respond.
    pub async fn remove_all(&self, force: bool) -> Result<i64, StoreError> {
        Ok(self.inner.master.remove_all(force, self.tenant()).await?)
    }

    /// Transfers bytes to or from the node at `endpoint` within `limit`. `is_alone`: no other
    /// transfer of the same batch is waiting.
    ///
    /// A write is not repeated after its connection was lost: a node closes its connections before
    /// it mounts its memory again, and the memory of the object is then assigned to others.
    pub(crate) async fn transfer(
        &self,
        endpoint: &str,
        ops: Vec<Op>,
        limit: Duration,
        is_alone: bool,
    ) -> Vec<Result<(), TransferError>> {
        let StoreClientInner { env, config, shared, .. } = &*self.inner;
        // Nodes on the same host copy only from buffers that can be shared.
        let is_shareable = |op: &Op| op.kind == OpKind::Read || op.local.memory().shared_file().is_some();
        let kind = ops.first().map(|op| op.kind);
        let may_share = ops.iter().all(is_shareable);
        let sizes: Vec<u64> = ops.iter().map(|op| op.local.len() as u64).collect();
        let began = env.now();
        let submitted = shared.engine.submit(endpoint, ops, limit);
        let submitted = submitted.write_retry(WriteRetry::Forbidden);
        let results = match config.transfer_threads {
            TransferThreads::Caller if is_alone => {
                let waiting = WaitingCaller::new(&shared.callers);
                submitted.busy_wait(waiting.may_poll()).wait()
            }
            TransferThreads::Caller | TransferThreads::Blocking => submitted.finish().await,
        };
        let mut failed = results.iter().filter_map(|result| result.as_ref().err());
        if let Some(error) = failed.clone().next()
            && shared.failure_log.allows(env.now())
        {
            let operations = failed.clone().count();
            tracing::warn!(node = endpoint, operations, error = %error.chain(), "transfer failed");
        }
        if let (Some(metrics), Some(kind)) = (&config.metrics, kind) {
            let transport = match shared.engine.transport_to(endpoint) {
                SHARED_MEMORY if !may_share => shared.engine.protocol(),
                transport => transport,
            };
            let done = sizes.iter().zip(&results).filter(|(_, result)| result.is_ok());
            metrics.peer_transfer(&EndedTransfer {
                peer: endpoint,
                transport,
                kind,
                bytes: done.map(|(bytes, _)| bytes).sum(),
                failures: failed.by_ref().count() as u64,
                took: env.now().since(began),
            });
        }
        results
    }

    /// Checks whether the master has closed the connection, even if this client's runtime has not
    /// run in the meantime. Lookups and allocations over that connection then no longer hold, and
    /// the next call opens a new one. Costs at most one system call.
    pub fn check_connection(&self) {
        self.inner.master.0.check_connection();
    }

    /// Returns the longest time for the transfers of one batch.
    pub fn transfer_deadline(&self) -> Duration {
        self.inner.config.transfer_deadline
    }

    /// Returns the tenant that owns this client's objects.
    pub fn tenant(&self) -> Tenant<'_> {
        Tenant(self.inner.config.tenant.as_str().into())
    }
}

/// The connection to the master, which counts calls.
#[derive(Clone)]
pub struct MasterChannel<E: Env> {
    rpc: RpcClient<E>,
    env: E,
    metrics: Option<Arc<ClientMetrics>>,
    /// Set if this thread has nothing else to do while it waits. Counts the threads that wait.
    busy_wait: Option<Arc<AtomicUsize>>,
}

/// The transport of nodes on the same host, as in [`PeerCounters`](mcctl_transfer::PeerCounters).
const SHARED_MEMORY: &str = "shared-memory";
/// How long a thread that has nothing else to do polls for a response before it sleeps. Waking an
/// idle processor takes 20 to 50 µs, and a master on the same network often responds sooner.
const BUSY_WAIT: Duration = Duration::from_micros(50);

impl<E: Env> MasterChannel<E> {
    /// Number of connections to the master that were lost ([`RpcClient::losses`]).
    pub(crate) fn losses(&self) -> u64 {
        self.rpc.losses()
    }

    /// Counts a lost connection that the runtime has not noticed yet
    /// ([`RpcClient::check_connection`]).
    fn check_connection(&self) {
        self.rpc.check_connection();
    }
}

impl<E: Env> Channel for MasterChannel<E> {
    type Error = CallError;

    async fn release(&self) -> Result<Release, CallError> {
        self.rpc.release().await
    }

    fn is_other_release(&self, error: &CallError) -> bool {
        self.rpc.is_other_release(error)
    }

    async fn call(&self, method: Method, body: Vec<u8>) -> Result<Bytes, CallError> {
        let Some(metrics) = &self.metrics else { return self.wait(self.rpc.call(method, body)).await };
        let began = self.env.now();
        let answer = self.wait(self.rpc.call(method, body)).await;
        metrics.call(method, self.env.now().since(began));
        answer
    }
}

impl<E: Env> MasterChannel<E> {
    /// Waits for a response. If few threads wait, polls for it first.
    async fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        let Some(callers) = &self.busy_wait else { return call.await };
        let waiting = WaitingCaller::new(callers);
        if !waiting.may_poll() {
            return call.await;
        }
        let began = self.env.now();
        let polling = async {
            while self.env.now().since(began) < BUSY_WAIT {
                tokio::task::yield_now().await;
            }
        };
        match select(pin!(call), pin!(polling)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(((), call)) => call.await,
        }
    }
}

/// A thread that waits for a response. It is counted until this value is dropped.
struct WaitingCaller<'a> {
    callers: &'a AtomicUsize,
    /// Number of other threads that wait.
    others: usize,
}

impl WaitingCaller<'_> {
    fn new(callers: &AtomicUsize) -> WaitingCaller<'_> {
        WaitingCaller { callers, others: callers.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether few enough threads wait, so that one that polls takes no processor from others.
    fn may_poll(&self) -> bool {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        self.others * 2 < *PROCESSORS.get_or_init(processors)
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.callers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the keys in the form required by the wire methods.
pub(crate) fn key_texts(keys: &[ObjectKey]) -> Vec<Text<'_>> {
    keys.iter().map(|key| Text(key.as_bytes())).collect()
}

/// Converts an error code from the master to a [`StoreError`] that names the call.
pub(crate) fn refused<T>(what: &'static str, answer: Expected<T>) -> Result<T, StoreError> {
    answer.map_err(|code| StoreError::Refused { what, code })
}

/// Converts the results of a batch, which must contain one result per key.
pub(crate) fn each<T>(
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
pub(crate) fn one<T>(mut answers: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    answers.pop().unwrap_or(Err(StoreError::BatchLength { requested: 1, found: 0 }))
}

/// Returns the object's size, which equals the size of each replica.
fn object_size(found: &GetReplicaListResponse) -> u64 {
    found.replicas.first().map_or(0, |replica| match &replica.location {
        ReplicaLocation::Memory(buffer) | ReplicaLocation::Nof(buffer) => buffer.size,
        ReplicaLocation::Disk(file) => file.object_size,
        ReplicaLocation::LocalDisk(object) => object.object_size,
        ReplicaLocation::DistributedFs(file) => file.object_size,
        ReplicaLocation::Parts(buffers) => buffers.iter().map(|buffer| buffer.size).sum(),
    })
}

/// Returns true if a put failed because the key exists.
pub(crate) fn already_exists(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { code: ErrorCode::OBJECT_ALREADY_EXISTS, .. })
}
