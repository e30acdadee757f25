//! A command's connection to a store: the flags, the client's configuration, and why the client did
//! not start.

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::Failure;
use crate::commands::cli::origin::ClientOrigins;
use crate::commands::cli::origin::{Origin, ValueOrigin, flag_or_variable};
use crate::commands::cli::output;
use crate::commands::failure::node as node_failure;
use crate::commands::failure::store as store_failure;
use crate::commands::target::discovery;
use crate::commands::target::master_target::{MasterArgs, MasterTarget};
use crate::commands::target::shared_memory::{self, SharedMemoryArgs};
use crate::commands::target::transport::TransportArgs;
use crate::engine::base::HostPort;
use crate::engine::env::{RealEnv, deadline};
use crate::engine::metadata::{CallLimits, MetadataUri};
use crate::engine::store::{ClientConfig, OnCorruption, StoreClient, StoreStartError, service};
use crate::engine::sys::interface;
use crate::engine::transfer::TransferError;

/// Flags that select a store.
#[derive(Clone, Debug, clap::Args)]
pub struct ConnectArgs {
    #[command(flatten)]
    pub master: MasterArgs,
    /// Metadata service URL (http:// or etcd://), or P2PHANDSHAKE [default: the mode that the nodes
    /// use; environment: MOONCAKE_TE_META_DATA_SERVER]
    ///
    /// By default the mode is discovered through the master's admin port. Several http URLs,
    /// separated by commas, name one service at several addresses: the first that responds is used.
    #[arg(long, value_name = "URL")]
    pub metadata_server: Option<String>,
    /// Name or address of this host [default: the local address on the route to the master;
    /// environment: MOONCAKE_LOCAL_HOSTNAME]
    #[arg(long, value_name = "HOST")]
    pub local_hostname: Option<String>,
}

/// Flags of a command that transfers data.
#[derive(Clone, Debug, clap::Args)]
pub struct ClientArgs {
    #[command(flatten)]
    pub connect: ConnectArgs,
    #[command(flatten)]
    pub transport: TransportArgs,
    #[command(flatten)]
    pub shared_memory: SharedMemoryArgs,
}

/// The configuration of a store client.
pub struct ClientPlan {
    pub config: ClientConfig,
    /// What chose the values, for errors.
    pub origins: ClientOrigins,
    /// The metadata mode of `config`, and what chose it: the default if it was discovered.
    pub metadata: Origin<MetadataUri>,
    /// Warnings about environment variables that do not parse.
    pub warnings: Vec<String>,
    /// A message with the discovered metadata mode: see [`ClientPlan::log_note`].
    pub note: Option<String>,
}

impl ClientPlan {
    /// Logs the discovered metadata mode, once the client has started. Commands do not show this
    /// level by default, because the mode matters only if a transfer fails, and the failure then
    /// names it.
    pub fn log_note(&self) {
        if let Some(note) = &self.note {
            tracing::info!("{note}");
        }
    }
}

impl ConnectArgs {
    /// The configuration of a client of `master` that uses `transport`.
    ///
    /// # Errors
    /// This host has no route to the master, or a flag or variable has an invalid value.
    pub async fn plan(&self, master: &MasterTarget, transport: &TransportArgs) -> Result<ClientPlan, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let given = |flag: &Option<String>, spelled, name| flag_or_variable(flag.as_deref(), spelled, name, variable);
        let mut note = None;
        let metadata = match given(&self.metadata_server, "--metadata-server", "MOONCAKE_TE_META_DATA_SERVER") {
            Some(given) => node_failure::metadata(given)?,
            None => {
                let found = discovery::find(master).await;
                note = Some(discovery::note(found.as_ref(), master));
                Origin::default(found.map_or(MetadataUri::P2p, |found| found.metadata))
            }
        };
        let name = given(&self.local_hostname, "--local-hostname", "MOONCAKE_LOCAL_HOSTNAME");
        let name = local_hostname(name, master, &metadata.value).await?;
        let transport = transport.transport(|name| std::env::var(name).ok())?;
        let origins =
            ClientOrigins { master: ValueOrigin::Described(master.origin.clone()), transport: transport.origin };
        let builder = StoreClient::builder(master.at.clone())
            .leader(master.leader.clone())
            .metadata(metadata.value.clone())
            .local_hostname(name)
            .transport(transport.value.protocol, transport.value.options)
            .timeouts(master.timeouts())
            .transfer_deadline(master.timeout);
        let mut config = builder.config();
        let warnings = config.apply_variables(&|name| std::env::var(name).ok());
        // A command does not remove what it was not told to remove.
        config.on_corruption = OnCorruption::Report;
        config.engine.settings.credentials = master.credentials.clone();
        let usual = CallLimits::default();
        config.engine.settings.metadata =
            CallLimits { connect: usual.connect.min(master.timeout), call: master.timeout };
        Ok(ClientPlan { config, origins, metadata, warnings, note })
    }
}

impl ClientArgs {
    /// The master and the configuration of a client of it. Prints warnings.
    ///
    /// # Errors
    /// See [`MasterArgs::find`] and [`plan`](ConnectArgs::plan).
    pub async fn planned(&self) -> Result<(MasterTarget, ClientPlan), Failure> {
        let master = self.connect.master.find().await?;
        let mut plan = self.connect.plan(&master, &self.transport).await?;
        let settings = &mut plan.config.engine.settings.shared_memory;
        self.shared_memory.apply(settings);
        shared_memory::check(settings, self.shared_memory.origin())?;
        plan.warnings.iter().for_each(|warning| output::say(format!("warning: {warning}")));
        Ok((master, plan))
    }
}

/// The failure for a client with `plan` that did not start. If its metadata service is unusable,
/// the client's metadata mode is compared with the nodes' mode.
pub async fn unstarted(master: &MasterTarget, plan: &ClientPlan, error: StoreStartError) -> Failure {
    let error = match error {
        StoreStartError::Master(error) => return store_failure::failure(master, "connect", &error),
        other => other,
    };
    let is_metadata = matches!(&error, StoreStartError::Engine(TransferError::Metadata(_)));
    let failure = node_failure::client(&plan.config, &plan.origins, error);
    match is_metadata {
        true => store_failure::compared(failure, master, &plan.metadata).await,
        false => failure,
    }
}

/// This host's name for connections to `master`: `given`, or a name derived from the route to
/// `master`. Deriving it may call the resolver, which blocks without a timeout.
async fn local_hostname(
    given: Option<Origin<String>>,
    master: &MasterTarget,
    metadata: &MetadataUri,
) -> Result<String, Failure> {
    let at = master.at.clone();
    let metadata = metadata.clone();
    let naming = tokio::task::spawn_blocking(move || {
        let (given, origin) = match given {
            Some(Origin { value, origin }) => (Some(value), origin),
            None => (None, ValueOrigin::Default),
        };
        let towards = |at: &HostPort| interface::address_towards(&at.host, at.port);
        service::local_hostname(given.as_deref(), &at, &metadata, towards)
            .map_err(|error| node_failure::hostname(&error, &origin))
    });
    match deadline(&RealEnv::new(), master.timeout, naming).await {
        Ok(named) => named.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
        Err(_) => Err(Failure::unreachable(format!("cannot resolve the host name of the master at {}", master.at))
            .tried(format!("resolve {} ({})", master.at.host, master.origin))
            .found(format!("no response within {}", show_duration(master.timeout)))
            .next("pass the master's IP address with --master, or fix name resolution on this host")),
    }
}
