//! Looking at a running cluster: every question has its time, and there are bounds on how many run at once.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;

use crate::engine::base::{ErrorCode, HostPort};
use crate::engine::doctor::cluster::facts::{
    Admin, Dial, Done, Facts, Journeys, Leader, Listing, Metadata, Node, Planned, Records, Rpc, RpcState, Segment,
};
use crate::engine::doctor::cluster::room::Room;
use crate::engine::doctor::cluster::{MasterAt, Question, admin, dial, etcd, journey};
use crate::engine::doctor::{Asked, chain};
use crate::engine::env::{Env, deadline};
use crate::engine::http::Fetcher;
use crate::engine::metadata::{CallLimits, KeySpace, MetadataClient, MetadataUri};
use crate::engine::rpc::{CallError, RpcClient, Timeouts};
use crate::engine::store::client::DEFAULT_TENANT;
use crate::engine::store::{self, NodeConfig};
use crate::engine::wire::MasterCalls;
use crate::engine::wire::json::{RpcMeta, SegmentDescriptor};

/// Nodes that are asked; further ones are not judged.
const NODES_MAX: usize = 1024;
/// Questions that are under way at once.
const AT_ONCE: usize = 32;
/// Lookups whose time is taken.
const LOOKUPS: usize = 200;
/// What they may take together.
const LOOKUPS_LIMIT: Duration = Duration::from_secs(3);
/// The longest answer of an admin HTTP, bytes: 100,000 segments.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A connection is there sooner than this or not at all.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// Everything that the checks of `wanted` need, and nothing that only others need.
pub async fn gather<E: Env>(env: &E, question: &Question, wanted: &dyn Fn(&str) -> bool) -> Facts {
    let any = |ids: &[&str]| ids.iter().any(|id| wanted(id));
    // Plain HTTP to addresses: nothing of the host is needed, so it cannot fail where anything works at all.
    let fetcher = Fetcher::new(false, question.limit, ANSWER_BYTES_MAX);
    let (leader, master) = master(&fetcher, question).await;
    let at = master.clone().unwrap_or_else(|_| HostPort::new("etcd", 0));
    let timeouts = Timeouts { connect: question.limit.min(CONNECT_MAX), call: question.limit };
    let calls = MasterCalls(RpcClient::new(env.clone(), at.clone(), timeouts));
    let (mut rpc, admins) = futures_util::future::join(
        async {
            match master {
                Ok(_) => ready(env, &calls, question.limit).await,
                Err(why) => Rpc { state: RpcState::Unresolved(why), took: Duration::ZERO, lookups: Vec::new() },
            }
        },
        admins(env, &fetcher, &question.admins),
    )
    .await;
    let is_ready = matches!(rpc.state, RpcState::Ready(_));
    let serving = admins.iter().find(|admin| admin.health.as_ref().is_ok_and(|health| health.is_ready));
    let (segments, before) = match (serving, &fetcher) {
        (Some(serving), Ok(fetcher)) => {
            (Some(admin::segments(env, fetcher, &serving.at).await), serving.metrics.clone())
        }
        _ => (None, None),
    };
    let listed: Vec<Segment> = match &segments {
        Some(Ok(Listing { segments, .. })) => segments.clone(),
        _ => Vec::new(),
    };
    let mut metadata = metadata(question);
    let began = env.now();
    let nodes = nodes(env, question, &listed, &mut metadata).await;
    metadata.took = env.now().since(began);
    if is_ready && wanted("lookup-latency") {
        rpc.lookups = lookups(env, &calls).await;
    }
    let mut facts = Facts {
        master: at,
        rpc,
        leader,
        before,
        after: None,
        nodes,
        metadata,
        journeys: nobody(String::new()),
        expected: question.expected,
        segments,
        admins: admins.clone(),
    };
    let with_bytes = any(&["round-trip", "master-release", "counters-move", "tcp-streams", "silent-tcp"]);
    facts.journeys = match (&question.node, is_ready) {
        _ if !with_bytes => nobody("it was not asked for".to_owned()),
        (_, false) => nobody("the master does not answer".to_owned()),
        (Err(why), _) => nobody(why.clone()),
        (Ok(config), true) => join(env, question, config, &mut facts).await,
    };
    if let (Some(serving), Ok(fetcher)) =
        (admins.iter().find(|a| a.health.as_ref().is_ok_and(|h| h.is_ready)), &fetcher)
    {
        facts.after = admin::metrics(fetcher, &serving.at).await;
    }
    facts
}

fn nobody(why: String) -> Journeys {
    Journeys {
        none: Some(why),
        bytes: 0,
        made: Vec::new(),
        skipped: Vec::new(),
        left: Vec::new(),
        done: Done::default(),
        took: Duration::ZERO,
        lanes: None,
    }
}

/// Where the master is: as it was given, or as etcd says.
async fn master(
    fetcher: &Result<Fetcher, crate::engine::http::FetchError>,
    question: &Question,
) -> (Option<Leader>, Asked<HostPort>) {
    let at = match &question.master {
        MasterAt::Address(at) => return (None, Ok(at.clone())),
        MasterAt::Etcd(at) => at,
    };
    let fetcher = match fetcher {
        Ok(fetcher) => fetcher,
        Err(error) => return (None, Err(error.to_string())),
    };
    let leader = etcd::leader(fetcher, at).await;
    let master = match &leader.found {
        Ok(Some(text)) => text.parse::<HostPort>().map_err(|error| error.to_string()),
        Ok(None) => Err(format!("etcd has no {}", leader.key)),
        Err(why) => Err(format!("etcd does not say who leads: {why}")),
    };
    (Some(leader), master)
}

async fn ready<E: Env>(env: &E, calls: &MasterCalls<RpcClient<E>>, limit: Duration) -> Rpc {
    let began = env.now();
    let state = match calls.service_ready().await {
        Ok(Ok(version)) => RpcState::Ready(version.to_string()),
        Ok(Err(code)) => RpcState::NotReady(code.to_string()),
        Err(CallError::Connect { source, address }) => match dial::resolves(env, &address.host, limit).await {
            Ok(()) => RpcState::Unconnected(source.to_string()),
            Err(why) => RpcState::Unresolved(why),
        },
        Err(CallError::ConnectTimeout { limit, .. }) => {
            RpcState::Unconnected(format!("no connection within {limit:?}"))
        }
        Err(CallError::Timeout { limit, .. }) => RpcState::Silent(format!("no answer within {limit:?}")),
        Err(error) => RpcState::Foreign(error.to_string()),
    };
    Rpc { state, took: env.now().since(began), lookups: Vec::new() }
}

async fn admins<E: Env>(
    env: &E,
    fetcher: &Result<Fetcher, crate::engine::http::FetchError>,
    at: &[HostPort],
) -> Vec<Admin> {
    let one = async |at: &HostPort| {
        let began = env.now();
        let fetcher = match fetcher {
            Ok(fetcher) => fetcher,
            Err(error) => return silent(at, error.to_string()),
        };
        let health = admin::health(fetcher, at).await;
        let took = env.now().since(began);
        if health.is_err() {
            return Admin { took, ..silent(at, health.err().unwrap_or_default()) };
        }
        Admin {
            at: at.clone(),
            health,
            took,
            metrics: admin::metrics(fetcher, at).await,
            summary: admin::summary(fetcher, at).await,
            has_role: admin::has_role(fetcher, at).await,
            is_mcctl: admin::is_mcctl(fetcher, at).await,
        }
    };
    stream::iter(at).map(one).buffered(AT_ONCE).collect().await
}

fn silent(at: &HostPort, why: String) -> Admin {
    Admin {
        at: at.clone(),
        health: Err(why),
        took: Duration::ZERO,
        metrics: None,
        summary: None,
        has_role: None,
        is_mcctl: None,
    }
}

fn metadata(question: &Question) -> Metadata {
    let url = match &question.metadata {
        MetadataUri::P2p => None,
        MetadataUri::Http(url) => Some(url.clone()),
    };
    let is_assumed = question.is_metadata_assumed;
    Metadata { url, is_assumed, reached: Ok(()), took: Duration::ZERO, planned: Vec::new() }
}

/// One node per endpoint; asked, and looked up in the metadata service.
async fn nodes<E: Env>(env: &E, question: &Question, segments: &[Segment], metadata: &mut Metadata) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for segment in segments {
        let is_full = nodes.len() == NODES_MAX;
        match nodes.iter_mut().find(|node| node.endpoint == segment.endpoint) {
            Some(node) if node.names.contains(&segment.name) => {}
            Some(node) => node.names.push(segment.name.clone()),
            None if is_full => break,
            None => nodes.push(Node {
                endpoint: segment.endpoint.clone(),
                names: vec![segment.name.clone()],
                protocol: segment.protocol.clone(),
                at: None,
                dial: Dial::Unknown("it was not asked".to_owned()),
                took: Duration::ZERO,
                described: None,
                records: None,
            }),
        }
    }
    let service = match &metadata.url {
        None => None,
        Some(url) => {
            let limits = CallLimits { connect: question.limit.min(CONNECT_MAX), call: question.limit };
            match MetadataClient::http_within(url, limits) {
                Ok(client) => Some(Service { client, keys: KeySpace::new(question.metadata_cluster.as_deref()) }),
                Err(error) => {
                    metadata.reached = Err(chain(&error));
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
    let asked = async |mut node: Node| {
        if let Some(service) = &service {
            node.records = Some(service.records(&node.endpoint).await);
        }
        node.at = match &node.records {
            Some(Records { rpc_meta: Ok(Some(at)), .. }) => Some(at.clone()),
            // A service that does not know the name: the node may be one of those that use none.
            Some(_) => node.endpoint.parse().ok(),
            None if is_p2p => node.endpoint.parse().ok(),
            None => None,
        };
        let began = env.now();
        node.dial = match &node.at {
            Some(at) => dial::dial(env, at, question.limit).await,
            None if is_p2p => Dial::Unknown(format!("'{}' is no address", node.endpoint)),
            None => Dial::Unknown("the metadata service, which knows its address, does not answer".to_owned()),
        };
        node.took = env.now().since(began);
        if let Some(Records { ram: Ok(Some(protocol)), .. }) = &node.records {
            node.described = Some(protocol.clone());
        }
        node
    };
    let nodes = stream::iter(nodes).map(asked).buffered(AT_ONCE).collect().await;
    if let Some(service) = &service {
        for name in &question.planned {
            let rpc_meta = service.rpc_meta(name).await;
            let dial = match &rpc_meta {
                Ok(Some(at)) => Some(dial::dial(env, at, question.limit).await),
                _ => None,
            };
            metadata.planned.push(Planned { name: name.clone(), rpc_meta, dial });
        }
    }
    nodes
}

/// Can this build move bytes to the segment? What its owner's descriptor says counts, before what the master was told.
fn speaks(nodes: &[Node], segment: &Segment) -> bool {
    let described =
        nodes.iter().find(|node| node.endpoint == segment.endpoint).and_then(|node| node.described.as_deref());
    matches!(described.unwrap_or(&segment.protocol), "" | "tcp")
}

struct Service {
    client: MetadataClient,
    keys: KeySpace,
}

impl Service {
    /// Does it answer like a metadata service? The record is one that nobody writes.
    async fn reached(&self) -> Asked<()> {
        let answer = self.client.get(&self.keys.ram_key("mcctl-doctor")).await;
        answer.map(drop).map_err(|error| chain(&error))
    }

    async fn records(&self, name: &str) -> Records {
        let ram = self.client.get(&self.keys.ram_key(name)).await.map_err(|error| chain(&error));
        let protocol = |body: &[u8]| match SegmentDescriptor::from_json(body) {
            Ok(descriptor) => Ok(descriptor.map(|descriptor| descriptor.protocol)),
            Err(error) => Err(error.to_string()),
        };
        let ram = match ram {
            Ok(Some(body)) => protocol(&body),
            Ok(None) => Ok(None),
            Err(why) => Err(why),
        };
        Records { ram, rpc_meta: self.rpc_meta(name).await }
    }

    async fn rpc_meta(&self, name: &str) -> Asked<Option<HostPort>> {
        match self.client.get(&self.keys.rpc_meta_key(name)).await {
            Ok(Some(body)) => RpcMeta::from_json(&body).map(|RpcMeta(at)| Some(at)).map_err(|error| error.to_string()),
            Ok(None) => Ok(None),
            Err(error) => Err(chain(&error)),
        }
    }
}

/// Times of lookups of a key that is not there, which leases nothing.
async fn lookups<E: Env>(env: &E, calls: &MasterCalls<RpcClient<E>>) -> Vec<Duration> {
    let key = format!("mcctl-doctor-{:016x}", env.rng());
    let mut times = Vec::with_capacity(LOOKUPS);
    let began = env.now();
    while times.len() < LOOKUPS && env.now().since(began) < LOOKUPS_LIMIT {
        let asked = env.now();
        match calls.exist_key(key.as_str().into(), DEFAULT_TENANT.into()).await {
            Ok(Ok(_) | Err(ErrorCode::OBJECT_NOT_FOUND)) => times.push(env.now().since(asked)),
            _ => break,
        }
    }
    times
}

/// Be a client of the cluster for a moment: ask each node for its descriptor, and send an object through it.
async fn join<E: Env>(env: &E, question: &Question, config: &NodeConfig, facts: &mut Facts) -> Journeys {
    let mut config = config.clone();
    config.client.master = facts.master.clone();
    config.client.transfer_deadline = question.limit;
    let client = match store::Node::start(config, env.clone()).await {
        Ok(client) => client,
        Err(error) => return nobody(format!("this host cannot join as a client: {}", chain(&error))),
    };
    for node in
        facts.nodes.iter_mut().filter(|node| node.dial == Dial::Answers && node.described.is_none()).take(AT_ONCE)
    {
        let opened = deadline(env, question.limit, client.client().engine().open(&node.endpoint)).await;
        node.described = opened.ok().and_then(Result::ok).map(|descriptor| descriptor.protocol.clone());
    }
    let answers = |segment: &Segment| {
        let node = facts.nodes.iter().find(|node| node.endpoint == segment.endpoint);
        node.is_none_or(|node| matches!(node.dial, Dial::Answers | Dial::Unknown(_)))
    };
    let mut names: Vec<&Segment> = Vec::new();
    let mut silent: Vec<(String, String)> = Vec::new();
    for segment in facts.mounted() {
        if names.iter().any(|known| known.name == segment.name) || silent.iter().any(|(name, _)| *name == segment.name)
        {
            continue;
        }
        if !answers(segment) {
            silent.push((segment.name.clone(), "it does not answer".to_owned()));
        } else if !speaks(&facts.nodes, segment) {
            silent.push((segment.name.clone(), format!("this build does not speak {}", segment.protocol)));
        } else {
            names.push(segment);
        }
    }
    let is_known = matches!(facts.segments, Some(Ok(_)));
    let room = Room::of(facts);
    let mut journeys = match names.is_empty() && is_known {
        true => nobody("no node is there to take an object".to_owned()),
        false => {
            let bytes = usize::try_from(question.probe_bytes).unwrap_or(usize::MAX);
            journey::journeys(env, client.client(), &names, bytes, &room, &question.stop).await
        }
    };
    journeys.skipped.append(&mut silent);
    client.stop().await;
    journeys
}
