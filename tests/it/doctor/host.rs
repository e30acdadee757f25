//! Tests of the host checks: memory, limits, ports, names.

use std::net::TcpListener;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::{Host, verdict};
use crate::cli::{command, finish, mcctl};
use crate::peer::process::free_port;

#[test]
fn memory_is_compared_with_the_plan() {
    let host = Host::healthy();
    let memory = |need: &str| host.verdict("memory", &[], &[&format!("--expect-memory={need}")]);
    assert_eq!((memory("60gb"), memory("45gb"), memory("20gb")), ("error".into(), "warning".into(), "passed".into()));
    assert_eq!(host.verdict("memory", &[], &[]), "passed");
    let small = Host::healthy().with("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
    assert_eq!(small.verdict("memory", &[], &[]), "info");

    let strict = Host::healthy().with("/proc/sys/vm/overcommit_memory", "2\n");
    assert_eq!(host.verdict("overcommit", &[], &[]), "passed");
    assert_eq!(strict.verdict("overcommit", &[], &[]), "info");
    assert_eq!(strict.verdict("overcommit", &[], &["--expect-memory=40gb"]), "error");

    let mounts = "shm /dev/shm tmpfs rw,size=65536k 0 0\n";
    let container = Host::healthy().with("/.dockerenv", "").with("/proc/self/mounts", mounts);
    assert_eq!(host.verdict("dev-shm", &[], &[]), "passed");
    assert_eq!(container.verdict("dev-shm", &[], &[]), "info");
    assert_eq!(container.verdict("dev-shm", &[("SGLANG_HICACHE_X", "1")], &[]), "warning");
    assert_eq!(Host::healthy().with("/proc/self/mounts", mounts).verdict("dev-shm", &[], &[]), "passed");
}

#[test]
fn both_cgroup_versions_are_read() {
    let gib = |n: u64| (n << 30).to_string();
    let second = Host::healthy()
        .with("/proc/self/cgroup", "0::/pod/box\n")
        .with("/sys/fs/cgroup/pod/memory.max", gib(10))
        .with("/sys/fs/cgroup/pod/memory.current", gib(3))
        .with("/sys/fs/cgroup/pod/memory.stat", format!("active_file {}\ninactive_file 0\n", gib(1)));
    // In a container the path does not exist, because the container's cgroup is the root.
    let inside = Host::healthy()
        .with("/proc/self/cgroup", "0::/kubepods/pod1/box\n")
        .with("/sys/fs/cgroup/memory.max", gib(10))
        .with("/sys/fs/cgroup/memory.current", gib(2));
    let first = Host::healthy()
        .with("/proc/self/cgroup", "4:memory:/box\n1:name=systemd:/\n")
        .with("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", gib(10))
        .with("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", gib(3))
        .with("/sys/fs/cgroup/memory/box/memory.stat", format!("total_inactive_file {}\n", gib(1)))
        .with("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    for host in [second, inside, first] {
        let need = |size: &str| host.verdict("cgroup-memory", &[], &[&format!("--expect-memory={size}")]);
        assert_eq!((need("9gb"), need("7.5gb"), need("6gb")), ("error".into(), "warning".into(), "passed".into()));
    }
    let full = Host::healthy()
        .with("/sys/fs/cgroup/user.slice/memory.max", gib(10))
        .with("/sys/fs/cgroup/user.slice/memory.current", (10 * (1u64 << 30) - 1000).to_string());
    assert_eq!(full.verdict("cgroup-memory", &[], &[]), "warning");
    assert_eq!(Host::healthy().verdict("cgroup-memory", &[], &[]), "passed");
    assert_eq!(Host::healthy().without("/proc/self/cgroup").verdict("cgroup-memory", &[], &[]), "skipped");
}

#[test]
fn huge_pages_are_compared_with_the_plan() {
    let host = Host::healthy();
    let need = |flags: &[&str]| host.verdict("hugepages", &[], flags);
    assert_eq!((need(&[]), need(&["--expect-hugepages=1gb"])), ("passed".into(), "passed".into()));
    assert_eq!(need(&["--expect-hugepages=1025mb"]), "error");
    assert_eq!(need(&["--expect-hugepages=1gb", "--hugepage-size=1gb"]), "error");
    let promised = Host::healthy().with("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "1\n");
    assert_eq!(promised.verdict("hugepages", &[], &["--expect-hugepages=1gb"]), "error");

    let plan = |node: u64, count: u64, guard: u64| {
        let plan = json!({
            "schema": "mcctl.size-hugepages/1", "hugepage_bytes": 2 << 20, "host_hugepages": {"least": 0, "most": count},
            "nodes": [{"node": node, "needed": count}], "guard": {"needed_bytes": guard},
            "ranks": [{"memlock_bytes": {"least": 0, "most": 1 << 30}}],
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), plan.to_string()).unwrap();
        file
    };
    let with = |host: &Host, id: &str, file: &tempfile::NamedTempFile| {
        host.verdict(id, &[], &["--plan", file.path().to_str().unwrap()])
    };
    assert_eq!(with(&host, "hugepages-per-node", &plan(0, 512, 1)), "passed");
    assert_eq!(with(&host, "hugepages-per-node", &plan(0, 513, 1)), "error");
    assert_eq!(with(&host, "hugepages-per-node", &plan(1, 1, 1)), "error");
    assert_eq!(with(&host, "hugepages", &plan(0, 513, 1)), "error");
    assert_eq!(
        (with(&host, "memory", &plan(0, 1, 40 << 30)), with(&host, "memory", &plan(0, 1, 49 << 30))),
        ("passed".into(), "error".into())
    );
    let uneven = Host::healthy()
        .with("/sys/devices/system/node/has_memory", "0-1\n")
        .with("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "0\n");
    assert_eq!(uneven.verdict("hugepages-per-node", &[], &[]), "info");

    let used = [("MC_STORE_USE_HUGEPAGE", "1")];
    let none = || {
        Host::healthy()
            .with("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
            .with("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n")
    };
    let other = none()
        .with("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "4\n")
        .with("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "4\n");
    assert_eq!(other.verdict("hugepage-size", &used, &[]), "error");
    assert_eq!(other.verdict("hugepage-size", &[], &[]), "info");
    assert_eq!(other.verdict("hugepage-size", &[used[0], ("MC_STORE_HUGEPAGE_SIZE", "1GB")], &[]), "passed");
    assert_eq!(host.verdict("hugepage-size", &used, &[]), "passed");

    let switch = |host: &Host, value: &str| host.verdict("hugepages-present", &[("MC_STORE_USE_HUGEPAGE", value)], &[]);
    assert_eq!((switch(&host, "1"), switch(&host, "0")), ("passed".into(), "passed".into()));
    assert_eq!((switch(&none(), "1"), switch(&none(), "0")), ("error".into(), "error".into()));
    let used_up = Host::healthy().with("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n");
    assert_eq!(switch(&used_up, "1"), "info", "a running store uses them");
    assert_eq!(used_up.verdict("hugepage-size", &used, &[]), "passed");
    assert_eq!(none().verdict("hugepages-present", &[], &[]), "passed");
}

#[test]
fn a_remedy_is_a_command_only_if_the_host_can_run_it() {
    let remedies = |host: &Host, plan: &serde_json::Value| -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), plan.to_string()).unwrap();
        let (root, plan) = (host.path().to_str().unwrap(), file.path().to_str().unwrap());
        let run = crate::cli::mcctl(&[
            "doctor",
            "--json",
            "--only=hugepages,hugepages-per-node",
            "--root",
            root,
            "--plan",
            plan,
        ]);
        let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        found["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| finding["remedy"].as_str().unwrap().to_owned())
            .collect()
    };
    let plan = |page: u64, count: u64, guard: u64| {
        json!({
            "schema": "mcctl.size-hugepages/1", "hugepage_bytes": page, "host_hugepages": {"least": 0, "most": count},
            "nodes": [{"node": 0, "needed": count}], "guard": {"needed_bytes": guard}, "ranks": [],
        })
    };
    // 48 GiB are available, 512 pages are free.
    let host = Host::healthy()
        .with("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "1024\n")
        .with("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")
        .with("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0\n");
    for (count, guard, is_command) in [(10_752, 28 << 30, true), (10_753, 28 << 30, false), (408_048, 1, false)] {
        let found = remedies(&host, &plan(2 << 20, count, guard));
        assert_eq!(found.len(), 2, "{found:?}");
        for remedy in &found {
            assert_eq!(remedy.starts_with("echo "), is_command, "{remedy}");
            assert_eq!(remedy.contains("use a larger host"), !is_command, "{remedy}");
        }
    }
    let found = remedies(&host, &plan(2 << 20, 10_752, 1));
    assert!(found[0].starts_with("echo 11264 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "{found:?}");
    assert!(found[1].starts_with("echo 11264 > /sys/devices/system/node/node0/"), "{found:?}");
    // vm.nr_hugepages would set the pool of another size.
    let found = remedies(&host, &plan(1 << 30, 4, 1));
    assert!(found[0].starts_with("echo 4 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"), "{found:?}");
}

#[test]
fn a_plan_without_huge_pages_needs_only_memory() {
    let host = Host::healthy();
    let plan = |needed: u64| {
        let sizes = ["size-hugepages", "--json", "--no-hugepages", "--model=Qwen3-8B", "--page-size=64"];
        let memory = format!("--available-memory={needed}");
        crate::cli::mcctl(&[&sizes[..], &["--hicache-size=20", "--global-segment-size=16gb", &memory]].concat()).stdout
    };
    // 18.6 GiB of L2, 16 GiB of segment and 10 GiB: the host has 48 GiB.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), plan(1 << 40)).unwrap();
    let flags = ["--plan", file.path().to_str().unwrap()];
    let verdict = |host: &Host, id: &str| host.verdict(id, &[], &flags);
    for id in ["memory", "hugepages", "hugepages-per-node"] {
        assert_eq!(verdict(&host, id), "passed", "{id}");
    }
    let small = Host::healthy().with("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 44040192 kB\n");
    assert_eq!(verdict(&small, "memory"), "error", "42 GiB");
}

#[test]
fn limits_are_errors_only_with_rdma() {
    let limits = |lock: &str, files: &str| {
        format!(
            "Max open files {files} 1048576 files\nMax locked memory         {lock}              {lock}              bytes\n"
        )
    };
    let host = Host::healthy();
    let low = Host::healthy().with("/proc/self/limits", limits("8388608", "1024"));
    assert_eq!(low.verdict("locked-memory", &[], &["--protocol=rdma"]), "error");
    assert_eq!(low.verdict("locked-memory", &[("MOONCAKE_PROTOCOL", "rdma")], &[]), "error");
    assert_eq!(low.verdict("locked-memory", &[], &["--protocol=tcp"]), "passed");
    assert_eq!(host.verdict("locked-memory", &[], &["--protocol=rdma"]), "passed");
    let exempt = "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000004000\nCapBnd:\t0000000000004000\n";
    let root = Host::healthy().with("/proc/self/limits", limits("8388608", "1024")).with("/proc/self/status", exempt);
    assert_eq!(root.verdict("locked-memory", &[], &["--protocol=rdma"]), "passed");

    let pod = Host::healthy().with("/.dockerenv", "").with("/proc/self/limits", limits("8388608", "1024"));
    assert_eq!(pod.verdict("ipc-lock", &[], &["--protocol=rdma"]), "error");
    assert_eq!(pod.verdict("ipc-lock", &[], &[]), "info");
    assert_eq!(host.verdict("ipc-lock", &[], &["--protocol=rdma"]), "passed", "not a container");
    assert_eq!(pod.with("/proc/self/status", exempt).verdict("ipc-lock", &[], &["--protocol=rdma"]), "passed");

    let files =
        |n: &str| Host::healthy().with("/proc/self/limits", limits("unlimited", n)).verdict("open-files", &[], &[]);
    assert_eq!((files("256"), files("1024"), files("65536")), ("warning".into(), "info".into(), "passed".into()));
}

#[test]
fn ports_are_probed() {
    let port = free_port();
    let taken = TcpListener::bind(("0.0.0.0", port)).unwrap();
    let asked = format!("--ports={port}");
    assert_eq!(verdict("ports", &[], &[&asked]), "error");
    let run = mcctl(&["doctor", "--only=ports", &asked]);
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains(&format!("evidence  in use by pid {} (", std::process::id())), "{run:?}");
    drop(taken);
    assert_eq!(verdict("ports", &[], &[&asked]), "passed");
    assert_eq!(Host::healthy().verdict("ports", &[], &[]), "skipped");

    let host = Host::healthy();
    let range = |host: &Host, flags: &[&str]| host.verdict("ephemeral-range", &[], flags);
    assert_eq!((range(&host, &[]), range(&host, &["--ports=9003,50051"])), ("passed".into(), "passed".into()));
    assert_eq!(range(&host, &["--ports=50052"]), "warning");
    let unreserved = Host::healthy().with("/proc/sys/net/ipv4/ip_local_reserved_ports", "");
    assert_eq!((range(&unreserved, &[]), range(&unreserved, &["--ports=50051"])), ("info".into(), "warning".into()));
    assert_eq!(
        range(&host.with("/proc/sys/net/ipv4/ip_local_reserved_ports", "40000,50000-50100"), &["--ports=50051"]),
        "passed"
    );
    mcctl(&["doctor", "--ports=0"]).fails(2);
}

#[test]
fn cpu_limits_pressure_and_clocks_are_checked() {
    let cpu = |max: &str, stat: &str| {
        let host = Host::healthy()
            .with("/sys/fs/cgroup/user.slice/cpu.max", max)
            .with("/sys/fs/cgroup/user.slice/cpu.stat", stat);
        host.verdict("cpu-limit", &[], &[])
    };
    assert_eq!(
        (cpu("100000 100000", ""), cpu("300000 100000", ""), cpu("800000 100000", "")),
        ("warning".into(), "info".into(), "passed".into())
    );
    assert_eq!(cpu("800000 100000", "nr_periods 1000\nnr_throttled 400\n"), "warning");
    assert_eq!(cpu("max 100000", "nr_periods 0\n"), "passed");
    let first = Host::healthy()
        .with("/proc/self/cgroup", "3:cpu,cpuacct:/box\n")
        .with("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n")
        .with("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
        .with("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
        .with("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_eq!(first.verdict("cpu-limit", &[], &[]), "warning");

    let busy = Host::healthy().with("/proc/pressure/cpu", "some avg10=99.00 avg60=93.10 avg300=80.00 total=9\n");
    assert_eq!(
        (busy.verdict("cpu-pressure", &[], &[]), Host::healthy().verdict("cpu-pressure", &[], &[])),
        ("info".into(), "passed".into())
    );

    let slow = Host::healthy().with("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    assert_eq!(
        (slow.verdict("clock", &[], &[]), Host::healthy().verdict("clock", &[], &[])),
        ("info".into(), "passed".into())
    );
}

#[test]
fn names_and_interfaces_are_checked() {
    let host = Host::healthy();
    let debian = Host::healthy().with("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 node7.example node7\n");
    assert_eq!(
        (host.verdict("hostname", &[], &[]), debian.verdict("hostname", &[], &[])),
        ("passed".into(), "info".into())
    );

    const NAME: &str = "MOONCAKE_LOCAL_HOSTNAME";
    let local = |host: &Host, environment: &[(&str, &str)]| host.verdict("announced-name", environment, &[]);
    let far = ("MOONCAKE_MASTER", "192.0.2.1:50051");
    assert_eq!(local(&host, &[]), "passed");
    assert_eq!(local(&host, &[("MOONCAKE_MASTER", "127.0.0.1:50051")]), "passed", "a single host");
    assert_eq!(local(&host, &[far]), "error", "the default is localhost");
    assert_eq!(local(&host, &[far, (NAME, "localhost")]), "error");
    assert_eq!(local(&host, &[far, (NAME, "0.0.0.0")]), "error");
    assert_eq!(local(&host, &[(NAME, "localhost")]), "info");
    assert_eq!(local(&host, &[far, (NAME, "192.0.2.9")]), "passed");
    assert_eq!(local(&host, &[far, (NAME, "192.0.2.9:12345")]), "passed");
    assert_eq!(local(&host, &[far, (NAME, "node7")]), "passed");
    assert_eq!(local(&host, &[far, (NAME, "192.0.2.77")]), "warning");
    assert_eq!(local(&host, &[far, (NAME, "nobody")]), "error");
    let service = ("MOONCAKE_TE_META_DATA_SERVER", "http://192.0.2.1:8080/metadata");
    assert_eq!(local(&host, &[far, service]), "warning", "clients use the service's records");
    assert_eq!(
        host.verdict("announced-name", &[], &["--master=192.0.2.1"]),
        "passed",
        "a flag does not affect processes"
    );

    let alone = Host::healthy()
        .without("/sys/class/net/eth0")
        .with("/proc/net/fib_trie", "     |-- 127.0.0.1\n        /32 host LOCAL\n");
    let metadata = [("MOONCAKE_TE_META_DATA_SERVER", "http://192.0.2.1:8080/metadata")];
    assert_eq!(alone.verdict("interface", &metadata, &[]), "error");
    assert_eq!(
        (alone.verdict("interface", &[], &[]), host.verdict("interface", &metadata, &[])),
        ("info".into(), "passed".into())
    );
    let bridge = Host::recorded("no-rdma").with("/proc/net/route", "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neno2\t00000000\t010200C0\t3\t0\t0\t0\t00000000\neno1\t000200C0\t00000000\t1\t0\t0\t0\t00FFFFFF\n");
    assert_eq!(
        (bridge.verdict("interface", &metadata, &[]), bridge.verdict("interface", &[], &[])),
        ("warning".into(), "info".into())
    );
}

/// A new network namespace has only a loopback interface.
#[test]
#[ignore = "needs permission to create a network namespace"]
fn a_network_namespace_without_interfaces_is_an_error() {
    let own = ["--net", "--map-root-user"];
    let may = std::process::Command::new("unshare").args(own).arg("true").status().is_ok_and(|status| status.success());
    assert!(
        may,
        "unshare cannot create a network namespace (Debian package: util-linux; in a container: --privileged)"
    );
    let mcctl = command(&[]);
    let mut inside = std::process::Command::new("unshare");
    inside.args(own).arg(mcctl.get_program());
    inside.args(["doctor", "--only=interface"]).env("MOONCAKE_TE_META_DATA_SERVER", "http://192.0.2.1:8080/metadata");
    let run = finish(inside.output().unwrap());
    assert!(run.code == 1 && run.stdout.contains("\nerror    interface: "), "{run:?}");
}

#[test]
fn numa_nodes_and_disks_are_checked() {
    let two = || Host::healthy().with("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 67108864 kB\n");
    assert_eq!(
        (Host::healthy().verdict("numa", &[], &[]), two().verdict("numa", &[], &[])),
        ("passed".into(), "passed".into())
    );
    assert_eq!(two().with("/proc/sys/vm/zone_reclaim_mode", "1\n").verdict("numa", &[], &[]), "warning");
    assert_eq!(two().with("/proc/sys/kernel/numa_balancing", "1\n").verdict("numa", &[], &[]), "info");
    let empty = Host::recorded("mlx5-roce");
    assert_eq!(empty.verdict("numa", &[], &["--protocol=rdma"]), "passed");
    let node = (0..4).find(|n| empty.path().join(format!("sys/devices/system/node/node{n}/meminfo")).exists()).unwrap();
    let empty = (0..4).filter(|n| *n >= node).fold(empty, |host, n| {
        host.with(&format!("/sys/devices/system/node/node{n}/meminfo"), format!("Node {n} MemTotal:       0 kB\n"))
    });
    assert_eq!(empty.verdict("numa", &[], &["--protocol=rdma"]), "warning");

    let host = Host::healthy();
    symlink("data", host.path().join("link")).unwrap();
    let disk = |path: &str| host.verdict("ssd-directory", &[("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", path)], &[]);
    assert_eq!((disk("/data/ssd"), disk("/data/ssd/")), ("passed".into(), "passed".into()));
    for bad in ["data/ssd", "/data/../data/ssd", "/data/none", "/link/ssd"] {
        assert_eq!(disk(bad), "error", "{bad}");
    }
    assert_eq!(host.verdict("ssd-directory", &[], &[]), "passed");
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    let path = ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", real.to_str().unwrap());
    assert_eq!(verdict("ssd-directory", &[path], &[]), "passed");
    assert_eq!(
        verdict("ssd-directory", &[path, ("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "999999999999999999")], &[]),
        "warning"
    );
}

#[test]
fn the_data_directory_of_the_master_is_checked() {
    let mounts = |kind: &str| format!("/dev/a / ext4 rw 0 0\n/dev/b /var/lib/kv {kind} rw 0 0\n");
    let identity = r#"{"format":1,"cluster_id":"a","uuid":"0","writer":"mcctl 0.1.0","started":true}"#;
    let host = |kind: &str| {
        let host = Host::healthy().with("/proc/self/mounts", mounts(kind));
        host.with("/var/lib/kv/identity.json", identity).with("/var/lib/kv/log-0000000001", "")
    };
    let data = |host: &Host, flags: &[&str]| host.verdict("data-directory", &[], flags);
    let local = host("ext4");
    assert_eq!(data(&local, &[]), "skipped");
    assert_eq!(data(&local, &["--data-dir=/var/lib/kv"]), "passed");
    assert_eq!(data(&local, &["--data-dir=/var/lib/new/kv"]), "passed");
    assert_eq!(data(&local, &["--data-dir=/var/lib/kv", "--cluster-id=a"]), "passed");
    assert_eq!(data(&local, &["--data-dir=/var/lib/kv", "--cluster-id=b"]), "error");
    assert_eq!(data(&local, &["--data-dir=/var/lib/kv/identity.json"]), "error");
    for kind in ["tmpfs", "nfs4", "fuse.s3fs", "overlay"] {
        assert_eq!(data(&host(kind), &["--data-dir=/var/lib/kv"]), "warning", "{kind}");
    }
    assert_eq!(data(&local, &["--data-dir=/run/kv"]), "warning");
    let upstream = [("MOONCAKE_SNAPSHOT_LOCAL_PATH", "/var/lib/mooncake"), ("MC_STORE_CLUSTER_ID", "b")];
    let local = local.with("/var/lib/mooncake/mcctl/b/identity.json", identity);
    assert_eq!(local.verdict("data-directory", &upstream[..1], &[]), "passed");
    assert_eq!(local.verdict("data-directory", &upstream, &[]), "error");
}

/// The findings and the observation of the check on this host's directory `path`.
fn data_directory(path: &std::path::Path) -> (Vec<String>, String) {
    let path = path.to_str().unwrap();
    let run = mcctl(&["doctor", "--json", "--only=data-directory", "--data-dir", path, "--cluster-id=a"]);
    let document: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let findings = document["findings"].as_array().unwrap().iter().map(|finding| text(&finding["finding"])).collect();
    (findings, document["checks"][0].to_string())
}

#[test]
fn a_data_directory_of_the_journal_is_recognized() {
    use mcctl::engine::journal::{DataDir, DataDirOptions, DiskStorage, ExistingData, Uuid};
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let has = |path: &std::path::Path, part: &str| {
        let (findings, seen) = data_directory(path);
        assert!(findings.iter().any(|finding| finding.contains(part)), "{part}: {findings:?}, {seen}");
    };
    let not = |path: &std::path::Path, part: &str| {
        let (findings, _) = data_directory(path);
        assert!(!findings.iter().any(|finding| finding.contains(part)), "{part}: {findings:?}");
    };
    let open = |path: &std::path::Path, cluster_id| {
        let options = DataDirOptions { cluster_id, boot_id: Uuid(1), new_uuid: Uuid(2), existing: ExistingData::Keep };
        DataDir::open(std::sync::Arc::new(DiskStorage::open(path).unwrap()), &options).unwrap()
    };
    let [ours, other, damaged] = ["ours", "other", "damaged"].map(|name| folder.path().join(name));
    let opened = open(&ours, "a");
    has(&ours, "in use");
    not(&ours, "unusable");
    drop(opened);
    not(&ours, "in use");
    drop(open(&other, "b"));
    has(&other, "another cluster");
    let opened = open(&damaged, "a");
    opened.invalidate().unwrap();
    drop(opened);
    has(&damaged, "marked as incomplete");
    std::fs::write(damaged.join("identity.json"), "{").unwrap();
    std::fs::write(damaged.join("validity"), "valid  \n").unwrap();
    has(&damaged, "cannot be read");
    // The temporary file is removed.
    let names = std::fs::read_dir(&ours).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.map(|name| name.into_string().unwrap()).all(|name| !name.contains("doctor")));
}

#[test]
fn running_processes_are_checked_with_the_rules_of_lint() {
    let host = Host::healthy().with("/proc/77/cmdline", "/usr/bin/mooncake_master\0--rpc_thred_num=4\0");
    assert_eq!(host.verdict("master-flag", &[], &[]), "error");
    assert_eq!(host.verdict("master-flag", &[], &["--pid=77"]), "error");
    let right = Host::healthy().with("/proc/77/cmdline", "/usr/bin/mooncake_master\0--rpc_thread_num=4\0");
    assert_eq!(
        (right.verdict("master-flag", &[], &[]), Host::healthy().verdict("master-flag", &[], &[])),
        ("passed".into(), "skipped".into())
    );
}
