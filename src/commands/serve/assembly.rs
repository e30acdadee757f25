//! A master with everything around it in one process: RPC, admin HTTP, on request the metadata service, the summary line, and the
//! clean-up of what dead clients left in the metadata service.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::commands::error::Failure;
use crate::commands::listen::Listen;
use crate::commands::serve::exposition;
use crate::commands::serve::metadata::key_space;
use crate::engine::base::HostPort;
use crate::engine::env::RealEnv;
use crate::engine::http::Running;
use crate::engine::master::admin::Admin;
use crate::engine::master::announcer::Announcer;
use crate::engine::master::{Departure, Effect, MasterConfig, MasterError, MasterHandle, MasterServer};
use crate::engine::metadata::{KeySpace, MetadataClient, MetadataService};
use crate::engine::rpc::StartError;

/// What to start.
#[derive(Debug)]
pub struct Plan {
    /// The master; its `listen` is that of `rpc`.
    pub config: MasterConfig,
    /// Its RPC.
    pub rpc: Listen,
    /// Its admin HTTP.
    pub admin: Listen,
    /// The metadata service, if it is to be served here.
    pub metadata: Option<Listen>,
    /// What happens to a dead client's records.
    pub cleanup: Cleanup,
    /// Log the summary line?
    pub report: bool,
}

/// What happens to a dead client's records in the metadata service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// They stay in the service of this process, but their name is free for the next one who asks.
    Release,
    /// They are removed from the service of this process.
    Remove,
    /// They are removed from the service at this URL, if there is one.
    Elsewhere(Option<String>),
}

/// It runs. Dropping it stops it without waiting.
pub struct Assembly {
    /// The RPC's address.
    pub rpc: HostPort,
    /// The admin HTTP's address.
    pub admin_at: HostPort,
    /// The metadata service's address.
    pub metadata_at: Option<HostPort>,
    master: MasterServer<RealEnv>,
    admin: Arc<Admin<RealEnv>>,
    http: Vec<Running>,
    report: bool,
    departures: Receiver<Effect>,
    cleaner: Cleaner,
}

enum Cleaner {
    None,
    Here { service: MetadataService<RealEnv>, remove: bool },
    Elsewhere { client: MetadataClient, keys: KeySpace },
}

impl Assembly {
    /// Start everything in `plan`, or nothing.
    ///
    /// # Errors
    /// A port cannot be taken, or the host gives no threads.
    pub async fn start(plan: &Plan) -> Result<Assembly, Failure> {
        let env = RealEnv::new();
        let mut http = Vec::new();
        // The small ones first: nobody is to find a master that goes away again.
        let mut cleaner = Cleaner::None;
        let (mut metadata_at, mut embedded) = (None, None);
        if let Some(listen) = &plan.metadata {
            let service = MetadataService::new(env.clone(), key_space());
            let running = service.start(&listen.at).await.map_err(|error| listen.failure(&error.source))?;
            metadata_at = Some(running.at().clone());
            embedded = Some((running.at().clone(), service.clone()));
            http.push(running);
            cleaner = Cleaner::Here { service, remove: plan.cleanup == Cleanup::Remove };
        }
        if let Cleanup::Elsewhere(url) = &plan.cleanup {
            cleaner = elsewhere(url.as_deref())?;
        }
        let master = MasterServer::start(plan.config.clone(), env.clone()).await.map_err(|error| match error {
            MasterError::Rpc(StartError::Listen { source, .. }) => plan.rpc.failure(&source),
            MasterError::Rpc(StartError::Thread(source)) => {
                Failure::host("cannot start the RPC's threads").found(source.to_string()).next("lower --rpc-thread-num")
            }
        })?;
        let departures = master.handle().departures();
        let announcer = Announcer { rpc_port: master.rpc_port(), embedded };
        let admin = Admin::announcing(env, Arc::new(master.handle()), Some(announcer));
        admin.append_metrics(exposition::process);
        if let Cleaner::Here { service, .. } = &cleaner {
            service.count_in(admin.http_requests().clone());
        }
        let running = admin.start(&plan.admin.at).await.map_err(|error| plan.admin.failure(&error.source))?;
        let admin_at = running.at().clone();
        http.push(running);
        let rpc = HostPort::new(plan.rpc.at.host.clone(), master.rpc_port());
        Ok(Assembly { rpc, admin_at, metadata_at, master, admin, http, report: plan.report, departures, cleaner })
    }

    /// Every address that is listened on, in words.
    pub fn listeners(&self) -> String {
        let metadata = self.metadata_at.as_ref().map(|at| format!(", metadata http://{at}/metadata"));
        format!("RPC {}, admin http://{}{}", self.rpc, self.admin_at, metadata.unwrap_or_default())
    }

    /// The work besides the servers, for as long as it is polled.
    pub async fn work(&mut self) -> Infallible {
        let handle = self.master.handle();
        let report = async {
            match self.report {
                true => self.admin.report(|line| tracing::info!("Master Admin Metrics: {line}")).await,
                false => std::future::pending().await,
            }
        };
        tokio::join!(report, clean(&handle, &mut self.departures, &self.cleaner));
        std::future::pending().await
    }

    /// Stop: answers under way are written, nothing new is taken.
    pub async fn stop(self) {
        for server in self.http {
            server.stop().await;
        }
        self.master.stop().await;
    }
}

fn elsewhere(url: Option<&str>) -> Result<Cleaner, Failure> {
    let Some(url) = url else {
        tracing::warn!(
            "--enable-metadata-cleanup-on-timeout has no effect: the metadata service is not embedded, and neither \
             MOONCAKE_TE_META_DATA_SERVER nor the file of MOONCAKE_CONFIG_PATH names an http(s) one"
        );
        return Ok(Cleaner::None);
    };
    let client = MetadataClient::http(url).map_err(|error| {
        Failure::usage(format!("'{url}' is not the URL of a metadata service"))
            .tried("read MOONCAKE_TE_META_DATA_SERVER or the file of MOONCAKE_CONFIG_PATH")
            .found(error.to_string())
            .next("give http://HOST:PORT/metadata")
    })?;
    Ok(Cleaner::Elsewhere { client, keys: key_space() })
}

/// Follow the departures and do to the metadata service what they mean.
async fn clean(master: &MasterHandle<RealEnv>, departures: &mut Receiver<Effect>, cleaner: &Cleaner) {
    loop {
        let name = match departures.recv().await {
            Ok(Effect::Unmounted { name, reason: Departure::Expired, last_of_name: true, .. }) => name,
            Ok(_) => continue,
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!("{missed} departures of segments were missed; their metadata records stay");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let name = String::from_utf8_lossy(&name.0);
        // Its process may be back by now.
        if master.has_segment_named(&name) {
            continue;
        }
        match cleaner {
            Cleaner::None => {}
            Cleaner::Here { service, remove: false } => service.owner_expired(&name),
            Cleaner::Here { service, remove: true } => {
                let gone = service.forget_segment(&name);
                tracing::info!(
                    "Cleaned up HTTP metadata for segment: {name}, ram_key_removed={}, rpc_key_removed={}",
                    gone.ram,
                    gone.rpc_meta
                );
            }
            Cleaner::Elsewhere { client, keys } => {
                for key in [keys.ram_key(&name), keys.rpc_meta_key(&name)] {
                    match client.remove(&key).await {
                        Ok(removed) => tracing::info!("Cleaned up HTTP metadata: {key}, removed={removed}"),
                        Err(error) => tracing::warn!("cannot clean up: {error}"),
                    }
                }
            }
        }
    }
}
