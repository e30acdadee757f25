//! Runs a [`MasterState`]: the lock, the clock, the RPC server, the ticker, the log and the
//! snapshots.

mod admission;
mod data;
mod effect_log;
mod ha;
mod handle;
mod log;
mod metadata;
mod reads;
mod shared;
mod ticker;

use std::panic::resume_unwind;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::config::MasterConfig;
use crate::server::ha::{HaDisk, HaDriver, HaHub, TailLimits};
use crate::server::log::MasterLog;
use crate::server::shared::MasterShared;
use crate::server::ticker::run_ticker;
use crate::state::MasterState;
use mcctl_base::HostPort;
use mcctl_election::ha::{HandOverProblem, MemberId};
use mcctl_election::{ElectionBackend, EtcdElection};
use mcctl_journal::{JournalError, LogThread, SnapshotThread};
use mcctl_net::rpc::{RpcServer, ServerConfig, StartError};
use mcctl_sys::env::{Env, Net, RealEnv};
use mcctl_sys::{cgroup, host};

pub use data::{MasterData, MasterDataError};
pub use ha::{HaSecret, HaSettings};
pub use handle::{MasterHandle, WORKER_STUCK_AFTER};

/// The errors with which a master cannot start.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The RPC server could not start.
    #[error(transparent)]
    Rpc(#[from] StartError),
    /// The state could not be restored from the data directory.
    #[error(transparent)]
    Data(#[from] MasterDataError),
    /// The port for standbys is not available.
    #[error("cannot listen on {address} for standbys: {source}")]
    Replication { address: HostPort, source: std::io::Error },
}

impl MasterServer<RealEnv> {
    /// Calls [`start_with`](MasterServer::start_with) on this host. This function is not generic,
    /// so the code of the connections is compiled with this crate, as one unit. The generic
    /// function is compiled with its caller's crate, in many units, and uses up to 40 % more CPU
    /// time per batch.
    ///
    /// # Errors
    /// Same as [`start_with`](MasterServer::start_with).
    pub fn start_here(config: MasterConfig, data: Option<MasterData>, env: RealEnv) -> MasterStart {
        Box::pin(MasterServer::start_with(config, data, env))
    }

    /// Calls [`start_in_cluster`](MasterServer::start_in_cluster) on this host, with the election
    /// in etcd. Not generic, like [`start_here`](MasterServer::start_here).
    ///
    /// # Errors
    /// Same as [`start_in_cluster`](MasterServer::start_in_cluster).
    pub fn start_in_cluster_here(
        config: MasterConfig,
        ha: HaSettings,
        election: EtcdElection,
        data: Option<MasterData>,
        env: RealEnv,
    ) -> MasterStart {
        Box::pin(MasterServer::start_in_cluster(config, ha, election, data, env))
    }
}

/// Time for which a standby that leaves waits before its process ends.
const LEAVE_PAUSE: Duration = Duration::from_millis(50);

/// The start of a master on this host.
pub type MasterStart = Pin<Box<dyn Future<Output = Result<MasterServer<RealEnv>, MasterError>> + Send>>;

/// A running master. Dropping it stops it without waiting; [`MasterServer::stop`] waits.
pub struct MasterServer<E: Env> {
    handle: MasterHandle<E>,
    rpc: RpcServer,
    stop: watch::Sender<bool>,
    /// The ticker, and the threads for the log and the snapshots.
    background: JoinSet<()>,
    log_threads: LogThreads,
}

/// Ends the threads for the log and the snapshots when it is dropped.
struct LogThreads(Option<Arc<MasterLog>>);

impl Drop for LogThreads {
    fn drop(&mut self) {
        if let Some(log) = &self.0 {
            log.stop_threads();
        }
    }
}

impl<E: Env> MasterServer<E> {
    /// Starts listening and serving, with a state that is only in memory.
    ///
    /// # Errors
    /// The address is not available, or a thread cannot be started.
    pub async fn start(config: MasterConfig, env: E) -> Result<MasterServer<E>, MasterError> {
        MasterServer::start_with(config, None, env).await
    }

    /// Restores the state from `data`, if there is a data directory, and starts listening and
    /// serving.
    ///
    /// # Errors
    /// The data is damaged, or the disk reports an error; the address is not available, or a thread
    /// cannot be started.
    pub async fn start_with(
        mut config: MasterConfig,
        data: Option<MasterData>,
        env: E,
    ) -> Result<MasterServer<E>, MasterError> {
        if config.policy.seed == 0 {
            config.policy.seed = env.rng();
        }
        let (state, log) = match data {
            None => (MasterState::new(config.policy.clone()), None),
            Some(mut data) => {
                // The runtime serves the embedded metadata service in the meantime.
                let policy = config.policy.clone();
                let restore_env = env.clone();
                let reading = tokio::task::spawn_blocking(move || {
                    let restored = data::restore(&mut data, policy, &restore_env)?;
                    Ok::<_, MasterDataError>((data, restored))
                });
                let (data, restored) = match reading.await {
                    Ok(read) => read?,
                    Err(error) => resume_unwind(error.into_panic()),
                };
                data::log_restored(&restored.report);
                let log = MasterLog::new(data, restored.writer, &restored.found, env.now());
                (restored.state, Some(Arc::new(log)))
            }
        };
        let shared = Arc::new(MasterShared::new(state, log, None, env.clone()));
        MasterServer::serve(config, shared, env).await
    }

    /// Starts listening, and takes part in the election of a cluster. Serves clients when it is
    /// elected. If there is a data directory, continues with the copy in it.
    ///
    /// # Errors
    /// The data is damaged, or the disk reports an error; an address is not available, or a thread
    /// cannot be started.
    pub async fn start_in_cluster<B: ElectionBackend>(
        mut config: MasterConfig,
        ha: HaSettings,
        backend: B,
        data: Option<MasterData>,
        env: E,
    ) -> Result<MasterServer<E>, MasterError> {
        if config.policy.seed == 0 {
            config.policy.seed = env.rng();
        }
        let policy = config.policy.clone();
        let (disk, found) = match data {
            None => (None, None),
            Some(data) => {
                let policy = policy.clone();
                let env = env.clone();
                let new_id = MemberId(env.rng());
                match tokio::task::spawn_blocking(move || ha::open(data, policy, &env, new_id)).await {
                    Ok(opened) => opened.map(|(disk, found)| (Some(disk), Some(found)))?,
                    Err(error) => resume_unwind(error.into_panic()),
                }
            }
        };
        let (hub, commands) = HaHub::new(disk);
        if let Some(memory) = own_memory() {
            hub.tail.set_limits(TailLimits::for_memory(memory));
        }
        let hub = Arc::new(hub);
        let state = MasterState::new(policy.clone());
        let shared = Arc::new(MasterShared::new(state, None, Some(hub.clone()), env.clone()));
        let mut server = MasterServer::serve(config, shared.clone(), env.clone()).await?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let (report, listening) = oneshot::channel();
        let stopping = server.stop.subscribe();
        let listen = ha.listen.clone();
        let address = ha.listen.clone();
        let driver = HaDriver::new(shared, hub, backend, ha, server.rpc_port(), found, policy);
        server.background.spawn_blocking(move || {
            runtime.block_on(async {
                let listener = match env.net().listen(&listen).await {
                    Ok(listener) => listener,
                    Err(source) => return drop(report.send(Err(source))),
                };
                let _ = report.send(Ok(()));
                driver.run(listener, commands, stopping).await;
            });
            runtime.shutdown_background();
        });
        match listening.await {
            Ok(Err(source)) => Err(MasterError::Replication { address, source }),
            _ => Ok(server),
        }
    }

    /// Starts serving a state.
    async fn serve(config: MasterConfig, shared: Arc<MasterShared<E>>, env: E) -> Result<MasterServer<E>, MasterError> {
        let MasterConfig { listen, threads, idle_timeout, client_release, .. } = config;
        let server = ServerConfig { listen, threads, idle_timeout, client_release };
        let rpc = RpcServer::start(server, env, shared.clone()).await?;
        let (stop, stopping) = watch::channel(false);
        let handle = MasterHandle { shared, polls: rpc.polls(), latency: rpc.latency(), releases: rpc.releases() };
        let mut background = JoinSet::new();
        background.spawn(run_ticker(handle.clone(), stopping));
        if let Some(log) = handle.shared.log.clone() {
            let shared = &handle.shared;
            let env = &shared.env;
            background.spawn(env.run_thread(LogThread::new(env.clone(), shared.clone(), log.clone())));
            background.spawn(env.run_thread(SnapshotThread::new(env.clone(), shared.clone(), log)));
        }
        let log_threads = LogThreads(handle.shared.log.clone());
        Ok(MasterServer { handle, rpc, stop, background, log_threads })
    }

    /// The port that the RPC server listens on.
    pub fn rpc_port(&self) -> u16 {
        self.rpc.port()
    }

    /// Number of open RPC connections.
    pub fn connections(&self) -> usize {
        self.rpc.connections()
    }

    /// Returns access to the state, for the admin API.
    pub fn handle(&self) -> MasterHandle<E> {
        self.handle.clone()
    }

    /// Prepares the end of the process. A leader hands over to a standby in sync, for as long as
    /// that one makes progress. From then on, it answers no request that changes something. A
    /// standby notifies its leader that it leaves.
    ///
    /// # Errors
    /// There was nothing to hand over, or no master has taken over.
    pub async fn leave_cluster(&self) -> Result<(), HandOverProblem> {
        let Some(ha) = &self.handle.shared.ha else { return Err(HandOverProblem::NotLeading) };
        if ha.leave().await {
            // The message has been sent when this time has passed.
            self.handle.shared.env.sleep(LEAVE_PAUSE).await;
            return Err(HandOverProblem::NotLeading);
        }
        self.handle.hand_over(true).await
    }

    /// Waits until the master cannot continue, and returns the error of the disk that ends it. If a
    /// panic has made the state unusable, resumes the panic. Does not return while the master
    /// works.
    pub async fn failed(&mut self) -> JournalError {
        let shared = self.handle.shared.clone();
        let failure = async {
            match (&shared.log, shared.disk()) {
                (Some(log), _) => log.failure().await,
                (None, Some(disk)) => disk.failure().await,
                (None, None) => std::future::pending().await,
            }
        };
        tokio::select! {
            error = failure => error,
            () = resume_panics(&mut self.background) => std::future::pending().await,
        }
    }

    /// Stops accepting connections, waits for calls in progress, stops the background work, and
    /// writes a last snapshot. If a panic has made the state unusable, resumes the panic.
    ///
    /// # Errors
    /// The disk reports an error. Changes that were acknowledged are in the kernel, but may not be
    /// durable.
    pub async fn stop(mut self) -> Result<(), JournalError> {
        self.rpc.stop().await;
        let _ = self.stop.send(true);
        if let Some(disk) = self.handle.shared.disk() {
            disk.stop_threads();
        }
        drop(self.log_threads);
        let shared = self.handle.shared;
        resume_panics(&mut self.background).await;
        // The background work may have ended without locking the state.
        if shared.guarded.is_poisoned() {
            resume_unwind(Box::new("a panic interrupted a change of the master's state"));
        }
        if shared.disk().is_some() {
            let completing = tokio::task::spawn_blocking(move || shared.disk().map_or(Ok(()), HaDisk::complete));
            return completing.await.unwrap_or_else(|error| resume_unwind(error.into_panic()));
        }
        let Some(log) = shared.log.clone().filter(|log| !log.has_failed()) else { return Ok(()) };
        match tokio::task::spawn_blocking(move || log::complete_log(&shared, &log)).await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Ok(()),
        }
    }
}

/// Waits until all background work has ended, or resumes its first panic.
async fn resume_panics(background: &mut JoinSet<()>) {
    while let Some(ended) = background.join_next().await {
        match ended {
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            _ => {}
        }
    }
}

/// The memory that this process may use, in bytes; `None` if the host does not report it.
fn own_memory() -> Option<u64> {
    let total = host::memory()?.total;
    Some(cgroup::memory_left(Path::new("/sys/fs/cgroup")).map_or(total, |left| left.min(total)))
}

#[cfg(test)]
mod tests {
    mod back_pressure;
    mod crash;
    mod log;

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::DATA_FORMAT;
    use crate::unit_tests::segment;
    use crate::view::AdminView;
    use mcctl_base::{ClientId, HostPort, SegmentId};
    use mcctl_journal::{CommitLogOptions, Crash, DataDir, DataDirOptions, ExistingData, SimulatedStorage, Uuid};

    #[tokio::test]
    async fn no_call_uses_the_state_after_a_panic() {
        let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
        config.threads = 1;
        let mut server = MasterServer::start(config, RealEnv::new()).await.unwrap();
        let handle = server.handle();
        assert!(!handle.has_segment_named("node:1"));
        let ends = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
        assert!(ends(&|| handle.shared.with_guarded(|_, _, _| resume_unwind(Box::new("on purpose")))));
        assert!(ends(&|| assert!(!handle.has_segment_named("node:1"))));
        let failed = tokio::spawn(async move { server.failed().await }).await;
        assert!(failed.is_err_and(|error| error.is_panic()));
    }

    #[tokio::test]
    async fn a_restart_after_a_panic_keeps_what_was_acknowledged() {
        let disk = SimulatedStorage::new(1);
        let start = async |disk: &SimulatedStorage| {
            let boot_id = disk.boot_id();
            let existing = ExistingData::Keep;
            let open = DataDirOptions { cluster_id: "c", boot_id, new_uuid: Uuid(1), existing };
            let dir = DataDir::open(Arc::new(disk.clone()), &open).unwrap();
            let data = MasterData { dir, options: CommitLogOptions::default(), format: DATA_FORMAT };
            let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
            config.threads = 1;
            MasterServer::start_with(config, Some(data), RealEnv::new()).await.unwrap()
        };
        let server = start(&disk).await;
        let handle = server.handle();
        let mut segment = segment(1, "node:1", 1 << 20);
        let (mounted, receipt) = handle.call(|call| call.mount_segment(segment.clone(), ClientId(1, 1)));
        assert_eq!(mounted, Ok(()));
        if let Some(stored) = handle.commit(receipt) {
            assert!(stored.await);
        }
        let panics = || {
            handle.shared.with_guarded(|guarded, now, effects| {
                // A part of a change.
                segment.id = SegmentId(2, 2);
                guarded.state.mount(now, segment, ClientId(1, 1), effects).unwrap();
                resume_unwind(Box::new("on purpose"))
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        let stopped = tokio::spawn(async move { server.stop().await }).await;
        assert!(stopped.is_err_and(|error| error.is_panic()));
        let server = start(&disk.crash(Crash::Kill)).await;
        let mut ids = Vec::new();
        server.handle().segments(0, 10, &mut |segment| ids.push(segment.id));
        assert_eq!(ids, [SegmentId(1, 1)]);
    }
}
