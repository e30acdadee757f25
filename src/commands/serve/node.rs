//! A store node with its REST port in this process, and the words for what can be wrong with it.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::commands::args::show_duration;
use crate::commands::error::Failure;
use crate::commands::listen::{Listen, check_collisions};
use crate::commands::runtime;
use crate::commands::serve::exposition;
use crate::commands::transport::{self, Transport};
use crate::engine::base::addr::host_is_loopback;
use crate::engine::base::{ByteSize, ErrorCode, HostPort, ObjectKey, SegmentId};
use crate::engine::env::RealEnv;
use crate::engine::http::Running;
use crate::engine::metadata::{MetadataError, MetadataUri, ParseMetadataUriError};
use crate::engine::rpc::{CallError, Timeouts};
use crate::engine::store::client_metrics::ClientMetrics;
use crate::engine::store::rest::{self, Held, NodeFigures, NodeHealth, ObjectStore, Refusal, Room};
use crate::engine::store::{ClientConfig, Node, NodeConfig, NodeError, NodeStore, StoreError, client_http, name};
use crate::engine::sys::host;
use crate::engine::sys::pages::{MemoryError, MemoryPolicy};
use crate::engine::transfer::{TransferConfig, TransferError, TransferSettings};

/// What a node is to be.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// The master.
    pub master: HostPort,
    /// Who chose it.
    pub master_origin: String,
    /// Where segments are found.
    pub metadata: MetadataUri,
    /// Host, with or without a port, by which others reach the node.
    pub local_hostname: String,
    /// Bytes to lend.
    pub segment: ByteSize,
    /// Who chose that.
    pub segment_origin: String,
    /// Bytes for the node's own puts and gets.
    pub local_buffer: ByteSize,
    /// Who chose that.
    pub local_buffer_origin: String,
    /// Over what bytes are moved.
    pub transport: Transport,
    /// The address that the transfer engine announces; `None` leaves it to `MC_TCP_BIND_ADDRESS` or the first LAN address.
    pub announce_host: Option<String>,
    /// How long to wait for a metadata service and for a master that are not there yet.
    pub max_wait: Duration,
    /// What of that is over already, spent on names.
    pub waited: Duration,
    /// Where the use of the node's own client is counted, if anywhere.
    pub metrics: Option<Arc<ClientMetrics>>,
}

/// Where a node listens for HTTP.
#[derive(Clone, Debug)]
pub struct NodePorts {
    /// The REST port.
    pub rest: Listen,
    /// The client HTTP server, if it is wanted.
    pub client_http: Option<Listen>,
}

/// `text`, which `origin` gave, as the place where segments are found.
///
/// # Errors
/// It is none.
pub fn metadata(text: &str, origin: String) -> Result<MetadataUri, Failure> {
    text.parse().map_err(|error: ParseMetadataUriError| {
        Failure::usage("the metadata service cannot be used")
            .tried(origin)
            .found(error.to_string())
            .next("give P2PHANDSHAKE or http://HOST:PORT/metadata")
    })
}

/// The name under which others find the node: what the operator gave, if others can; else localhost for a master on this host, and
/// for another one the address that this host uses towards it.
///
/// # Errors
/// What was given is no name, or one that others cannot call, or there is none; or it takes the master's name, which cannot be
/// resolved: that is [unreachable](crate::commands::error::Exit::Unreachable).
pub fn local_hostname(
    given: Option<(&str, String)>,
    master: &HostPort,
    metadata: &MetadataUri,
    address_towards: impl Fn(&HostPort) -> io::Result<Option<IpAddr>>,
) -> Result<String, Failure> {
    let Some((given, origin)) = given else {
        if master.is_loopback() {
            return Ok("localhost".to_owned());
        }
        let towards = address_towards(master).map_err(|error| {
            Failure::unreachable(format!("cannot reach the master at {master}: its name cannot be resolved"))
                .tried(format!("resolve {}", master.host))
                .found(error.to_string())
                .next("give the right --master, or see why this host cannot resolve it")
        })?;
        let derived = towards.filter(|address| !address.is_loopback() && !address.is_unspecified());
        return match derived {
            Some(address @ IpAddr::V6(_)) => Ok(format!("[{address}]")),
            Some(address) => Ok(address.to_string()),
            None => Err(Failure::usage("this node has no name under which other hosts reach it")
                .tried(format!("find the address that this host uses towards the master at {master}"))
                .next("give --local-hostname with a name or address of this host")),
        };
    };
    let (host, _) = HostPort::split(given).map_err(|error| {
        Failure::usage(format!("'{given}' is no name for this node")).tried(origin.clone()).found(error.to_string())
    })?;
    let is_everywhere = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    let is_here_only = host_is_loopback(&host) && !master.is_loopback() && *metadata == MetadataUri::P2p;
    if is_everywhere || is_here_only {
        let why = match is_everywhere {
            true => "that is every address of this host and none that can be called".to_owned(),
            false => format!(
                "with P2PHANDSHAKE others call this node by its name, and the master is on another host ({master})"
            ),
        };
        let usable = address_towards(master).ok().flatten();
        let usable = usable.map_or(String::new(), |address| format!(", e.g. {address}"));
        return Err(Failure::usage(format!("other hosts cannot reach this node as '{given}'"))
            .tried(origin)
            .found(why)
            .next(format!(
                "give --local-hostname (or MOONCAKE_LOCAL_HOSTNAME) an address that other hosts can call{usable}"
            )));
    }
    Ok(given.to_owned())
}

/// A node that runs, with its REST port.
pub struct RunningNode {
    /// The node.
    pub node: Node<RealEnv>,
    rest: Running,
    client_http: Option<Running>,
}

impl RunningNode {
    /// Start the node of `plan` with its `ports`: those first, so that nothing is lent by a node that then goes away again.
    /// `None` when `stop` ended before the node had started; its records are gone again then.
    ///
    /// # Errors
    /// Nothing is left running then.
    pub async fn start(
        plan: &NodePlan,
        ports: &NodePorts,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<RunningNode>, Failure> {
        check_memory(plan)?;
        let env = RealEnv::new();
        let later = Arc::new(Later::default());
        let rest = rest::start(env.clone(), &ports.rest.at, later.clone()).await;
        let rest = rest.map_err(|error| ports.rest.failure(&error.source))?;
        let client_http = match &ports.client_http {
            None => None,
            Some(listen) => {
                let started = client_http::start(env.clone(), &listen.at, later.clone(), plan.metrics.clone()).await;
                Some(started.map_err(|error| listen.failure(&error.source))?)
            }
        };
        // A task of its own: taking memory blocks, and a signal must be heard meanwhile. When this future is dropped, so is
        // `tell`, and the task ends by itself.
        let (tell, told) = oneshot::channel::<()>();
        let told = async move { told.await.unwrap_or_default() };
        let (config, warnings) = config(plan);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let mut task = tokio::spawn(Node::start_unless(config, env, told));
        let ended = tokio::select! {
            ended = &mut task => Some(ended),
            () = stop => None,
        };
        let Some(ended) = ended else {
            // Nobody hears it when the start has just ended.
            let _ = tell.send(());
            let end = async {
                if let Ok(Ok(node)) = task.await {
                    node.stop().await;
                }
                rest.stop().await;
                stop_running(client_http).await;
            };
            runtime::stop_in_time("the node", end).await;
            return Ok(None);
        };
        let node = match ended {
            Ok(started) => started.map_err(|error| failure(plan, error))?,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        // It is set once, here.
        let _ = later.0.set(node.store());
        Ok(Some(RunningNode { node, rest, client_http }))
    }

    /// Where the REST port is.
    pub fn rest_at(&self) -> &HostPort {
        self.rest.at()
    }

    /// Where the client HTTP server is, if there is one.
    pub fn client_http_at(&self) -> Option<&HostPort> {
        self.client_http.as_ref().map(Running::at)
    }

    /// Stop: the HTTP ports, then the node, which takes its memory back from the master.
    pub async fn stop(self) {
        self.rest.stop().await;
        stop_running(self.client_http).await;
        self.node.stop().await;
    }
}

async fn stop_running(running: Option<Running>) {
    if let Some(running) = running {
        running.stop().await;
    }
}

/// The engine's configuration of `plan`, with what the `MC_*` variables say, and a warning for each of those that is not
/// understood.
pub(crate) fn config(plan: &NodePlan) -> (NodeConfig, Vec<String>) {
    let env = |name: &str| std::env::var(name).ok();
    let (memory, mut warnings) = MemoryPolicy::from_env(&env);
    let (settings, more) = TransferSettings::from_env(&env);
    warnings.extend(more);
    let name_ports = name_ports(&env, &mut warnings);
    let mut client = ClientConfig::new(plan.master.clone());
    // Nobody is waited for longer than the operator said.
    let max_wait = plan.max_wait.saturating_sub(plan.waited);
    let connect = client.timeouts.connect.min(max_wait).max(CONNECT_MIN);
    client.timeouts = Timeouts { connect, ..client.timeouts };
    client.metrics = plan.metrics.clone();
    client.host_id = name::host_id(&plan.local_hostname, env("MOONCAKE_HOST_ID").as_deref());
    let config = NodeConfig {
        local_hostname: plan.local_hostname.clone(),
        name_ports,
        segment_bytes: plan.segment,
        local_buffer_bytes: plan.local_buffer,
        memory,
        engine: TransferConfig {
            local_server_name: String::new(),
            metadata: plan.metadata.clone(),
            protocol: plan.transport.protocol,
            announce_host: plan.announce_host.clone(),
            rdma: plan.transport.rdma.clone(),
            settings: TransferSettings {
                bind_address: plan.announce_host.clone().or(settings.bind_address.clone()),
                ..settings
            },
        },
        client,
        max_wait,
    };
    (config, warnings)
}

/// The handshake port, in words.
const HANDSHAKE: &str = "the transfer engine's handshake";
/// Where it listens, whatever the node's name is.
const HANDSHAKE_HOST: &str = "0.0.0.0";

/// Check that the HTTP ports and, where the operator chose it (`MC_LEGACY_RPC_PORT_BINDING`), the handshake port differ.
///
/// # Errors
/// Two are one.
pub fn check_ports(plan: &NodePlan, ports: &NodePorts) -> Result<(), Failure> {
    let mut listens = vec![ports.rest.clone()];
    listens.extend(ports.client_http.clone());
    let (settings, _) = TransferSettings::from_env(&|name| std::env::var(name).ok());
    if !settings.legacy_port_binding || plan.metadata == MetadataUri::P2p {
        return check_collisions(&listens);
    }
    let port = match HostPort::split(&plan.local_hostname) {
        Ok((_, Some(port))) => port,
        _ => settings.handshake_port,
    };
    let origin = format!("--local-hostname {} with MC_LEGACY_RPC_PORT_BINDING", plan.local_hostname);
    let at = HostPort::new(HANDSHAKE_HOST, port);
    listens.push(Listen { what: HANDSHAKE, at, host_origin: origin.clone(), origin });
    check_collisions(&listens)
}

/// The shortest wait for a connection.
const CONNECT_MIN: Duration = Duration::from_millis(100);

/// Ports for names, as upstream's variables give them.
fn name_ports(env: &impl Fn(&str) -> Option<String>, warnings: &mut Vec<String>) -> (u16, u16) {
    let (first, last) = name::PORTS;
    let mut read = |name: &str, otherwise: u16| match env(name).map(|text| text.trim().parse::<u16>()) {
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            warnings.push(format!("{name} is not a port; using {otherwise}"));
            otherwise
        }
        None => otherwise,
    };
    let ports = (read("MC_STORE_CLIENT_MIN_PORT", first), read("MC_STORE_CLIENT_MAX_PORT", last));
    if ports.0 <= ports.1 {
        return ports;
    }
    warnings.push(format!("MC_STORE_CLIENT_MIN_PORT is above MC_STORE_CLIENT_MAX_PORT; using {first} to {last}"));
    (first, last)
}

/// Segment and local buffer together must fit the host; that they also fit what is free now is only a warning, since memory is
/// taken when it is used.
fn check_memory(plan: &NodePlan) -> Result<(), Failure> {
    let Some(figures) = host::memory() else { return Ok(()) };
    let wanted = ByteSize(plan.segment.0.saturating_add(plan.local_buffer.0));
    if wanted.0 > figures.total {
        return Err(Failure::host(format!(
            "there is no room for {} in this host's memory of {}",
            what(plan, wanted),
            ByteSize(figures.total)
        ))
        .tried(format!("{}, {}", plan.segment_origin, plan.local_buffer_origin))
        .found("MemTotal of /proc/meminfo".to_owned())
        .next(match (plan.segment.0, plan.local_buffer.0) {
            (_, buffer) if buffer > figures.total => "lower --local-buffer-size",
            (segment, buffer) if buffer == 0 || segment > figures.total => "lower --segment-size",
            _ => "lower --segment-size or --local-buffer-size",
        }));
    }
    if wanted.0 > figures.available {
        tracing::warn!(
            "there is less memory free now ({1}) than {0} may take; when it runs out, the system kills a process",
            what(plan, wanted),
            ByteSize(figures.available)
        );
    }
    Ok(())
}

fn what(plan: &NodePlan, wanted: ByteSize) -> String {
    match plan.local_buffer.0 {
        0 => format!("a segment of {wanted}"),
        _ => format!("a segment of {} and a local buffer of {} (in all {wanted})", plan.segment, plan.local_buffer),
    }
}

/// Why a node did not start, for the user.
pub(crate) fn failure(plan: &NodePlan, error: NodeError) -> Failure {
    match error {
        NodeError::Name(_) | NodeError::LoopbackName { .. } => Failure::usage("this node has no usable name")
            .tried(format!("--local-hostname {}", plan.local_hostname))
            .found(error.to_string())
            .next("give --local-hostname a name or address that other hosts can call"),
        NodeError::Segment(error) => memory_failure(plan, &error, Block::Segment),
        NodeError::LocalBuffer(error) => memory_failure(plan, &error, Block::LocalBuffer),
        NodeError::Engine(error) => engine_failure(plan, &error),
        NodeError::Master(error) => master_failure(plan, &error),
        NodeError::Stopped => Failure::no(error.to_string()),
    }
}

/// A stretch of memory that a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Segment,
    LocalBuffer,
}

impl Block {
    /// The flag that sets its size.
    fn flag(self) -> &'static str {
        match self {
            Block::Segment => "--segment-size",
            Block::LocalBuffer => "--local-buffer-size",
        }
    }
}

fn memory_failure(plan: &NodePlan, error: &MemoryError, block: Block) -> Failure {
    let flag = block.flag();
    let failure = match error {
        MemoryError::Empty | MemoryError::SegmentTooSmall { .. } | MemoryError::TooLarge { .. } => {
            Failure::usage(error.to_string()).next(format!("give another {flag}"))
        }
        MemoryError::LargerThanHost { .. } => Failure::host(error.to_string()).next(format!("lower {flag}")),
        MemoryError::NoSuchPage { page, path, .. } => {
            Failure::host(format!("this kernel has no huge pages of {}", ByteSize(page.bytes())))
                .found(format!("no {}", path.display()))
                .next("choose another MC_STORE_HUGEPAGE_SIZE, or unset MC_STORE_USE_HUGEPAGE")
        }
        MemoryError::NotEnoughHugePages { page, available, total, .. } => {
            let pages = |size: ByteSize| size.0.div_ceil(page.bytes());
            let (buffer, segment) = (pages(plan.local_buffer), pages(plan.segment));
            // The buffer comes first: when the segment does not fit any more, it has its pages.
            let free = if block == Block::Segment { available + buffer } else { *available };
            let wanted = buffer + segment;
            let file = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page.bytes() >> 10);
            let of = match (segment, buffer) {
                (_, 0) => "for the segment".to_owned(),
                (0, _) => "for the local buffer".to_owned(),
                _ => format!("in all ({segment} for the segment, {buffer} for the local buffer)"),
            };
            Failure::host(format!(
                "{wanted} huge pages of {} are needed {of}, but {free} are available",
                ByteSize(page.bytes())
            ))
            .found(error.to_string())
            .next(format!(
                "reserve them (echo {} > {file}), or unset MC_STORE_USE_HUGEPAGE",
                total + wanted.saturating_sub(free)
            ))
        }
        MemoryError::Refused { .. } => {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            Failure::host(error.to_string())
                .found(cause)
                .next(format!("lower {flag}, or raise the limits of this process"))
        }
    };
    failure.tried(match block {
        Block::Segment if plan.local_buffer.0 == 0 => plan.segment_origin.clone(),
        Block::LocalBuffer if plan.segment.0 == 0 => plan.local_buffer_origin.clone(),
        _ => format!("{}, {}", plan.segment_origin, plan.local_buffer_origin),
    })
}

fn engine_failure(plan: &NodePlan, error: &TransferError) -> Failure {
    if let Some(failure) = transport::failure(error, &plan.transport.origin) {
        return failure;
    }
    let cause = chain(error);
    match error {
        TransferError::Metadata(inner) if inner.is_retryable() => {
            let (within, longer) = match plan.max_wait {
                Duration::ZERO => (String::new(), ""),
                wait => (format!(" within {}", show_duration(wait)), "; or wait longer with --max-wait-time"),
            };
            let start = match inner.as_ref() {
                MetadataError::Timeout { .. } => "it may be stuck: see what holds it up, or start it again",
                _ => "start it",
            };
            Failure::unreachable(format!("cannot use the metadata service {}{within}", plan.metadata))
                .found(cause)
                .next(format!(
                    "{start} (mcctl serve metadata, or --enable-http-metadata-server of the master), or give its \
                     --metadata-server{longer}"
                ))
        }
        TransferError::Metadata(_)
        | TransferError::Name { .. }
        | TransferError::NameTaken { .. }
        | TransferError::Protocol { .. } => Failure::usage("the transfer engine cannot start")
            .tried(format!("name {} in {}", plan.local_hostname, plan.metadata))
            .found(cause)
            .next("give another --local-hostname or --metadata-server"),
        TransferError::NoPort { first, last, source, .. } if first == last => {
            let origin = format!("MC_LEGACY_RPC_PORT_BINDING with the name {}", plan.local_hostname);
            let at = HostPort::new(HANDSHAKE_HOST, *first);
            Listen { what: HANDSHAKE, at, host_origin: origin.clone(), origin }.failure(source)
        }
        _ => Failure::host("the transfer engine cannot start")
            .tried(format!("name {} in {}", plan.local_hostname, plan.metadata))
            .found(cause)
            .next("see MC_MIN_RPC_PORT, MC_MAX_RPC_PORT and MC_TCP_BIND_ADDRESS"),
    }
}

fn master_failure(plan: &NodePlan, error: &StoreError) -> Failure {
    let tried = format!("call the master at {} ({})", plan.master, plan.master_origin);
    match error {
        StoreError::Call(CallError::Remote { .. } | CallError::Decode(_)) | StoreError::Version { .. } => {
            Failure::unreachable(format!("{} is no Mooncake master that this node can use", plan.master))
                .tried(tried)
                .found(error.to_string())
                .next("give the RPC address of a master of release 0.3.13")
        }
        StoreError::Call(call) => {
            let cause = match call {
                CallError::Connect { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            let (within, longer) = match plan.max_wait {
                Duration::ZERO => (String::new(), ""),
                wait => (format!(" within {}", show_duration(wait)), ", or wait longer with --max-wait-time"),
            };
            Failure::unreachable(format!("cannot reach the master at {}{within}", plan.master))
                .tried(tried)
                .found(cause)
                .next(format!("start the master (mcctl serve master), give the right --master{longer}"))
        }
        _ => Failure::no(format!("the master at {} does not take this node", plan.master))
            .tried(tried)
            .found(chain(error)),
    }
}

/// An error and what caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(source) = inner {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        inner = source.source();
    }
    text
}

/// A store that is there once its node has started.
#[derive(Default)]
struct Later(OnceLock<NodeStore<RealEnv>>);

impl Later {
    fn ready(&self) -> Result<&NodeStore<RealEnv>, Refusal> {
        self.0.get().ok_or_else(|| Refusal {
            code: ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS,
            reason: "the node is still starting".to_owned(),
        })
    }
}

impl ObjectStore for Later {
    async fn put(&self, key: ObjectKey, value: Bytes) -> Result<(), Refusal> {
        self.ready()?.put(key, value).await
    }

    async fn get(&self, key: ObjectKey, room: Room) -> Result<(Bytes, Held), Refusal> {
        self.ready()?.get(key, room).await
    }

    async fn exists(&self, key: ObjectKey) -> Result<bool, Refusal> {
        self.ready()?.exists(key).await
    }

    async fn remove(&self, key: ObjectKey) -> Result<(), Refusal> {
        self.ready()?.remove(key).await
    }

    async fn remove_all(&self) -> Result<u64, Refusal> {
        self.ready()?.remove_all().await
    }

    async fn mount(&self, bytes: u64) -> Result<(SegmentId, u64), Refusal> {
        self.ready()?.mount(bytes).await
    }

    async fn unmount(&self, segment: SegmentId, grace: Duration) -> Result<(), Refusal> {
        self.ready()?.unmount(segment, grace).await
    }

    fn health(&self) -> NodeHealth {
        self.0.get().map_or(NodeHealth::NotInitialized, ObjectStore::health)
    }

    fn figures(&self) -> NodeFigures {
        self.0.get().map_or_else(NodeFigures::default, ObjectStore::figures)
    }

    fn more_metrics(&self) -> String {
        exposition::process()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sys::pages::HugePage;

    fn plan(segment: u64, local_buffer: u64) -> NodePlan {
        NodePlan {
            master: HostPort::new("127.0.0.1", 1),
            master_origin: String::new(),
            metadata: MetadataUri::P2p,
            local_hostname: "localhost".to_owned(),
            segment: ByteSize(segment),
            segment_origin: "--global-segment-size".to_owned(),
            local_buffer: ByteSize(local_buffer),
            local_buffer_origin: "--local-buffer-size".to_owned(),
            transport: Transport::tcp(),
            announce_host: None,
            max_wait: Duration::ZERO,
            waited: Duration::ZERO,
            metrics: None,
        }
    }

    #[test]
    fn the_time_that_names_took_is_not_waited_again() {
        let left = |waited| {
            let seconds = Duration::from_secs;
            config(&NodePlan { max_wait: seconds(10), waited: seconds(waited), ..plan(0, 0) }).0.max_wait
        };
        assert_eq!([left(0), left(3), left(11)].map(|left| left.as_secs()), [10, 7, 0]);
    }

    #[test]
    fn huge_pages_are_counted_for_segment_and_buffer_together() {
        let short = |wanted, available, total| MemoryError::NotEnoughHugePages {
            page: HugePage::Mib2,
            wanted,
            available,
            total,
            free: available,
            reserved: 0,
        };
        let plan = plan(64 << 20, 5 << 20);
        let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        // Ten pages, of which two are free: the buffer's three do not fit.
        let failure = failure(&plan, NodeError::LocalBuffer(short(3, 2, 10)));
        assert_eq!(
            failure.what,
            "35 huge pages of 2 MiB are needed in all (32 for the segment, 3 for the local buffer), but 2 are available"
        );
        let next = format!("reserve them (echo 43 > {file}), or unset MC_STORE_USE_HUGEPAGE");
        assert_eq!((failure.exit, failure.next), (crate::commands::error::Exit::Host, Some(next)));
        // Ten free ones: the buffer has its three by now.
        let failure = super::failure(&plan, NodeError::Segment(short(32, 7, 10)));
        assert!(failure.what.ends_with(", but 10 are available"), "{failure}");
        assert!(failure.next.is_some_and(|next| next.contains("echo 35 >")));
    }

    #[test]
    fn the_flag_of_the_memory_that_does_not_fit_is_named() {
        let large = || MemoryError::LargerThanHost { wanted: 9, total: 8, limit: "a test" };
        let next = |error| failure(&plan(1, 9), error).next.expect("a hint");
        assert_eq!(next(NodeError::LocalBuffer(large())), "lower --local-buffer-size");
        assert_eq!(next(NodeError::Segment(large())), "lower --segment-size");
    }
}
