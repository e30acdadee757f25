//! `setup`: starts the client.

use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use mcctl_master::engine::election::{self, EtcdElection, LeaderSubscription};
use mcctl_store::engine::base::{ByteSize, ErrorCode, HostPort};
use mcctl_store::engine::env::{RealEnv, deadline};
use mcctl_store::engine::etcd::{EtcdClient, EtcdOptions};
use mcctl_store::engine::http::HttpAccess;
use mcctl_store::engine::rpc::ServerAddress;
use mcctl_store::engine::store::client_metrics::ClientMetrics;
use mcctl_store::engine::store::{ClientConfig, Node, NodeConfig, StoreClient, client_http};
use mcctl_store::engine::sys::pages::SEGMENT_BYTES_MIN;
use mcctl_store::engine::transfer::{TransferProtocol, TransportOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::objects::INVALID_PARAMS;
use crate::session::{RunningNode, Session, background};
use crate::setup_arguments::{SetupArguments, arguments_of};
use crate::store::{MooncakeDistributedStore, end};

/// Default for how long to wait for a master that does not respond. Upstream's client tries for about 90 s.
const WAIT: Duration = Duration::from_secs(60);
/// Timeout of requests to etcd.
const ETCD_LIMIT: Duration = Duration::from_secs(2);

#[pymethods]
impl MooncakeDistributedStore {
    /// Connects to the master, and contributes `global_segment_size` bytes of memory to the store; 0 for none. Returns 0 or a negative code.
    /// The reason for a failure is logged.
    ///
    /// The arguments are those of `mooncake.store`: local_hostname, metadata_server (a URL, or P2PHANDSHAKE), global_segment_size and
    /// local_buffer_size in bytes, protocol (tcp or rdma), rdma_devices (names separated by commas; empty for all), master_server_addr
    /// (HOST:PORT, or etcd://HOST:PORT;HOST:PORT for several masters), engine, enable_ssd_offload, ssd_offload_path, tenant_id,
    /// enable_client_http_server and client_http_port. The only argument may also be a dictionary with these keys, whose sizes may be text
    /// such as "4gb". `engine` and the disk arguments have no effect.
    #[pyo3(signature = (*args, **kwargs))]
    fn setup(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<i32> {
        let arguments = match arguments_of(args, kwargs)? {
            Ok(arguments) => arguments,
            Err(why) => {
                tracing::error!("{why}");
                return Ok(INVALID_PARAMS);
            }
        };
        let (started, before) = py.detach(|| {
            let before = self.replace(None);
            if let Some(before) = before.as_ref().filter(|before| before.is_of_this_process()) {
                before.stop();
            }
            (start(arguments), before)
        });
        end(py, before);
        Ok(match started {
            Ok(session) => {
                // Another thread may have called this method, too.
                end(py, self.replace(Some(session)));
                0
            }
            Err(error) => {
                tracing::error!(code = error.code().0, "setup failed: {error}");
                error.code().0
            }
        })
    }
}

/// Why the client was not started.
#[derive(Debug)]
enum SetupError {
    /// An argument is not valid.
    Argument(String),
    /// The master, etcd or this host does not allow it.
    Start(String),
}

impl SetupError {
    fn argument(name: &str, error: impl Display) -> SetupError {
        SetupError::Argument(format!("{name}: {error}"))
    }

    fn code(&self) -> ErrorCode {
        match self {
            SetupError::Argument(_) => ErrorCode::INVALID_PARAMS,
            SetupError::Start(_) => ErrorCode::INTERNAL_ERROR,
        }
    }
}

impl Display for SetupError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let (SetupError::Argument(why) | SetupError::Start(why)) = self;
        f.write_str(why)
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
    let metrics = is_metrics_on().then(|| Arc::new(ClientMetrics::new(variable("MC_STORE_CLUSTER_ID").as_deref())));
    let running = runtime.block_on(start_node(&arguments, metrics.clone()))?;
    Ok(Session::new(runtime, running, metrics))
}

async fn start_node(
    arguments: &SetupArguments,
    metrics: Option<Arc<ClientMetrics>>,
) -> Result<RunningNode, SetupError> {
    let env = RealEnv::new();
    let began = tokio::time::Instant::now();
    let wait =
        variable("MCCTL_SETUP_WAIT_SECONDS").and_then(|text| text.parse().ok()).map_or(WAIT, Duration::from_secs);
    let protocol: TransferProtocol = arguments
        .protocol
        .to_ascii_lowercase()
        .parse()
        .map_err(|error| SetupError::Start(format!("protocol: {error}")))?;
    let (master, leader) = find_master(&arguments.master, wait, &env).await?;
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
    if let Some(limit) = variable("MC_TRANSFER_TIMEOUT").and_then(|text| text.parse().ok()) {
        config.transfer_deadline = Duration::from_secs(limit);
    }
    if let Some(limit) = variable("MC_RPC_TIMEOUT_MS").and_then(|text| text.parse().ok()) {
        config.timeouts.call = Duration::from_millis(limit);
    }
    config.wait_at_most(wait, began.elapsed());
    let segment_bytes = arguments.segment_bytes;
    if segment_bytes > 0 && segment_bytes < SEGMENT_BYTES_MIN && config.memory.huge.is_none() {
        let why = format!("{segment_bytes} bytes; the minimum is {SEGMENT_BYTES_MIN}");
        return Err(SetupError::argument("global_segment_size", why));
    }
    // Values are sent from where they lie, so no local buffer is needed.
    tracing::debug!(bytes = arguments.buffer_bytes, "local_buffer_size has no effect");
    let node = Node::start(NodeConfig { client: config, segment_bytes: ByteSize(segment_bytes) }, env.clone());
    let node = node.await.map_err(|error| SetupError::Start(error.to_string()))?;
    let http = match arguments.http_port {
        None => None,
        Some(port) => {
            let (at, store) = (HostPort::new("0.0.0.0", port), Arc::new(node.store()));
            match client_http::start(env, &at, HttpAccess::default(), store, metrics).await {
                Ok(http) => Some(http),
                Err(error) => {
                    node.stop().await;
                    return Err(SetupError::Start(format!("cannot start the client's HTTP server: {error}")));
                }
            }
        }
    };
    Ok(RunningNode { node, http, leader })
}

/// Returns the master's address, and the subscription to the leader if there are several masters.
async fn find_master(
    address: &str,
    wait: Duration,
    env: &RealEnv,
) -> Result<(HostPort, Option<LeaderSubscription>), SetupError> {
    let named = |why: String| format!("master_server_addr '{address}': {why}");
    let (invalid, unreachable) = (|why| SetupError::Argument(named(why)), |why| SetupError::Start(named(why)));
    if !address.starts_with("etcd://") {
        return Ok((address.parse().map_err(|error| invalid(format!("{error}")))?, None));
    }
    let options = EtcdOptions::parse(address, ETCD_LIMIT).map_err(|error| invalid(error.to_string()))?;
    let client = EtcdClient::new(options).map_err(|error| unreachable(error.to_string()))?;
    let cluster = variable("MC_STORE_CLUSTER_ID").unwrap_or_else(|| "mooncake_cluster".to_owned());
    let election = EtcdElection::new(client, election::cluster_name(&cluster));
    let followed = deadline(env, wait, election::follow(env.clone(), election)).await;
    let followed = followed.map_err(|_| unreachable("etcd does not respond".to_owned()))?;
    let followed = followed.map_err(|error| unreachable(error.to_string()))?;
    let leading = ServerAddress::Leader(followed.leader.clone());
    match deadline(env, wait, leading.leading()).await {
        Ok(at) => Ok((at, Some(followed))),
        Err(_) => Err(unreachable(format!("no master leads the cluster {cluster}"))),
    }
}

/// Returns an environment variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Whether `MC_STORE_CLIENT_METRIC` leaves the metrics on, which is the default.
fn is_metrics_on() -> bool {
    variable("MC_STORE_CLIENT_METRIC")
        .is_none_or(|text| !matches!(&*text.to_ascii_lowercase(), "0" | "false" | "no" | "off"))
}
