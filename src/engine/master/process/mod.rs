//! A master process: RPC, admin HTTP endpoint, optional metadata service, metrics line, and removal
//! of expired clients' records from the metadata service.

mod cleanup;
mod earlier_records;

pub use cleanup::MetadataCleanup;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;

use crate::admin::AdminApi;
use crate::announcer::Announcer;
use crate::server::{HaSettings, MasterData, MasterDataError};
use crate::view::AdminView;
use crate::{DataFormat, MasterConfig, MasterError, MasterServer, StateEffect};
use cleanup::MetadataCleaner;
use earlier_records::EarlierRecords;
use mcctl_base::HostPort;
use mcctl_election::EtcdElection;
use mcctl_election::ha::HandOverProblem;
use mcctl_journal::{CommitLogOptions, DataDirPlan, JournalError};
use mcctl_metadata::MetadataForwarder;
use mcctl_metadata::{
    KeyParsing, KeySpace, METADATA_DIRECTORY, MetadataError, MetadataJournalError, MetadataService, open_data_dir,
};
use mcctl_net::http::access::{AccessFiles, AccessTexts};
use mcctl_net::http::{BindError, HttpAccess, HttpCredentials, HttpServer};
use mcctl_sys::env::{Env, RealEnv, address_filter};
use mcctl_sys::process_metrics;

/// How long a master that has handed over forwards connections before its process ends. Clients
/// learn of the new leader in this time.
const FORWARD_BEFORE_EXIT: Duration = Duration::from_secs(2);

/// The configuration of a master process.
pub struct MasterProcessConfig {
    pub master: MasterConfig,
    /// The address of the admin HTTP endpoint.
    pub admin: HostPort,
    /// The address of the embedded metadata service, if it is enabled.
    pub metadata: Option<HostPort>,
    /// The keys of the metadata service's records.
    pub keys: KeySpace,
    pub access: ProcessAccess,
    pub cleanup: MetadataCleanup,
    /// The directory that keeps the state; `None`: the state is only in memory.
    pub data: Option<MasterDataPlan>,
    /// The cluster of masters; `None` without high availability.
    pub cluster: Option<(HaSettings, EtcdElection)>,
    /// Whether to log a line with metrics every ten seconds.
    pub metrics_line: bool,
}

impl MasterProcessConfig {
    /// A master with an admin endpoint, whose state is only in memory, and which everyone may use.
    pub fn new(rpc: HostPort, admin: HostPort) -> MasterProcessConfig {
        MasterProcessConfig {
            master: MasterConfig::new(rpc),
            admin,
            metadata: None,
            keys: KeySpace::default(),
            access: ProcessAccess::default(),
            cleanup: MetadataCleanup::Release,
            data: None,
            cluster: None,
            metrics_line: false,
        }
    }
}

/// Who may connect to the ports, and who may send which HTTP request. The default allows
/// everything.
#[derive(Clone, Default)]
pub struct ProcessAccess {
    /// The environment of the listeners, which may accept only connections from some addresses.
    pub env: RealEnv,
    /// The access to all HTTP ports.
    pub http: HttpAccess,
    /// The Unix socket of the admin endpoint.
    pub socket: Option<PathBuf>,
    /// What the process shows to the HTTP ports of other services.
    pub credentials: HttpCredentials,
    /// The files with tokens and certificates, and the contents that `http` was made of.
    pub files: Option<(AccessFiles, AccessTexts)>,
}

impl ProcessAccess {
    /// Applies changes of the files with tokens and certificates, as long as the future is polled.
    pub async fn keep_current(&self) -> std::convert::Infallible {
        match &self.files {
            Some((files, texts)) => {
                files.clone().keep_current(self.env.clone(), self.http.clone(), texts.clone()).await
            }
            None => std::future::pending().await,
        }
    }
}

/// A master's data directory, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterDataPlan {
    pub directory: DataDirPlan,
    pub options: CommitLogOptions,
    /// The format of the records that are written.
    pub format: DataFormat,
}

impl MasterDataPlan {
    /// The directory in which earlier releases kept the records of an embedded metadata service.
    pub fn of_records(&self) -> DataDirPlan {
        DataDirPlan { path: self.directory.path.join(METADATA_DIRECTORY), ..self.directory.clone() }
    }
}

/// Why a master process did not start, or must stop.
#[derive(Debug, thiserror::Error)]
pub enum MasterProcessError {
    #[error(transparent)]
    Master(#[from] MasterError),
    /// The metadata records of an earlier release cannot be read.
    #[error(transparent)]
    Records(#[from] MetadataJournalError),
    /// The metadata records of an earlier release cannot be moved into the log.
    #[error("cannot move the metadata records in {} into the master's log: {problem}", path.display())]
    RecordsNotImported { path: PathBuf, problem: String },
    /// A master of a cluster does not move them: it may not be the one with the newest records.
    #[error("{} has the metadata records of a master without a cluster", .0.display())]
    RecordsOfSingleMaster(PathBuf),
    /// The client for forwarding requests to the leader cannot be set up.
    #[error("cannot set up the client for the other masters' metadata services: {0}")]
    Forwarder(MetadataError),
    #[error("cannot listen for the metadata service: {}", .0.source)]
    MetadataPort(BindError),
    #[error("cannot listen for the admin endpoint: {}", .0.source)]
    AdminPort(BindError),
    /// The URL of the metadata service from which records are removed cannot be used.
    #[error("'{url}' is not a metadata service URL: {source}")]
    CleanupUrl { url: String, source: MetadataError },
    /// Changes of the state can no longer be written.
    #[error("the state cannot be written: {0}")]
    StateNotWritten(JournalError),
}

/// A running master process. Dropping it stops it without waiting.
pub struct MasterProcess {
    pub rpc: HostPort,
    pub admin_at: HostPort,
    pub metadata_at: Option<HostPort>,
    master: MasterServer<RealEnv>,
    admin: Arc<AdminApi<RealEnv>>,
    http: Vec<HttpServer>,
    access: ProcessAccess,
    metrics_line: bool,
    departures: Receiver<StateEffect>,
    cleaner: MetadataCleaner,
    has_data: bool,
}

impl MasterProcess {
    /// Starts all components. If one of them fails, none is left running.
    ///
    /// # Errors
    /// A port cannot be bound, a data directory cannot be used, or the host cannot start threads.
    pub async fn start(config: MasterProcessConfig) -> Result<MasterProcess, MasterProcessError> {
        let MasterProcessConfig { master, admin, metadata, keys, access, cleanup, data, cluster, metrics_line } =
            config;
        let env = access.env.clone();
        let mut http = Vec::new();
        let has_data = data.is_some();
        let mut earlier = None;
        let data = match data {
            None => None,
            Some(plan) => {
                let data = open(&plan, &env).map_err(MasterError::Data)?;
                earlier = EarlierRecords::read(&plan, &data.dir, metadata.is_some(), &env)?;
                if earlier.is_some() && cluster.is_some() {
                    return Err(MasterProcessError::RecordsOfSingleMaster(plan.of_records().path));
                }
                Some(data)
            }
        };
        // The master starts after the metadata service: clients must not connect to a master that
        // stops again because a port is in use.
        let mut cleaner = MetadataCleaner::None;
        let mut embedded = None;
        let mut cluster = cluster;
        if let Some(at) = &metadata {
            let forwarder = match &cluster {
                Some(_) => Some(MetadataForwarder::new(&access.credentials).map_err(MasterProcessError::Forwarder)?),
                None => None,
            };
            let service = MetadataService::waiting(env.clone(), keys.clone(), KeyParsing::Plain, forwarder);
            let running =
                service.start_with(at, access.http.clone()).await.map_err(MasterProcessError::MetadataPort)?;
            if let Some((settings, _)) = &mut cluster {
                settings.metadata = Some(address_for_masters(running.at(), &settings.host, access.http.scheme()));
            }
            embedded = Some((running.at().clone(), service.clone()));
            http.push(running);
            cleaner = MetadataCleaner::Here { service, remove: cleanup == MetadataCleanup::Remove };
        }
        if let MetadataCleanup::Elsewhere(url) = &cleanup {
            cleaner = MetadataCleaner::elsewhere(url, &access.credentials, keys)?;
        }
        let host = master.listen.host.clone();
        let master = match cluster {
            None => MasterServer::start_here(master, data, env.clone()).await,
            Some((settings, election)) => {
                MasterServer::start_in_cluster_here(master, settings, election, data, env.clone()).await
            }
        }?;
        if let Some(records) = earlier {
            records.import(&master.handle()).await?;
        }
        if let Some((_, service)) = &embedded {
            service.set_backend(master.handle().metadata_records());
        }
        let departures = master.handle().unmount_events();
        let metadata_at = embedded.as_ref().map(|(at, _)| at.clone());
        let announcer = Announcer { rpc_port: master.rpc_port(), embedded, scheme: access.http.scheme() };
        let api = AdminApi::announcing(env, Arc::new(master.handle()), Some(announcer));
        api.append_metrics(|| process_metrics::exposition() + &address_filter::exposition());
        if let MetadataCleaner::Here { service, .. } = &cleaner {
            service.share_request_counts(api.http_requests().clone());
        }
        let admin_access = access.http.clone().with_socket(access.socket.as_deref());
        let running = api.start_with(&admin, admin_access).await.map_err(MasterProcessError::AdminPort)?;
        let admin_at = running.at().clone();
        http.push(running);
        let rpc = HostPort::new(host, master.rpc_port());
        let admin = api;
        Ok(MasterProcess {
            rpc,
            admin_at,
            metadata_at,
            master,
            admin,
            http,
            access,
            metrics_line,
            departures,
            cleaner,
            has_data,
        })
    }

    /// All listen addresses of the process, for the log.
    pub fn listeners(&self) -> String {
        let scheme = self.access.http.scheme();
        let metadata = self.metadata_at.as_ref().map(|at| format!(", metadata {scheme}://{at}/metadata"));
        format!("RPC {}, admin {scheme}://{}{}", self.rpc, self.admin_at, metadata.unwrap_or_default())
    }

    /// The process's background work, which runs while this future is polled. Returns the reason
    /// why the process must stop: a data directory cannot be written. Panics if a bug has made the
    /// master's state unusable.
    pub async fn work(&mut self) -> MasterProcessError {
        let handle = self.master.handle();
        let report = async {
            match self.metrics_line {
                true => self.admin.report(|line| tracing::info!("metrics: {line}")).await,
                false => std::future::pending().await,
            }
        };
        let cleaned = cleanup::clean(&handle, &mut self.departures, &self.cleaner);
        tokio::select! {
            error = self.master.failed() => MasterProcessError::StateNotWritten(error),
            ((), ()) = async { tokio::join!(report, cleaned) } => std::future::pending().await,
            never = self.access.keep_current() => match never {},
        }
    }

    /// If this master leads, hands over to a standby in sync, and forwards connections to it for a
    /// while, so that clients notice little. If it is a standby, tells the leader not to wait for
    /// it.
    pub async fn leave_cluster(&self) {
        let Some(ha) = self.master.handle().ha() else { return };
        let Err(problem) = self.master.leave_cluster().await else {
            return self.access.env.sleep(FORWARD_BEFORE_EXIT).await;
        };
        let state = if self.has_data { "stays in the data directory" } else { "is lost when this process ends" };
        match problem {
            HandOverProblem::NoStandby if ha.serving => tracing::warn!(
                standbys = ha.standbys.len(),
                "no standby is in sync: the state {state}. --when-not-in-sync decides which master leads next"
            ),
            problem if ha.serving => tracing::warn!(
                %problem,
                "no standby has taken over yet. The state of this process {state}. A standby in sync has it, too, and leads when it is ready"
            ),
            _ => {}
        }
    }

    /// Stops the process. Responses in progress are completed; new requests are rejected. A master
    /// with a data directory writes a last snapshot.
    ///
    /// # Errors
    /// The data directory cannot be written.
    pub async fn stop(self) -> Result<(), MasterProcessError> {
        for server in self.http {
            server.stop().await;
        }
        self.master.stop().await.map_err(MasterProcessError::StateNotWritten)
    }
}

fn open(plan: &MasterDataPlan, env: &RealEnv) -> Result<MasterData, MasterDataError> {
    let directory = &plan.directory.path;
    let dir = open_data_dir(&plan.directory, env)?;
    if dir.is_new() {
        tracing::info!(directory = %directory.display(), "the data directory is new: the store is empty");
    }
    if let Some(name) = dir.set_aside() {
        tracing::warn!(
            directory = %directory.join(name).display(),
            "the data of an earlier master was moved to this subdirectory, and this master starts with an empty store. To keep the \
             state at the next restart, add --enable-snapshot-restore. To restore the earlier data, start a master with --data-dir \
             on the subdirectory"
        );
    }
    Ok(MasterData { dir, options: plan.options, format: plan.format })
}

/// The address at which other masters reach a metadata service that listens on `at`. A master whose
/// service listens on all addresses is reached at `host`.
fn address_for_masters(at: &HostPort, host: &str, scheme: &str) -> String {
    let is_any = at.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    let host = if is_any { host } else { &at.host };
    format!("{scheme}://{}", HostPort::new(host, at.port))
}
