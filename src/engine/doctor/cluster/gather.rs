//! Gathers the facts of a running cluster. Every request has a deadline, and concurrency is
//! bounded.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;

use crate::cluster::facts::{
    AdminFacts, ClusterFacts, DialResult, LeaderRecord, ListedSegment, MetadataFacts, MetadataRecords, NodeFacts,
    PlannedNode, ProbeCounts, ProbeResults, RpcFacts, RpcState, SegmentListing,
};
use crate::cluster::headroom::Headroom;
use crate::cluster::{ClusterQuery, MasterAt, admin, dial, etcd, probe_object};
use crate::{Fact, Unavailable, chain};
use mcctl_base::text::escaped;
use mcctl_base::time::RoundedDuration;
use mcctl_base::{ErrorCode, HostPort};
use mcctl_metadata::admin::AdminClient;
use mcctl_metadata::admin::types::HaStatusReport;
use mcctl_metadata::{CallLimits, KeySpace, MetadataClient, MetadataUri};
use mcctl_net::rpc::{CallError, ConnectionError, RpcClient, master_calls};
use mcctl_store::transport_stats::TransportStats;
use mcctl_store::{ClientConfig, NodeClient, StoreClientBuilder};
use mcctl_sys::env::{Env, deadline};
use mcctl_wire::MasterCalls;
use mcctl_wire::json::{RpcMeta, SegmentDescriptor};
use mcctl_wire::method::{Channel, Method};
use mcctl_wire::types::{ServiceVersion, Tenant};

/// Maximum number of nodes probed. The rest are not judged.
const NODES_MAX: usize = 1024;
/// Maximum number of concurrent requests.
const AT_ONCE: usize = 32;
/// Number of lookups to time.
const LOOKUPS: usize = 200;
/// Maximum total time of the lookups.
const LOOKUPS_LIMIT: Duration = Duration::from_secs(3);
/// Maximum wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Gathers only the facts that the checks in `wanted` need.
pub(super) async fn gather<E: Env>(env: &E, query: &ClusterQuery, wanted: &dyn Fn(&str) -> bool) -> ClusterFacts {
    let any = |ids: &[&str]| ids.iter().any(|id| wanted(id));
    let (leader, master) = master(query).await;
    let at = master.clone().unwrap_or_else(|_| HostPort::new("etcd", 0));
    let calls = master_calls(env.clone(), at.clone(), query.limit);
    let (mut rpc, admins) = futures_util::future::join(
        async {
            match master {
                Ok(_) => ready(env, &calls, query.limit).await,
                Err(why) => RpcFacts {
                    state: RpcState::Unknown(why.into()),
                    release: None,
                    took: Duration::ZERO,
                    lookups: Vec::new(),
                },
            }
        },
        admins(env, query),
    )
    .await;
    let is_ready = matches!(rpc.state, RpcState::Ready(_));
    let serving = admins.iter().find(|admin| admin.health.as_ref().is_ok_and(|health| health.service_ready));
    let serving_admin = serving
        .and_then(|serving| AdminClient::with_credentials(serving.at.clone(), query.limit, &query.credentials).ok());
    let before = serving.and_then(|serving| serving.metrics.clone());
    let segments = match &serving_admin {
        Some(serving) => Some(admin::segments(env, serving).await),
        None => None,
    };
    let listed: Vec<ListedSegment> = match &segments {
        Some(Ok(SegmentListing { segments, .. })) => segments.clone(),
        _ => Vec::new(),
    };
    let mut metadata = metadata(query);
    let began = env.now();
    let nodes = nodes(env, query, &listed, &mut metadata).await;
    metadata.took = env.now().since(began);
    if is_ready && wanted("lookup-latency") {
        rpc.lookups = lookups(env, &calls).await;
    }
    let transports = match wanted("object-integrity") {
        true => transports(query).await,
        false => Vec::new(),
    };
    let mut facts = ClusterFacts {
        master: at,
        rpc,
        leader,
        before,
        after: None,
        nodes,
        transports,
        metadata,
        probes: not_probed(String::new()),
        expected: query.expected,
        segments,
        admins: admins.clone(),
    };
    let with_bytes = any(&["round-trip", "master-release", "counters-move", "tcp-streams", "silent-tcp"]);
    facts.probes = match (&query.client, is_ready) {
        _ if !with_bytes => not_probed("not requested".to_owned()),
        (_, false) => not_probed("the master is not responding".to_owned()),
        (Err(why), _) => not_probed(why.into()),
        (Ok(config), true) => join(env, query, config, &mut facts).await,
    };
    if let Some(serving) = &serving_admin {
        facts.after = admin::metrics(serving).await;
    }
    facts
}

/// The transport statistics of the specified nodes.
async fn transports(query: &ClusterQuery) -> Vec<(HostPort, Fact<TransportStats>)> {
    let client = NodeClient::new(query.limit, &query.credentials);
    let of_node = async |at: &HostPort| {
        let stats = match &client {
            Ok(client) => client.transport(at).await.map_err(|error| error.to_string().into()),
            Err(error) => Err(error.to_string().into()),
        };
        (at.clone(), stats)
    };
    stream::iter(query.nodes.iter().take(NODES_MAX).map(of_node)).buffered(AT_ONCE).collect().await
}

fn not_probed(why: String) -> ProbeResults {
    ProbeResults {
        none: Some(why),
        bytes: 0,
        made: Vec::new(),
        skipped: Vec::new(),
        left: Vec::new(),
        done: ProbeCounts::default(),
        took: Duration::ZERO,
        parallel_read: None,
    }
}

/// The master's address: as specified by the user, or as recorded in etcd.
async fn master(query: &ClusterQuery) -> (Option<LeaderRecord>, Fact<HostPort>) {
    let at = match &query.master {
        MasterAt::Address(at) => return (None, Ok(at.clone())),
        MasterAt::Etcd(at) => at,
    };
    let leader = etcd::leader(at).await;
    let master = match &leader.found {
        Ok(Some(text)) if etcd::is_warming(text) => Err(format!("{} = {text}", leader.key).into()),
        Ok(Some(text)) => text.parse().map_err(|error| format!("{} = {text}: {error}", leader.key).into()),
        Ok(None) => Err(format!("etcd has no key {}", leader.key).into()),
        Err(why) => Err(format!("reading {}: {why}", leader.key).into()),
    };
    (Some(leader), master)
}

async fn ready<E: Env>(env: &E, calls: &MasterCalls<RpcClient<E>>, limit: Duration) -> RpcFacts {
    let began = env.now();
    let release = calls.0.release().await.ok();
    // 0.3.6 has no handshake.
    let version = match release {
        Some(release) if Method::ServiceReady.layout(release).is_none() => Ok(Ok(ServiceVersion::default())),
        _ => calls.service_ready().await,
    };
    let state = match version {
        Ok(Ok(version)) => RpcState::Ready(version.to_string()),
        Ok(Err(code)) => RpcState::NotReady(code.to_string()),
        Err(CallError::Connect { source, address }) => match dial::resolves(env, &address.host, limit).await {
            Ok(()) => RpcState::Unconnected(source.to_string()),
            Err(why) => RpcState::Unresolved(why.into()),
        },
        Err(CallError::ConnectTimeout { limit, .. }) => {
            RpcState::Unconnected(format!("no connection within {}", RoundedDuration(limit)))
        }
        Err(CallError::Timeout { limit, .. }) => {
            RpcState::Silent(format!("no response within {}", RoundedDuration(limit)))
        }
        Err(CallError::Closed { why, .. }) if !matches!(why, ConnectionError::Frame(_)) => {
            RpcState::Closed(format!("connection {why}"))
        }
        Err(error) => RpcState::Foreign(error.to_string()),
    };
    RpcFacts { state, release, took: env.now().since(began), lookups: Vec::new() }
}

async fn admins<E: Env>(env: &E, query: &ClusterQuery) -> Vec<AdminFacts> {
    let one = async |at: &HostPort| {
        let began = env.now();
        let client = match AdminClient::with_credentials(at.clone(), query.limit, &query.credentials) {
            Ok(client) => client,
            Err(error) => return silent(at, error.to_string()),
        };
        let health = admin::health(&client).await;
        let took = env.now().since(began);
        if health.is_err() {
            return AdminFacts { took, ..silent(at, health.map_err(String::from).err().unwrap_or_default()) };
        }
        AdminFacts {
            at: at.clone(),
            health,
            took,
            metrics: admin::metrics(&client).await,
            summary: client.summary().await.ok(),
            has_role: client.role().await.ok().map(|role| role.is_some()),
            // Only mcctl responds; `mooncake_master` up to 0.3.13 does not.
            is_mcctl: client.ready().await.ok().map(|ready| ready.is_some()),
            ha: client.ha_status().await.ok().flatten().map(shown),
        }
    };
    stream::iter(&query.admins).map(one).buffered(AT_ONCE).collect().await
}

fn silent(at: &HostPort, why: String) -> AdminFacts {
    AdminFacts {
        at: at.clone(),
        health: Err(why.into()),
        took: Duration::ZERO,
        metrics: None,
        summary: None,
        has_role: None,
        is_mcctl: None,
        ha: None,
    }
}

/// The report with the texts that are shown escaped.
fn shown(report: HaStatusReport) -> HaStatusReport {
    HaStatusReport { etcd_error: report.etcd_error.map(|error| escaped(&error)), ..report }
}

fn metadata(query: &ClusterQuery) -> MetadataFacts {
    let url = match &query.metadata {
        MetadataUri::P2p => None,
        MetadataUri::Service(url) => Some(url.clone()),
    };
    let is_assumed = query.is_metadata_assumed;
    MetadataFacts { url, is_assumed, reached: Ok(()), took: Duration::ZERO, planned: Vec::new() }
}

/// Collects one node per endpoint, probes it, and reads its records from the metadata service.
async fn nodes<E: Env>(
    env: &E,
    query: &ClusterQuery,
    segments: &[ListedSegment],
    metadata: &mut MetadataFacts,
) -> Vec<NodeFacts> {
    let mut nodes: Vec<NodeFacts> = Vec::new();
    for segment in segments {
        let is_full = nodes.len() == NODES_MAX;
        match nodes.iter_mut().find(|node| node.endpoint == segment.endpoint) {
            Some(node) if node.names.contains(&segment.name) => {}
            Some(node) => node.names.push(segment.name.clone()),
            None if is_full => break,
            None => nodes.push(NodeFacts {
                endpoint: segment.endpoint.clone(),
                names: vec![segment.name.clone()],
                protocol: segment.protocol.clone(),
                at: None,
                dial: DialResult::Unknown("not probed".to_owned()),
                took: Duration::ZERO,
                described: None,
                records: None,
            }),
        }
    }
    let service = match &metadata.url {
        None => None,
        Some(url) => {
            let limits = CallLimits { connect: query.limit.min(CONNECT_MAX), call: query.limit };
            match MetadataClient::with_credentials(url, limits, &query.credentials) {
                Ok(client) => Some(MetadataProbe { client, keys: KeySpace::new(query.metadata_cluster.as_deref()) }),
                Err(error) => {
                    metadata.reached = Err(chain(&error).into());
                    None
                }
            }
        }
    };
    if let Some(service) = &service {
        metadata.reached = service.reached().await;
    }
    let service = service.filter(|_| metadata.reached.is_ok());
    let is_p2p = metadata.url.is_none();
    let asked = async |mut node: NodeFacts| {
        if let Some(service) = &service {
            node.records = Some(service.records(&node.endpoint).await);
        }
        node.at = match &node.records {
            Some(MetadataRecords { rpc_meta: Ok(Some(at)), .. }) => Some(at.clone()),
            // The service has no record of the name: the node may use P2PHANDSHAKE.
            Some(_) => node.endpoint.parse().ok(),
            None if is_p2p => node.endpoint.parse().ok(),
            None => None,
        };
        let began = env.now();
        node.dial = match &node.at {
            Some(at) => dial::dial(env, at, query.limit).await,
            None if is_p2p => DialResult::Unknown(format!("'{}' is not an address", node.endpoint)),
            None => DialResult::Unknown("its address is unknown: the metadata service is not responding".to_owned()),
        };
        node.took = env.now().since(began);
        if let Some(MetadataRecords { ram: Ok(Some(protocol)), .. }) = &node.records {
            node.described = Some(protocol.clone());
        }
        node
    };
    let nodes = stream::iter(nodes).map(asked).buffered(AT_ONCE).collect().await;
    if let Some(service) = &service {
        for name in &query.planned {
            let rpc_meta = service.rpc_meta(name).await;
            let dial = match &rpc_meta {
                Ok(Some(at)) => Some(dial::dial(env, at, query.limit).await),
                _ => None,
            };
            metadata.planned.push(PlannedNode { name: name.clone(), rpc_meta, dial });
        }
    }
    nodes
}

/// Whether mcctl can transfer to the segment. The owner's descriptor takes precedence over the
/// protocol that the master reports.
fn can_transfer_to(nodes: &[NodeFacts], segment: &ListedSegment) -> bool {
    let described =
        nodes.iter().find(|node| node.endpoint == segment.endpoint).and_then(|node| node.described.as_deref());
    matches!(described.unwrap_or(&segment.protocol), "" | "tcp")
}

struct MetadataProbe {
    client: MetadataClient,
    keys: KeySpace,
}

impl MetadataProbe {
    /// Verifies that a metadata service responds, with a key that does not exist.
    async fn reached(&self) -> Fact<()> {
        let answer = self.client.get(&self.keys.ram_key("mcctl-doctor")).await;
        answer.map(drop).map_err(|error| chain(&error).into())
    }

    async fn records(&self, name: &str) -> MetadataRecords {
        let ram = self.client.get(&self.keys.ram_key(name)).await.map_err(|error| chain(&error).into());
        let protocol = |body: &[u8]| match SegmentDescriptor::from_json(body) {
            Ok(descriptor) => Ok(descriptor.map(|descriptor| descriptor.protocol)),
            Err(error) => Err(error.to_string().into()),
        };
        let ram = match ram {
            Ok(Some(body)) => protocol(&body),
            Ok(None) => Ok(None),
            Err(why) => Err(why),
        };
        MetadataRecords { ram, rpc_meta: self.rpc_meta(name).await }
    }

    async fn rpc_meta(&self, name: &str) -> Fact<Option<HostPort>> {
        match self.client.get(&self.keys.rpc_meta_key(name)).await {
            Ok(Some(body)) => RpcMeta::from_json(&body).map(|RpcMeta(at)| Some(at)).map_err(Unavailable::new),
            Ok(None) => Ok(None),
            Err(error) => Err(chain(&error).into()),
        }
    }
}

/// Measures the latency of looking up a missing key. These lookups do not grant a lease.
async fn lookups<E: Env>(env: &E, calls: &MasterCalls<RpcClient<E>>) -> Vec<Duration> {
    let key = format!("mcctl-doctor-{:016x}", env.rng());
    let mut times = Vec::with_capacity(LOOKUPS);
    let began = env.now();
    while times.len() < LOOKUPS && env.now().since(began) < LOOKUPS_LIMIT {
        let asked = env.now();
        match calls.exist_key(key.as_str().into(), Tenant::DEFAULT).await {
            Ok(Ok(_) | Err(ErrorCode::OBJECT_NOT_FOUND)) => times.push(env.now().since(asked)),
            _ => break,
        }
    }
    times
}

/// Joins the cluster as a client: reads each node's descriptor and sends an object through each
/// node.
async fn join<E: Env>(env: &E, query: &ClusterQuery, config: &ClientConfig, facts: &mut ClusterFacts) -> ProbeResults {
    let mut config = config.clone();
    config.master = facts.master.clone();
    config.leader = None;
    config.transfer_deadline = query.limit;
    let client = match StoreClientBuilder::from(config).start(env.clone()).await {
        Ok(client) => client,
        Err(error) => return not_probed(format!("this host cannot join as a client: {}", chain(&error))),
    };
    for node in
        facts.nodes.iter_mut().filter(|node| node.dial == DialResult::Answers && node.described.is_none()).take(AT_ONCE)
    {
        let opened = deadline(env, query.limit, client.engine().open(&node.endpoint)).await;
        node.described = opened.ok().and_then(Result::ok).map(|descriptor| descriptor.protocol.clone());
    }
    let answers = |segment: &ListedSegment| {
        let node = facts.nodes.iter().find(|node| node.endpoint == segment.endpoint);
        node.is_none_or(|node| matches!(node.dial, DialResult::Answers | DialResult::Unknown(_)))
    };
    let mut names: Vec<&ListedSegment> = Vec::new();
    let mut silent: Vec<(String, String)> = Vec::new();
    for segment in facts.mounted() {
        if names.iter().any(|known| known.name == segment.name) || silent.iter().any(|(name, _)| *name == segment.name)
        {
            continue;
        }
        if !answers(segment) {
            silent.push((segment.name.clone(), "the node is not responding".to_owned()));
        } else if !can_transfer_to(&facts.nodes, segment) {
            silent.push((segment.name.clone(), format!("this build does not support {}", segment.protocol)));
        } else {
            names.push(segment);
        }
    }
    let is_known = matches!(facts.segments, Some(Ok(_)));
    let headroom = Headroom::of(facts);
    let mut probes = match names.is_empty() && is_known {
        true => not_probed("no node can store an object".to_owned()),
        false => {
            let bytes = usize::try_from(query.probe_bytes).unwrap_or(usize::MAX);
            probe_object::probes(env, &client, &names, bytes, &headroom, &query.stop).await
        }
    };
    probes.skipped.append(&mut silent);
    client.stop().await;
    probes
}
