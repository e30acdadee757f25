//! What nodes move bytes over, by peer and by RDMA device: as their HTTP ports tell.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use futures_util::future::join_all;
use serde::Serialize;

use crate::commands::error::Failure;
use crate::engine::base::text::escaped;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::http::Fetcher;
use crate::engine::store::ways::{DeviceWay, PeerWay, SCHEMA, Ways};

/// A node's HTTP port where none is written.
pub(super) const PORT: u16 = 8080;
/// The longest answer, bytes: as many peers as a node remembers.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// A node's answer, or why there is none.
pub(super) type Answer = (String, Result<Ways, String>);

/// One node in the JSON document.
#[derive(Debug, Serialize)]
pub(super) struct Node<'a> {
    /// Its HTTP port.
    node: &'a str,
    /// Why there is nothing to tell.
    error: Option<&'a str>,
    /// `tcp` or `rdma`.
    transport: Option<&'a str>,
    peers: &'a [PeerWay],
    devices: &'a [DeviceWay],
}

/// Ask `nodes`, all at once. Each has `limit`.
///
/// # Errors
/// This host's HTTP library cannot be set up.
pub(super) async fn ask(nodes: &[HostPort], limit: Duration) -> Result<Vec<Answer>, Failure> {
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    let fetcher = Fetcher::new(false, limit, ANSWER_BYTES_MAX)
        .map_err(|error| Failure::host("cannot set up an HTTP client").found(error.to_string()))?;
    let ask = |node: &HostPort| {
        let (fetcher, node) = (fetcher.clone(), node.to_string());
        async move {
            let answer = one(&fetcher, &node).await;
            (node, answer)
        }
    };
    Ok(join_all(nodes.iter().map(ask)).await)
}

async fn one(fetcher: &Fetcher, node: &str) -> Result<Ways, String> {
    let answer = fetcher.get(&format!("http://{node}/transport")).await.map_err(|error| error.to_string())?;
    let ways = serde_json::from_str::<Ways>(&answer.body).ok().filter(|ways| answer.is_ok() && ways.schema == SCHEMA);
    ways.ok_or_else(|| format!("no node of mcctl's answers there: {}", answer.shown()))
}

impl<'a> Node<'a> {
    pub(super) fn new((node, answer): &'a Answer) -> Node<'a> {
        match answer {
            Ok(ways) => {
                Node { node, error: None, transport: Some(&ways.transport), peers: &ways.peers, devices: &ways.devices }
            }
            Err(error) => Node { node, error: Some(error), transport: None, peers: &[], devices: &[] },
        }
    }
}

/// For people.
pub(super) fn render(nodes: &[Node<'_>]) -> String {
    let mut text = String::new();
    for node in nodes {
        let told = match (node.error, node.transport) {
            (Some(error), _) => format!("no answer: {}", escaped(error)),
            (None, Some("")) | (None, None) => "not started yet".to_owned(),
            (None, Some(transport)) => {
                let counted = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
                format!("{}, {}", escaped(transport), counted(node.peers.len(), "peer"))
            }
        };
        text.push_str(&format!("node      {}  {told}\n", node.node));
        if !node.peers.is_empty() {
            text.push_str(&format!("{}\n", peer_table(node.peers).trim_fmt()));
        }
        if !node.devices.is_empty() {
            text.push_str(&format!("{}\n", device_table(node.devices).trim_fmt()));
        }
    }
    text
}

fn peer_table(peers: &[PeerWay]) -> Table {
    let mut table = plain(["peer", "transport", "state", "read", "written", "failures"], 3..6);
    for peer in peers {
        table.add_row([
            escaped(&peer.segment),
            escaped(&peer.transport),
            escaped(&peer.state),
            ByteSize(peer.read_bytes).to_string(),
            ByteSize(peer.written_bytes).to_string(),
            peer.failures.to_string(),
        ]);
    }
    table
}

fn device_table(devices: &[DeviceWay]) -> Table {
    let mut table = plain(["device", "port", "GID", "state", "endpoints", "read", "written", "failures"], 4..7);
    for device in devices {
        let kinds: Vec<String> = device
            .failures
            .by_kind()
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        table.add_row([
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
    table
}

fn plain<const N: usize>(header: [&str; N], right: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::store::ways::Failures;

    #[test]
    fn each_node_is_shown_with_its_peers_and_devices_or_why_not() {
        let peer = PeerWay {
            segment: "node-2:15001".to_owned(),
            transport: "rdma".to_owned(),
            state: "up".to_owned(),
            read_bytes: 1 << 20,
            written_bytes: 3 << 20,
            failures: 1,
        };
        let device = DeviceWay {
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
            failures: Failures { connection: 1, peer: 2, ..Failures::default() },
        };
        let ways = Ways { transport: "rdma".to_owned(), peers: vec![peer], devices: vec![device], ..Ways::default() };
        let answers: [Answer; 3] = [
            ("node-1:8080".to_owned(), Ok(ways)),
            ("node-3:8080".to_owned(), Ok(Ways { transport: "tcp".to_owned(), ..Ways::default() })),
            ("node-4:8080".to_owned(), Err("Connection refused".to_owned())),
        ];
        let nodes: Vec<Node<'_>> = answers.iter().map(Node::new).collect();
        insta::assert_snapshot!(render(&nodes), @r"
        node      node-1:8080  rdma, 1 peer
         peer          transport  state   read  written  failures
         node-2:15001  rdma       up     1 MiB    3 MiB         1
         device  port  GID                 state  endpoints   read  written  failures
         mlx5_0  1     3 ::ffff:192.0.2.1  up             2  1 MiB    3 MiB  1 connection, 2 peer
        node      node-3:8080  tcp, 0 peers
        node      node-4:8080  no answer: Connection refused
        ");
    }
}
