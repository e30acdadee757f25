//! The transport of nodes, by peer and RDMA device, as reported on their HTTP ports.

use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use crate::commands::cli::error::Failure;
use crate::commands::cli::table::ListTable;
use crate::engine::base::text::{counted, escaped};
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::http::HttpCredentials;
use crate::engine::store::transport_stats::{DeviceStats, PeerStats, TransportStats};
use crate::engine::store::{NodeClient, TransportStatsError};

/// A node's default HTTP port.
pub(super) const PORT: u16 = 8080;

/// One node's figures, or why they are unavailable.
pub(super) struct NodeReply {
    pub at: String,
    pub transport: Result<TransportStats, TransportStatsError>,
}

/// A node in the JSON document.
#[derive(Debug, Serialize)]
pub(super) struct NodeStatus<'a> {
    node: &'a str,
    /// Why the node's figures are unavailable.
    error: Option<String>,
    /// `tcp` or `rdma`.
    transport: Option<&'a str>,
    peers: &'a [PeerStats],
    devices: &'a [DeviceStats],
    /// Number of clients on the node's host that have mapped its memory.
    shared_memory_clients: usize,
    /// Hosts whose memory the node suspects.
    suspect_peers: &'a [String],
}

/// Queries `nodes` concurrently. `limit` is the timeout per node.
///
/// # Errors
/// The HTTP client cannot be set up.
pub(super) async fn query(
    nodes: &[HostPort],
    limit: Duration,
    credentials: &HttpCredentials,
) -> Result<Vec<NodeReply>, Failure> {
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    let client = NodeClient::new(limit, credentials)
        .map_err(|error| Failure::host("cannot set up an HTTP client").found(error.to_string()))?;
    let query = async |node: &HostPort| NodeReply { at: node.to_string(), transport: client.transport(node).await };
    Ok(join_all(nodes.iter().map(query)).await)
}

impl<'a> NodeStatus<'a> {
    /// Whether the node's figures are unavailable.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// The address of the node's HTTP port.
    pub(super) fn at(&self) -> &str {
        self.node
    }

    /// Each segment that the node has read damaged objects from, and their number.
    pub(super) fn mismatches(&self) -> impl Iterator<Item = (&str, u64)> {
        let found = self.peers.iter().filter(|peer| peer.checksum_mismatches > 0);
        found.map(|peer| (peer.segment.as_str(), peer.checksum_mismatches))
    }

    /// Hosts whose memory the node suspects.
    pub(super) fn suspect_peers(&self) -> &[String] {
        self.suspect_peers
    }

    pub(super) fn new(reply: &'a NodeReply) -> NodeStatus<'a> {
        let node = &reply.at;
        match &reply.transport {
            Ok(figures) => NodeStatus {
                node,
                error: None,
                transport: Some(&figures.transport),
                peers: &figures.peers,
                devices: &figures.devices,
                shared_memory_clients: figures.shared_memory_clients,
                suspect_peers: &figures.suspect_peers,
            },
            Err(error) => NodeStatus {
                node,
                error: Some(error.to_string()),
                transport: None,
                peers: &[],
                devices: &[],
                shared_memory_clients: 0,
                suspect_peers: &[],
            },
        }
    }
}

/// The nodes as text: one line and up to two tables per node.
pub(super) fn render(nodes: &[NodeStatus<'_>]) -> String {
    let mut text = String::new();
    for node in nodes {
        let summary = match (&node.error, node.transport) {
            (Some(error), _) => format!("no figures: {}", escaped(error)),
            (None, Some("")) | (None, None) => "still starting".to_owned(),
            (None, Some(transport)) => {
                let mut summary = format!("{}, {}", escaped(transport), counted(node.peers.len(), "peer"));
                if node.shared_memory_clients > 0 {
                    let clients = counted(node.shared_memory_clients, "client");
                    summary.push_str(&format!(", {clients} on its host over shared-memory"));
                }
                summary
            }
        };
        text.push_str(&format!("node      {}  {summary}\n", node.node));
        if !node.peers.is_empty() {
            text.push_str(&peer_table(node.peers));
        }
        if !node.devices.is_empty() {
            text.push_str(&device_table(node.devices));
        }
    }
    text
}

fn peer_table(peers: &[PeerStats]) -> String {
    let mut table = ListTable::new(["peer", "transport", "state", "read", "written", "failures"], &[3, 4, 5]);
    for peer in peers {
        table.row([
            escaped(&peer.segment),
            escaped(&peer.transport),
            escaped(&peer.state),
            ByteSize(peer.read_bytes).to_string(),
            ByteSize(peer.written_bytes).to_string(),
            peer.failures.to_string(),
        ]);
    }
    table.text()
}

fn device_table(devices: &[DeviceStats]) -> String {
    let header = ["device", "port", "GID", "state", "endpoints", "read", "written", "failures"];
    let mut table = ListTable::new(header, &[4, 5, 6]);
    for device in devices {
        let kinds: Vec<String> = device
            .failures
            .by_kind()
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        table.row([
            escaped(&device.device),
            device.port.to_string(),
            escaped(&device.gid),
            escaped(&device.state),
            device.endpoints.to_string(),
            ByteSize(device.read_bytes).to_string(),
            ByteSize(device.written_bytes).to_string(),
            if kinds.is_empty() { "0".to_owned() } else { kinds.join(", ") },
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::http::FetchError;
    use crate::engine::store::transport_stats::DeviceFailures;

    #[test]
    fn each_node_is_shown_with_peers_and_devices_or_an_error() {
        let peer = PeerStats {
            segment: "node-2:15001".to_owned(),
            transport: "rdma".to_owned(),
            state: "up".to_owned(),
            read_bytes: 1 << 20,
            written_bytes: 3 << 20,
            failures: 1,
            checksum_mismatches: 0,
        };
        let device = DeviceStats {
            device: "mlx5_0".to_owned(),
            port: 1,
            gid: "3 ::ffff:192.0.2.1".to_owned(),
            state: "up".to_owned(),
            endpoints: 2,
            connected: 3,
            retired: 1,
            requests: 64,
            read_bytes: 1 << 20,
            written_bytes: 3 << 20,
            failures: DeviceFailures { connection: 1, peer: 2, ..DeviceFailures::default() },
        };
        let rdma = TransportStats {
            transport: "rdma".to_owned(),
            peers: vec![peer],
            devices: vec![device],
            ..TransportStats::default()
        };
        let tcp = TransportStats { transport: "tcp".to_owned(), shared_memory_clients: 2, ..TransportStats::default() };
        let refused = TransportStatsError::from(FetchError::Unreachable("Connection refused".to_owned()));
        let replies: Vec<NodeReply> =
            [("node-1:8080", Ok(rdma)), ("node-3:8080", Ok(tcp)), ("node-4:8080", Err(refused))]
                .into_iter()
                .map(|(at, transport)| NodeReply { at: at.to_owned(), transport })
                .collect();
        let nodes: Vec<NodeStatus<'_>> = replies.iter().map(NodeStatus::new).collect();
        insta::assert_snapshot!(render(&nodes), @r"
        node      node-1:8080  rdma, 1 peer
         peer          transport  state   read  written  failures
         node-2:15001  rdma       up     1 MiB    3 MiB         1
         device  port  GID                 state  endpoints   read  written  failures
         mlx5_0  1     3 ::ffff:192.0.2.1  up             2  1 MiB    3 MiB  1 connection, 2 peer
        node      node-3:8080  tcp, 0 peers, 2 clients on its host over shared-memory
        node      node-4:8080  no figures: Connection refused
        ");
    }
}
