//! Finds segments and publishes this engine's own, through a metadata service or peers' handshake
//! ports.
//!
//! The trait here hides `Env` from the rest of the engine.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};

use crate::handshake::{RequestLimits, send_request};
use crate::region::Regions;
use crate::shared_memory::SharedMemoryHost;
use crate::transport::DataTransport;
use crate::{TransferError, TransferSettings, TransferStep};
use mcctl_base::HostPort;
use mcctl_metadata::{KeySpace, MetadataClient, MetadataError, probe};
use mcctl_sys::env::{Env, deadline};
use mcctl_wire::json::{ConnectionMessage, HandshakeKind, NotifyMessage, RpcMeta, SegmentDescriptor, timestamp};

/// Timeout for removing our records at shutdown.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(5);

/// Finds segments and publishes ours. Object-safe, so the engine needs no type parameter.
pub(super) trait SegmentDirectory: Send + Sync {
    /// Returns the descriptor of `segment`, with its data plane host filled in.
    fn find(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<SegmentDescriptor, TransferError>>;
    /// Registers our name. Fails if a live engine already owns it.
    fn claim(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Writes our segment document. Claims the name first if we do not own it or have lost it.
    /// Fails if a live engine owns it.
    fn publish(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Writes our segment document if we own the name. Used after memory has been deregistered.
    /// Fails if another engine owns the name.
    ///
    /// If the service has lost the name, nothing is written: another engine may be claiming the
    /// name at that moment, and our document would overwrite its document. An older document of
    /// ours may remain in the service and still announce the deregistered memory. Peers that can
    /// reach us without a name record may then send requests for that memory, which are rejected.
    /// `publish` corrects the document.
    fn update(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Removes our records. If another engine now owns our name, its records are left alone. The
    /// name record is removed only if it is ours, and only after the document: an engine that
    /// claims a free name may leave an existing document unchanged.
    fn withdraw(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Sends `message` to the engine that owns `segment`. Returns whether it was accepted.
    fn notify(&self, segment: &str, message: NotifyMessage) -> BoxFuture<'static, Result<bool, TransferError>>;
    /// Sends a connection request to the engine that owns `segment` and returns its reply.
    fn connect(
        &self,
        segment: &str,
        request: ConnectionMessage,
        limit: Duration,
    ) -> BoxFuture<'static, Result<ConnectionMessage, TransferError>>;
    /// Checks that the engine that owns `segment` responds.
    fn probe(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<(), TransferError>>;
}

/// The data used to generate our segment document.
pub(super) struct OwnSegment {
    pub(super) name: String,
    pub(super) regions: Arc<RwLock<Regions>>,
    pub(super) transport: Arc<dyn DataTransport>,
    pub(super) shared_memory: Arc<SharedMemoryHost>,
    pub(super) unix: Box<dyn Fn() -> mcctl_base::Unix + Send + Sync>,
}

impl OwnSegment {
    pub(super) fn document(&self) -> String {
        let mut document = SegmentDescriptor {
            name: self.name.clone(),
            protocol: self.transport.protocol().to_owned(),
            timestamp: timestamp((self.unix)()),
            shared_memory: self.shared_memory.descriptor(),
            ..SegmentDescriptor::default()
        };
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        document.buffers = regions.published().iter().flat_map(|r| r.keys.buffers(&self.name, &r.memory)).collect();
        drop(regions);
        self.transport.describe(&mut document);
        document.to_json()
    }

    /// Whether `document` belongs to another engine. A document that cannot be parsed counts as
    /// belonging to none.
    fn is_anothers(&self, document: &[u8]) -> bool {
        let owner_of = |document: &[u8]| {
            let document = SegmentDescriptor::from_json(document).ok().flatten()?;
            Some(SegmentDescriptor { buffers: Vec::new(), timestamp: String::new(), ..document })
        };
        owner_of(document).is_some_and(|owner| Some(owner) != owner_of(self.document().as_bytes()))
    }
}

/// The [`SegmentDirectory`] of an engine, which reads descriptors from the metadata service or from
/// peers.
pub(super) struct SegmentResolver<E> {
    shared: Arc<ResolverState<E>>,
}

struct ResolverState<E> {
    env: E,
    own: Arc<OwnSegment>,
    handshake: HostPort,
    settings: Arc<TransferSettings>,
    service: Option<(MetadataClient, KeySpace)>,
    /// Serializes writers, so that the newest document is written last.
    writing: tokio::sync::Mutex<()>,
}

impl<E: Env> SegmentResolver<E> {
    /// `handshake` is the address at which peers reach our handshake port. `service` is `None` with
    /// `P2PHANDSHAKE`.
    pub(super) fn new(
        env: E,
        own: Arc<OwnSegment>,
        handshake: HostPort,
        settings: Arc<TransferSettings>,
        service: Option<MetadataClient>,
    ) -> SegmentResolver<E> {
        let service = service.map(|client| (client, KeySpace::new(settings.cluster_id.as_deref())));
        let writing = tokio::sync::Mutex::new(());
        SegmentResolver { shared: Arc::new(ResolverState { env, own, handshake, settings, service, writing }) }
    }
}

impl<E: Env> SegmentDirectory for SegmentResolver<E> {
    fn find(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<SegmentDescriptor, TransferError>> {
        let shared = Arc::clone(&self.shared);
        let segment = segment.to_owned();
        async move {
            let timeout = || TransferError::Timeout { peer: segment.clone(), step: TransferStep::Handshake, limit };
            let found = deadline(&shared.env, limit, shared.find(&segment, limit)).await;
            found.map_err(|_| timeout())?
        }
        .boxed()
    }

    fn claim(&self) -> BoxFuture<'static, Result<(), TransferError>> {
        let shared = Arc::clone(&self.shared);
        async move { shared.claim().await }.boxed()
    }

    fn publish(&self) -> BoxFuture<'static, Result<(), TransferError>> {
        let shared = Arc::clone(&self.shared);
        async move {
            // Claim the name first: its owner also owns the segment's document, and a takeover
            // removes the old document. Check the owner every time: a process that was paused may
            // have lost the name in the meantime.
            if shared.owner().await? != Some(shared.rpc_meta()) {
                shared.claim().await?;
            }
            shared.write().await
        }
        .boxed()
    }

    fn update(&self) -> BoxFuture<'static, Result<(), TransferError>> {
        let shared = Arc::clone(&self.shared);
        async move {
            match shared.owner().await? {
                Some(owner) if owner == shared.rpc_meta() => shared.write().await,
                Some(RpcMeta(owner)) => Err(shared.name_in_use(&owner)),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn withdraw(&self) -> BoxFuture<'static, Result<(), TransferError>> {
        let shared = Arc::clone(&self.shared);
        async move {
            let peer = "the metadata service".to_owned();
            let step = TransferStep::Handshake;
            let limit = WITHDRAW_LIMIT;
            let withdrawn = deadline(&shared.env, limit, shared.withdraw()).await;
            withdrawn.map_err(|_| TransferError::Timeout { peer, step, limit })?
        }
        .boxed()
    }

    fn notify(&self, segment: &str, message: NotifyMessage) -> BoxFuture<'static, Result<bool, TransferError>> {
        let shared = Arc::clone(&self.shared);
        let segment = segment.to_owned();
        async move {
            let to = shared.handshake_of(&segment).await?;
            let reply =
                send_request(&shared.env, &to, HandshakeKind::Notify, &message.to_json(), shared.limits(ANSWER_LIMIT))
                    .await?;
            crate::handshake::is_notify_accepted(&to.to_string(), &reply)
        }
        .boxed()
    }

    fn connect(
        &self,
        segment: &str,
        request: ConnectionMessage,
        limit: Duration,
    ) -> BoxFuture<'static, Result<ConnectionMessage, TransferError>> {
        let shared = Arc::clone(&self.shared);
        let segment = segment.to_owned();
        async move {
            let timeout = || TransferError::Timeout { peer: segment.clone(), step: TransferStep::Handshake, limit };
            let connected = deadline(&shared.env, limit, shared.connect(&segment, &request, limit)).await;
            connected.map_err(|_| timeout())?
        }
        .boxed()
    }

    fn probe(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<(), TransferError>> {
        let shared = Arc::clone(&self.shared);
        let segment = segment.to_owned();
        async move {
            let to = shared.handshake_of(&segment).await?;
            send_request(&shared.env, &to, HandshakeKind::Probe, "{}", shared.limits(limit)).await.map(drop)
        }
        .boxed()
    }
}

/// Timeout for a response from a peer's handshake port. Longer than 5 s, because the peer may first
/// wait that long for a silent client.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(6);

impl<E: Env> ResolverState<E> {
    fn rpc_meta(&self) -> RpcMeta {
        RpcMeta(self.handshake.clone())
    }

    fn limits(&self, limit: Duration) -> RequestLimits {
        RequestLimits {
            connect: self.settings.handshake_connect.min(limit),
            answer: limit,
            bytes_max: self.settings.handshake_bytes_max,
        }
    }

    async fn find(&self, segment: &str, limit: Duration) -> Result<SegmentDescriptor, TransferError> {
        let unknown = || TransferError::UnknownSegment { segment: segment.to_owned() };
        let read = |from: &str, body: &[u8]| {
            SegmentDescriptor::from_json(body)
                .map_err(|source| TransferError::Document { from: from.to_owned(), source })?
                .ok_or_else(unknown)
        };
        let Some((client, keys)) = &self.service else {
            let to = self.handshake_of(segment).await?;
            let body =
                send_request(&self.env, &to, HandshakeKind::Metadata, &self.own.document(), self.limits(limit)).await?;
            let mut descriptor = read(&to.to_string(), &body)?;
            if descriptor.tcp_data_host.is_empty() {
                descriptor.tcp_data_host = to.host;
            }
            return Ok(descriptor);
        };
        let key = keys.ram_key(segment);
        let body = client.get(&key).await?.ok_or_else(unknown)?;
        let mut descriptor = read(&format!("{} ({key})", client.url()), &body)?;
        if descriptor.protocol == "tcp" && descriptor.tcp_data_host.is_empty() {
            descriptor.tcp_data_host = self.handshake_of(segment).await?.host;
        }
        Ok(descriptor)
    }

    async fn connect(
        &self,
        segment: &str,
        request: &ConnectionMessage,
        limit: Duration,
    ) -> Result<ConnectionMessage, TransferError> {
        let to = self.handshake_of(segment).await?;
        let body =
            send_request(&self.env, &to, HandshakeKind::Connection, &request.to_json(), self.limits(limit)).await?;
        ConnectionMessage::from_json(&body).map_err(|source| TransferError::Document { from: to.to_string(), source })
    }

    /// Returns the address of a segment's handshake port.
    async fn handshake_of(&self, segment: &str) -> Result<HostPort, TransferError> {
        let Some((client, keys)) = &self.service else {
            let (host, port) = HostPort::split(segment)
                .map_err(|e| TransferError::Name { name: segment.to_owned(), problem: e.to_string() })?;
            return Ok(HostPort::new(host, port.unwrap_or(self.settings.handshake_port)));
        };
        let key = keys.rpc_meta_key(segment);
        let Some(body) = client.get(&key).await? else {
            return Err(TransferError::UnknownSegment { segment: segment.to_owned() });
        };
        let from = || format!("{} ({key})", client.url());
        let RpcMeta(to) =
            RpcMeta::from_json(&body).map_err(|source| TransferError::Document { from: from(), source })?;
        Ok(to)
    }

    async fn write(&self) -> Result<(), TransferError> {
        let Some((client, keys)) = &self.service else { return Ok(()) };
        let _writing = self.writing.lock().await;
        client.put(&keys.ram_key(&self.own.name), Bytes::from(self.own.document())).await?;
        Ok(())
    }

    async fn withdraw(&self) -> Result<(), TransferError> {
        let Some((client, keys)) = &self.service else { return Ok(()) };
        let _writing = self.writing.lock().await;
        let owner = self.owner().await?;
        let is_ours = owner == Some(self.rpc_meta());
        if owner.is_some() && !is_ours {
            return Ok(());
        }
        // Remove the name record last: while it is ours, no other engine writes a document under
        // the name.
        self.withdraw_document(client, &keys.ram_key(&self.own.name)).await?;
        // If the name had no owner, another engine may have claimed it since we read it.
        if is_ours {
            client.remove(&keys.rpc_meta_key(&self.own.name)).await?;
        }
        Ok(())
    }

    /// Removes our document. Leaves it alone if it belongs to another engine: if the name had no
    /// owner, that engine may have claimed it since we read it.
    async fn withdraw_document(&self, client: &MetadataClient, key: &str) -> Result<(), TransferError> {
        let Some(standing) = client.get(key).await? else { return Ok(()) };
        if !self.own.is_anothers(&standing) {
            client.remove(key).await?;
        }
        Ok(())
    }

    fn name_in_use(&self, owner: &HostPort) -> TransferError {
        TransferError::NameTaken { name: self.own.name.clone(), owner: owner.to_string() }
    }

    /// Returns the owner of our name, if the record can be parsed. Without a metadata service, this
    /// engine is the owner.
    async fn owner(&self) -> Result<Option<RpcMeta>, TransferError> {
        let Some((client, keys)) = &self.service else { return Ok(Some(self.rpc_meta())) };
        let there = client.get(&keys.rpc_meta_key(&self.own.name)).await?;
        Ok(there.and_then(|body| RpcMeta::from_json(&body).ok()))
    }

    /// Claims our name. Upstream's metadata services reject a second `rpc_meta` record for a name,
    /// so the record of a killed process would make its name unusable forever. If our record is
    /// rejected and the previous owner does not respond, its records are removed.
    async fn claim(&self) -> Result<(), TransferError> {
        let Some((client, keys)) = &self.service else { return Ok(()) };
        let name = &self.own.name;
        let key = keys.rpc_meta_key(name);
        let body = Bytes::from(self.rpc_meta().to_json());
        let refusal: MetadataError = match client.put(&key, body.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_duplicate() => error,
            Err(error) => return Err(error.into()),
        };
        let owner = self.owner().await?;
        if owner.as_ref() == Some(&self.rpc_meta()) {
            return Ok(());
        }
        if let Some(RpcMeta(owner)) = owner
            && probe::is_alive(&self.env, &owner).await
        {
            return Err(self.name_in_use(&owner));
        }
        tracing::info!(%name, %refusal, "previous owner of the segment name does not respond; taking over the name");
        client.remove(&keys.ram_key(name)).await?;
        client.remove(&key).await?;
        client.put(&key, body).await?;
        Ok(())
    }
}
