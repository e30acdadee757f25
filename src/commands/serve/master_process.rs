//! A master process: RPC, admin HTTP endpoint, optional metadata service, metrics line, and removal of expired clients' records from
//! the metadata service.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::commands::cli::error::Failure;
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::runtime;
use crate::commands::serve::access_plan::{AccessPlan, OpenPort};
use crate::commands::serve::cluster_plan::ClusterPlan;
use crate::commands::serve::data_directory::{DataPlan, STOP_WITH_DATA_MAX};
use crate::commands::serve::metadata_directory::MetadataDataPlan;
use crate::commands::target::key_space::key_space;
use crate::engine::base::HostPort;
use crate::engine::env::{Env, RealEnv, address_filter};
use crate::engine::ha::HandOverProblem;
use crate::engine::http::{HttpCredentials, HttpServer};
use crate::engine::journal::JournalError;
use crate::engine::master::admin::AdminApi;
use crate::engine::master::announcer::Announcer;
use crate::engine::master::view::AdminView;
use crate::engine::master::{MasterConfig, MasterError, MasterHandle, MasterServer, StateEffect, UnmountReason};
use crate::engine::metadata::{CallLimits, KeyParsing, KeySpace, MetadataClient, MetadataService};
use crate::engine::rpc::StartError;
use crate::engine::sys::process_metrics;

/// A master process's configuration.
#[derive(Debug)]
pub struct MasterPlan {
    /// The master's configuration. Its address is the same as `rpc`.
    pub config: MasterConfig,
    pub rpc: ListenAddress,
    pub admin: ListenAddress,
    /// Address of the embedded metadata service, if it is enabled.
    pub metadata: Option<ListenAddress>,
    /// Who may connect to the ports, and who may send which HTTP request.
    pub access: AccessPlan,
    pub cleanup: MetadataCleanup,
    /// The directory that keeps the state; `None`: the state is only in memory.
    pub data: Option<DataPlan>,
    /// The cluster of masters; `None` without high availability.
    pub cluster: Option<ClusterPlan>,
    /// Whether to log a line with metrics every ten seconds.
    pub report: bool,
}

/// What happens to an expired client's records in the metadata service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataCleanup {
    /// Keep the records in the embedded service, but allow the next process to take over their name.
    Release,
    /// Remove the records from the embedded service.
    Remove,
    /// Remove the records from the service at this URL, if one is configured.
    Elsewhere(Option<String>),
}

/// How long a master that has handed over forwards connections before its process ends. Clients learn of the new leader in this time.
const FORWARD_BEFORE_EXIT: Duration = Duration::from_secs(2);

/// A running master process. Dropping it stops it without waiting.
pub struct MasterProcess {
    pub rpc: HostPort,
    pub admin_at: HostPort,
    pub metadata_at: Option<HostPort>,
    master: MasterServer<RealEnv>,
    admin: Arc<AdminApi<RealEnv>>,
    http: Vec<HttpServer>,
    access: AccessPlan,
    report: bool,
    departures: Receiver<StateEffect>,
    cleaner: MetadataCleaner,
    /// The data directory of the state, for messages.
    data: Option<DataPlan>,
}

enum MetadataCleaner {
    None,
    Here { service: MetadataService<RealEnv>, remove: bool },
    Elsewhere { client: MetadataClient, keys: KeySpace },
}

impl MasterProcess {
    /// Starts all components of `plan`. If one of them fails, none is left running.
    ///
    /// # Errors
    /// A port cannot be bound, or the host cannot start threads.
    pub async fn start(plan: &MasterPlan) -> Result<MasterProcess, Failure> {
        let env = plan.access.env();
        let (access, scheme) = (&plan.access.http, plan.access.http.scheme());
        let mut http = Vec::new();
        // First, so that the message is the master's if another process uses the directory.
        let data = plan.data.as_ref().map(|data| data.open(&env)).transpose()?;
        // The master starts after the metadata service: clients must not connect to a master that stops again because a port is in use.
        let mut cleaner = MetadataCleaner::None;
        let (mut metadata_at, mut embedded) = (None, None);
        if let Some(listen) = &plan.metadata {
            let service = match &plan.data {
                Some(data) => MetadataDataPlan::embedded(data).restore(&env, key_space(), KeyParsing::Plain)?,
                None => MetadataService::new(env.clone(), key_space()),
            };
            let running = service.start_with(&listen.at, access.clone()).await;
            let running = running.map_err(|error| listen.http_failure(&error))?;
            metadata_at = Some(running.at().clone());
            embedded = Some((running.at().clone(), service.clone()));
            http.push(running);
            cleaner = MetadataCleaner::Here { service, remove: plan.cleanup == MetadataCleanup::Remove };
        }
        if let MetadataCleanup::Elsewhere(url) = &plan.cleanup {
            cleaner = elsewhere(url.as_deref(), &plan.access.credentials)?;
        }
        let started = match &plan.cluster {
            None => MasterServer::start_here(plan.config.clone(), data, env.clone()).await,
            Some(cluster) => {
                let (election, settings) = (cluster.election()?, cluster.settings.clone());
                MasterServer::start_in_cluster_here(plan.config.clone(), settings, election, data, env.clone()).await
            }
        };
        let master = started.map_err(|error| match (error, &plan.data) {
            (MasterError::Rpc(StartError::Listen { source, .. }), _) => plan.rpc.failure(&source),
            (MasterError::Rpc(StartError::Thread(source)), _) => {
                Failure::host("cannot start the RPC threads").found(source.to_string()).next("lower --rpc-thread-num")
            }
            (MasterError::Replication { address, source }, _) => {
                Failure::host(format!("cannot listen on {address} for standbys"))
                    .tried("--ha-port")
                    .found(source.to_string())
                    .next("use another port, or 0 for any free one")
            }
            (MasterError::Data(error), Some(data)) => data.failure(&error),
            (MasterError::Data(error), None) => Failure::host("cannot restore the state").found(error.to_string()),
        })?;
        let departures = master.handle().unmount_events();
        let announcer = Announcer { rpc_port: master.rpc_port(), embedded, scheme };
        let admin = AdminApi::announcing(env, Arc::new(master.handle()), Some(announcer));
        admin.append_metrics(|| process_metrics::exposition() + &address_filter::exposition());
        if let MetadataCleaner::Here { service, .. } = &cleaner {
            service.share_request_counts(admin.http_requests().clone());
        }
        let running = admin.start_with(&plan.admin.at, plan.access.main_http()).await;
        let running = running.map_err(|error| plan.admin.http_failure(&error))?;
        let admin_at = running.at().clone();
        http.push(running);
        let rpc = HostPort::new(plan.rpc.at.host.clone(), master.rpc_port());
        let (report, data, access) = (plan.report, plan.data.clone(), plan.access.clone());
        Ok(MasterProcess { rpc, admin_at, metadata_at, master, admin, http, access, report, departures, cleaner, data })
    }

    /// All listen addresses of the process, for the log.
    pub fn listeners(&self) -> String {
        let scheme = self.access.http.scheme();
        let metadata = self.metadata_at.as_ref().map(|at| format!(", metadata {scheme}://{at}/metadata"));
        format!("RPC {}, admin {scheme}://{}{}", self.rpc, self.admin_at, metadata.unwrap_or_default())
    }

    /// Logs one warning if a port is reachable from other hosts and nothing restricts who uses it.
    pub fn warn_if_open(&self) {
        let metadata = self.metadata_at.as_ref().map(|at| OpenPort::http("metadata", at));
        let own = [OpenPort::mooncake("RPC", &self.rpc), OpenPort::http("admin HTTP", &self.admin_at)];
        let listens: Vec<_> = own.into_iter().chain(metadata).collect();
        self.access.warn_if_open(&listens);
    }

    /// The process's background work, which runs while this future is polled. Returns the reason why the process must stop: the data
    /// directory cannot be written. Panics if a bug has made the master's state unusable.
    pub async fn work(&mut self) -> Failure {
        let handle = self.master.handle();
        let report = async {
            match self.report {
                true => self.admin.report(|line| tracing::info!("metrics: {line}")).await,
                false => std::future::pending().await,
            }
        };
        let cleaned = clean(&handle, &mut self.departures, &self.cleaner);
        tokio::select! {
            error = self.master.failed() => state_not_written(self.data.as_ref(), &error),
            error = self.cleaner.failed() => records_not_written(self.data.as_ref(), &error),
            ((), ()) = async { tokio::join!(report, cleaned) } => std::future::pending().await,
            never = self.access.keep_current() => match never {},
        }
    }

    /// If this master leads, hands over to a standby in sync, and forwards connections to it for a while, so that clients notice little. If
    /// it is a standby, tells the leader not to wait for it.
    pub async fn leave_cluster(&self) {
        let Some(ha) = self.master.handle().ha() else { return };
        let Err(problem) = self.master.leave_cluster().await else {
            return RealEnv::new().sleep(FORWARD_BEFORE_EXIT).await;
        };
        let state = if self.data.is_some() { "stays in the data directory" } else { "is lost when this process ends" };
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

    /// Stops the process. Responses in progress are completed; new requests are rejected. A master with a data directory writes a last
    /// snapshot. Takes limited time.
    ///
    /// # Errors
    /// The data directory cannot be written.
    pub async fn stop(self) -> Result<(), Failure> {
        let data = self.data.as_ref();
        let stop = async {
            for server in self.http {
                server.stop().await;
            }
            let records = match &self.cleaner {
                MetadataCleaner::Here { service, .. } => service.close().await,
                MetadataCleaner::None | MetadataCleaner::Elsewhere { .. } => Ok(()),
            };
            let state = self.master.stop().await.map_err(|error| state_not_written(data, &error));
            state.and(records.map_err(|error| records_not_written(data, &error)))
        };
        let (limit, consequence) = match data {
            Some(_) => {
                (STOP_WITH_DATA_MAX, "the last snapshot is not complete, so the next start reads more of the log")
            }
            None => (runtime::STOP_MAX, "requests in progress may have no response"),
        };
        runtime::stop_within(limit, "the master", consequence, stop).await.unwrap_or(Ok(()))
    }
}

fn state_not_written(data: Option<&DataPlan>, error: &JournalError) -> Failure {
    match data {
        Some(data) => data.stopped(error),
        None => Failure::host("the master stopped").found(error.to_string()),
    }
}

fn records_not_written(data: Option<&DataPlan>, error: &JournalError) -> Failure {
    match data {
        Some(data) => MetadataDataPlan::embedded(data).stopped(error),
        None => Failure::host("the metadata service stopped").found(error.to_string()),
    }
}

impl MetadataCleaner {
    /// Waits until the embedded metadata service cannot write its data directory.
    async fn failed(&self) -> JournalError {
        match self {
            MetadataCleaner::Here { service, .. } => service.failed().await,
            MetadataCleaner::None | MetadataCleaner::Elsewhere { .. } => std::future::pending().await,
        }
    }
}

fn elsewhere(url: Option<&str>, credentials: &HttpCredentials) -> Result<MetadataCleaner, Failure> {
    let Some(url) = url else {
        tracing::warn!(
            "--enable-metadata-cleanup-on-timeout has no effect: the metadata service is not embedded, and neither \
             MOONCAKE_TE_META_DATA_SERVER nor the MOONCAKE_CONFIG_PATH file sets an http(s) URL"
        );
        return Ok(MetadataCleaner::None);
    };
    let client = MetadataClient::with_credentials(url, CallLimits::default(), credentials).map_err(|error| {
        Failure::usage(format!("'{url}' is not a metadata service URL"))
            .tried("read MOONCAKE_TE_META_DATA_SERVER or the MOONCAKE_CONFIG_PATH file")
            .found(error.to_string())
            .next("use http://HOST:PORT/metadata")
    })?;
    Ok(MetadataCleaner::Elsewhere { client, keys: key_space() })
}

/// Cleans up the metadata service for each expired segment.
async fn clean(master: &MasterHandle<RealEnv>, departures: &mut Receiver<StateEffect>, cleaner: &MetadataCleaner) {
    loop {
        let name = match departures.recv().await {
            Ok(StateEffect::Unmounted {
                name,
                reason: UnmountReason::ClientExpired | UnmountReason::Unconfirmed,
                last_of_name: true,
                ..
            }) => name,
            Ok(_) => continue,
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(
                    "missed {missed} events for unmounted segments; the segments' metadata records may remain"
                );
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let name = String::from_utf8_lossy(&name.0);
        // The owner process may have restarted and mounted the segment again.
        if master.has_segment_named(&name) {
            continue;
        }
        match cleaner {
            MetadataCleaner::None => {}
            MetadataCleaner::Here { service, remove: false } => service.mark_owner_expired(&name),
            MetadataCleaner::Here { service, remove: true } => {
                let gone = service.remove_segment(&name);
                tracing::info!(
                    "Cleaned up HTTP metadata for segment: {name}, ram_key_removed={}, rpc_key_removed={}",
                    gone.ram,
                    gone.rpc_meta
                );
            }
            MetadataCleaner::Elsewhere { client, keys } => {
                for key in [keys.ram_key(&name), keys.rpc_meta_key(&name)] {
                    match client.remove(&key).await {
                        Ok(removed) => tracing::info!("Cleaned up HTTP metadata: {key}, removed={removed}"),
                        Err(error) => tracing::warn!("cannot clean up HTTP metadata: {error}"),
                    }
                }
            }
        }
    }
}
