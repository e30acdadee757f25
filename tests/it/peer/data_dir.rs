//! Restarts of a master with a data directory, as real and own nodes and real clients observe them.

use super::cluster::{Cluster, Make, Metadata};
use super::process::{PATIENCE, wait_until};

const MIB: usize = 1 << 20;

/// The master is killed, and later stopped with SIGTERM. After each restart, all objects exist, and
/// puts continue. No node mounts again.
fn the_master_keeps_its_objects(node: Make, how: Metadata) {
    let flags = ["--data-dir=data", "--client_ttl=5"];
    let mut cluster = Cluster::with_flags(Make::Ours, node, how, 2, 128 << 20, &flags);
    let mut client = cluster.client("client", 64 << 20, 64 << 20);
    cluster.master.wait_segments(3);
    let mut keys = 0;
    for is_killed in [true, false, true] {
        for _ in 0..8 {
            let rc = client.put(&format!("k{keys}"), keys, MIB + keys as usize);
            assert_eq!(rc, 0, "k{keys}");
            keys += 1;
        }
        if is_killed {
            cluster.master.kill();
        } else {
            assert!(cluster.master.process.stop().success());
        }
        cluster.master.restart();
        assert_eq!(cluster.master.segments().len(), 3);
        for seed in 0..keys {
            let size = MIB + seed as usize;
            wait_until("the object", PATIENCE, || client.get(&format!("k{seed}"), seed, size) == (size as u64, true));
        }
        assert_eq!(cluster.master.metric("master_remount_segment_requests_total"), 0.0, "the nodes mount again");
        assert_eq!(cluster.master.metric("mcctl_master_unconfirmed_keys_total"), 0.0);
    }
    client.close();
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_keeps_the_objects_of_real_nodes() {
    the_master_keeps_its_objects(Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_keeps_the_objects_of_our_nodes() {
    the_master_keeps_its_objects(Make::Ours, Metadata::P2p);
}

/// A node dies while the master is away: its objects are dropped after the time to live of its
/// client, and the others stay.
#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_master_drops_the_objects_of_a_node_that_died_meanwhile() {
    let flags = ["--data-dir=data", "--client_ttl=5"];
    let mut cluster = Cluster::with_flags(Make::Ours, Make::Real, Metadata::P2p, 2, 128 << 20, &flags);
    let mut client = cluster.client("client", 0, 64 << 20);
    for seed in 0..24 {
        assert_eq!(client.put(&format!("k{seed}"), seed, MIB), 0);
    }
    cluster.master.kill();
    cluster.nodes[0].process.kill();
    cluster.master.restart();
    cluster.master.wait_segments(1);
    wait_until("the end of the dead node's keys", PATIENCE, || {
        cluster.master.metric("master_key_count") < 24.0
            && cluster.master.metric("master_key_count") + cluster.master.metric("mcctl_master_unconfirmed_keys_total")
                == 24.0
    });
    wait_until("a new connection of the client", PATIENCE, || client.exist("k0") >= 0);
    let left = cluster.master.metric("master_key_count");
    let readable = (0..24).filter(|seed| client.get(&format!("k{seed}"), *seed, MIB) == (MIB as u64, true)).count();
    assert!(readable > 0 && readable as f64 == left, "{readable} of {left}");
    client.close();
}
