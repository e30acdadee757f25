//! A running cluster and running SGLang servers: which, from flags and environment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::commands::admin;
use crate::commands::args;
use crate::commands::discovery;
use crate::commands::error::Failure;
use crate::commands::master_target::{self, MasterArgs, RPC_PORT};
use crate::commands::output;
use crate::commands::serve::node;
use crate::commands::store::connect::ConnectArgs;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::check::{Check, Report};
use crate::engine::doctor::cluster::{self, Etcd, MasterAt};
use crate::engine::doctor::{self, Selection, serving};
use crate::engine::env::RealEnv;
use crate::engine::metadata::MetadataUri;
use crate::engine::rpc::{RpcClient, Timeouts};
use crate::engine::wire::MasterCalls;

/// The cluster id where nobody chose another.
const CLUSTER_ID: &str = "mooncake_cluster";
/// Longest wait for a master at the default address: it is on this host.
const DEFAULT_MASTER_MAX: Duration = Duration::from_millis(500);
/// The largest object that is sent through each node, bytes.
const PROBE_MAX: u64 = 1 << 30;

/// Flags for what runs.
#[derive(Clone, Debug, clap::Args)]
pub struct RunningArgs {
    /// Admin HTTP of every master of an HA cluster (a single one: --admin)
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', value_parser = admin_address)]
    admins: Vec<HostPort>,
    /// What all segments should have together, bytes or with kb, mb, gb, tb (powers of 1024)
    #[arg(long, value_name = "SIZE")]
    expect_capacity: Option<ByteSize>,
    /// Bytes of the object that goes through each node, best those of a page; a node gets none where it would fill the store to where
    /// eviction begins
    #[arg(long, value_name = "SIZE", default_value = "1mb")]
    probe_bytes: ByteSize,
    /// Names (host:port) under which nodes are to be started: does a stale record stand in the way?
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    node_names: Vec<String>,
    /// URL of a running SGLang server; again for each further one
    #[arg(long, value_name = "URL")]
    sglang: Vec<String>,
    /// Send a prompt through the SGLang servers' third tier: EMPTIES the first server's own caches between its two sendings
    #[arg(long, requires = "sglang")]
    probe_serving: bool,
}

/// What is asked of both.
pub(super) struct Questions {
    cluster: Result<cluster::Question, NoCluster>,
    serving: serving::Question,
}

/// Why no cluster is looked at.
enum NoCluster {
    /// None is meant, or it cannot be asked; why.
    Skipped(String),
    /// One is meant, and what should name its master does not: what was written and where, and what is wrong with it.
    Misnamed { origin: String, why: String },
}

/// What keeps `text` from naming a master.
fn misnamed(text: &str, origin: &str) -> Option<String> {
    match text.strip_prefix("etcd://") {
        Some(list) => Etcd::parse(list, CLUSTER_ID).err(),
        None => {
            let failure = master_target::address(text, origin, RPC_PORT).err()?;
            Some(failure.found.unwrap_or(failure.what))
        }
    }
}

fn admin_address(text: &str) -> Result<HostPort, String> {
    let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    args::endpoint(text, admin::PORT).map_err(|error| error.to_string())
}

/// Is `url` that of a server?
fn server_url(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let rest = rest.ok_or_else(|| "it begins with neither http:// nor https://".to_owned())?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    HostPort::split(address).map(drop).map_err(|error| error.to_string())
}

impl Questions {
    /// Put no further object into the cluster.
    pub(super) fn stop(&self) {
        if let Ok(question) = &self.cluster {
            question.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl RunningArgs {
    /// The questions, for the master of `link`. A cluster is looked at when a flag or the environment names one, when `is_asked`
    /// for, or when one answers at the default address.
    ///
    /// # Errors
    /// A flag is no address, no URL or no size.
    pub(super) async fn questions(
        &self,
        link: &ConnectArgs,
        is_asked: bool,
        selection: &Selection,
    ) -> Result<Questions, Failure> {
        for url in &self.sglang {
            server_url(url).map_err(|found| {
                Failure::usage(format!("--sglang {url}: a URL is expected")).found(found).next("give http://HOST:PORT")
            })?;
        }
        if let Some(text) = &link.metadata_server {
            node::metadata(text, format!("--metadata-server {text}"))?;
        }
        if self.probe_bytes.0 == 0 || self.probe_bytes.0 > PROBE_MAX {
            let what = format!("--probe-bytes {}: 1 byte to {} are sent", self.probe_bytes, ByteSize(PROBE_MAX));
            return Err(Failure::usage(what));
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let named = link.master.master.clone().or_else(|| variable("MOONCAKE_MASTER"));
        let is_named = named.is_some() || link.master.admin.is_some() || !self.admins.is_empty();
        let mut is_asked = is_asked;
        let is_wanted = cluster::CHECKS.iter().chain(serving::CHECKS).any(|check| selection.wants(check));
        if is_wanted && !is_named && !is_asked && self.is_default_running().await {
            output::say(format!(
                "master: 127.0.0.1:{RPC_PORT}, which answers at the default address; --master overrides"
            ));
            is_asked = true;
        }
        // A variable that is wrong is for the checks of the configuration; a flag that is wrong ends everything.
        let is_flag = link.master.master.is_some() || link.master.admin.is_some() || link.metadata_server.is_some();
        let cluster = match is_wanted && (is_named || is_asked) {
            true => {
                let origin = || format!("MOONCAKE_MASTER={}", named.as_deref().unwrap_or_default());
                let wrong = named.as_deref().filter(|_| link.master.master.is_none());
                match wrong.and_then(|text| misnamed(text, &origin())) {
                    Some(why) => Err(NoCluster::Misnamed { origin: origin(), why }),
                    None => match self.cluster(link, named).await {
                        Ok(question) => Ok(question),
                        Err(failure) if is_flag => return Err(failure),
                        Err(failure) => Err(NoCluster::Skipped(failure.what)),
                    },
                }
            }
            false => {
                Err(NoCluster::Skipped("no master is named: give --master HOST:PORT, or MOONCAKE_MASTER".to_owned()))
            }
        };
        let (master, admin) = match &cluster {
            Ok(question) => match &question.master {
                MasterAt::Address(at) => (Some(at.clone()), question.admins.first().cloned()),
                MasterAt::Etcd(_) => (None, question.admins.first().cloned()),
            },
            Err(_) => (None, None),
        };
        let serving = serving::Question {
            urls: self.sglang.clone(),
            api_key: variable("SGLANG_API_KEY"),
            probe: self.probe_serving,
            master,
            admin,
            limit: link.master.timeout,
        };
        Ok(Questions { cluster, serving })
    }

    /// Does a master answer at the default address of this host?
    async fn is_default_running(&self) -> bool {
        let at = HostPort::new("127.0.0.1", RPC_PORT);
        let timeouts = Timeouts { connect: DEFAULT_MASTER_MAX, call: DEFAULT_MASTER_MAX };
        MasterCalls(RpcClient::new(RealEnv::new(), at, timeouts)).service_ready().await.is_ok()
    }

    async fn cluster(&self, link: &ConnectArgs, named: Option<String>) -> Result<cluster::Question, Failure> {
        let etcd = named.as_deref().and_then(|text| Some((text, text.strip_prefix("etcd://")?)));
        let etcd = match etcd {
            None => None,
            Some((text, list)) => {
                let id = std::env::var("MC_STORE_CLUSTER_ID").ok().filter(|text| !text.is_empty());
                let etcd = Etcd::parse(list, id.as_deref().unwrap_or(CLUSTER_ID));
                Some(etcd.map_err(|found| Failure::usage(format!("{text} is no list of etcd servers")).found(found))?)
            }
        };
        // What only needs to know where the cluster is, as a host, is told etcd's address until the leader is known.
        let link = match &etcd {
            None => link.clone(),
            Some(etcd) => {
                let at = etcd.endpoints.first().map(HostPort::to_string);
                ConnectArgs { master: MasterArgs { master: at, ..link.master.clone() }, ..link.clone() }
            }
        };
        let master = link.master.find().await?;
        let mut admins = self.admins.clone();
        if admins.is_empty() && (etcd.is_none() || link.master.admin.is_some()) {
            // Unknown where the RPC port is not the usual one and nobody named the other: what it tells is skipped then.
            admins.extend(master.admin().ok().map(|admin| admin.at().clone()));
        }
        let variable = std::env::var("MOONCAKE_TE_META_DATA_SERVER").ok().filter(|text| !text.is_empty());
        let mut link = link;
        let mut is_metadata_assumed = link.metadata_server.is_none() && variable.is_none();
        if is_metadata_assumed && let Some(admin) = admins.first() {
            let found = discovery::find_at(admin, &master).await;
            is_metadata_assumed = found.is_none();
            output::say(discovery::note(found.as_ref(), &master));
            link.metadata_server = Some(found.map_or(MetadataUri::P2p, |found| found.metadata).to_string());
        }
        let metadata = match (&link.metadata_server, variable) {
            (Some(text), _) => node::metadata(text, format!("--metadata-server {text}"))?,
            (None, Some(text)) => node::metadata(&text, format!("MOONCAKE_TE_META_DATA_SERVER={text}"))?,
            (None, None) => MetadataUri::P2p,
        };
        // A host that has no name towards the cluster cannot join it, and looks at it from without.
        let plan = link.plan(&master).await.map_err(|failure| match failure.found {
            Some(found) => format!("{}: {found}", failure.what),
            None => failure.what,
        });
        let cluster_id = plan.as_ref().ok().and_then(|plan| plan.config.engine.settings.cluster_id.clone());
        Ok(cluster::Question {
            master: match etcd {
                Some(etcd) => MasterAt::Etcd(etcd),
                None => MasterAt::Address(master.at.clone()),
            },
            admins,
            metadata,
            is_metadata_assumed,
            metadata_cluster: cluster_id,
            node: plan.map(|plan| plan.config),
            planned: self.node_names.clone(),
            expected: self.expect_capacity,
            probe_bytes: self.probe_bytes.0,
            limit: master.timeout.max(Duration::from_millis(1)),
            stop: Arc::default(),
        })
    }
}

/// Is `text` a master that is found through etcd, and so no address?
pub(super) fn is_etcd(text: &str) -> bool {
    text.starts_with("etcd://")
}

/// Both groups.
pub(super) async fn look(questions: &Questions, selection: &Selection) -> Vec<Report> {
    let env = RealEnv::new();
    let wants =
        |checks: &'static [Check]| move |id: &str| checks.iter().any(|check| check.id == id && selection.wants(check));
    let cluster = async {
        match &questions.cluster {
            Ok(question) => cluster::run(&env, question, &wants(cluster::CHECKS)).await,
            Err(NoCluster::Skipped(why)) => doctor::skipped(cluster::CHECKS, selection, why),
            Err(NoCluster::Misnamed { origin, why }) => cluster::misnamed(origin, why, &wants(cluster::CHECKS)),
        }
    };
    let wants_serving = wants(serving::CHECKS);
    let serving = serving::run(&env, &questions.serving, &wants_serving);
    let (cluster, serving) = tokio::join!(cluster, serving);
    [cluster, serving].concat()
}
