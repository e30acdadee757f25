//! The `store` commands and `status` against a real master with real nodes and with mcctl nodes.

use super::objects::begin_put;
use super::{Run, finish};
use crate::peer::cluster::{Cluster, Make, Metadata};
use crate::peer::payload::payload;

const MIB: u64 = 1 << 20;

/// Run the program in the environment of a client of the cluster.
fn run(cluster: &Cluster, args: &[&str]) -> Run {
    let mut command = super::command(args);
    command.env("MOONCAKE_MASTER", cluster.master.address());
    command.env("MOONCAKE_MASTER_METRICS_PORT", cluster.master.admin.to_string());
    command.env("MOONCAKE_TE_META_DATA_SERVER", cluster.master.metadata(cluster.how));
    finish(command.output().expect("the program starts"))
}

/// Run each command once, and exchange objects with the real client in both directions.
fn exercise(node: Make, how: Metadata) {
    let cluster = Cluster::start(Make::Real, node, how, 2, 64 * MIB);
    let mut real = cluster.client("client", 0, 32 * MIB);
    let file = cluster.dir.path().join("object");
    for (seed, size) in [(1, 1), (2, 4096), (3, 1 << 20), (4, 5_000_001)] {
        let ours = format!("ours/{size}");
        let theirs = format!("theirs/{size}");
        std::fs::write(&file, payload(seed, size)).expect("written");
        let stored = run(&cluster, &["store", "put", &ours, file.to_str().expect("text"), "--replicas=2"]);
        assert!(stored.code == 0 && stored.stderr.ends_with("2 copies\n"), "{stored:?}");
        assert_eq!(real.get(&ours, seed, size), (size as u64, true), "{ours}");
        assert_eq!(real.put(&theirs, seed, size), 0);
        let got = run(&cluster, &["store", "get", &theirs, "-o", file.to_str().expect("text")]);
        assert_eq!(got.code, 0, "{got:?}");
        assert!(std::fs::read(&file).expect("written") == payload(seed, size), "{theirs}");
    }
    let listed = run(&cluster, &["store", "ls", "ours/", "--long"]);
    assert_eq!(listed.succeeds().lines().count(), 1 + 4, "{listed:?}");
    assert_eq!(
        run(&cluster, &["store", "exists", "ours/1", "theirs/4096"]).succeeds(),
        "yes\tours/1\nyes\ttheirs/4096\n"
    );
    // Neither ls nor exists granted this object a lease.
    assert_eq!(run(&cluster, &["store", "put", "unread", "--value=x"]).code, 0);
    assert_eq!(run(&cluster, &["store", "exists", "unread"]).code, 0);
    assert!(run(&cluster, &["store", "stat", "unread"]).succeeds().contains(" 1 B "));
    assert_eq!(run(&cluster, &["store", "rm", "unread"]).stderr, "removed 1 object\n");
    assert_eq!(run(&cluster, &["store", "put", "ours/1", "--value=other"]).code, 1);
    assert_eq!(run(&cluster, &["store", "put", "ours/1", "--value=other", "--upsert"]).code, 0);
    assert_eq!(run(&cluster, &["store", "get", "ours/1"]).succeeds(), "other");
    let status = run(&cluster, &["status"]);
    assert!(status.succeeds().contains("objects   8 keys") && status.stdout.contains("segments  2\n"), "{status:?}");
    assert_eq!(run(&cluster, &["store", "rm", "--all", "--force", "--yes"]).stderr, "removed 8 objects\n");
    assert_eq!(run(&cluster, &["store", "get", "ours/1"]).code, 1);
    // A real master also answers that the object exists.
    begin_put(&cluster.master.address(), "half");
    let refused = run(&cluster, &["store", "put", "half", "--value=x"]);
    assert!(refused.fails(1).contains("'half' has not finished"), "{refused:?}");
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_commands_work_on_a_real_store_with_peer_handshakes() {
    exercise(Make::Real, Metadata::P2p);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_commands_work_on_a_real_store_with_a_real_metadata_service() {
    exercise(Make::Real, Metadata::Http);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn mcctl_nodes_serve_a_real_master_and_a_real_client() {
    exercise(Make::Ours, Metadata::P2p);
}
