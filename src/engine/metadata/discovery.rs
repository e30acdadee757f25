//! Finds the metadata mode used by a store's nodes, for a client that was not configured with one.
//!
//! Clients and nodes must use the same mode: one HTTP metadata service, or P2PHANDSHAKE. [`find`]
//! checks the following, in this order: the [announcement](crate::admin::types::Announcement) of an
//! mcctl master, a node's record in the metadata service on port 8080 of the master's host, and a
//! handshake with a node at the address in its name (P2PHANDSHAKE). A mode is accepted only if one
//! of these checks provides evidence: a service without any node's record is not used. The record
//! is checked before the handshake because nodes that use a service may answer handshakes too
//! (`MC_LEGACY_RPC_PORT_BINDING`).

use std::net::IpAddr;
use std::time::Duration;

use crate::admin::types::AnnouncedMode;
use crate::admin::{AdminClient, AdminError, AdminErrorKind};
use crate::{KeySpace, MetadataUri, probe};
use futures_util::future::{join, join_all};
use mcctl_base::HostPort;
use mcctl_net::http::{Fetcher, HttpCredentials, escape};
use mcctl_sys::env::Env;

/// Default port of a metadata service.
pub const SERVICE_PORT: u16 = 8080;

/// Timeout for one response.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Maximum size of a response in bytes from a program that may not be a metadata service.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum number of nodes to probe. They are probed concurrently, because some may be down.
const NODES_MAX: usize = 8;

/// The store to examine.
#[derive(Clone, Copy, Debug)]
pub struct DiscoveryQuery<'a> {
    /// The master's admin address.
    pub admin: &'a HostPort,
    /// The host of the master.
    pub master_host: &'a str,
    /// The record keys; see `MC_METADATA_CLUSTER_ID`.
    pub keys: &'a KeySpace,
    /// Timeout for one response; at most one second is used.
    pub limit: Duration,
    /// What the client shows to the admin port and the metadata service.
    pub credentials: &'a HttpCredentials,
}

/// A metadata mode and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredMode {
    pub metadata: MetadataUri,
    pub evidence: Evidence,
}

/// The evidence for a metadata mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The master announced the mode at this admin address.
    Announced(HostPort),
    /// The node with this name answered a handshake.
    Handshake(String),
    /// The service has a record of the node with this name.
    Record(String),
}

/// Finds a store's metadata mode. Returns `None` if there is no evidence.
pub async fn find<E: Env>(env: &E, query: &DiscoveryQuery<'_>) -> Option<DiscoveredMode> {
    let service = HostPort::new(query.master_host, SERVICE_PORT);
    find_at(env, query, &service).await
}

async fn find_at<E: Env>(env: &E, query: &DiscoveryQuery<'_>, service: &HostPort) -> Option<DiscoveredMode> {
    let limit = query.limit.min(ANSWER_MAX);
    let admin = AdminClient::with_credentials(query.admin.clone(), limit, query.credentials).ok()?;
    let announced = admin.announcement().await.ok().flatten();
    if let Some(metadata) = announced.and_then(|found| mode(found.metadata, admin.at())) {
        return Some(DiscoveredMode { metadata, evidence: Evidence::Announced(admin.at().clone()) });
    }
    let nodes = nodes(&admin).await?;
    // The service's address is a guess, so it does not get the token.
    let fetcher = Fetcher::with_credentials(&query.credentials.without_token(), limit, ANSWER_BYTES_MAX).ok()?;
    let url = format!("{}://{service}/metadata", query.credentials.scheme());
    let records = join_all(nodes.iter().map(async |node| {
        let record = fetcher.get(&format!("{url}?key={}", escape(&query.keys.ram_key(node)))).await;
        record.is_ok_and(|record| record.is_ok())
    }));
    let handshakes = join_all(nodes.iter().map(async |node| match node.parse::<HostPort>() {
        Ok(at) => probe::is_alive(env, &at).await,
        Err(_) => false,
    }));
    let (records, handshakes) = join(records, handshakes).await;
    if let Some(node) = first(&nodes, &records) {
        return Some(DiscoveredMode { metadata: MetadataUri::Service(url), evidence: Evidence::Record(node) });
    }
    let node = first(&nodes, &handshakes)?;
    Some(DiscoveredMode { metadata: MetadataUri::P2p, evidence: Evidence::Handshake(node) })
}

/// Returns true if the admin port at `admin` belongs to the master at `master`. An mcctl master
/// announces its RPC port; an elected leader of any release announces its RPC address. Other
/// masters provide no evidence, and neither does a port that requires a token: the port may belong
/// to another program, so it does not get the token in `credentials`.
pub async fn is_admin_of(admin: &HostPort, master: &HostPort, limit: Duration, credentials: &HttpCredentials) -> bool {
    let credentials = credentials.without_token();
    let admin = AdminClient::with_credentials(admin.clone(), limit.min(ANSWER_MAX), &credentials);
    let Ok(admin) = admin else { return false };
    if let Ok(Some(found)) = admin.announcement().await {
        return found.rpc_port == master.port;
    }
    let leader = admin.leader().await.ok().and_then(|leader| leader.leader_address);
    leader.is_some_and(|address| address == master.to_string())
}

/// Converts an announced mode for a client that reached the master at `admin`.
fn mode(announced: AnnouncedMode, admin: &HostPort) -> Option<MetadataUri> {
    let url = match announced {
        AnnouncedMode::Http { url } => url,
        AnnouncedMode::P2p => return Some(MetadataUri::P2p),
        AnnouncedMode::Unknown => return None,
    };
    // The URL may be printed to a terminal.
    if url.chars().any(char::is_control) {
        return None;
    }
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = HostPort::split(authority).ok()?;
    let is_unspecified = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
    let url = match port.filter(|_| is_unspecified) {
        Some(port) => format!("{scheme}://{}/{path}", HostPort::new(&admin.host, port)),
        None => url,
    };
    url.parse().ok()
}

/// Returns the names of the master's first nodes.
async fn nodes(admin: &AdminClient) -> Option<Vec<String>> {
    let mut nodes: Vec<String> = match admin.segments().await {
        Ok(segments) => segments.into_iter().map(|segment| segment.te_endpoint).collect(),
        Err(AdminError { kind: AdminErrorKind::Fetch(_), .. }) => return None,
        // Masters before 0.3.12 have no details route.
        Err(_) => admin.segment_names().await.ok()?,
    };
    nodes.retain(|name| !name.is_empty());
    nodes.dedup();
    nodes.truncate(NODES_MAX);
    Some(nodes)
}

/// Returns the first node whose entry in `answers` is true.
fn first(nodes: &[String], answers: &[bool]) -> Option<String> {
    nodes.iter().zip(answers).find(|(_, yes)| **yes).map(|(node, _)| node.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admin::routes;
    use mcctl_net::http::{self, Handler, HttpLimits, HttpRequest, HttpServer, Response, StatusCode, answer};
    use mcctl_sys::env::RealEnv;

    /// A fake master and metadata service on one port.
    struct FakeStore {
        announcement: Option<&'static str>,
        /// Lists the segment details, like 0.3.12 and later.
        detailed: bool,
        /// Name of the second node. The first node is down.
        node: String,
        has_record: bool,
    }

    impl Handler for FakeStore {
        async fn handle(&self, request: HttpRequest) -> Response {
            let json = |body: String| answer(StatusCode::OK, "application/json", body);
            let node = &self.node;
            match (request.path(), request.param("key")) {
                (routes::DISCOVERY, _) if self.announcement.is_some() => {
                    json(self.announcement.unwrap_or_default().to_owned())
                }
                (routes::SEGMENTS_DETAIL, _) if self.detailed => {
                    json(format!(r#"{{"segments":[{{"te_endpoint":"127.0.0.1:1"}},{{"te_endpoint":"{node}"}}]}}"#))
                }
                (routes::ALL_SEGMENTS, _) => answer(StatusCode::OK, "text/plain", format!("127.0.0.1:1\n{node}\n")),
                (routes::LEADER, _) => json(r#"{"leader_address":"host:7"}"#.to_owned()),
                ("/metadata", Some(key)) if self.has_record && key == escape(&KeySpace::default().ram_key(node)) => {
                    json("{}".to_owned())
                }
                _ => answer(StatusCode::NOT_FOUND, "", "not found"),
            }
        }
    }

    async fn start(store: FakeStore) -> HttpServer {
        let here = HostPort::new("127.0.0.1", 0);
        http::start(RealEnv::new(), &here, HttpLimits::SMALL, Arc::new(store)).await.expect("a free port")
    }

    fn plain() -> FakeStore {
        FakeStore { announcement: None, detailed: true, node: "127.0.0.1:2".to_owned(), has_record: false }
    }

    async fn found(store: &HttpServer) -> Option<DiscoveredMode> {
        let keys = KeySpace::default();
        let limit = Duration::from_secs(1);
        let query = DiscoveryQuery {
            admin: store.at(),
            master_host: "127.0.0.1",
            keys: &keys,
            limit,
            credentials: &HttpCredentials::default(),
        };
        find_at(&RealEnv::new(), &query, store.at()).await
    }

    #[tokio::test]
    async fn an_announcement_comes_first_and_its_host_may_be_unspecified() {
        let text = r#"{"schema":"mcctl.discovery/1","rpc_port":7,"metadata":{"mode":"http","url":"http://0.0.0.0:5/metadata"}}"#;
        let store = start(FakeStore { announcement: Some(text), has_record: true, ..plain() }).await;
        let expected = DiscoveredMode {
            metadata: MetadataUri::Service("http://127.0.0.1:5/metadata".to_owned()),
            evidence: Evidence::Announced(store.at().clone()),
        };
        assert_eq!(found(&store).await, Some(expected));
        let limit = Duration::from_secs(1);
        for (port, is_its_own) in [(7, true), (8, false)] {
            assert_eq!(
                is_admin_of(store.at(), &HostPort::new("host", port), limit, &HttpCredentials::default()).await,
                is_its_own
            );
        }
    }

    #[test]
    fn an_announced_url_with_control_characters_is_ignored() {
        let admin = HostPort::new("127.0.0.1", 9003);
        let announced = |path: &str| mode(AnnouncedMode::Http { url: format!("http://127.0.0.1:8080/{path}") }, &admin);
        assert!(announced("metadata").is_some());
        assert_eq!(announced("metadata\u{1b}[2J"), None);
    }

    #[tokio::test]
    async fn a_node_without_record_that_answers_handshakes_uses_p2p() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let node = listener.local_addr().expect("bound").to_string();
        // An engine from a release before 0.3.12 reads the whole probe and closes the connection.
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = std::io::Read::read(&mut stream, &mut [0; 64]);
            }
        });
        let unknown = r#"{"schema":"mcctl.discovery/1","rpc_port":7,"metadata":{"mode":"later","x":1}}"#;
        for (announcement, detailed) in [(None, true), (None, false), (Some(unknown), true)] {
            let store = start(FakeStore { announcement, detailed, node: node.clone(), has_record: false }).await;
            let expected = DiscoveredMode { metadata: MetadataUri::P2p, evidence: Evidence::Handshake(node.clone()) };
            assert_eq!(found(&store).await, Some(expected));
        }
        let store = start(FakeStore { node: node.clone(), has_record: true, ..plain() }).await;
        assert_eq!(found(&store).await.map(|found| found.evidence), Some(Evidence::Record(node)));
    }

    #[tokio::test]
    async fn a_service_is_used_only_if_it_has_the_record_of_a_node() {
        for has_record in [true, false] {
            let store = start(FakeStore { has_record, ..plain() }).await;
            let expected = DiscoveredMode {
                metadata: MetadataUri::Service(format!("http://{}/metadata", store.at())),
                evidence: Evidence::Record("127.0.0.1:2".to_owned()),
            };
            assert_eq!(found(&store).await, has_record.then_some(expected));
        }
    }

    #[tokio::test]
    async fn an_admin_port_without_announcement_belongs_to_its_leader() {
        let store = start(plain()).await;
        let limit = Duration::from_secs(1);
        for (host, port, is_its_own) in [("host", 7, true), ("host", 8, false), ("other", 7, false)] {
            assert_eq!(
                is_admin_of(store.at(), &HostPort::new(host, port), limit, &HttpCredentials::default()).await,
                is_its_own
            );
        }
        let nothing = HostPort::new("127.0.0.1", 1);
        assert!(!is_admin_of(&nothing, &HostPort::new("host", 7), limit, &HttpCredentials::default()).await);
    }
}
