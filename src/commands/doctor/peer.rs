//! `--rdma-peer`: the peers to test, how this host connects to them, and the table of all paths.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::commands::cli::error::Failure;
use crate::commands::cli::origin::flag_or_variable;
use crate::commands::cli::output;
use crate::commands::cli::table::{self, ReportTable};
use crate::commands::failure::node as node_failure;
use crate::commands::target::connect::ConnectArgs;
use crate::commands::target::transport::TransportArgs;
use crate::engine::base::HostPort;
use crate::engine::base::text::escaped;
use crate::engine::check::CheckReport;
use crate::engine::doctor::peer::{self, CHECKS, PeerFacts, PeerProbe, PeerQuery, explain};
use crate::engine::doctor::{self, Fact, Selection, Unavailable};
use crate::engine::env::{Env, RealEnv, deadline};
use crate::engine::metadata::{CallLimits, MetadataUri};
use crate::engine::store::name::{NodeName, PORTS};
use crate::engine::sys::interface;
use crate::engine::transfer::path_probe::{PathProbe, PathProbeFailure, ProbeFailureCause, ProbedDevice, ProbedPath};
use crate::engine::transfer::{TransferConfig, TransferProtocol, TransferSettings};

/// Flags that select RDMA peers.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PeerArgs {
    /// RDMA peers to test, from each device on this host to each device on the peer: HOST:PORT of
    /// the handshake port, or the segment name with --metadata-server
    #[arg(long, value_name = "SEGMENT,...", value_delimiter = ',')]
    rdma_peer: Vec<String>,
    /// RDMA devices on this host to use with --rdma-peer [default: all usable devices; environment:
    /// MOONCAKE_DEVICE]
    #[arg(long, value_name = "NAME,..", requires = "rdma_peer")]
    device_name: Option<String>,
}

impl PeerArgs {
    /// Whether `--rdma-peer` is set.
    pub(super) fn is_asked(&self) -> bool {
        !self.rdma_peer.is_empty()
    }

    /// Builds the query. The inner error is the reason for skipping the group.
    ///
    /// # Errors
    /// A segment name or the metadata service is invalid.
    pub(super) async fn query(
        &self,
        link: &ConnectArgs,
        selection: &Selection,
        is_this_host: bool,
    ) -> Result<Fact<PeerQuery>, Failure> {
        if !self.is_asked() {
            return Ok(Err("no peer specified: use --rdma-peer HOST:PORT".into()));
        }
        if !is_this_host {
            return Ok(Err("devices on another host cannot be opened".into()));
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        let flag = link.metadata_server.as_deref();
        let metadata = flag_or_variable(flag, "--metadata-server", "MOONCAKE_TE_META_DATA_SERVER", variable);
        let metadata = metadata.map(node_failure::metadata).transpose()?.map_or(MetadataUri::P2p, |found| found.value);
        for segment in &self.rdma_peer {
            let is_name = match metadata {
                MetadataUri::P2p => HostPort::split(segment).map(drop).map_err(|error| error.to_string()),
                MetadataUri::Service(_) if segment.is_empty() => Err("the name is empty".to_owned()),
                MetadataUri::Service(_) => Ok(()),
            };
            is_name.map_err(|found| {
                Failure::usage(format!("invalid segment name in --rdma-peer {segment}")).found(found).next(
                    "pass HOST:PORT as printed by the engine (mcctl serve store, mcctl bench transfer --mode target), or the \
                     segment name with --metadata-server",
                )
            })?;
        }
        if !CHECKS.iter().any(|check| selection.includes(check)) {
            return Ok(Err("no check in this group is selected".into()));
        }
        let (mut settings, warnings) = TransferSettings::from_env(&|name| std::env::var(name).ok());
        // The checks are about the transport.
        settings.shared_memory.enabled = false;
        for warning in warnings {
            output::say(format_args!("warning: {warning}"));
        }
        let given = link.local_hostname.clone().or_else(|| variable("MOONCAKE_LOCAL_HOSTNAME"));
        let limit = link.master.timeout.max(Duration::from_millis(1));
        // Uses the first segment that this host has a route to.
        let mut named = Err(Unavailable::from("no peer specified"));
        for segment in &self.rdma_peer {
            named = own_name(given.clone(), toward(&metadata, segment), limit).await;
            if named.is_ok() {
                break;
            }
        }
        let config = named.and_then(|host| {
            let name = match metadata {
                MetadataUri::P2p => host,
                MetadataUri::Service(_) => {
                    let env = RealEnv::new();
                    NodeName::reserve(&host, PORTS, || env.rng()).map_err(Unavailable::new)?.name.to_string()
                }
            };
            let args = TransportArgs {
                protocol: Some("rdma".to_owned()),
                device_name: self.device_name.clone(),
                allow_tcp_fallback: false,
            };
            // MC_FORCE_TCP applies to engines that serve transfers, not to this test.
            let transport = args.transport(|name| variable(name).filter(|_| name != "MC_FORCE_TCP"));
            let usual = CallLimits::default();
            let mut settings = settings;
            settings.metadata = CallLimits { connect: usual.connect.min(limit), call: limit };
            Ok(TransferConfig {
                local_server_name: name,
                metadata,
                protocol: TransferProtocol::Rdma,
                announce_host: None,
                transport: transport.map_err(|failure| failure.what)?.value.options,
                settings,
            })
        });
        Ok(Ok(PeerQuery { segments: self.rdma_peer.clone(), config, limit, stop: Arc::default() }))
    }
}

/// The address from which this host's own name is derived: the address of the peer or of the
/// metadata service.
fn toward(metadata: &MetadataUri, segment: &str) -> Option<HostPort> {
    let authority = match metadata {
        MetadataUri::P2p => segment,
        MetadataUri::Service(url) => url.split("://").nth(1)?.split(['/', ';', ',']).next()?,
    };
    let (host, port) = HostPort::split(authority).ok()?;
    Some(HostPort::new(host, port.unwrap_or(1)))
}

/// This host's name for connections from `at`: `given`, or the local address on the route to `at`.
/// Resolving may block.
async fn own_name(given: Option<String>, at: Option<HostPort>, limit: Duration) -> Fact<String> {
    if let Some(given) = given {
        let (host, _) = HostPort::split(&given).map_err(|error| format!("--local-hostname {given}: {error}"))?;
        return Ok(if host.contains(':') { format!("[{host}]") } else { host });
    }
    let Some(at) = at else { return Ok("127.0.0.1".to_owned()) };
    if at.is_loopback() {
        return Ok("127.0.0.1".to_owned());
    }
    let shown = at.to_string();
    let naming = tokio::task::spawn_blocking(move || interface::address_towards(&at.host, at.port));
    let found = deadline(&RealEnv::new(), limit, naming).await.map_err(|_| format!("resolving {shown} timed out"))?;
    match found.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
        Ok(Some(address @ IpAddr::V6(_))) => Ok(format!("[{address}]")),
        Ok(Some(address)) => Ok(address.to_string()),
        Ok(None) => Err(format!("this host has no route to {shown}: set --local-hostname").into()),
        Err(error) => Err(format!("{shown} cannot be resolved: {error}").into()),
    }
}

/// The peer group's reports, and the facts that they are based on.
pub(super) async fn run_checks(query: &Fact<PeerQuery>, selection: &Selection) -> (Vec<CheckReport>, PeerFacts) {
    let includes = |id: &str| CHECKS.iter().any(|check| check.id == id && selection.includes(check));
    match query {
        Ok(query) => peer::run(&RealEnv::new(), query, &includes).await,
        Err(why) => (doctor::skipped(CHECKS, selection, &why.to_string()), PeerFacts::default()),
    }
}

/// One table per peer with every path, each table followed by an empty line; empty if no path was
/// tested.
pub(super) fn table(facts: &PeerFacts) -> String {
    let probed = facts.peers.iter().filter(|peer| !peer.probes.paths.is_empty());
    probed
        .map(|peer| {
            let head = ["from", "address", "to", "address", "outcome"];
            let title = format!("RDMA to {}", escaped(&peer.segment));
            let mut table = (1..head.len()).fold(ReportTable::new(&title, &head), ReportTable::text_column);
            for path in &peer.probes.paths {
                let end = &peer.probes.ends[path.end];
                table.row([
                    format!("{} port {}", end.device, end.port),
                    explain::row(&path.attempt.gid),
                    escaped(&path.remote),
                    explain::address(&path.their_gid),
                    outcome(end, path),
                ]);
            }
            table.render(table::width())
                + "
"
        })
        .collect()
}

fn outcome(end: &ProbedDevice, path: &ProbedPath) -> String {
    match (&path.attempt.result, explain::figures(&path.attempt)) {
        (Ok(_), Some(figures)) if path.attempt.works() => format!("ok: {figures}"),
        (Ok(_), Some(figures)) => format!("fails with large packets: {figures}"),
        (Ok(_), None) => "ok".to_owned(),
        (Err(failure), _) => {
            let other = path.others.iter().find(|other| other.works());
            let other = other.map(|other| format!("; GID {} is usable", other.gid.index)).unwrap_or_default();
            let step = explain::word(failure.step);
            format!("fails at {step}: {}{other}", escaped(&explain::why(end, path, failure).what))
        }
    }
}

/// A peer in the JSON document.
#[derive(Debug, Serialize)]
pub(super) struct PeerEntry<'a> {
    segment: &'a str,
    protocol: Option<&'a str>,
    devices: Vec<RemoteDeviceEntry<'a>>,
    own_devices: Vec<LocalDeviceEntry<'a>>,
    unused_devices: Vec<UnusedDeviceEntry<'a>>,
    #[serde(rename = "ways")]
    paths: Vec<PathEntry<'a>>,
}

#[derive(Debug, Serialize)]
struct RemoteDeviceEntry<'a> {
    name: &'a str,
    lid: u16,
    gid: &'a str,
}

#[derive(Debug, Serialize)]
struct LocalDeviceEntry<'a> {
    name: &'a str,
    port: u8,
    lid: u16,
    gid_index: u32,
    gid: String,
    gid_kind: &'static str,
    netdev: Option<&'a str>,
    mtu: u32,
    active_mtu: u32,
}

#[derive(Debug, Serialize)]
struct UnusedDeviceEntry<'a> {
    name: &'a str,
    why: &'a str,
}

#[derive(Debug, Serialize)]
struct PathEntry<'a> {
    from: &'a str,
    to: &'a str,
    #[serde(flatten)]
    attempt: AttemptEntry<'a>,
    /// Other GIDs on this host's port, tested because the first one failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<AttemptEntry<'a>>,
}

#[derive(Debug, Serialize)]
struct AttemptEntry<'a> {
    gid_index: u32,
    ok: bool,
    port_state: Option<&'static str>,
    /// Round-trip time in microseconds: minimum and median of several zero-byte writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    write_us: Option<WriteEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<ReadEntry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureEntry<'a>>,
}

#[derive(Debug, Serialize)]
struct WriteEntry {
    min: f64,
    median: f64,
}

#[derive(Debug, Serialize)]
struct ReadEntry<'a> {
    bytes: u32,
    us: Option<f64>,
    failure: Option<FailureEntry<'a>>,
}

/// The failed step, with the failed call and its errno, or with the completion status.
#[derive(Debug, Serialize)]
struct FailureEntry<'a> {
    step: &'static str,
    cause: &'static str,
    call: Option<&'static str>,
    errno: Option<i32>,
    completion: Option<&'static str>,
    words: &'a str,
}

impl<'a> PeerEntry<'a> {
    pub(super) fn of(peer: &'a PeerProbe) -> PeerEntry<'a> {
        let probes = &peer.probes;
        let found = peer.found.as_ref().ok();
        let devices = found.map(|descriptor| descriptor.devices.as_slice()).unwrap_or_default();
        PeerEntry {
            segment: &peer.segment,
            protocol: found.map(|descriptor| descriptor.protocol.as_str()),
            devices: devices.iter().map(|d| RemoteDeviceEntry { name: &d.name, lid: d.lid, gid: &d.gid }).collect(),
            own_devices: probes.ends.iter().map(own).collect(),
            unused_devices: probes.unused.iter().map(|u| UnusedDeviceEntry { name: &u.device, why: &u.why }).collect(),
            paths: probes
                .paths
                .iter()
                .map(|path| PathEntry {
                    from: &probes.ends[path.end].device,
                    to: &path.remote,
                    attempt: attempt(&path.attempt),
                    others: path.others.iter().map(attempt).collect(),
                })
                .collect(),
        }
    }
}

fn own(end: &ProbedDevice) -> LocalDeviceEntry<'_> {
    LocalDeviceEntry {
        name: &end.device,
        port: end.port,
        lid: end.lid,
        gid_index: end.gid.index,
        gid: end.gid.gid.to_string(),
        gid_kind: end.gid.kind.name(),
        netdev: end.gid.netdev.as_deref(),
        mtu: end.mtu,
        active_mtu: end.active_mtu,
    }
}

fn attempt(attempt: &PathProbe) -> AttemptEntry<'_> {
    let figures = attempt.result.as_ref().ok();
    let read = figures.and_then(|figures| figures.read.as_ref());
    AttemptEntry {
        gid_index: attempt.gid.index,
        ok: read.map_or(figures.is_some(), |read| read.result.is_ok()),
        port_state: attempt.port_state.map(|state| state.name()),
        write_us: figures.and_then(|figures| {
            let min = figures.writes.first()?;
            let median = figures.writes.get(figures.writes.len() / 2)?;
            Some(WriteEntry { min: us(*min), median: us(*median) })
        }),
        read: read.map(|read| ReadEntry {
            bytes: read.bytes,
            us: read.result.as_ref().ok().copied().map(us),
            failure: read.result.as_ref().err().map(failure),
        }),
        failure: attempt.result.as_ref().err().map(failure),
    }
}

fn failure(failed: &PathProbeFailure) -> FailureEntry<'_> {
    let (cause, call, errno, completion) = match failed.cause {
        ProbeFailureCause::Verb { call, errno } => ("verb", Some(call), Some(errno), None),
        ProbeFailureCause::Completion(status) => ("completion", None, None, Some(status.name())),
        ProbeFailureCause::Silence(_) => ("silence", None, None, None),
        ProbeFailureCause::Refused => ("refused", None, None, None),
        ProbeFailureCause::Unreachable => ("unreachable", None, None, None),
        ProbeFailureCause::OtherProtocol => ("no-rdma", None, None, None),
        ProbeFailureCause::Answer => ("answer", None, None, None),
    };
    FailureEntry { step: explain::word(failed.step), cause, call, errno, completion, words: &failed.message }
}

fn us(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}
