//! Starts a transfer engine.

use std::sync::{Arc, RwLock};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::config::{TransferConfig, TransferSettings};
use crate::control_plane::BlockingControlPlane;
use crate::directory::{OwnSegment, SegmentDirectory, SegmentResolver};
use crate::engine::{EngineNames, TransferEngine};
use crate::handshake::{self, HandshakeHandler, HandshakeLimits};
use crate::listen::bind_handshake;
use crate::local::TransferEra;
use crate::notifications::Notifications;
use crate::region::Regions;
use crate::remote::RemoteContext;
use crate::shared_memory::SharedMemoryHost;
use crate::transport::{ControlPlane, DataTransport, TransportStart};
use crate::transports::TransferProtocol;
use crate::{MonoClock, RandomSource, TransferError};
use mcctl_base::HostPort;
use mcctl_metadata::{MetadataClient, MetadataUri};
use mcctl_sys::env::{Env, Net};

impl TransferEngine {
    /// Starts an engine: binds the handshake and data ports, publishes the name, and starts serving
    /// peers. Must be called on a tokio runtime, which then serves the handshake port.
    ///
    /// # Errors
    /// Fails if the name or protocol is invalid, if no port is free, or if the metadata service
    /// rejects the request or does not respond. On failure, nothing is left running or registered.
    pub async fn start<E: Env>(config: TransferConfig, env: E) -> Result<TransferEngine, TransferError> {
        let settings = Arc::new(config.settings.clone());
        let service = metadata_service(&config)?;
        let (listener, handshake) = bind_handshake(&config, &env).await?;
        let names = engine_names(&config, handshake);
        let regions = Arc::new(RwLock::new(Regions::default()));
        let clock = clock(&env);
        let transport = start_transport(&config, &names, &regions, &clock, &env)?;
        let eras = Arc::new(TransferEra::default());
        let shared = SharedMemoryHost::new(
            settings.shared_memory.clone(),
            Arc::clone(&regions),
            Arc::clone(&eras),
            random(&env),
        );
        let shared = Arc::new(shared);

        let own = own_segment(&names, &regions, &transport, &shared, &env);
        let resolver = SegmentResolver::new(
            env.clone(),
            Arc::clone(&own),
            names.handshake.clone(),
            Arc::clone(&settings),
            service,
        );
        let directory: Arc<dyn SegmentDirectory> = Arc::new(resolver);
        update_on_change(&*transport, &directory);
        publish_first(&*directory).await?;

        let control: Arc<dyn ControlPlane> =
            Arc::new(BlockingControlPlane::new(Arc::clone(&directory), Handle::current()));
        let notifications = Arc::new(Notifications::new(own, Arc::clone(&control)));
        let daemon = serve_handshake(&settings, listener, &notifications, env);
        let context = RemoteContext::new(directory, transport, clock, control, &settings, eras);
        let engine = TransferEngine::new(names, regions, shared, context, notifications, daemon);
        let segment = engine.segment_name();
        let handshake = engine.handshake();
        let protocol = engine.protocol();
        tracing::info!(%segment, %handshake, protocol, data_port = engine.data_port(), "transfer engine is listening");
        Ok(engine)
    }
}

/// Returns the client of the metadata service, or `None` with `P2PHANDSHAKE`.
fn metadata_service(config: &TransferConfig) -> Result<Option<MetadataClient>, TransferError> {
    match &config.metadata {
        MetadataUri::P2p => Ok(None),
        MetadataUri::Service(url) => {
            let TransferSettings { metadata, credentials, .. } = &config.settings;
            Ok(Some(MetadataClient::with_credentials(url, *metadata, credentials)?))
        }
    }
}

/// Returns the engine's names, given the announced address of its handshake port.
fn engine_names(config: &TransferConfig, handshake: HostPort) -> EngineNames {
    let (segment, endpoint) = match config.metadata {
        // Upstream writes IPv6 endpoints without brackets.
        MetadataUri::P2p => (handshake.to_string(), format!("{}:{}", handshake.host, handshake.port)),
        MetadataUri::Service(_) => (config.local_server_name.clone(), config.local_server_name.clone()),
    };
    EngineNames { segment, endpoint, handshake }
}

/// The clock also counts while the host is suspended: a transfer that continues after its deadline
/// could write to memory that belongs to another object by then.
fn clock<E: Env>(env: &E) -> MonoClock {
    let env = env.clone();
    Arc::new(move || env.boottime())
}

fn random<E: Env>(env: &E) -> RandomSource {
    let env = env.clone();
    Arc::new(move || env.rng())
}

/// Starts the configured transport, or TCP if that is unavailable and the owner allows it.
fn start_transport<E: Env>(
    config: &TransferConfig,
    names: &EngineNames,
    regions: &Arc<RwLock<Regions>>,
    clock: &MonoClock,
    env: &E,
) -> Result<Arc<dyn DataTransport>, TransferError> {
    let random = random(env);
    let filter = env.address_filter();
    let start = TransportStart {
        segment: &names.segment,
        handshake: &names.handshake,
        options: &config.transport,
        ports: &config.settings.ports,
        listen_on: config.settings.listen_on,
        filter: &filter,
        connect_limit: config.settings.handshake_connect,
        regions,
        clock,
        random: &random,
    };
    match config.protocol.start(&start, &config.settings.transports) {
        Err(error @ TransferError::Unavailable { .. }) if config.transport.allow_tcp_fallback => {
            tracing::warn!(%error, "falling back to tcp (allowed by the configuration); peers must use tcp too");
            TransferProtocol::Tcp.start(&start, &config.settings.transports)
        }
        started => started,
    }
}

fn own_segment<E: Env>(
    names: &EngineNames,
    regions: &Arc<RwLock<Regions>>,
    transport: &Arc<dyn DataTransport>,
    shared_memory: &Arc<SharedMemoryHost>,
    env: &E,
) -> Arc<OwnSegment> {
    let env = env.clone();
    Arc::new(OwnSegment {
        name: names.segment.clone(),
        regions: Arc::clone(regions),
        transport: Arc::clone(transport),
        shared_memory: Arc::clone(shared_memory),
        unix: Box::new(move || env.unix()),
    })
}

/// Makes `directory` publish our segment document again when `transport` reports a change.
fn update_on_change(transport: &dyn DataTransport, directory: &Arc<dyn SegmentDirectory>) {
    let runtime = Handle::current();
    // A weak reference, because the directory has a reference to the transport.
    let weak = Arc::downgrade(directory);
    transport.on_change(Box::new(move || {
        let Some(directory) = weak.upgrade() else { return };
        runtime.spawn(async move {
            if let Err(error) = directory.update().await {
                tracing::warn!(%error, "cannot publish the changed RDMA devices of this segment");
            }
        });
    }));
}

/// Publishes our name and our segment document for the first time.
async fn publish_first(directory: &dyn SegmentDirectory) -> Result<(), TransferError> {
    directory.claim().await?;
    if let Err(error) = directory.publish().await {
        // Report the original error, not one from the cleanup.
        let _ = directory.withdraw().await;
        return Err(error);
    }
    Ok(())
}

/// Starts serving the handshake port on the runtime.
fn serve_handshake<E: Env>(
    settings: &TransferSettings,
    listener: <E::Net as Net>::Listener,
    notifications: &Arc<Notifications>,
    env: E,
) -> JoinHandle<()> {
    let limits = HandshakeLimits { bytes_max: settings.handshake_bytes_max, ..HandshakeLimits::default() };
    let handler: Arc<dyn HandshakeHandler> = Arc::clone(notifications) as _;
    tokio::spawn(handshake::serve(env, listener, handler, limits))
}
