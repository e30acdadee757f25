//! A command's connection to a store: a pure client, which contributes no memory.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::commands::args::show_duration;
use crate::commands::discovery;
use crate::commands::error::{Exit, Failure};
use crate::commands::master_target::{MasterArgs, MasterTarget};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::serve::node::{self, NodePlan};
use crate::commands::transport::{self, TransportArgs};
use crate::engine::base::{ByteSize, ErrorCode};
use crate::engine::env::{RealEnv, deadline};
use crate::engine::metadata::{CallLimits, MetadataUri};
use crate::engine::store::{Node, NodeConfig, NodeError, StoreClient, StoreError};
use crate::engine::sys::interface;
use crate::engine::transfer::{TransferError, TransferStep};

/// Flags that select a store.
#[derive(Clone, Debug, clap::Args)]
pub struct ConnectArgs {
    #[command(flatten)]
    pub master: MasterArgs,
    /// Metadata service URL, or P2PHANDSHAKE [default: the mode that the nodes use; environment: MOONCAKE_TE_META_DATA_SERVER]
    ///
    /// By default the mode is discovered through the master's admin port.
    #[arg(long, value_name = "URL")]
    pub metadata_server: Option<String>,
    /// Name or address of this host [default: the local address on the route to the master; environment: MOONCAKE_LOCAL_HOSTNAME]
    #[arg(long, value_name = "HOST")]
    pub local_hostname: Option<String>,
    /// Set by [`ConnectArgs::over`], because transport flags differ between commands.
    #[arg(skip)]
    pub transport: TransportArgs,
}

/// The [`ConnectArgs`] flags, accepted but ignored by commands that transfer no data. All `store` commands accept the same connection
/// flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection flags (ignored by this command)")]
pub(super) struct UnusedConnectArgs {
    /// See mcctl store get
    #[arg(long, value_name = "URL", hide_short_help = true)]
    metadata_server: Option<String>,
    /// See mcctl store get
    #[arg(long, value_name = "HOST", hide_short_help = true)]
    local_hostname: Option<String>,
    /// See mcctl store get
    #[arg(long, value_name = "PROTOCOL", hide_short_help = true)]
    protocol: Option<String>,
    /// See mcctl store get
    #[arg(long, aliases = ["device_name", "rdma-devices", "rdma_devices"], value_name = "NAME,..", hide_short_help = true)]
    device_name: Option<String>,
    /// See mcctl store get
    #[arg(long, hide_short_help = true)]
    allow_tcp_fallback: bool,
}

/// A client connected to a store.
pub struct StoreSession {
    master: MasterTarget,
    metadata: ClientMetadata,
    node: Node<RealEnv>,
    signals: Signals,
}

/// The configuration for a store client.
pub(in crate::commands) struct ClientPlan {
    /// Values with their origins, for errors.
    pub node: NodePlan,
    pub config: NodeConfig,
    pub metadata: ClientMetadata,
    /// Warnings about environment variables that do not parse.
    pub warnings: Vec<String>,
    /// A message with the discovered metadata mode, printed to stderr once the client has started.
    pub note: Option<String>,
}

/// A client's metadata mode.
#[derive(Clone, Debug)]
pub(in crate::commands) struct ClientMetadata {
    pub uri: MetadataUri,
    /// The flag or variable that selected the mode; `None` if it was discovered.
    pub given: Option<String>,
}

impl ConnectArgs {
    /// Returns these flags combined with `transport`.
    pub fn over(&self, transport: &TransportArgs) -> ConnectArgs {
        ConnectArgs { transport: transport.clone(), ..self.clone() }
    }

    /// The configuration for a pure client of `master`.
    ///
    /// # Errors
    /// This host has no route to the master, or a flag or variable has an invalid value.
    pub(in crate::commands) async fn plan(&self, master: &MasterTarget) -> Result<ClientPlan, Failure> {
        let given = |flag: &Option<String>, spelled: &str, name: &str| match flag {
            Some(text) => Some((text.clone(), format!("{spelled} {text}"))),
            None => std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| {
                let origin = format!("{name}={text}");
                (text, origin)
            }),
        };
        let metadata = given(&self.metadata_server, "--metadata-server", "MOONCAKE_TE_META_DATA_SERVER");
        let mut note = None;
        let used = match metadata {
            Some((text, origin)) => ClientMetadata { uri: node::metadata(&text, origin.clone())?, given: Some(origin) },
            None => {
                let found = discovery::find(master).await;
                note = Some(discovery::note(found.as_ref(), master));
                ClientMetadata { uri: found.map_or(MetadataUri::P2p, |found| found.metadata), given: None }
            }
        };
        let metadata = used.uri.clone();
        let name = given(&self.local_hostname, "--local-hostname", "MOONCAKE_LOCAL_HOSTNAME");
        let node = NodePlan {
            local_hostname: local_hostname(name, master, &metadata).await?,
            master: master.at.clone(),
            master_origin: master.origin.clone(),
            metadata,
            segment: ByteSize(0),
            segment_origin: String::new(),
            local_buffer: ByteSize(0),
            local_buffer_origin: String::new(),
            transport: self.transport.transport(|name| std::env::var(name).ok())?,
            announce_host: None,
            max_wait: Duration::ZERO,
            waited: Duration::ZERO,
            metrics: None,
        };
        let (mut config, warnings) = node::config(&node);
        config.client.timeouts = master.timeouts();
        config.client.transfer_deadline = master.timeout;
        let usual = CallLimits::default();
        config.engine.settings.metadata =
            CallLimits { connect: usual.connect.min(master.timeout), call: master.timeout };
        Ok(ClientPlan { node, config, metadata: used, warnings, note })
    }

    /// Returns the master and the client's configuration. Prints warnings.
    ///
    /// # Errors
    /// See [`MasterArgs::find`] and [`plan`](ConnectArgs::plan).
    pub(in crate::commands) async fn planned(&self) -> Result<(MasterTarget, ClientPlan), Failure> {
        let master = self.master.find().await?;
        let plan = self.plan(&master).await?;
        plan.warnings.iter().for_each(|warning| output::say(format!("warning: {warning}")));
        Ok((master, plan))
    }

    /// Connects to the store.
    ///
    /// # Errors
    /// The master or the metadata service is unreachable, this host has no route to the master, or a signal arrives.
    pub async fn connect(&self) -> Result<StoreSession, Failure> {
        let mut signals = Signals::take()?;
        let (master, plan) = tokio::select! {
            planned = self.planned() => planned?,
            signal = signals.next() => return Err(stopped(signal, "connect")),
        };
        let ClientPlan { node: plan, config, metadata, note, .. } = plan;
        let (cancel, cancelled) = oneshot::channel::<()>();
        let cancelled = async move { cancelled.await.unwrap_or_default() };
        let mut starting = pin!(Node::start_unless(config, RealEnv::new(), cancelled));
        let started = tokio::select! {
            started = &mut starting => started,
            signal = signals.next() => {
                // The receiver no longer exists if startup has just completed.
                let _ = cancel.send(());
                let end = async {
                    if let Ok(node) = starting.await {
                        node.stop().await;
                    }
                };
                runtime::stop_in_time("the client", end).await;
                return Err(stopped(signal, "connect"));
            }
        };
        match started {
            Ok(node) => {
                note.iter().for_each(output::say);
                Ok(StoreSession { master, metadata, node, signals })
            }
            Err(error) => Err(unstarted(&master, &plan, &metadata, error).await),
        }
    }
}

/// This host's name for connections to `master`: `given`, or a name derived from the route to `master`. Deriving it may call the resolver,
/// which blocks without a timeout.
async fn local_hostname(
    given: Option<(String, String)>,
    master: &MasterTarget,
    metadata: &MetadataUri,
) -> Result<String, Failure> {
    let (at, metadata) = (master.at.clone(), metadata.clone());
    let naming = tokio::task::spawn_blocking(move || {
        let given = given.as_ref().map(|(text, origin)| (text.as_str(), origin.clone()));
        node::local_hostname(given, &at, &metadata, |at| interface::address_towards(&at.host, at.port))
    });
    match deadline(&RealEnv::new(), master.timeout, naming).await {
        Ok(named) => named.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
        Err(_) => Err(Failure::unreachable(format!("cannot resolve the host name of the master at {}", master.at))
            .tried(format!("resolve {} ({})", master.at.host, master.origin))
            .found(format!("no response within {}", show_duration(master.timeout)))
            .next("pass the master's IP address with --master, or fix name resolution on this host")),
    }
}

impl StoreSession {
    /// Runs `work` unless a signal arrives first. `what` is a verb phrase for errors. The caller closes the session in either case.
    ///
    /// # Errors
    /// A signal arrives, or `work` fails.
    pub async fn attempt<T, W>(&mut self, what: &str, work: W) -> Result<T, Failure>
    where
        W: AsyncFnOnce(&StoreClient<RealEnv>) -> Result<T, StoreError>,
    {
        tokio::select! {
            done = work(self.node.client()) => match done {
                Ok(done) => Ok(done),
                Err(error) => Err(explained(&self.master, &self.metadata, what, &error).await),
            },
            signal = self.signals.next() => Err(stopped(signal, what)),
        }
    }

    /// The store's master.
    pub fn master(&self) -> &MasterTarget {
        &self.master
    }

    /// Removes this client from the metadata service and stops it. The returned handlers remain installed.
    pub async fn close(self) -> Signals {
        runtime::stop_in_time("the client", self.node.stop()).await;
        self.signals
    }
}

/// The error if a signal stops a command that is trying to `what`.
pub(super) fn stopped(signal: &str, what: &str) -> Failure {
    Failure::no(format!("{signal}: stopped while trying to {what}"))
}

/// The error if a client configured with `plan` fails to start. If its metadata service is unusable, the client's metadata mode is compared
/// with the nodes' mode.
pub(in crate::commands) async fn unstarted(
    master: &MasterTarget,
    plan: &NodePlan,
    metadata: &ClientMetadata,
    error: NodeError,
) -> Failure {
    let error = match error {
        NodeError::Master(error) => return failure(master, "connect", &error),
        other => other,
    };
    let is_metadata = matches!(&error, NodeError::Engine(TransferError::Metadata(_)));
    let failure = node::failure(plan, error);
    match &metadata.given {
        Some(origin) if is_metadata => discovery::explained(failure, master, &metadata.uri, origin).await,
        _ => failure,
    }
}

/// The failure for `error`, which occurred while trying to `what`. If the metadata mode may be the cause, the client's mode is compared
/// with the nodes' mode.
pub(in crate::commands) async fn explained(
    master: &MasterTarget,
    metadata: &ClientMetadata,
    what: &str,
    error: &StoreError,
) -> Failure {
    let failure = failure(master, what, error);
    match (error, &metadata.given) {
        (StoreError::Transfer { source: TransferError::Device(_), .. }, _) => failure,
        (StoreError::Transfer { .. }, Some(origin)) => {
            discovery::explained(failure, master, &metadata.uri, origin).await
        }
        _ => failure,
    }
}

/// The failure for `error`, which occurred while trying to `what`.
pub(in crate::commands) fn failure(master: &MasterTarget, what: &str, error: &StoreError) -> Failure {
    let cannot = format!("cannot {what}");
    let failure = match error {
        StoreError::Call(call) => return master.failure(call),
        StoreError::Version { .. } => {
            Failure::unreachable(format!("{} is not a Mooncake 0.3.13 master", master.at))
                .found(error.to_string())
                .next("pass the address of a different master with --master HOST:PORT")
        }
        StoreError::Refused { code: ErrorCode::OBJECT_NOT_FOUND, .. } => {
            Failure::no(format!("{cannot}: the object does not exist"))
        }
        StoreError::Refused { code: ErrorCode::REPLICA_IS_NOT_READY, .. } => Failure::no(format!(
            "{cannot}: the put has not finished"
        ))
        .next("retry; the master drops an unfinished put after --put-start-discard-timeout-sec, 30 s by default"),
        StoreError::Refused { code: ErrorCode::NO_AVAILABLE_HANDLE, .. } => {
            Failure::no(format!("{cannot}: no segment has enough free memory"))
                .next("run mcctl status to see which nodes have mounted segments, and their usage; objects under a read lease are not evicted")
        }
        StoreError::Empty { .. } => {
            Failure::usage(format!("{cannot}: the object is empty, but the minimum object size is 1 byte"))
        }
        StoreError::Transfer { source: TransferError::Metadata(error), .. } => {
            Failure::unreachable(format!("{cannot}: invalid response from the metadata service"))
                .found(node::chain(error.as_ref()))
                .next("restart the metadata service (mcctl serve metadata, or the master that embeds it); the nodes may be healthy")
        }
        StoreError::Transfer { source: TransferError::Device(fault), endpoint, .. } => {
            let (exit, cause) = match transport::exit(fault) {
                Exit::Host => (Exit::Host, "an RDMA device on this host failed".to_owned()),
                exit => (exit, format!("the RDMA transfer with node {endpoint} failed")),
            };
            Failure::new(exit, format!("{cannot}: {cause}"))
                .found(node::chain(error))
                .next(transport::next(fault, "the node"))
        }
        StoreError::Transfer { endpoint, source, .. } => {
            let why = match source {
                TransferError::Lost {
                    step: TransferStep::Resolve | TransferStep::Connect | TransferStep::Handshake,
                    source,
                    ..
                } => {
                    format!(
                        "cannot connect to node {endpoint} ({source}): does the node use the same --metadata-server?"
                    )
                }
                TransferError::Timeout {
                    step: TransferStep::Resolve | TransferStep::Connect | TransferStep::Handshake,
                    limit,
                    ..
                } => format!(
                    "cannot connect to node {endpoint} (no response within {}): does the node use the same --metadata-server?",
                    show_duration(*limit)
                ),
                TransferError::UnknownSegment { .. } => {
                    format!(
                        "the metadata service has no record for node {endpoint}: does the node use the same --metadata-server?"
                    )
                }
                _ => format!("{cannot}: the transfer with node {endpoint} failed"),
            };
            Failure::unreachable(why)
                .found(format!("{cannot}: {}", node::chain(error)))
                .next("run mcctl status to list the nodes; check that the node is running and reachable from this host")
        }
        StoreError::NoMemory { .. } => {
            Failure::host(format!("{cannot}: this host does not have enough free memory for the object")).found(error.to_string())
        }
        other => Failure::no(cannot).found(node::chain(other)),
    };
    match failure.tried {
        Some(_) => failure,
        None => failure.tried(format!("master {} ({})", master.at, master.origin)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::commands::error::Exit;
    use crate::engine::metadata::MetadataError;

    #[test]
    fn a_stuck_metadata_service_is_named_instead_of_the_node() {
        let args = MasterArgs { master: Some("m:1".to_owned()), admin: None, timeout: Duration::from_secs(1) };
        let stuck = MetadataError::Timeout {
            url: "http://m:2/metadata".to_owned(),
            key: "mooncake/ram/n".to_owned(),
            limit: Duration::from_secs(1),
        };
        let error = StoreError::Transfer {
            key: "k".into(),
            endpoint: "n:3".to_owned(),
            writing: false,
            source: TransferError::Metadata(Arc::new(stuck)),
        };
        let failure = failure(&args.resolve().expect("an address"), "get 'k'", &error);
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.what.contains("metadata service") && !failure.what.contains("n:3"), "{failure}");
        assert!(failure.found.is_some_and(|found| found.contains("http://m:2/metadata")));
    }
}
