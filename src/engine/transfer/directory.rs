//! Where segments are found and where ours is made known: a metadata service, or the peers' handshake ports.
//!
//! The rest of the engine does not know the `Env`: it stops here, behind a trait.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};

use crate::engine::base::HostPort;
use crate::engine::env::{Env, deadline};
use crate::engine::metadata::{KeySpace, MetadataClient, MetadataError, probe};
use crate::engine::transfer::handshake::{AskLimits, ask};
use crate::engine::transfer::region::Regions;
use crate::engine::transfer::transport::Transport;
use crate::engine::transfer::{Step, TransferError, TransferSettings};
use crate::engine::wire::json::{Connection, Kind, NotifyMessage, RpcMeta, SegmentDescriptor, timestamp};

/// How long removing our records may take at the end.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(5);

/// Finds segments and makes ours known. Object-safe, so that the engine needs no type parameter.
pub(super) trait Directory: Send + Sync {
    /// The descriptor of `segment`, with the host of its data plane filled in.
    fn find(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<SegmentDescriptor, TransferError>>;
    /// Make our name known; refuses when a live engine has it.
    fn claim(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Write our segment document, and claim the name before that where it is not ours (any more); refuses when a live engine has
    /// it.
    fn publish(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Write our segment document if the name is ours: there is less to be found under it. Refuses when it is somebody else's.
    /// Where the service has lost the name, nothing is written, since somebody may be taking it at this moment and a document of ours
    /// would stand in place of theirs. One that is left there from before goes on announcing what is gone, to peers that need no
    /// name record to reach us; all they get of it are refusals. `publish` puts that right.
    fn update(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Remove our records; what stands under our name is left alone when somebody else has it now. The name goes only when it is
    /// ours, and only after the document: whoever finds a document under a free name may take it over as it is.
    fn withdraw(&self) -> BoxFuture<'static, Result<(), TransferError>>;
    /// Send `message` to the engine of `segment`; was it taken?
    fn notify(&self, segment: &str, message: NotifyMessage) -> BoxFuture<'static, Result<bool, TransferError>>;
    /// Send a connection request to the engine of `segment`; its reply.
    fn connect(
        &self,
        segment: &str,
        request: Connection,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Connection, TransferError>>;
    /// Ask the engine of `segment` whether it is there.
    fn probe(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<(), TransferError>>;
}

/// Our segment document, as it is now.
pub(super) struct OwnSegment {
    pub(super) name: String,
    pub(super) regions: Arc<RwLock<Regions>>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) unix: Box<dyn Fn() -> crate::engine::base::Unix + Send + Sync>,
}

impl OwnSegment {
    pub(super) fn document(&self) -> String {
        let mut document = SegmentDescriptor {
            name: self.name.clone(),
            protocol: self.transport.protocol().to_owned(),
            timestamp: timestamp((self.unix)()),
            ..SegmentDescriptor::default()
        };
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        document.buffers = regions.published().iter().flat_map(|r| r.keys.buffers(&self.name, &r.memory)).collect();
        drop(regions);
        self.transport.describe(&mut document);
        document.to_json()
    }

    /// Is this the document of another engine than ours? (One that cannot be read is nobody's.)
    fn is_anothers(&self, document: &[u8]) -> bool {
        let whose = |document: &[u8]| {
            let document = SegmentDescriptor::from_json(document).ok().flatten()?;
            Some(SegmentDescriptor { buffers: Vec::new(), timestamp: String::new(), ..document })
        };
        whose(document).is_some_and(|owner| Some(owner) != whose(self.document().as_bytes()))
    }
}

/// The directory of an engine.
pub(super) struct Finder<E> {
    shared: Arc<Shared<E>>,
}

struct Shared<E> {
    env: E,
    own: Arc<OwnSegment>,
    handshake: HostPort,
    settings: Arc<TransferSettings>,
    service: Option<(MetadataClient, KeySpace)>,
    /// One writer at a time, so that the last document written is the newest.
    writing: tokio::sync::Mutex<()>,
}

impl<E: Env> Finder<E> {
    /// `handshake` is where peers find our handshake port. `service` is `None` with `P2PHANDSHAKE`.
    pub(super) fn new(
        env: E,
        own: Arc<OwnSegment>,
        handshake: HostPort,
        settings: Arc<TransferSettings>,
        service: Option<MetadataClient>,
    ) -> Finder<E> {
        let service = service.map(|client| (client, KeySpace::new(settings.cluster_id.as_deref())));
        let writing = tokio::sync::Mutex::new(());
        Finder { shared: Arc::new(Shared { env, own, handshake, settings, service, writing }) }
    }
}

impl<E: Env> Directory for Finder<E> {
    fn find(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<SegmentDescriptor, TransferError>> {
        let (shared, segment) = (Arc::clone(&self.shared), segment.to_owned());
        async move {
            let timeout = || TransferError::Timeout { peer: segment.clone(), step: Step::Handshake, limit };
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
            // The name first: whoever has it, has the segment's document too, and a take-over removes the old one. It is asked for
            // every time, because who was paused does not know what happened meanwhile.
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
                Some(RpcMeta(owner)) => Err(shared.name_taken(&owner)),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn withdraw(&self) -> BoxFuture<'static, Result<(), TransferError>> {
        let shared = Arc::clone(&self.shared);
        async move {
            let (peer, step, limit) = ("the metadata service".to_owned(), Step::Handshake, WITHDRAW_LIMIT);
            let withdrawn = deadline(&shared.env, limit, shared.withdraw()).await;
            withdrawn.map_err(|_| TransferError::Timeout { peer, step, limit })?
        }
        .boxed()
    }

    fn notify(&self, segment: &str, message: NotifyMessage) -> BoxFuture<'static, Result<bool, TransferError>> {
        let (shared, segment) = (Arc::clone(&self.shared), segment.to_owned());
        async move {
            let to = shared.handshake_of(&segment).await?;
            let reply = ask(&shared.env, &to, Kind::Notify, &message.to_json(), shared.limits(ANSWER_LIMIT)).await?;
            crate::engine::transfer::handshake::was_taken(&to.to_string(), &reply)
        }
        .boxed()
    }

    fn connect(
        &self,
        segment: &str,
        request: Connection,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Connection, TransferError>> {
        let (shared, segment) = (Arc::clone(&self.shared), segment.to_owned());
        async move {
            let timeout = || TransferError::Timeout { peer: segment.clone(), step: Step::Handshake, limit };
            let connected = deadline(&shared.env, limit, shared.connect(&segment, &request, limit)).await;
            connected.map_err(|_| timeout())?
        }
        .boxed()
    }

    fn probe(&self, segment: &str, limit: Duration) -> BoxFuture<'static, Result<(), TransferError>> {
        let (shared, segment) = (Arc::clone(&self.shared), segment.to_owned());
        async move {
            let to = shared.handshake_of(&segment).await?;
            ask(&shared.env, &to, Kind::Probe, "{}", shared.limits(limit)).await.map(drop)
        }
        .boxed()
    }
}

/// How long a peer's handshake port may take to answer. (It may be serving somebody silent, for 5 s, before us.)
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(6);

impl<E: Env> Shared<E> {
    fn rpc_meta(&self) -> RpcMeta {
        RpcMeta(self.handshake.clone())
    }

    fn limits(&self, limit: Duration) -> AskLimits {
        AskLimits {
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
            let body = ask(&self.env, &to, Kind::Metadata, &self.own.document(), self.limits(limit)).await?;
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

    async fn connect(&self, segment: &str, request: &Connection, limit: Duration) -> Result<Connection, TransferError> {
        let to = self.handshake_of(segment).await?;
        let body = ask(&self.env, &to, Kind::Connection, &request.to_json(), self.limits(limit)).await?;
        Connection::from_json(&body).map_err(|source| TransferError::Document { from: to.to_string(), source })
    }

    /// Where a segment's handshake port is.
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
        // The name last: as long as it is ours, nobody else writes a document under it.
        self.withdraw_document(client, &keys.ram_key(&self.own.name)).await?;
        // A name that was nobody's may have become somebody's since we looked.
        if is_ours {
            client.remove(&keys.rpc_meta_key(&self.own.name)).await?;
        }
        Ok(())
    }

    /// Remove our document, unless it is another engine's: nobody's name may have become somebody's since we looked.
    async fn withdraw_document(&self, client: &MetadataClient, key: &str) -> Result<(), TransferError> {
        let Some(standing) = client.get(key).await? else { return Ok(()) };
        if !self.own.is_anothers(&standing) {
            client.remove(key).await?;
        }
        Ok(())
    }

    fn name_taken(&self, owner: &HostPort) -> TransferError {
        TransferError::NameTaken { name: self.own.name.clone(), owner: owner.to_string() }
    }

    /// Who has our name, as far as that can be read; we ourselves without a service.
    async fn owner(&self) -> Result<Option<RpcMeta>, TransferError> {
        let Some((client, keys)) = &self.service else { return Ok(Some(self.rpc_meta())) };
        let there = client.get(&keys.rpc_meta_key(&self.own.name)).await?;
        Ok(there.and_then(|body| RpcMeta::from_json(&body).ok()))
    }

    /// Upstream's services take a `rpc_meta` record once; what a killed process left behind would keep its name for ever. So when
    /// ours is refused and nobody answers where the old one points, the old records go.
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
            return Err(self.name_taken(&owner));
        }
        tracing::info!(%name, %refusal, "the name's last owner does not answer; taking the name over");
        client.remove(&keys.ram_key(name)).await?;
        client.remove(&key).await?;
        client.put(&key, body).await?;
        Ok(())
    }
}
