//! A node's transport statistics by peer and by RDMA device: the JSON document at `/transport` and
//! its part of `/metrics`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::damage::{NodeDamage, host_of};
use mcctl_transfer::{PeerCounters, RailCounters};

/// Schema of the JSON document.
pub const SCHEMA: &str = "mcctl.node.transport/1";

/// The transport of a peer on the same host.
const SHARED_MEMORY: &str = "shared-memory";

/// Statistics for the transport used by a node's own client. They count this client's reads and
/// writes. A node's process cannot see how peers access its memory over RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportStats {
    pub schema: String,
    /// `tcp` or `rdma`; empty before the node has started.
    pub transport: String,
    /// Segments on other nodes to which the client is connected, by name.
    pub peers: Vec<PeerStats>,
    /// RDMA devices in use; empty with tcp.
    pub devices: Vec<DeviceStats>,
    /// Number of clients on this host that have mapped the node's memory. Older releases do not
    /// report it.
    #[serde(default)]
    pub shared_memory_clients: usize,
    /// Hosts in whose memory this client has found ten damaged replicas within a minute. Older
    /// releases do not report them.
    #[serde(default)]
    pub suspect_peers: Vec<String>,
}

/// Statistics for a node that has not started.
impl Default for TransportStats {
    fn default() -> TransportStats {
        TransportStats {
            schema: SCHEMA.to_owned(),
            transport: String::new(),
            peers: Vec::new(),
            devices: Vec::new(),
            shared_memory_clients: 0,
            suspect_peers: Vec::new(),
        }
    }
}

/// Statistics for a segment on another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStats {
    pub segment: String,
    /// `tcp` or `rdma`, or `shared-memory` for a node on the same host.
    pub transport: String,
    /// `up`, or `down` if the peer is considered dead. `own` for the client's own segment, which is
    /// listed only if it is damaged.
    pub state: String,
    /// Bytes read from the segment.
    pub read_bytes: u64,
    /// Bytes written to the segment.
    pub written_bytes: u64,
    pub failures: u64,
    /// Damaged replicas that this client has found in the segment. Older releases do not report
    /// them.
    #[serde(default)]
    pub checksum_mismatches: u64,
}

/// Statistics for an RDMA device on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStats {
    pub device: String,
    /// The device's port number.
    pub port: u8,
    /// GID index and address.
    pub gid: String,
    /// `up`, or `down` while the device is not in use.
    pub state: String,
    /// Number of peers' devices to which this device is connected or connecting.
    pub endpoints: u64,
    /// Connections established since startup.
    pub connected: u64,
    /// Connections closed since startup.
    pub retired: u64,
    pub requests: u64,
    /// Bytes read through the device.
    pub read_bytes: u64,
    /// Bytes written through the device.
    pub written_bytes: u64,
    pub failures: DeviceFailures,
}

/// A device's failures by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFailures {
    /// Connections that could not be established.
    pub connection: u64,
    /// Requests that the local device rejected or failed.
    pub device: u64,
    /// Requests that the peer rejected.
    pub refused: u64,
    /// Requests to which the peer's device did not respond.
    pub peer: u64,
}

impl DeviceFailures {
    /// Returns the total number of failures.
    pub fn sum(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }

    /// Returns the name and count for each cause.
    pub fn by_kind(&self) -> [(&'static str, u64); 4] {
        [("connection", self.connection), ("device", self.device), ("refused", self.refused), ("peer", self.peer)]
    }
}

impl TransportStats {
    /// Creates the statistics for an engine that uses `transport`.
    pub fn new(transport: &str, peers: Vec<PeerCounters>, rails: Vec<RailCounters>) -> TransportStats {
        let word = |up: bool| if up { "up" } else { "down" }.to_owned();
        let peer = |peer: PeerCounters| PeerStats {
            segment: peer.segment,
            transport: peer.transport.to_owned(),
            state: word(!peer.down),
            read_bytes: peer.flow.read_bytes,
            written_bytes: peer.flow.written_bytes,
            failures: peer.flow.failures,
            checksum_mismatches: 0,
        };
        let device = |rail: RailCounters| DeviceStats {
            state: word(rail.up),
            device: rail.device,
            port: rail.port,
            gid: rail.gid,
            endpoints: rail.endpoints,
            connected: rail.connected,
            retired: rail.retired,
            requests: rail.requests,
            read_bytes: rail.read_bytes,
            written_bytes: rail.written_bytes,
            failures: DeviceFailures {
                connection: rail.failures.connection,
                device: rail.failures.device,
                refused: rail.failures.refused,
                peer: rail.failures.peer,
            },
        };
        // The local segment is accessed without a transport.
        let others = peers.into_iter().filter(|peer| peer.transport != "memory");
        let mut peers: Vec<PeerStats> = others.map(peer).collect();
        peers.sort_unstable_by(|a, b| a.segment.cmp(&b.segment));
        let devices = rails.into_iter().map(device).collect();
        TransportStats {
            schema: SCHEMA.to_owned(),
            transport: transport.to_owned(),
            peers,
            devices,
            shared_memory_clients: 0,
            suspect_peers: Vec::new(),
        }
    }

    /// Adds the damaged replicas that the client has found. `own` are the endpoints of its own
    /// node.
    #[must_use]
    pub fn with_damage(mut self, found: Vec<NodeDamage>, own: &[String]) -> TransportStats {
        for node in found {
            match self.peers.iter_mut().find(|peer| peer.segment == node.node) {
                Some(peer) => peer.checksum_mismatches = node.mismatches,
                // The node is the client's own, or the client is no longer connected to it.
                None => self.peers.push(PeerStats {
                    segment: node.node.clone(),
                    transport: String::new(),
                    state: if own.contains(&node.node) { "own" } else { "down" }.to_owned(),
                    read_bytes: 0,
                    written_bytes: 0,
                    failures: 0,
                    checksum_mismatches: node.mismatches,
                }),
            }
            let host = host_of(&node.node);
            if node.is_suspect && !self.suspect_peers.contains(&host) {
                self.suspect_peers.push(host);
            }
        }
        self
    }

    /// Renders the transport part of `/metrics`. Peers are counted but not listed individually,
    /// because there may be many.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        if self.transport.is_empty() {
            return text;
        }
        let help = "Segments on other nodes to which this node's client is connected, by transport";
        let is_over = |peer: &&PeerStats, over: &str| peer.transport == over;
        family(&mut text, "mcctl_node_peers", "gauge", help);
        for over in [self.transport.as_str(), SHARED_MEMORY] {
            for state in ["up", "down"] {
                let count = self.peers.iter().filter(|peer| is_over(peer, over) && peer.state == state).count();
                let _ = writeln!(text, "mcctl_node_peers{{transport=\"{over}\",state=\"{state}\"}} {count}");
            }
        }
        let name = "mcctl_node_shared_memory_clients";
        family(&mut text, name, "gauge", "Clients on this host that have mapped this node's memory");
        let _ = writeln!(text, "{name} {}", self.shared_memory_clients);
        if self.devices.is_empty() {
            return text;
        }
        for (name, kind, help, value) in DEVICE_FAMILIES {
            family(&mut text, name, kind, help);
            for device in &self.devices {
                let _ =
                    writeln!(text, "{name}{{device=\"{}\",port=\"{}\"}} {}", device.device, device.port, value(device));
            }
        }
        let name = "mcctl_node_rdma_failures_total";
        family(&mut text, name, "counter", "Failures on the device, by cause");
        for device in &self.devices {
            for (kind, count) in device.failures.by_kind() {
                let (device, port) = (&device.device, device.port);
                let _ = writeln!(text, "{name}{{device=\"{device}\",port=\"{port}\",kind=\"{kind}\"}} {count}");
            }
        }
        text
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A metric's name, type, help text and value.
type DeviceFamily = (&'static str, &'static str, &'static str, fn(&DeviceStats) -> u64);

const DEVICE_FAMILIES: &[DeviceFamily] = &[
    ("mcctl_node_rdma_up", "gauge", "Whether the device is in use", |d| u64::from(d.state == "up")),
    ("mcctl_node_rdma_read_bytes_total", "counter", "Bytes read by this node's client through the device", |d| {
        d.read_bytes
    }),
    ("mcctl_node_rdma_written_bytes_total", "counter", "Bytes written by this node's client through the device", |d| {
        d.written_bytes
    }),
    ("mcctl_node_rdma_requests_total", "counter", "Work requests posted to the device", |d| d.requests),
    ("mcctl_node_rdma_endpoints", "gauge", "Peers' devices to which the device is connected", |d| d.endpoints),
    ("mcctl_node_rdma_connected_total", "counter", "Connections established", |d| d.connected),
    ("mcctl_node_rdma_retired_total", "counter", "Connections closed", |d| d.retired),
];

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_transfer::RailFailures;

    fn peer(segment: &str, transport: &'static str, down: bool) -> PeerCounters {
        PeerCounters { segment: segment.into(), transport, flow: Default::default(), shared: Default::default(), down }
    }

    fn rail() -> RailCounters {
        RailCounters {
            device: "rxe0".into(),
            port: 1,
            gid: "1 ::ffff:192.0.2.1".into(),
            up: true,
            endpoints: 2,
            connected: 3,
            retired: 1,
            requests: 40,
            failures: RailFailures { connection: 1, device: 2, refused: 3, peer: 4 },
            read_bytes: 500,
            written_bytes: 600,
        }
    }

    #[test]
    fn peers_are_sorted_without_the_own_segment_and_dead_ones_are_down() {
        let stats = TransportStats::new(
            "rdma",
            vec![peer("b", "rdma", true), peer("own", "memory", false), peer("a", "shared-memory", false)],
            Vec::new(),
        );
        let states: Vec<_> = stats.peers.iter().map(|peer| (peer.segment.as_str(), peer.state.as_str())).collect();
        assert_eq!(states, [("a", "up"), ("b", "down")]);
        assert_eq!(stats.peers[0].transport, "shared-memory");
        let metrics = stats.metrics();
        for line in ["transport=\"rdma\",state=\"up\"} 0", "transport=\"shared-memory\",state=\"up\"} 1"] {
            assert!(metrics.contains(line), "{metrics}");
        }
    }

    #[test]
    fn damaged_replicas_are_listed_with_their_segment_and_suspect_hosts() {
        let peers = vec![peer("a:1", "tcp", false), peer("b:1", "tcp", false)];
        let found = |node: &str, is_suspect| NodeDamage { node: node.to_owned(), mismatches: 12, is_suspect };
        let stats = TransportStats::new("tcp", peers, Vec::new());
        let stats = stats.with_damage(
            vec![found("a:1", true), found("a:2", true), found("c:1", false), found("d:1", false)],
            &["d:1".to_owned()],
        );
        let counts: Vec<_> = stats.peers.iter().map(|peer| (peer.segment.as_str(), peer.checksum_mismatches)).collect();
        assert_eq!(counts, [("a:1", 12), ("b:1", 0), ("a:2", 12), ("c:1", 12), ("d:1", 12)]);
        assert_eq!((stats.peers[3].state.as_str(), stats.peers[4].state.as_str()), ("down", "own"));
        assert_eq!(stats.suspect_peers, ["a"]);
    }

    #[test]
    fn every_metric_has_a_line_per_device() {
        let text = TransportStats::new("rdma", vec![peer("a", "rdma", false)], vec![rail()]).metrics();
        for line in [
            "mcctl_node_peers{transport=\"rdma\",state=\"up\"} 1",
            "mcctl_node_rdma_up{device=\"rxe0\",port=\"1\"} 1",
            "mcctl_node_rdma_written_bytes_total{device=\"rxe0\",port=\"1\"} 600",
            "mcctl_node_rdma_failures_total{device=\"rxe0\",port=\"1\",kind=\"refused\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert_eq!(text.matches("# TYPE").count(), 3 + DEVICE_FAMILIES.len());
        let tcp = TransportStats::new("tcp", Vec::new(), Vec::new()).metrics();
        assert!(tcp.contains("transport=\"tcp\",state=\"down\"} 0") && !tcp.contains("rdma"), "{tcp}");
        assert_eq!(TransportStats::default().metrics(), "");
    }

    #[test]
    fn the_document_round_trips_through_json() {
        let stats = TransportStats::new("rdma", vec![peer("a", "rdma", false)], vec![rail()]);
        let text = serde_json::to_string(&stats).unwrap();
        assert_eq!(serde_json::from_str::<TransportStats>(&text).unwrap(), stats);
        assert_eq!(stats.devices[0].failures.sum(), 10);
        // Older releases do not report damage.
        let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
        older.as_object_mut().unwrap().remove("suspect_peers");
        older["peers"][0].as_object_mut().unwrap().remove("checksum_mismatches");
        assert_eq!(serde_json::from_value::<TransportStats>(older).unwrap(), stats);
    }
}
