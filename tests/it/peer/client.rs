//! The suite of the real Python client (tests/peers/client_suite.py) against every pairing of
//! master and nodes.

use std::time::Duration;

use super::cluster::{Cluster, Make, Metadata};
use super::process::run;
use super::wheel::wheel;

const MIB: u64 = 1 << 20;

/// Run the suite as a client that contributes `segment` bytes.
fn suite(master: Make, node: Make, how: Metadata, nodes: usize, segment: u64) {
    let cluster = Cluster::start(master, node, how, nodes, 512 * MIB);
    let mut c = wheel().script("client_suite.py");
    c.args(["--master", &cluster.master.address(), "--metadata", &cluster.master.metadata(how)]);
    c.args(["--nodes", &nodes.to_string(), "--segment-size", &segment.to_string()]);
    let (status, text) = run("suite", c, cluster.dir.path(), Duration::from_secs(180));
    assert!(status.success(), "{text}");
    if node == Make::Ours && segment == 0 {
        // The nodes served all transfers of a pure client: at least the 128 MiB batch and the sizes
        // up to 64 MiB.
        let served = |what| cluster.nodes.iter().map(|n| n.counter(what)).sum::<u64>();
        let (written, read) =
            (served("mcctl_node_served_write_bytes_total"), served("mcctl_node_served_read_bytes_total"));
        assert!(written > 192 * MIB, "{written} bytes written to the nodes");
        assert!(read > 320 * MIB, "{read} bytes read from the nodes");
    }
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_suite_passes_with_the_real_master_and_nodes() {
    suite(Make::Real, Make::Real, Metadata::P2p, 1, 0);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_serves_a_pure_client_and_a_real_node_with_peer_handshakes() {
    suite(Make::Ours, Make::Real, Metadata::P2p, 1, 0);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_and_metadata_serve_a_pure_client_and_three_real_nodes() {
    suite(Make::Ours, Make::Real, Metadata::Http, 3, 0);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_serves_a_contributing_client() {
    suite(Make::Ours, Make::Real, Metadata::P2p, 1, 256 * MIB);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_and_node_serve_a_pure_client_with_peer_handshakes() {
    suite(Make::Ours, Make::Ours, Metadata::P2p, 1, 0);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_metadata_and_three_nodes_serve_a_pure_client() {
    suite(Make::Ours, Make::Ours, Metadata::Http, 3, 0);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_metadata_and_node_serve_a_contributing_client() {
    suite(Make::Ours, Make::Ours, Metadata::Http, 1, 256 * MIB);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_master_accepts_our_three_nodes_with_peer_handshakes() {
    suite(Make::Real, Make::Ours, Metadata::P2p, 3, 0);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_master_and_metadata_accept_our_node() {
    suite(Make::Real, Make::Ours, Metadata::Http, 1, 0);
}
