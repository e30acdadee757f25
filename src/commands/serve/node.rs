//! A store node with its REST port in this process, and its startup failures.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::commands::args::show_duration;
use crate::commands::error::Failure;
use crate::commands::listen::{ListenAddress, check_collisions};
use crate::commands::runtime;
use crate::commands::serve::exposition;
use crate::commands::transport::{self, TransportChoice};
use crate::engine::base::addr::host_is_loopback;
use crate::engine::base::text::masked_address;
use crate::engine::base::{ByteSize, ErrorCode, HostPort, ObjectKey, SegmentId};
use crate::engine::env::RealEnv;
use crate::engine::http::HttpServer;
use crate::engine::metadata::{MetadataError, MetadataUri, ParseMetadataUriError};
use crate::engine::rpc::{CallError, Timeouts};
use crate::engine::store::client_metrics::ClientMetrics;
use crate::engine::store::rest::{self, NodeHealth, NodeMetrics, ObjectStore, ReadBudget, ReadPermit, StoreRefusal};
use crate::engine::store::{ClientConfig, Node, NodeConfig, NodeError, NodeStore, StoreError, client_http, name};
use crate::engine::sys::host;
use crate::engine::sys::pages::{MemoryError, MemoryPolicy};
use crate::engine::transfer::{TransferConfig, TransferError, TransferSettings};

/// A node's configuration, with the origins of its values.
#[derive(Clone, Debug)]
pub struct NodePlan {
    pub master: HostPort,
    pub master_origin: String,
    /// The service in which nodes look up segments.
    pub metadata: MetadataUri,
    /// Host, with or without a port, at which other nodes reach this node.
    pub local_hostname: String,
    /// Memory that the node contributes to the store.
    pub segment: ByteSize,
    pub segment_origin: String,
    /// Memory for the node's own puts and gets.
    pub local_buffer: ByteSize,
    pub local_buffer_origin: String,
    pub transport: TransportChoice,
    /// The address that the transfer engine announces; `None` means `MC_TCP_BIND_ADDRESS` or the first LAN address.
    pub announce_host: Option<String>,
    /// Time limit for the metadata service and the master to become reachable.
    pub max_wait: Duration,
    /// Portion of `max_wait` already spent on name resolution.
    pub waited: Duration,
    /// Metrics for the node's own client, if enabled.
    pub metrics: Option<Arc<ClientMetrics>>,
}

/// A node's HTTP addresses.
#[derive(Clone, Debug)]
pub struct NodePorts {
    pub rest: ListenAddress,
    /// Address of the client HTTP server, if it is enabled.
    pub client_http: Option<ListenAddress>,
}

/// Parses `text`, a value from `origin`, as a metadata mode. In an error, a password is masked.
///
/// # Errors
/// The string is neither P2PHANDSHAKE nor an HTTP URL.
pub fn metadata(text: &str, origin: String) -> Result<MetadataUri, Failure> {
    text.parse().map_err(|error: ParseMetadataUriError| {
        Failure::usage("unsupported metadata service")
            .tried(origin.replace(text, &masked_address(text)))
            .found(error.to_string())
            .next("use P2PHANDSHAKE or http://HOST:PORT/metadata")
    })
}

/// The name by which other hosts reach the node. This is `given` if set, otherwise localhost if the master is on this host, or the
/// local address on the route to the master.
///
/// # Errors
/// `given` is invalid, other hosts cannot reach it, or this host has no usable address. If the master's name cannot be resolved,
/// the failure is [unreachable](crate::commands::error::Exit::Unreachable).
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
            Failure::unreachable(format!("cannot resolve the host name of the master at {master}"))
                .tried(format!("resolve {}", master.host))
                .found(error.to_string())
                .next("correct --master, or fix name resolution on this host")
        })?;
        let derived = towards.filter(|address| !address.is_loopback() && !address.is_unspecified());
        return match derived {
            Some(address @ IpAddr::V6(_)) => Ok(format!("[{address}]")),
            Some(address) => Ok(address.to_string()),
            None => Err(Failure::usage("this node has no address that other hosts can reach")
                .tried(format!("determine the local address used to reach the master at {master}"))
                .next("set --local-hostname to a name or address of this host")),
        };
    };
    let (host, _) = HostPort::split(given).map_err(|error| {
        Failure::usage(format!("'{given}' is not a valid host name or address"))
            .tried(origin.clone())
            .found(error.to_string())
    })?;
    let is_unspecified = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    let is_local_only = host_is_loopback(&host) && !master.is_loopback() && *metadata == MetadataUri::P2p;
    if is_unspecified || is_local_only {
        let reason = match is_unspecified {
            true => "an unspecified address is only valid for listening".to_owned(),
            false => format!(
                "with P2PHANDSHAKE, other nodes connect to this node by its name, and the master is on another host ({master})"
            ),
        };
        let usable = address_towards(master).ok().flatten();
        let usable = usable.map_or(String::new(), |address| format!(", e.g. {address}"));
        return Err(Failure::usage(format!("other hosts cannot reach this node at '{given}'"))
            .tried(origin)
            .found(reason)
            .next(format!(
                "set --local-hostname (or MOONCAKE_LOCAL_HOSTNAME) to an address that other hosts can reach{usable}"
            )));
    }
    Ok(given.to_owned())
}

/// A running node with its REST port.
pub struct RunningNode {
    pub node: Node<RealEnv>,
    rest: HttpServer,
    client_http: Option<HttpServer>,
}

impl RunningNode {
    /// Starts a node with `plan` and `ports`. The ports are bound first, so that a node whose port is in use never mounts a segment.
    /// Returns `None` if `stop` completes before the node has started; in this case, the node's records have been removed.
    ///
    /// # Errors
    /// A port cannot be bound, there is not enough memory, or the master or metadata service is unreachable. Nothing is left running.
    pub async fn start(
        plan: &NodePlan,
        ports: &NodePorts,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<RunningNode>, Failure> {
        check_memory(plan)?;
        let env = RealEnv::new();
        let pending = Arc::new(PendingStore::default());
        let rest = rest::start(env.clone(), &ports.rest.at, pending.clone()).await;
        let rest = rest.map_err(|error| ports.rest.failure(&error.source))?;
        let client_http = match &ports.client_http {
            None => None,
            Some(listen) => {
                let started = client_http::start(env.clone(), &listen.at, pending.clone(), plan.metrics.clone()).await;
                Some(started.map_err(|error| listen.failure(&error.source))?)
            }
        };
        // Use a separate task: the memory allocation blocks its thread, but signals must still be handled. Dropping this future drops
        // `cancel`, which ends the task.
        let (cancel, cancelled) = oneshot::channel::<()>();
        let cancelled = async move { cancelled.await.unwrap_or_default() };
        let (config, warnings) = config(plan);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let mut task = tokio::spawn(Node::start_unless(config, env, cancelled));
        let ended = tokio::select! {
            ended = &mut task => Some(ended),
            () = stop => None,
        };
        let Some(ended) = ended else {
            // The receiver no longer exists if startup has just completed.
            let _ = cancel.send(());
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
        // Only this statement sets the store.
        let _ = pending.0.set(node.store());
        Ok(Some(RunningNode { node, rest, client_http }))
    }

    /// Address of the REST port.
    pub fn rest_at(&self) -> &HostPort {
        self.rest.at()
    }

    /// Address of the client HTTP server, if it is enabled.
    pub fn client_http_at(&self) -> Option<&HostPort> {
        self.client_http.as_ref().map(HttpServer::at)
    }

    /// Stops the HTTP servers, then the node, which unmounts its segment.
    pub async fn stop(self) {
        self.rest.stop().await;
        stop_running(self.client_http).await;
        self.node.stop().await;
    }
}

async fn stop_running(running: Option<HttpServer>) {
    if let Some(running) = running {
        running.stop().await;
    }
}

/// The engine configuration from `plan` and the `MC_*` variables, and a warning for each variable that does not parse.
pub(crate) fn config(plan: &NodePlan) -> (NodeConfig, Vec<String>) {
    let env = |name: &str| std::env::var(name).ok();
    let (memory, mut warnings) = MemoryPolicy::from_env(&env);
    let (settings, more) = TransferSettings::from_env(&env);
    warnings.extend(more);
    let name_ports = name_ports(&env, &mut warnings);
    let mut client = ClientConfig::new(plan.master.clone());
    // The connection timeout does not exceed the maximum wait set by the operator.
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
            transport: plan.transport.rdma.clone(),
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

/// The name used for the handshake port in errors.
const HANDSHAKE: &str = "the transfer engine's handshake";
/// The address that the handshake port is bound to, for any node name.
const HANDSHAKE_HOST: &str = "0.0.0.0";

/// Checks that the HTTP ports differ from each other and from a fixed handshake port (`MC_LEGACY_RPC_PORT_BINDING`).
///
/// # Errors
/// Two ports are the same.
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
    listens.push(ListenAddress { what: HANDSHAKE, at, host_origin: origin.clone(), origin });
    check_collisions(&listens)
}

/// Minimum timeout for a connection attempt.
const CONNECT_MIN: Duration = Duration::from_millis(100);

/// The port range for node names, from upstream's variables.
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

/// Checks the segment and local buffer sizes against the host's memory. Exceeding the total is an error. Exceeding the available memory
/// is only a warning, because the kernel allocates pages on first use.
fn check_memory(plan: &NodePlan) -> Result<(), Failure> {
    let Some(figures) = host::memory() else { return Ok(()) };
    let needed = ByteSize(plan.segment.0.saturating_add(plan.local_buffer.0));
    if needed.0 > figures.total {
        return Err(Failure::host(format!(
            "{} exceeds this host's total memory of {}",
            describe_memory(plan, needed),
            ByteSize(figures.total)
        ))
        .tried(format!("{}, {}", plan.segment_origin, plan.local_buffer_origin))
        .found("MemTotal in /proc/meminfo".to_owned())
        .next(match (plan.segment.0, plan.local_buffer.0) {
            (_, buffer) if buffer > figures.total => "lower --local-buffer-size",
            (segment, buffer) if buffer == 0 || segment > figures.total => "lower --segment-size",
            _ => "lower --segment-size or --local-buffer-size",
        }));
    }
    if needed.0 > figures.available {
        tracing::warn!(
            "{} exceeds the available memory of {}; if memory runs out, the kernel kills a process",
            describe_memory(plan, needed),
            ByteSize(figures.available)
        );
    }
    Ok(())
}

fn describe_memory(plan: &NodePlan, total: ByteSize) -> String {
    match plan.local_buffer.0 {
        0 => format!("a segment of {total}"),
        _ => format!("a segment of {} and a local buffer of {} (total {total})", plan.segment, plan.local_buffer),
    }
}

/// The failure for `error`, which occurred while starting a node with `plan`.
pub(crate) fn failure(plan: &NodePlan, error: NodeError) -> Failure {
    match error {
        NodeError::Name(_) | NodeError::LoopbackName { .. } => Failure::usage("this node does not have a usable name")
            .tried(format!("--local-hostname {}", plan.local_hostname))
            .found(error.to_string())
            .next("set --local-hostname to a name or address that other hosts can reach"),
        NodeError::Segment(error) => memory_failure(plan, &error, MemoryBlock::Segment),
        NodeError::LocalBuffer(error) => memory_failure(plan, &error, MemoryBlock::LocalBuffer),
        NodeError::Engine(error) => engine_failure(plan, &error),
        NodeError::Master(error) => master_failure(plan, &error),
        NodeError::Stopped => Failure::no(error.to_string()),
    }
}

/// A memory block that a node allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryBlock {
    Segment,
    LocalBuffer,
}

impl MemoryBlock {
    /// The flag that sets the block's size.
    fn flag(self) -> &'static str {
        match self {
            MemoryBlock::Segment => "--segment-size",
            MemoryBlock::LocalBuffer => "--local-buffer-size",
        }
    }
}

fn memory_failure(plan: &NodePlan, error: &MemoryError, block: MemoryBlock) -> Failure {
    let flag = block.flag();
    let failure = match error {
        MemoryError::Empty | MemoryError::SegmentTooSmall { .. } | MemoryError::TooLarge { .. } => {
            Failure::usage(error.to_string()).next(format!("change {flag}"))
        }
        MemoryError::LargerThanHost { .. } => Failure::host(error.to_string()).next(format!("lower {flag}")),
        MemoryError::NoSuchPage { page, path, .. } => {
            Failure::host(format!("this kernel does not support {} huge pages", ByteSize(page.bytes())))
                .found(format!("{} does not exist", path.display()))
                .next("change MC_STORE_HUGEPAGE_SIZE, or unset MC_STORE_USE_HUGEPAGE")
        }
        MemoryError::NotEnoughHugePages { page, available, total, .. } => {
            let pages = |size: ByteSize| size.0.div_ceil(page.bytes());
            let (buffer, segment) = (pages(plan.local_buffer), pages(plan.segment));
            // The buffer is allocated first. If the segment does not fit, the buffer already has its pages.
            let free = if block == MemoryBlock::Segment { available + buffer } else { *available };
            let needed = buffer + segment;
            let file = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page.bytes() >> 10);
            let purpose = match (segment, buffer) {
                (_, 0) => "for the segment".to_owned(),
                (0, _) => "for the local buffer".to_owned(),
                _ => format!("({segment} for the segment, {buffer} for the local buffer)"),
            };
            Failure::host(format!("needs {needed} {} huge pages {purpose}; {free} available", ByteSize(page.bytes())))
                .found(error.to_string())
                .next(format!(
                    "reserve the pages (echo {} > {file}), or unset MC_STORE_USE_HUGEPAGE",
                    total + needed.saturating_sub(free)
                ))
        }
        MemoryError::Refused { .. } => {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            Failure::host(error.to_string()).found(cause).next(format!("lower {flag}, or raise this process's limits"))
        }
    };
    failure.tried(match block {
        MemoryBlock::Segment if plan.local_buffer.0 == 0 => plan.segment_origin.clone(),
        MemoryBlock::LocalBuffer if plan.segment.0 == 0 => plan.local_buffer_origin.clone(),
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
                wait => (format!(" within {}", show_duration(wait)), "; or set a longer --max-wait-time"),
            };
            let start = match inner.as_ref() {
                MetadataError::Timeout { .. } => "if it is hung, restart it",
                _ => "start it",
            };
            Failure::unreachable(format!("cannot reach the metadata service {}{within}", plan.metadata))
                .found(cause)
                .next(format!(
                    "{start} (mcctl serve metadata, or the master's --enable-http-metadata-server), or correct \
                     --metadata-server{longer}"
                ))
        }
        TransferError::Metadata(_)
        | TransferError::Name { .. }
        | TransferError::NameTaken { .. }
        | TransferError::Protocol { .. } => Failure::usage("the transfer engine cannot start")
            .tried(format!("use the name {} in {}", plan.local_hostname, plan.metadata))
            .found(cause)
            .next("change --local-hostname or --metadata-server"),
        TransferError::NoPort { first, last, source, .. } if first == last => {
            let origin = format!("MC_LEGACY_RPC_PORT_BINDING with the name {}", plan.local_hostname);
            let at = HostPort::new(HANDSHAKE_HOST, *first);
            ListenAddress { what: HANDSHAKE, at, host_origin: origin.clone(), origin }.failure(source)
        }
        _ => Failure::host("the transfer engine cannot start")
            .tried(format!("use the name {} in {}", plan.local_hostname, plan.metadata))
            .found(cause)
            .next("check MC_MIN_RPC_PORT, MC_MAX_RPC_PORT and MC_TCP_BIND_ADDRESS"),
    }
}

fn master_failure(plan: &NodePlan, error: &StoreError) -> Failure {
    let tried = format!("call the master at {} ({})", plan.master, plan.master_origin);
    match error {
        StoreError::Call(CallError::Remote { .. } | CallError::Decode(_)) | StoreError::Version { .. } => {
            Failure::unreachable(format!("{} is not a Mooncake 0.3.13 master", plan.master))
                .tried(tried)
                .found(error.to_string())
                .next("pass the RPC address of a Mooncake 0.3.13 master with --master")
        }
        StoreError::Call(call) => {
            let cause = match call {
                CallError::Connect { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            let (within, longer) = match plan.max_wait {
                Duration::ZERO => (String::new(), ""),
                wait => (format!(" within {}", show_duration(wait)), "; or set a longer --max-wait-time"),
            };
            Failure::unreachable(format!("cannot reach the master at {}{within}", plan.master))
                .tried(tried)
                .found(cause)
                .next(format!("start the master (mcctl serve master) or correct --master{longer}"))
        }
        _ => Failure::no(format!("the master at {} rejected this node", plan.master)).tried(tried).found(chain(error)),
    }
}

/// An error and its sources, separated by colons.
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

/// The store of a node that is still starting. REST requests are rejected until the store is set.
#[derive(Default)]
struct PendingStore(OnceLock<NodeStore<RealEnv>>);

impl PendingStore {
    fn ready(&self) -> Result<&NodeStore<RealEnv>, StoreRefusal> {
        self.0.get().ok_or_else(|| StoreRefusal {
            code: ErrorCode::UNAVAILABLE_IN_CURRENT_STATUS,
            reason: "the node is still starting".to_owned(),
        })
    }
}

impl ObjectStore for PendingStore {
    async fn put(&self, key: ObjectKey, value: Bytes) -> Result<(), StoreRefusal> {
        self.ready()?.put(key, value).await
    }

    async fn get(&self, key: ObjectKey, budget: ReadBudget) -> Result<(Bytes, ReadPermit), StoreRefusal> {
        self.ready()?.get(key, budget).await
    }

    async fn exists(&self, key: ObjectKey) -> Result<bool, StoreRefusal> {
        self.ready()?.exists(key).await
    }

    async fn remove(&self, key: ObjectKey) -> Result<(), StoreRefusal> {
        self.ready()?.remove(key).await
    }

    async fn remove_all(&self) -> Result<u64, StoreRefusal> {
        self.ready()?.remove_all().await
    }

    async fn mount(&self, bytes: u64) -> Result<(SegmentId, u64), StoreRefusal> {
        self.ready()?.mount(bytes).await
    }

    async fn unmount(&self, segment: SegmentId, grace: Duration) -> Result<(), StoreRefusal> {
        self.ready()?.unmount(segment, grace).await
    }

    fn health(&self) -> NodeHealth {
        self.0.get().map_or(NodeHealth::NotInitialized, ObjectStore::health)
    }

    fn metrics(&self) -> NodeMetrics {
        self.0.get().map_or_else(NodeMetrics::default, ObjectStore::metrics)
    }

    fn extra_metrics(&self) -> String {
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
            transport: TransportChoice::tcp(),
            announce_host: None,
            max_wait: Duration::ZERO,
            waited: Duration::ZERO,
            metrics: None,
        }
    }

    #[test]
    fn time_spent_resolving_shortens_the_wait() {
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
        assert!(
            ["35 2 MiB huge pages", "32 for", "3 for", "2 available"].iter().all(|part| failure.what.contains(part)),
            "{failure}"
        );
        assert_eq!(failure.exit, crate::commands::error::Exit::Host);
        assert!(failure.next.is_some_and(|next| next.contains(&format!("echo 43 > {file}"))));
        // Ten free pages: the buffer has already allocated its three.
        let failure = super::failure(&plan, NodeError::Segment(short(32, 7, 10)));
        assert!(failure.what.ends_with("10 available"), "{failure}");
        assert!(failure.next.is_some_and(|next| next.contains("echo 35 >")));
    }

    #[test]
    fn the_fix_names_the_flag_of_the_block_that_does_not_fit() {
        let large = || MemoryError::LargerThanHost { wanted: 9, total: 8, limit: "a test" };
        let next = |error| failure(&plan(1, 9), error).next.expect("a hint");
        assert!(next(NodeError::LocalBuffer(large())).contains("--local-buffer-size"));
        assert!(next(NodeError::Segment(large())).contains("--segment-size"));
    }
}
