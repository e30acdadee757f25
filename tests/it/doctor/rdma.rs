//! Tests of the RDMA checks, on the hosts of fixtures/hosts. Their severity depends on whether rdma
//! is requested.

use super::Host;

#[test]
fn each_device_finding_is_a_check() {
    let rdma = ["--protocol=rdma"];
    let healthy = Host::recorded("mlx5-infiniband");
    for (id, host, environment, severity) in [
        ("rdma-devices", "no-rdma", &[][..], "error"),
        ("rdma-devices", "container", &[], "error"),
        ("rdma-choice", "hgx-8-gpus", &[], "warning"),
        ("port-down", "port-down", &[], "warning"),
        ("roce-v1-only", "roce-v1-only", &[], "warning"),
        ("no-ipv4-gid", "container", &[], "warning"),
        ("uverbs-closed", "container", &[], "error"),
        ("no-provider", "container", &[], "error"),
        ("efa", "efa", &[], "error"),
        ("erdma", "erdma", &[], "info"),
        ("iwarp", "siw", &[], "error"),
        ("software", "rxe", &[], "info"),
        ("odd-text", "odd", &[], "warning"),
        ("unreadable", "odd", &[], "warning"),
        ("filter-names-none", "mlx5-infiniband", &[("MC_TE_FILTERS", "mlx5_9")], "warning"),
        ("empty-gid-row", "mlx5-infiniband", &[("MC_GID_INDEX", "77")], "warning"),
        ("locked-memory", "mlx5-roce", &[], "error"),
    ] {
        let found = Host::recorded(host).verdict(id, environment, &rdma);
        assert_eq!(found, severity, "{id} on {host}");
        assert_eq!(healthy.verdict(id, &[], &rdma), "passed", "{id}");
        let unasked = Host::recorded(host).verdict(id, environment, &[]);
        assert!(["info", "passed", "skipped"].contains(&unasked.as_str()), "{id}: {unasked} without rdma");
    }
    let device = "/sys/class/infiniband_verbs";
    let without = Host::recorded("mlx5-infiniband").without(device);
    assert_eq!(
        (without.verdict("no-uverbs", &[], &rdma), healthy.verdict("no-uverbs", &[], &rdma)),
        ("error".into(), "passed".into())
    );
    let bare = Host::recorded("mlx5-infiniband").without("/usr");
    assert_eq!(
        (bare.verdict("no-libibverbs", &[], &rdma), healthy.verdict("no-libibverbs", &[], &rdma)),
        ("warning".into(), "passed".into())
    );
    let mut nameless = Host::recorded("siw");
    for row in ["gids/0", "gid_attrs/types/0"] {
        nameless = nameless.without(&format!("/sys/devices/virtual/infiniband/siw0/ports/1/{row}"));
    }
    assert_eq!(
        (nameless.verdict("no-gid", &[], &rdma), healthy.verdict("no-gid", &[], &rdma)),
        ("error".into(), "passed".into())
    );
    let soft = |packets: &str| Host::recorded("rxe").with("/proc/sys/net/core/netdev_max_backlog", packets);
    for (packets, asked, unasked) in [("9999\n", "warning", "info"), ("10000\n", "passed", "passed")] {
        let verdicts = [&rdma[..], &[]].map(|protocol| soft(packets).verdict("packet-backlog", &[], protocol));
        assert_eq!(verdicts, [asked, unasked]);
    }
    assert_eq!(Host::recorded("rxe").verdict("packet-backlog", &[], &rdma), "skipped", "the file does not exist");
    assert_eq!(healthy.verdict("packet-backlog", &[], &rdma), "skipped", "only soft-RoCE uses it");
    assert_eq!(Host::recorded("no-rdma").verdict("port-down", &[], &rdma), "skipped");
}
