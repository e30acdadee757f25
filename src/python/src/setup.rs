//! `setup`: starts the client.

use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use mcctl_base::{ByteSize, ErrorCode, HostPort};
use mcctl_election::{EtcdElection, LeaderSubscription};
use mcctl_net::etcd::{EtcdClient, EtcdOptions};
use mcctl_net::http::{HttpAccess, HttpServer};
use mcctl_net::rpc::ServerAddress;
use mcctl_store::client_metrics::ClientMetrics;
use mcctl_store::{ClientConfig, Node, NodeConfig, StoreClient, client_http};
use mcctl_sys::env::{Env, RealEnv, deadline};
use mcctl_sys::pages::SEGMENT_BYTES_MIN;
use mcctl_transfer::{TransferProtocol, TransportOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::with_causes;
use crate::interpreter::{detached, interruptible};
use crate::objects::INVALID_PARAMS;
use crate::session::{RunningNode, Session, background};
use crate::setup_arguments::{SetupArguments, arguments_of};
use crate::setup_variables::SetupVariables;
use crate::store::{MooncakeDistributedStore, end};

/// Timeout of requests to etcd.
const ETCD_LIMIT: Duration = Duration::from_secs(2);
/// Pause between attempts to reach etcd.
const ETCD_PAUSE: Duration = Duration::from_millis(500);
/// Number of ports to try for the client's HTTP server, if an environment variable enables it: one
/// for each process on a host.
const HTTP_PORTS: u16 = 64;

#[pymethods]
impl MooncakeDistributedStore {
    /// Connects to the master, and contributes `global_segment_size` bytes of memory to the store;
    /// 0 for none. Returns 0 or a negative code. The reason for a failure is logged. A signal whose
    /// handler raises an exception, such as Ctrl-C, ends the wait for the master.
    ///
    /// The arguments are those of `mooncake.store`: local_hostname, metadata_server (a URL, several
    /// http URLs of one service separated by commas, or P2PHANDSHAKE), global_segment_size and
    /// local_buffer_size in bytes, protocol (tcp or rdma), rdma_devices (names separated by commas;
    /// empty for all), master_server_addr (HOST:PORT, or etcd://HOST:PORT;HOST:PORT for several
    /// masters), engine, enable_ssd_offload, ssd_offload_path, tenant_id, enable_client_http_server
    /// and client_http_port. The only argument may also be a dictionary with these keys, whose
    /// sizes may be text such as "4gb". `engine` and the disk arguments have no effect.
    #[pyo3(signature = (*args, **kwargs))]
    fn setup(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<i32> {
        let arguments = match arguments_of(args, kwargs)? {
            Ok(arguments) => arguments,
            Err(why) => {
                tracing::error!("{why}");
                return Ok(INVALID_PARAMS);
            }
        };
        let (started, before) = detached(py, || {
            let before = self.replace(None);
            if let Some(before) = before.as_ref().filter(|before| before.is_of_this_process()) {
                before.stop();
            }
            (start(arguments), before)
        });
        end(py, before);
        Ok(match started {
            Ok(session) => {
                // Another thread may have called this method at the same time.
                end(py, self.replace(Some(session)));
                0
            }
            Err(SetupError::Interrupted(exception)) => return Err(exception),
            Err(error) => {
                tracing::error!(code = error.code().0, "setup failed: {error}");
                error.code().0
            }
        })
    }
}

/// The errors with which a client is not started.
#[derive(Debug)]
enum SetupError {
    /// An argument is not valid.
    Argument(String),
    /// The master, etcd or this host does not allow it.
    Start(String),
    /// The handler of a signal raised an exception.
    Interrupted(PyErr),
}

impl SetupError {
    fn argument(name: &str, error: impl Display) -> SetupError {
        SetupError::Argument(format!("{name}: {error}"))
    }

    fn code(&self) -> ErrorCode {
        match self {
            SetupError::Argument(_) => ErrorCode::INVALID_PARAMS,
            SetupError::Start(_) | SetupError::Interrupted(_) => ErrorCode::INTERNAL_ERROR,
        }
    }
}

impl Display for SetupError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            SetupError::Argument(why) | SetupError::Start(why) => f.write_str(why),
            SetupError::Interrupted(exception) => exception.fmt(f),
        }
    }
}

/// Starts a client that contributes `segment_bytes` of memory.
fn start(arguments: SetupArguments) -> Result<Session, SetupError> {
    let runtime = background().map_err(|error| SetupError::Start(format!("cannot create a runtime: {error}")))?;
    if arguments.has_engine {
        tracing::warn!("the transfer engine of another library cannot be shared; this client uses its own");
    }
    if arguments.has_ssd_offload {
        tracing::warn!("enable_ssd_offload has no effect: this client has no segment on a disk");
    }
    let (variables, warnings) = SetupVariables::read(&|name| std::env::var(name).ok());
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let metrics = variables.has_metrics.then(|| Arc::new(ClientMetrics::new(variables.cluster.as_deref())));
    let started = start_node(&arguments, &variables, metrics.clone());
    match runtime.block_on(interruptible(&RealEnv::new(), started)) {
        Ok(running) => Ok(Session::new(runtime, running?, metrics)),
        Err(exception) => {
            // Dropping the runtime would wait for its blocking work.
            runtime.shutdown_background();
            Err(SetupError::Interrupted(exception))
        }
    }
}

async fn start_node(
    arguments: &SetupArguments,
    variables: &SetupVariables,
    metrics: Option<Arc<ClientMetrics>>,
) -> Result<RunningNode, SetupError> {
    let env = RealEnv::new();
    let began = env.now();
    let protocol = arguments.protocol.to_ascii_lowercase().parse::<TransferProtocol>();
    let protocol = protocol.map_err(|error| SetupError::Start(format!("protocol: {error}")))?;
    if arguments.local_hostname.is_empty() {
        return Err(SetupError::argument("local_hostname", "it is empty; peers connect to this host name"));
    }
    let (master, leader) = find_master(&arguments.master, variables, &env).await?;
    let followed = leader.as_ref().map(|leader| ServerAddress::Leader(leader.leader.clone()));
    let mut config: ClientConfig = StoreClient::builder(master)
        .leader(followed)
        .metadata(arguments.metadata_server.parse().map_err(|error| SetupError::argument("metadata_server", error))?)
        .local_hostname(&*arguments.local_hostname)
        .transport(protocol, TransportOptions::parse(&arguments.devices))
        .local_buffer(ByteSize(0))
        .config();
    config.tenant = if arguments.tenant.is_empty() { "default".to_owned() } else { arguments.tenant.clone() };
    config.metrics = metrics.clone();
    for warning in config.apply_variables(&|name| std::env::var(name).ok()) {
        tracing::warn!("{warning}");
    }
    config.transfer_deadline = variables.transfer_limit;
    config.timeouts.call = variables.call_limit;
    let shared_memory = &config.engine.settings.shared_memory;
    if let (Err(error), Some(directory)) = (shared_memory.check_directory(), &shared_memory.directory) {
        tracing::warn!(
            "MCCTL_SHARED_MEMORY_SOCKET: cannot use shared memory sockets in {}: {error}; nodes on this host are reached over {}",
            directory.display(),
            arguments.protocol
        );
    }
    config.wait_at_most(variables.wait, env.now().since(began));
    let segment_bytes = arguments.segment_bytes;
    if segment_bytes > 0 && segment_bytes < SEGMENT_BYTES_MIN && config.memory.huge.is_none() {
        let why = format!("{segment_bytes} bytes; the minimum is {SEGMENT_BYTES_MIN}");
        return Err(SetupError::argument("global_segment_size", why));
    }
    // Values are sent from where they lie, so no local buffer is needed.
    tracing::debug!(bytes = arguments.buffer_bytes, "local_buffer_size has no effect");
    let node = Node::start(NodeConfig { client: config, segment_bytes: ByteSize(segment_bytes) }, env.clone());
    let node = node.await.map_err(|error| SetupError::Start(with_causes(&error)))?;
    match start_http(arguments, variables, &node, metrics, &env).await {
        Ok(http) => Ok(RunningNode { node, http, leader }),
        Err(error) => {
            node.stop().await;
            Err(error)
        }
    }
}

/// Starts the client's HTTP server, if an argument or a variable enables it.
async fn start_http(
    arguments: &SetupArguments,
    variables: &SetupVariables,
    node: &Node<RealEnv>,
    metrics: Option<Arc<ClientMetrics>>,
    env: &RealEnv,
) -> Result<Option<HttpServer>, SetupError> {
    let (what, ports) = match (arguments.http_port, variables.http_port) {
        (Some(port), _) => ("client_http_port", port..=port),
        // The processes of an engine have the same environment.
        (None, Some(port)) => ("MCCTL_CLIENT_HTTP_PORT", port..=port.saturating_add(HTTP_PORTS - 1)),
        (None, None) => return Ok(None),
    };
    let store = Arc::new(node.store());
    let mut last = None;
    for port in ports {
        let at = HostPort::new("0.0.0.0", port);
        match client_http::start(env.clone(), &at, HttpAccess::default(), Arc::clone(&store), metrics.clone()).await {
            Ok(server) => {
                tracing::info!("metrics of this client: http://{}/metrics", server.at());
                return Ok(Some(server));
            }
            Err(error) => last = Some(error),
        }
    }
    let why = last.map(|error| with_causes(&error)).unwrap_or_default();
    Err(SetupError::Start(format!("{what}: {why}")))
}

/// Returns the master's address, and the subscription to the leader if there are several masters.
async fn find_master(
    address: &str,
    variables: &SetupVariables,
    env: &RealEnv,
) -> Result<(HostPort, Option<LeaderSubscription>), SetupError> {
    let named = |why: String| format!("master_server_addr '{address}': {why}");
    let (invalid, unreachable) = (|why| SetupError::Argument(named(why)), |why| SetupError::Start(named(why)));
    if !address.starts_with("etcd://") {
        return Ok((address.parse().map_err(|error| invalid(format!("{error}")))?, None));
    }
    let options = EtcdOptions::parse(address, ETCD_LIMIT).map_err(|error| invalid(error.to_string()))?;
    let cluster = variables.cluster.as_deref().unwrap_or("mooncake_cluster");
    let until = env.now() + variables.wait;
    let followed = loop {
        let client = EtcdClient::new(options.clone()).map_err(|error| unreachable(error.to_string()))?;
        let election = EtcdElection::new(client, mcctl_election::cluster_name(cluster));
        match mcctl_election::follow(env.clone(), election).await {
            Ok(followed) => break followed,
            Err(error) if env.now() >= until => return Err(unreachable(with_causes(&error))),
            Err(_) => env.sleep(ETCD_PAUSE).await,
        }
    };
    let leading = ServerAddress::Leader(followed.leader.clone());
    match deadline(env, until.since(env.now()), leading.leading()).await {
        Ok(at) => Ok((at, Some(followed))),
        Err(_) => Err(unreachable(format!("no master leads the cluster {cluster}"))),
    }
}
