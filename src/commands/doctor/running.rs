//! A running cluster and running SGLang servers, selected by flags and the environment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commands::cli::args;
use crate::commands::cli::error::Failure;
use crate::commands::cli::origin::{Origin, flag_or_variable};
use crate::commands::cli::output;
use crate::commands::failure::node as node_failure;
use crate::commands::target::connect::ConnectArgs;
use crate::commands::target::discovery;
use crate::commands::target::etcd_access;
use crate::commands::target::master_target::{self, MasterArgs, RPC_PORT};
use crate::commands::target::transport::TransportArgs;
use crate::engine::admin;
use crate::engine::base::text::masked;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::check::{Check, CheckReport};
use crate::engine::doctor::cluster::{self, Etcd, MasterAt};
use crate::engine::doctor::{self, Selection, serving};
use crate::engine::election::cluster_name;
use crate::engine::env::RealEnv;
use crate::engine::metadata::MetadataUri;
use crate::engine::rpc::{RpcClient, Timeouts};
use crate::engine::wire::MasterCalls;

/// The default cluster ID.
const CLUSTER_ID: &str = "mooncake_cluster";
/// Timeout for finding a master at the default address, which is on this host.
const DEFAULT_MASTER_MAX: Duration = Duration::from_millis(500);
/// A node's default HTTP port.
const NODE_PORT: u16 = 8080;
/// Maximum size of a probe object, in bytes.
const PROBE_MAX: u64 = 1 << 30;

/// Flags that select running services.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RunningArgs {
    /// Admin HTTP endpoints of all masters in an HA cluster (for a single master, use --admin)
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', value_parser = |text: &str| args::endpoint(text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/'), admin::PORT))]
    admins: Vec<HostPort>,
    /// Expected total capacity of all segments, in bytes or with a kb, mb, gb or tb suffix (powers
    /// of 1024)
    #[arg(long, value_name = "SIZE")]
    expect_capacity: Option<ByteSize>,
    /// Size of the probe object sent through each node, ideally the page size; a node is skipped if
    /// the object would raise its usage to the eviction watermark
    #[arg(long, value_name = "SIZE", default_value = "1mb")]
    probe_bytes: ByteSize,
    /// Names (host:port) of nodes to be started; stale metadata records that would prevent a start
    /// are reported
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    node_names: Vec<String>,
    /// Also report the damaged objects that this node has read; repeatable
    ///
    /// The port is the node's HTTP port (mcctl serve store --rest-port), 8080 by default.
    #[arg(long = "node", value_name = "HOST[:PORT]", value_parser = |text: &str| args::endpoint(text, NODE_PORT))]
    nodes: Vec<HostPort>,
    /// URL of a running SGLang server; repeatable
    #[arg(long, value_name = "URL")]
    sglang: Vec<String>,
    /// Send a prompt through the SGLang servers' L3 tier; EMPTIES the first server's own caches
    /// between the requests
    #[arg(long, requires = "sglang")]
    probe_serving: bool,
}

/// The queries for the cluster and the SGLang servers.
pub(super) struct RunningQueries {
    cluster: Result<cluster::ClusterQuery, NoCluster>,
    serving: serving::ServingQuery,
}

/// Why the cluster group is skipped.
enum NoCluster {
    /// No master is specified, or the master cannot be queried.
    Skipped(String),
    /// The master address is invalid; contains the setting with its value, and the error.
    Misnamed { origin: String, why: String },
}

/// Why `text` is not a master address; `None` if it is one.
fn misnamed(text: &str, origin: &str) -> Option<String> {
    match text.strip_prefix("etcd://") {
        Some(list) => Etcd::parse(list, CLUSTER_ID, Duration::from_secs(1)).err().map(Into::into),
        None => {
            let failure = master_target::address(text, origin, RPC_PORT).err()?;
            Some(failure.found.unwrap_or(failure.what))
        }
    }
}

/// Why a string is not a server URL.
#[derive(Debug, thiserror::Error)]
enum InvalidUrl {
    #[error("the URL does not begin with http:// or https://")]
    Scheme,
    #[error("{0}")]
    Authority(String),
}

/// Checks that `url` is an HTTP URL.
fn server_url(url: &str) -> Result<(), InvalidUrl> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).ok_or(InvalidUrl::Scheme)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    HostPort::split(address).map(drop).map_err(|error| InvalidUrl::Authority(error.to_string()))
}

impl RunningQueries {
    /// Prevents further objects from being put into the cluster.
    pub(super) fn stop(&self) {
        if let Ok(query) = &self.cluster {
            query.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl RunningArgs {
    /// Builds the queries for the master of `link`. The cluster is checked if a flag or the
    /// environment names a master, if `is_asked` is set, or if a master responds at the default
    /// address. Probe objects are written only to an explicitly specified master.
    ///
    /// # Errors
    /// An address, a URL or a size is invalid.
    pub(super) async fn queries(
        &self,
        (link, transport): (&ConnectArgs, &TransportArgs),
        is_asked: bool,
        selection: &Selection,
    ) -> Result<RunningQueries, Failure> {
        for url in &self.sglang {
            server_url(url).map_err(|found| {
                Failure::usage(format!("invalid URL in --sglang {}", masked(url)))
                    .found(found.to_string())
                    .next("use http://HOST:PORT")
            })?;
        }
        if let Some(text) = &link.metadata_server {
            node_failure::metadata(Origin::described(text.clone(), format!("--metadata-server {text}")))?;
        }
        if self.probe_bytes.0 == 0 || self.probe_bytes.0 > PROBE_MAX {
            let what =
                format!("--probe-bytes {}: expected a size from 1 byte to {}", self.probe_bytes, ByteSize(PROBE_MAX));
            return Err(Failure::usage(what));
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let named = link.master.master.clone().or_else(|| variable("MOONCAKE_MASTER"));
        let is_named = named.is_some() || link.master.admin.is_some() || !self.admins.is_empty();
        let mut is_asked = is_asked || !self.nodes.is_empty();
        let is_wanted = cluster::CHECKS.iter().chain(serving::CHECKS).any(|check| selection.includes(check));
        if is_wanted && !is_named && !is_asked && self.is_default_running().await {
            output::say(format!(
                "master: 127.0.0.1:{RPC_PORT} (found at the default address, read-only checks); --master selects another master"
            ));
            is_asked = true;
        }
        // The configuration checks report an invalid variable. An invalid flag is a usage error.
        let is_flag = link.master.master.is_some() || link.master.admin.is_some() || link.metadata_server.is_some();
        let cluster = match is_wanted && (is_named || is_asked) {
            true => {
                let origin = || format!("MOONCAKE_MASTER={}", named.as_deref().unwrap_or_default());
                let wrong = named.as_deref().filter(|_| link.master.master.is_none());
                match wrong.and_then(|text| misnamed(text, &origin())) {
                    Some(why) => Err(NoCluster::Misnamed { origin: origin(), why }),
                    None => match self.cluster((link, transport), named).await {
                        Ok(query) => Ok(query),
                        Err(failure) if is_flag => return Err(failure),
                        Err(failure) => Err(NoCluster::Skipped(failure.what)),
                    },
                }
            }
            false => {
                Err(NoCluster::Skipped("no master specified: use --master HOST:PORT or MOONCAKE_MASTER".to_owned()))
            }
        };
        let (master, admin) = match &cluster {
            Ok(query) => match &query.master {
                MasterAt::Address(at) => (Some(at.clone()), query.admins.first().cloned()),
                MasterAt::Etcd(_) => (None, query.admins.first().cloned()),
            },
            Err(_) => (None, None),
        };
        let serving = serving::ServingQuery {
            urls: self.sglang.clone(),
            api_key: variable("SGLANG_API_KEY"),
            probe: self.probe_serving,
            master,
            admin,
            credentials: link.master.credentials.credentials()?,
            limit: link.master.timeout,
        };
        Ok(RunningQueries { cluster, serving })
    }

    /// Whether a master responds at the default address on this host.
    async fn is_default_running(&self) -> bool {
        let at = HostPort::new("127.0.0.1", RPC_PORT);
        let timeouts = Timeouts { connect: DEFAULT_MASTER_MAX, call: DEFAULT_MASTER_MAX };
        MasterCalls(RpcClient::new(RealEnv::new(), at, timeouts)).service_ready().await.is_ok()
    }

    async fn cluster(
        &self,
        (link, transport): (&ConnectArgs, &TransportArgs),
        named: Option<String>,
    ) -> Result<cluster::ClusterQuery, Failure> {
        let etcd = named.as_deref().and_then(|text| Some((text, text.strip_prefix("etcd://")?)));
        let etcd = match etcd {
            None => None,
            Some((text, list)) => {
                let id = std::env::var("MC_STORE_CLUSTER_ID").ok().filter(|text| !text.is_empty());
                let name = cluster_name(id.as_deref().unwrap_or(CLUSTER_ID));
                let etcd = Etcd::parse(list, name, link.master.timeout);
                let etcd = etcd.map_err(|found| {
                    Failure::usage(format!("{text} is not a valid list of etcd servers")).found(found)
                })?;
                Some(Etcd { servers: etcd_access::with_environment(etcd.servers)?, ..etcd })
            }
        };
        // Without a leader, code that needs only the cluster's host uses etcd's address.
        let leader = match &etcd {
            None => None,
            Some(_) => link.master.find().await.ok(),
        };
        let is_leader_known = leader.is_some();
        let (link, master) = match (&etcd, leader) {
            (Some(etcd), None) => {
                let at = etcd.servers.endpoints.first().map(|server| server.at.to_string());
                let master = MasterArgs { master: at, ..link.master.clone() };
                let found = master.resolve()?;
                (ConnectArgs { master, ..link.clone() }, found)
            }
            (_, Some(leader)) => (link.clone(), leader),
            (None, None) => (link.clone(), link.master.find().await?),
        };
        let mut admins = self.admins.clone();
        if admins.is_empty() && (etcd.is_none() || is_leader_known || link.master.admin.is_some()) {
            // With a non-default RPC port and no --admin, the admin port is unknown. The checks
            // that need it are skipped.
            admins.extend(master.admin().ok().map(|admin| admin.at().clone()));
        }
        let variable = std::env::var("MOONCAKE_TE_META_DATA_SERVER").ok().filter(|text| !text.is_empty());
        let mut link = link;
        let mut is_metadata_assumed = link.metadata_server.is_none() && variable.is_none();
        if is_metadata_assumed && let Some(admin) = admins.first() {
            let found = discovery::find_at(admin, &master).await;
            is_metadata_assumed = found.is_none();
            tracing::info!("{}", discovery::note(found.as_ref(), &master));
            link.metadata_server = Some(found.map_or(MetadataUri::P2p, |found| found.metadata).to_string());
        }
        let flag = link.metadata_server.as_deref();
        let metadata = flag_or_variable(flag, "--metadata-server", "MOONCAKE_TE_META_DATA_SERVER", |_| variable);
        let metadata = metadata.map(node_failure::metadata).transpose()?.map_or(MetadataUri::P2p, |found| found.value);
        // A host without a route to the cluster cannot join as a node, so it only queries the
        // master.
        let is_named = named.is_some();
        let plan = link.plan(&master, transport).await.map_err(|failure| match failure.found {
            Some(found) => format!("{}: {found}", failure.what),
            None => failure.what,
        });
        let plan = plan.map(|mut plan| {
            // Probe objects test the transport.
            plan.config.engine.settings.shared_memory.enabled = false;
            plan
        });
        let cluster_id = plan.as_ref().ok().and_then(|plan| plan.config.engine.settings.cluster_id.clone());
        let client = match plan {
            Ok(_) if !is_named => Err(format!(
                "no probe objects are written to a master found at the default address: pass --master {} to allow this",
                master.at
            )),
            plan => plan.map(|plan| plan.config),
        };
        Ok(cluster::ClusterQuery {
            master: match etcd {
                Some(etcd) => MasterAt::Etcd(etcd),
                None => MasterAt::Address(master.at.clone()),
            },
            admins,
            credentials: master.credentials.clone(),
            metadata,
            is_metadata_assumed,
            metadata_cluster: cluster_id,
            client: client.map_err(Into::into),
            planned: self.node_names.clone(),
            nodes: self.nodes.clone(),
            expected: self.expect_capacity,
            probe_bytes: self.probe_bytes.0,
            limit: master.timeout.max(Duration::from_millis(1)),
            stop: Arc::default(),
        })
    }
}

/// Whether `text` is an etcd address for finding the master.
pub(super) fn is_etcd(text: &str) -> bool {
    text.starts_with("etcd://")
}

/// Runs the checks of both groups.
pub(super) async fn run_checks(queries: &RunningQueries, selection: &Selection) -> Vec<CheckReport> {
    let env = RealEnv::new();
    let includes = |checks: &'static [Check]| {
        move |id: &str| checks.iter().any(|check| check.id == id && selection.includes(check))
    };
    let cluster = async {
        match &queries.cluster {
            Ok(query) => cluster::run(&env, query, &includes(cluster::CHECKS)).await,
            Err(NoCluster::Skipped(why)) => doctor::skipped(cluster::CHECKS, selection, why),
            Err(NoCluster::Misnamed { origin, why }) => cluster::misnamed(origin, why, &includes(cluster::CHECKS)),
        }
    };
    let includes_serving = includes(serving::CHECKS);
    let serving = serving::run(&env, &queries.serving, &includes_serving);
    let (cluster, serving) = tokio::join!(cluster, serving);
    [cluster, serving].concat()
}
