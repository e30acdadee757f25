//! What a node moves bytes over, by peer and by RDMA device: the document of `/transport`, and its lines of `/metrics`.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::engine::transfer::{PeerCounters, RailFigures};

/// The document's schema.
pub const SCHEMA: &str = "mcctl.node.transport/1";

/// What a node's own client moves bytes over. Read and written are as that client sees them: what peers do to the node's memory over
/// RDMA is known to nobody here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ways {
    /// [`SCHEMA`].
    pub schema: String,
    /// `tcp` or `rdma`; empty before the start.
    pub transport: String,
    /// Segments of others that it is in touch with, by name.
    pub peers: Vec<PeerWay>,
    /// RDMA devices in use; none with tcp.
    pub devices: Vec<DeviceWay>,
}

/// Of a node that has not started.
impl Default for Ways {
    fn default() -> Ways {
        Ways { schema: SCHEMA.to_owned(), transport: String::new(), peers: Vec::new(), devices: Vec::new() }
    }
}

/// A segment of somebody else's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerWay {
    /// Its name.
    pub segment: String,
    /// `tcp` or `rdma`.
    pub transport: String,
    /// `up`, or `down` when it is taken for dead.
    pub state: String,
    /// Bytes read from it.
    pub read_bytes: u64,
    /// Bytes written to it.
    pub written_bytes: u64,
    /// Operations that failed.
    pub failures: u64,
}

/// An RDMA device of the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWay {
    /// Its name.
    pub device: String,
    /// The port in use.
    pub port: u8,
    /// The row of the GID table, and the address in it.
    pub gid: String,
    /// `up`, or `down` while nothing goes through it.
    pub state: String,
    /// Peers' devices that it is connected to, or is to be.
    pub endpoints: u64,
    /// Connections made since the start.
    pub connected: u64,
    /// Connections given up since the start.
    pub retired: u64,
    /// Work requests posted.
    pub requests: u64,
    /// Bytes read by it.
    pub read_bytes: u64,
    /// Bytes written by it.
    pub written_bytes: u64,
    /// What failed on it.
    pub failures: Failures,
}

/// What failed on a device, by whose it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Connections that could not be made.
    pub connection: u64,
    /// Requests that the device did not take or could not carry out.
    pub device: u64,
    /// Requests that the peer refused.
    pub refused: u64,
    /// Requests that the peer's device did not answer.
    pub peer: u64,
}

impl Failures {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }

    /// Each kind with its name.
    pub fn by_kind(&self) -> [(&'static str, u64); 4] {
        [("connection", self.connection), ("device", self.device), ("refused", self.refused), ("peer", self.peer)]
    }
}

impl Ways {
    /// Of an engine that moves bytes over `transport`.
    pub fn new(transport: &str, peers: Vec<PeerCounters>, rails: Vec<RailFigures>) -> Ways {
        let word = |up: bool| if up { "up" } else { "down" }.to_owned();
        let peer = |peer: PeerCounters| PeerWay {
            segment: peer.segment,
            transport: peer.over.to_owned(),
            state: word(!peer.down),
            read_bytes: peer.flow.read_bytes,
            written_bytes: peer.flow.written_bytes,
            failures: peer.flow.failures,
        };
        let device = |rail: RailFigures| DeviceWay {
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
            failures: Failures {
                connection: rail.failures.connection,
                device: rail.failures.device,
                refused: rail.failures.refused,
                peer: rail.failures.peer,
            },
        };
        // Its own segment is reached without any transport.
        let others = peers.into_iter().filter(|peer| peer.over != "memory");
        let mut peers: Vec<PeerWay> = others.map(peer).collect();
        peers.sort_unstable_by(|a, b| a.segment.cmp(&b.segment));
        let devices = rails.into_iter().map(device).collect();
        Ways { schema: SCHEMA.to_owned(), transport: transport.to_owned(), peers, devices }
    }

    /// Its lines of `/metrics`. Peers are only counted there: there may be very many.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        if self.transport.is_empty() {
            return text;
        }
        let help = "Segments of others that this node's own client is in touch with, by transport";
        let over = &self.transport;
        let of = |state: &str| self.peers.iter().filter(|peer| peer.state == state).count();
        family(&mut text, "mcctl_node_peers", "gauge", help);
        for state in ["up", "down"] {
            let _ = writeln!(text, "mcctl_node_peers{{transport=\"{over}\",state=\"{state}\"}} {}", of(state));
        }
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
        family(&mut text, name, "counter", "What failed on the device, by whose it was");
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

/// Name, kind, help and value.
type Family = (&'static str, &'static str, &'static str, fn(&DeviceWay) -> u64);

const DEVICE_FAMILIES: &[Family] = &[
    ("mcctl_node_rdma_up", "gauge", "Is the device in use", |d| u64::from(d.state == "up")),
    ("mcctl_node_rdma_read_bytes_total", "counter", "Bytes that this node's own client read by the device", |d| {
        d.read_bytes
    }),
    ("mcctl_node_rdma_written_bytes_total", "counter", "Bytes that this node's own client wrote by the device", |d| {
        d.written_bytes
    }),
    ("mcctl_node_rdma_requests_total", "counter", "Work requests posted on the device", |d| d.requests),
    ("mcctl_node_rdma_endpoints", "gauge", "Devices of peers that the device is connected to", |d| d.endpoints),
    ("mcctl_node_rdma_connected_total", "counter", "Connections made", |d| d.connected),
    ("mcctl_node_rdma_retired_total", "counter", "Connections given up", |d| d.retired),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::transfer::RailFailures;

    fn peer(segment: &str, over: &'static str, down: bool) -> PeerCounters {
        PeerCounters { segment: segment.into(), over, flow: Default::default(), down }
    }

    fn rail() -> RailFigures {
        RailFigures {
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
    fn peers_are_in_order_without_the_own_segment_and_a_dead_one_is_down() {
        let ways = Ways::new(
            "rdma",
            vec![peer("b", "rdma", true), peer("own", "memory", false), peer("a", "rdma", false)],
            Vec::new(),
        );
        let told: Vec<_> = ways.peers.iter().map(|peer| (peer.segment.as_str(), peer.state.as_str())).collect();
        assert_eq!(told, [("a", "up"), ("b", "down")]);
    }

    #[test]
    fn the_metrics_have_a_line_a_device_and_figure() {
        let text = Ways::new("rdma", vec![peer("a", "rdma", false)], vec![rail()]).metrics();
        for line in [
            "mcctl_node_peers{transport=\"rdma\",state=\"up\"} 1",
            "mcctl_node_rdma_up{device=\"rxe0\",port=\"1\"} 1",
            "mcctl_node_rdma_written_bytes_total{device=\"rxe0\",port=\"1\"} 600",
            "mcctl_node_rdma_failures_total{device=\"rxe0\",port=\"1\",kind=\"refused\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        assert_eq!(text.matches("# TYPE").count(), 2 + DEVICE_FAMILIES.len());
        let tcp = Ways::new("tcp", Vec::new(), Vec::new()).metrics();
        assert!(tcp.contains("transport=\"tcp\",state=\"down\"} 0") && !tcp.contains("rdma"), "{tcp}");
        assert_eq!(Ways::default().metrics(), "");
    }

    #[test]
    fn the_document_is_read_back_as_it_was() {
        let ways = Ways::new("rdma", vec![peer("a", "rdma", false)], vec![rail()]);
        let text = serde_json::to_string(&ways).unwrap();
        assert_eq!(serde_json::from_str::<Ways>(&text).unwrap(), ways);
        assert_eq!(ways.devices[0].failures.sum(), 10);
    }
}
