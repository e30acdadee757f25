//! A master process: from its plan to a running one, and the messages for its errors.

use std::ops::{Deref, DerefMut};

use crate::commands::cli::error::Failure;
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::runtime;
use crate::commands::serve::access_plan::{AccessPlan, OpenPort};
use crate::commands::serve::cluster_plan::ClusterPlan;
use crate::commands::serve::data_directory::{DataPlan, STOP_WITH_DATA_MAX};
use crate::commands::serve::metadata_directory::MetadataDataPlan;
use crate::commands::target::key_space::key_space;
use crate::engine::master::process::{MasterProcess, MasterProcessConfig, MasterProcessError, MetadataCleanup};
use crate::engine::master::{MasterConfig, MasterError};
use crate::engine::rpc::StartError;

/// A master process's configuration, with the origins of its values.
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

/// A running master process with its plan.
pub struct PlannedMaster {
    plan: MasterPlan,
    process: MasterProcess,
}

impl Deref for PlannedMaster {
    type Target = MasterProcess;

    fn deref(&self) -> &MasterProcess {
        &self.process
    }
}

impl DerefMut for PlannedMaster {
    fn deref_mut(&mut self) -> &mut MasterProcess {
        &mut self.process
    }
}

impl MasterPlan {
    /// Starts the process.
    ///
    /// # Errors
    /// A port cannot be bound, the data directory cannot be used, or the host cannot start threads.
    pub async fn start(self) -> Result<PlannedMaster, Failure> {
        let cluster = match &self.cluster {
            Some(cluster) => Some((cluster.settings.clone(), cluster.election()?)),
            None => None,
        };
        let config = MasterProcessConfig {
            master: self.config.clone(),
            admin: self.admin.at.clone(),
            metadata: self.metadata.as_ref().map(|listen| listen.at.clone()),
            keys: key_space(),
            access: self.access.of_process(),
            cleanup: self.cleanup.clone(),
            data: self.data.as_ref().map(|data| data.data.clone()),
            cluster,
            metrics_line: self.report,
        };
        match MasterProcess::start(config).await {
            Ok(process) => Ok(PlannedMaster { plan: self, process }),
            Err(error) => Err(self.failure(error)),
        }
    }

    fn failure(&self, error: MasterProcessError) -> Failure {
        match error {
            MasterProcessError::Master(error) => self.master_failure(error),
            MasterProcessError::Records(error) => match &self.data {
                Some(data) => MetadataDataPlan::embedded(data).failure(&error),
                None => Failure::host("cannot start the metadata service").found(error.to_string()),
            },
            MasterProcessError::RecordsNotImported { path, problem } => {
                Failure::host("cannot move the metadata records of an earlier release into the master's log")
                    .tried(format!("read {}, write the log, and remove the directory", path.display()))
                    .found(problem)
                    .next("correct this, then start the master again")
            }
            MasterProcessError::RecordsOfSingleMaster(path) => Failure::usage(
                "the data directory has metadata records of a master without --enable-ha",
            )
            .found(path.display().to_string())
            .next(
                "start this master once without --enable-ha: it moves the records into its log. If they are not needed, remove that directory",
            ),
            MasterProcessError::Forwarder(error) => {
                Failure::host("cannot set up the client for the other masters' metadata services")
                    .found(error.to_string())
            }
            MasterProcessError::MetadataPort(error) => {
                self.metadata.as_ref().unwrap_or(&self.admin).http_failure(&error)
            }
            MasterProcessError::AdminPort(error) => self.admin.http_failure(&error),
            MasterProcessError::CleanupUrl { url, source } => {
                Failure::usage(format!("'{url}' is not a metadata service URL"))
                    .tried("read MOONCAKE_TE_META_DATA_SERVER or the MOONCAKE_CONFIG_PATH file")
                    .found(source.to_string())
                    .next("use http://HOST:PORT/metadata")
            }
            MasterProcessError::StateNotWritten(error) => match &self.data {
                Some(data) => data.stopped(&error),
                None => Failure::host("the master stopped").found(error.to_string()),
            },
        }
    }

    fn master_failure(&self, error: MasterError) -> Failure {
        match (error, &self.data) {
            (MasterError::Rpc(StartError::Listen { source, .. }), _) => self.rpc.failure(&source),
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
        }
    }
}

impl PlannedMaster {
    /// Logs one warning if a port is reachable from other hosts and nothing restricts who uses it.
    pub fn warn_if_open(&self) {
        let metadata = self.process.metadata_at.as_ref().map(|at| OpenPort::http("metadata", at));
        let own = [OpenPort::mooncake("RPC", &self.process.rpc), OpenPort::http("admin HTTP", &self.process.admin_at)];
        let listens: Vec<_> = own.into_iter().chain(metadata).collect();
        self.plan.access.warn_if_open(&listens);
    }

    /// The process's background work, which runs while this future is polled. Returns the reason
    /// why the process must stop.
    pub async fn work(&mut self) -> Failure {
        let error = self.process.work().await;
        self.plan.failure(error)
    }

    /// Stops the process. Takes limited time.
    ///
    /// # Errors
    /// The data directory cannot be written.
    pub async fn stop(self) -> Result<(), Failure> {
        let (limit, consequence) = match self.plan.data {
            Some(_) => {
                (STOP_WITH_DATA_MAX, "the last snapshot is not complete, so the next start reads more of the log")
            }
            None => (runtime::STOP_MAX, "requests in progress may have no response"),
        };
        let stopped = runtime::stop_within(limit, "the master", consequence, self.process.stop()).await;
        stopped.unwrap_or(Ok(())).map_err(|error| self.plan.failure(error))
    }
}
