//! The real Python client's whole list (tests/peers/client_suite.py) against every pairing of master and nodes.

use std::time::Duration;

use super::cluster::{Cluster, Make, Metadata};
use super::process::run;
use super::wheel::wheel;

const MIB: u64 = 1 << 20;

/// Runs the suite as a client that lends `lent` bytes itself.
fn suite(master: Make, node: Make, how: Metadata, nodes: usize, lent: u64) {
    let cluster = Cluster::start(master, node, how, nodes, 512 * MIB);
    let mut c = wheel().script("client_suite.py");
    c.args(["--master", &cluster.master.address(), "--metadata", &cluster.master.metadata(how)]);
    c.args(["--nodes", &nodes.to_string(), "--segment-size", &lent.to_string()]);
    let (status, text) = run("suite", c, cluster.dir.path(), Duration::from_secs(180));
    assert!(status.success(), "{text}");
}

#[test]
fn the_suite_is_right_about_the_real_master_and_nodes() {
    suite(Make::Real, Make::Real, Metadata::P2p, 1, 0);
}

#[test]
fn our_master_serves_a_pure_client_and_a_real_node_with_peer_handshakes() {
    suite(Make::Ours, Make::Real, Metadata::P2p, 1, 0);
}

#[test]
fn our_master_and_metadata_serve_a_pure_client_and_three_real_nodes() {
    suite(Make::Ours, Make::Real, Metadata::Http, 3, 0);
}

#[test]
fn our_master_serves_a_contributing_client() {
    suite(Make::Ours, Make::Real, Metadata::P2p, 1, 256 * MIB);
}
