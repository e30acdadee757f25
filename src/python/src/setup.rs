//! `setup`: the arguments, as positional arguments, keywords or a dictionary, and the start of the client.

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
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::objects::INVALID_PARAMS;
use crate::session::{RunningNode, Session, background};
use crate::store::{MooncakeDistributedStore, end};

/// The names of the arguments, in the order of the positional ones.
const NAMES: [&str; 13] = [
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "engine",
    "enable_ssd_offload",
    "ssd_offload_path",
    "tenant_id",
    "enable_client_http_server",
    "client_http_port",
];
/// Number of positional arguments without a default.
const REQUIRED: usize = 7;
/// A key of the dictionary that is not an argument.
const SOCKET_PATH: &str = "ipc_socket_path";
/// Sizes in bytes that upstream uses for a dictionary without them.
const DICTIONARY_SIZE: u64 = 16 << 20;
/// Default for how long to wait for a master that does not respond. Upstream's client tries for about 90 s.
const WAIT: Duration = Duration::from_secs(60);
/// Timeout of requests to etcd.
const ETCD_LIMIT: Duration = Duration::from_secs(2);
/// The port that upstream's client uses for its HTTP server.
const HTTP_PORT: u16 = 9300;

/// The arguments of `setup`.
#[derive(Debug)]
struct SetupArguments {
    local_hostname: String,
    metadata_server: String,
    segment_bytes: u64,
    buffer_bytes: u64,
    protocol: String,
    devices: String,
    master: String,
    has_engine: bool,
    has_ssd_offload: bool,
    tenant: String,
    /// The port of the client's HTTP server, if it is enabled.
    http_port: Option<u16>,
}

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
        let arguments = match named(args, kwargs)? {
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
            Err((code, why)) => {
                tracing::error!(code = code.0, "setup failed: {why}");
                code.0
            }
        })
    }
}

/// Returns the arguments. The inner error is a dictionary that is not valid.
fn named(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Result<SetupArguments, String>> {
    let py = args.py();
    let given = PyDict::new(py);
    let dictionary = match (args.len(), kwargs) {
        (1, None) => args.get_item(0)?.cast_into::<PyDict>().ok(),
        (0, Some(kwargs)) if kwargs.len() == 1 => match kwargs.get_item("config")? {
            Some(config) => Some(config.cast_into::<PyDict>()?),
            None => None,
        },
        _ => None,
    };
    if let Some(dictionary) = &dictionary {
        for (name, value) in dictionary {
            let name: String = name.extract()?;
            if !NAMES.contains(&&*name) && name != SOCKET_PATH {
                // The wheel's client ignores it without a message. LMCache passes keys of its own.
                tracing::warn!(key = name, "unknown key in the configuration; known keys: {}", NAMES.join(", "));
                continue;
            }
            given.set_item(name, value)?;
        }
    } else {
        if args.len() > NAMES.len() {
            return Err(PyTypeError::new_err(format!("setup() takes at most {} arguments", NAMES.len())));
        }
        for (name, value) in NAMES.iter().zip(args) {
            given.set_item(name, value)?;
        }
        for (name, value) in kwargs.into_iter().flatten() {
            let name: String = name.extract()?;
            if !NAMES.contains(&&*name) || given.contains(&name)? {
                return Err(PyTypeError::new_err(format!("setup() got an unexpected keyword argument '{name}'")));
            }
            given.set_item(name, value)?;
        }
        for name in &NAMES[..REQUIRED] {
            if !given.contains(name)? {
                return Err(PyTypeError::new_err(format!("setup() missing required argument '{name}'")));
            }
        }
    }
    let arguments = SetupArguments::from_dict(&given, dictionary.is_some());
    match arguments {
        Err(error) if dictionary.is_some() => Ok(Err(error.value(py).to_string())),
        arguments => arguments.map(Ok),
    }
}

impl SetupArguments {
    fn from_dict(given: &Bound<'_, PyDict>, is_dictionary: bool) -> PyResult<SetupArguments> {
        let text = |name: &str, default: &str| -> PyResult<String> {
            given.get_item(name)?.map_or(Ok(default.to_owned()), |value| value.extract())
        };
        let switch = |name: &str| -> PyResult<bool> {
            let Some(value) = given.get_item(name)? else { return Ok(false) };
            let as_text = |value: &Bound<'_, PyAny>| value.extract::<String>().ok();
            match as_text(&value).filter(|_| is_dictionary) {
                Some(text) => Ok(matches!(&*text.to_ascii_lowercase(), "1" | "true" | "yes" | "on")),
                None => value.extract(),
            }
        };
        let size = |name: &str| -> PyResult<u64> {
            let Some(value) = given.get_item(name)? else { return Ok(DICTIONARY_SIZE) };
            match value.extract::<String>().ok().filter(|_| is_dictionary) {
                Some(text) => text
                    .parse::<ByteSize>()
                    .map(|size| size.0)
                    .map_err(|error| PyValueError::new_err(format!("{name}: {error}"))),
                None => value.extract(),
            }
        };
        let port = || -> PyResult<u16> {
            let Some(value) = given.get_item("client_http_port")? else { return Ok(HTTP_PORT) };
            match value.extract::<String>().ok().filter(|_| is_dictionary) {
                Some(text) => text.parse().map_err(|_| PyValueError::new_err(format!("client_http_port: '{text}'"))),
                None => value.extract(),
            }
        };
        let is_http_on = switch("enable_client_http_server")?;
        Ok(SetupArguments {
            local_hostname: text("local_hostname", "")?,
            metadata_server: text("metadata_server", "")?,
            segment_bytes: size("global_segment_size")?,
            buffer_bytes: size("local_buffer_size")?,
            protocol: text("protocol", "tcp")?,
            devices: text("rdma_devices", "")?,
            master: text("master_server_addr", "127.0.0.1:50051")?,
            has_engine: given.get_item("engine")?.is_some_and(|engine| !engine.is_none()),
            has_ssd_offload: switch("enable_ssd_offload")? | !text("ssd_offload_path", "")?.is_empty(),
            tenant: text("tenant_id", "default")?,
            http_port: Some(port()?).filter(|_| is_http_on),
        })
    }
}

type Failed = (ErrorCode, String);

/// Starts a client that contributes `segment_bytes` of memory.
fn start(arguments: SetupArguments) -> Result<Session, Failed> {
    let internal = |why: String| (ErrorCode::INTERNAL_ERROR, why);
    let runtime = background().map_err(|error| internal(format!("cannot create a runtime: {error}")))?;
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

async fn start_node(arguments: &SetupArguments, metrics: Option<Arc<ClientMetrics>>) -> Result<RunningNode, Failed> {
    let invalid = |why: String| (ErrorCode::INVALID_PARAMS, why);
    let internal = |why: String| (ErrorCode::INTERNAL_ERROR, why);
    let env = RealEnv::new();
    let began = tokio::time::Instant::now();
    let wait =
        variable("MCCTL_SETUP_WAIT_SECONDS").and_then(|text| text.parse().ok()).map_or(WAIT, Duration::from_secs);
    let protocol: TransferProtocol =
        arguments.protocol.to_ascii_lowercase().parse().map_err(|error| internal(format!("{error}")))?;
    let (master, leader) = find_master(&arguments.master, wait, &env).await?;
    let followed = leader.as_ref().map(|leader| ServerAddress::Leader(leader.leader.clone()));
    let mut config: ClientConfig = StoreClient::builder(master)
        .leader(followed)
        .metadata(arguments.metadata_server.parse().map_err(|error| invalid(format!("metadata_server: {error}")))?)
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
        return Err(invalid(format!(
            "global_segment_size is {segment_bytes} bytes; the minimum is {SEGMENT_BYTES_MIN}"
        )));
    }
    // Values are sent from where they lie, so no local buffer is needed.
    tracing::debug!(bytes = arguments.buffer_bytes, "local_buffer_size has no effect");
    let node = Node::start(NodeConfig { client: config, segment_bytes: ByteSize(segment_bytes) }, env.clone());
    let node = node.await.map_err(|error| internal(error.to_string()))?;
    let http = match arguments.http_port {
        None => None,
        Some(port) => {
            let (at, store) = (HostPort::new("0.0.0.0", port), Arc::new(node.store()));
            match client_http::start(env, &at, HttpAccess::default(), store, metrics).await {
                Ok(http) => Some(http),
                Err(error) => {
                    node.stop().await;
                    return Err(internal(format!("cannot start the client's HTTP server: {error}")));
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
) -> Result<(HostPort, Option<LeaderSubscription>), Failed> {
    let invalid = |why: String| (ErrorCode::INVALID_PARAMS, format!("master_server_addr '{address}': {why}"));
    let unreachable = |why: String| (ErrorCode::INTERNAL_ERROR, format!("master_server_addr '{address}': {why}"));
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
