//! How a command reaches a store to move bytes: a client that lends no memory.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::commands::args::show_duration;
use crate::commands::discovery;
use crate::commands::error::{Exit, Failure};
use crate::commands::output;
use crate::commands::runtime::{self, Signals};
use crate::commands::serve::node::{self, NodePlan};
use crate::commands::target::{Master, MasterArgs};
use crate::commands::transport::{self, TransportArgs};
use crate::engine::base::{ByteSize, ErrorCode};
use crate::engine::env::{RealEnv, deadline};
use crate::engine::metadata::{CallLimits, MetadataUri};
use crate::engine::store::{Node, NodeConfig, NodeError, StoreClient, StoreError};
use crate::engine::sys::interface;
use crate::engine::transfer::{Step, TransferError};

/// Flags that name a store.
#[derive(Clone, Debug, clap::Args)]
pub struct LinkArgs {
    /// The master
    #[command(flatten)]
    pub master: MasterArgs,
    /// URL of the metadata service, or P2PHANDSHAKE [default: what the nodes use, found through the master's admin port; environment:
    /// MOONCAKE_TE_META_DATA_SERVER]
    #[arg(long, value_name = "URL")]
    pub metadata_server: Option<String>,
    /// Name or address of this host [default: one that the master can reach; environment: MOONCAKE_LOCAL_HOSTNAME]
    #[arg(long, value_name = "HOST")]
    pub local_hostname: Option<String>,
    /// How bytes are moved. Each command has its own flags for it: see [`LinkArgs::over`].
    #[arg(skip)]
    pub transport: TransportArgs,
}

/// The other flags of [`LinkArgs`], for commands that move no bytes: all `store` commands accept the same connection flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Accepted as by the other store commands, without effect here")]
pub(super) struct UnusedLinkArgs {
    /// As in mcctl store get
    #[arg(long, value_name = "URL", hide_short_help = true)]
    metadata_server: Option<String>,
    /// As in mcctl store get
    #[arg(long, value_name = "HOST", hide_short_help = true)]
    local_hostname: Option<String>,
    /// As in mcctl store get
    #[arg(long, value_name = "PROTOCOL", hide_short_help = true)]
    protocol: Option<String>,
    /// As in mcctl store get
    #[arg(long, aliases = ["device_name", "rdma-devices", "rdma_devices"], value_name = "NAME,..", hide_short_help = true)]
    device_name: Option<String>,
    /// As in mcctl store get
    #[arg(long, hide_short_help = true)]
    allow_tcp_fallback: bool,
}

/// A client that is connected to a store.
pub struct Link {
    master: Master,
    metadata: UsedMetadata,
    node: Node<RealEnv>,
    signals: Signals,
}

/// How a client of a store is started.
pub(in crate::commands) struct LinkPlan {
    /// In the words of who chose what.
    pub node: NodePlan,
    /// As the engine takes it.
    pub config: NodeConfig,
    /// Which metadata mode it uses, and who chose it.
    pub metadata: UsedMetadata,
    /// Variables of the environment that are not understood, a sentence each.
    pub warnings: Vec<String>,
    /// The metadata mode that was found, for stderr once the client has started.
    pub note: Option<String>,
}

/// The metadata mode of a client.
#[derive(Clone, Debug)]
pub(in crate::commands) struct UsedMetadata {
    /// The mode.
    pub uri: MetadataUri,
    /// The flag or variable that chose it; `None` if it was found.
    pub given: Option<String>,
}

impl LinkArgs {
    /// The same over `transport`.
    pub fn over(&self, transport: &TransportArgs) -> LinkArgs {
        LinkArgs { transport: transport.clone(), ..self.clone() }
    }

    /// How a client of `master` that lends no memory is started.
    ///
    /// # Errors
    /// This host has no name towards the master, or the metadata service is none.
    pub(in crate::commands) async fn plan(&self, master: &Master) -> Result<LinkPlan, Failure> {
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
            Some((text, origin)) => UsedMetadata { uri: node::metadata(&text, origin.clone())?, given: Some(origin) },
            None => {
                let found = discovery::find(master).await;
                note = Some(discovery::note(found.as_ref()));
                UsedMetadata { uri: found.map_or(MetadataUri::P2p, |found| found.metadata), given: None }
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
        Ok(LinkPlan { node, config, metadata: used, warnings, note })
    }

    /// The master, and the plan of a client of it, whose warnings are reported.
    ///
    /// # Errors
    /// See [`MasterArgs::find`] and [`plan`](LinkArgs::plan).
    pub(in crate::commands) async fn planned(&self) -> Result<(Master, LinkPlan), Failure> {
        let master = self.master.find().await?;
        let plan = self.plan(&master).await?;
        plan.warnings.iter().for_each(|warning| output::say(format!("warning: {warning}")));
        Ok((master, plan))
    }

    /// Connect.
    ///
    /// # Errors
    /// Master or metadata service are not there, this host has no name, or a signal came.
    pub async fn connect(&self) -> Result<Link, Failure> {
        let mut signals = Signals::take()?;
        let (master, plan) = tokio::select! {
            planned = self.planned() => planned?,
            signal = signals.next() => return Err(stopped(signal, "connect")),
        };
        let LinkPlan { node: plan, config, metadata, note, .. } = plan;
        let (tell, told) = oneshot::channel::<()>();
        let told = async move { told.await.unwrap_or_default() };
        let mut starting = pin!(Node::start_unless(config, RealEnv::new(), told));
        let started = tokio::select! {
            started = &mut starting => started,
            signal = signals.next() => {
                // Nobody hears it when the start has just ended.
                let _ = tell.send(());
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
                Ok(Link { master, metadata, node, signals })
            }
            Err(error) => Err(unstarted(&master, &plan, &metadata, error).await),
        }
    }
}

/// This host's name towards `master`, `given` or found: that may ask the resolver, which blocks and knows no deadline of ours.
async fn local_hostname(
    given: Option<(String, String)>,
    master: &Master,
    metadata: &MetadataUri,
) -> Result<String, Failure> {
    let (at, metadata) = (master.at.clone(), metadata.clone());
    let naming = tokio::task::spawn_blocking(move || {
        let given = given.as_ref().map(|(text, origin)| (text.as_str(), origin.clone()));
        node::local_hostname(given, &at, &metadata, |at| interface::address_towards(&at.host, at.port))
    });
    match deadline(&RealEnv::new(), master.timeout, naming).await {
        Ok(named) => named.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())),
        Err(_) => {
            Err(Failure::unreachable(format!("cannot reach the master at {}: its name is not resolved", master.at))
                .tried(format!("resolve {} ({})", master.at.host, master.origin))
                .found(format!("no answer within {}", show_duration(master.timeout)))
                .next("give its address as --master, or see why this host cannot resolve the name"))
        }
    }
}

impl Link {
    /// Do `work` on the attempt to `what`, unless a signal comes first. The link is to be closed in either case.
    ///
    /// # Errors
    /// A signal came, or what `work` says, in the user's words.
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

    /// The master.
    pub fn master(&self) -> &Master {
        &self.master
    }

    /// Take our name out of the metadata service, and end. The signals stay taken over by what is given back.
    pub async fn close(self) -> Signals {
        runtime::stop_in_time("the client", self.node.stop()).await;
        self.signals
    }
}

/// A signal came on the attempt to `what`.
pub(super) fn stopped(signal: &str, what: &str) -> Failure {
    Failure::no(format!("{signal}: stopped on the attempt to {what}"))
}

/// Why the client of `plan` did not start, with a look at which metadata mode the nodes use if it cannot use its own.
pub(in crate::commands) async fn unstarted(
    master: &Master,
    plan: &NodePlan,
    metadata: &UsedMetadata,
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

/// What `error` on the attempt to `what` means to the user, with a look at which metadata mode the nodes use where that can be the cause.
pub(in crate::commands) async fn explained(
    master: &Master,
    metadata: &UsedMetadata,
    what: &str,
    error: &StoreError,
) -> Failure {
    let failure = failure(master, what, error);
    match (error, &metadata.given) {
        (StoreError::Transfer { source: TransferError::Rdma(_), .. }, _) => failure,
        (StoreError::Transfer { .. }, Some(origin)) => {
            discovery::explained(failure, master, &metadata.uri, origin).await
        }
        _ => failure,
    }
}

/// What `error` on the attempt to `what` means to the user.
pub(in crate::commands) fn failure(master: &Master, what: &str, error: &StoreError) -> Failure {
    let cannot = format!("cannot {what}");
    let failure = match error {
        StoreError::Call(call) => return master.failure(call),
        StoreError::Version { .. } => {
            Failure::unreachable(format!("{} is not a Mooncake master of release 0.3.13", master.at))
                .found(error.to_string())
                .next("name another one with --master HOST:PORT")
        }
        StoreError::Refused { code: ErrorCode::OBJECT_NOT_FOUND, .. } => {
            Failure::no(format!("{cannot}: the object does not exist"))
        }
        StoreError::Refused { code: ErrorCode::REPLICA_IS_NOT_READY, .. } => {
            Failure::no(format!("{cannot}: its put is not finished"))
                .next("try again; an unfinished put is given up after a while")
        }
        StoreError::Refused { code: ErrorCode::NO_AVAILABLE_HANDLE, .. } => {
            Failure::no(format!("{cannot}: no segment has room for it"))
                .next("mcctl status lists the segments and how full they are. Objects under a lease are not evicted")
        }
        StoreError::Empty { .. } => {
            Failure::usage(format!("{cannot}: it has no bytes, and the store keeps none of such"))
        }
        StoreError::Transfer { source: TransferError::Metadata(error), .. } => Failure::unreachable(format!(
            "{cannot}: the metadata service gives no usable answer"
        ))
        .found(node::chain(error.as_ref()))
        .next("start it again (mcctl serve metadata, or the master that it is embedded in); the nodes may be well"),
        StoreError::Transfer { source: TransferError::Rdma(fault), endpoint, .. } => {
            let (exit, whose) = match transport::exit(fault) {
                Exit::Host => (Exit::Host, "this host's device does not move the bytes".to_owned()),
                exit => (exit, format!("the node {endpoint} does not move the bytes")),
            };
            Failure::new(exit, format!("{cannot}: {whose}"))
                .found(node::chain(error))
                .next(transport::next(fault, "the node"))
        }
        StoreError::Transfer { endpoint, source, .. } => {
            let why = match source {
                TransferError::Lost { step: Step::Resolve | Step::Connect | Step::Handshake, source, .. } => {
                    format!(
                        "cannot connect to node {endpoint} ({source}): is --metadata-server the one that node uses?"
                    )
                }
                TransferError::Timeout { step: Step::Resolve | Step::Connect | Step::Handshake, limit, .. } => format!(
                    "cannot connect to node {endpoint} (no answer within {}): is --metadata-server the one that node uses?",
                    show_duration(*limit)
                ),
                TransferError::UnknownSegment { .. } => {
                    format!(
                        "the metadata service does not know node {endpoint}: is --metadata-server the one that node uses?"
                    )
                }
                _ => format!("{cannot}: node {endpoint} did not move the bytes"),
            };
            Failure::unreachable(why)
                .found(format!("{cannot}: {}", node::chain(error)))
                .next("mcctl status lists the nodes; check that the node runs and that this host can reach it")
        }
        StoreError::NoMemory { .. } => {
            Failure::host(format!("{cannot}: it does not fit this host's memory")).found(error.to_string())
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
    fn a_metadata_service_that_is_stuck_is_not_blamed_on_the_node() {
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
        assert_eq!(failure.what, "cannot get 'k': the metadata service gives no usable answer");
        assert!(failure.found.is_some_and(|found| found.contains("http://m:2/metadata")));
    }
}
