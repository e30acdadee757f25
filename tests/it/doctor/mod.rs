//! `mcctl doctor`: for every check a host on which it passes, and one on which it finds a problem.
//!
//! A host is a folder of files, read with `--root`. Problems that no file can represent are
//! provoked on the real host: a bound port, a full directory.

mod host;
mod rdma;
mod wheel;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{command, finish, mcctl};

/// A host as a folder of files.
pub struct Host {
    dir: TempDir,
}

/// A host with 64 GiB on which all checks pass.
const HEALTHY: &[(&str, &str)] = &[
    (
        "/proc/meminfo",
        "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\nCommitLimit: 33554432 kB\nCommitted_AS: 1048576 kB\n",
    ),
    ("/proc/self/cgroup", "0::/user.slice\n"),
    (
        "/proc/self/limits",
        "Max open files 1048576 1048576 files\nMax locked memory         unlimited            unlimited            bytes\n",
    ),
    ("/proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n"),
    ("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n"),
    ("/proc/sys/vm/overcommit_memory", "0\n"),
    ("/proc/sys/vm/zone_reclaim_mode", "0\n"),
    ("/proc/sys/kernel/numa_balancing", "0\n"),
    ("/proc/sys/kernel/hostname", "node7\n"),
    ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("/proc/sys/net/ipv4/ip_local_reserved_ports", "50051\n"),
    ("/proc/pressure/cpu", "some avg10=0.00 avg60=1.50 avg300=0.00 total=1\n"),
    (
        "/proc/net/fib_trie",
        "Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.0.2.9\n        /32 host LOCAL\n",
    ),
    (
        "/proc/net/route",
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t010200C0\t3\t0\t0\t0\t00000000\neth0\t000200C0\t00000000\t1\t0\t0\t0\t00FFFFFF\n",
    ),
    ("/sys/class/net/lo/ifindex", "1"),
    ("/sys/class/net/lo/address", "00:00:00:00:00:00"),
    ("/sys/class/net/lo/flags", "0x9"),
    ("/sys/class/net/lo/carrier", "1"),
    ("/sys/class/net/lo/mtu", "65536"),
    ("/sys/class/net/eth0/ifindex", "2"),
    ("/sys/class/net/eth0/address", "52:54:00:12:34:50"),
    ("/sys/class/net/eth0/flags", "0x1003"),
    ("/sys/class/net/eth0/carrier", "1"),
    ("/sys/class/net/eth0/mtu", "1500"),
    ("/sys/devices/system/node/has_memory", "0\n"),
    ("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       67108864 kB\n"),
    ("/sys/devices/system/node/node0/distance", "10\n"),
    ("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "512\n"),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024\n"),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n"),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "0\n"),
    ("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
    ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
    ("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n192.0.2.9 node7 # itself\n"),
    ("/data/ssd/keep", ""),
];

impl Host {
    /// Creates the host [`HEALTHY`].
    pub fn healthy() -> Host {
        HEALTHY.iter().fold(Host { dir: tempfile::tempdir().unwrap() }, |host, (path, text)| host.with(path, text))
    }

    /// Creates a host of fixtures/hosts.
    pub fn recorded(name: &str) -> Host {
        Host { dir: crate::devices::host(name) }
    }

    /// Creates or replaces a file.
    pub fn with(self, path: &str, text: impl AsRef<[u8]>) -> Host {
        let file = self.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        self
    }

    /// Removes a file or folder.
    pub fn without(self, path: &str) -> Host {
        let at = self.path().join(path.trim_start_matches('/'));
        if at.is_dir() { fs::remove_dir_all(at) } else { fs::remove_file(at) }.unwrap();
        self
    }

    /// The root folder of the host.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The result of the check `id` on this host: `passed`, `skipped`, or the highest severity of
    /// its findings.
    #[track_caller]
    pub fn verdict(&self, id: &str, environment: &[(&str, &str)], more: &[&str]) -> String {
        let root = format!("--root={}", self.path().display());
        verdict(id, environment, &[&[root.as_str()], more].concat())
    }
}

/// The result of the check `id` with these flags.
#[track_caller]
pub fn verdict(id: &str, environment: &[(&str, &str)], more: &[&str]) -> String {
    let mut command = command(&[&["doctor", "--json", "--only", id], more].concat());
    let run = finish(command.envs(environment.iter().copied()).output().unwrap());
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let check = &document["checks"][0];
    assert_eq!((document["checks"].as_array().unwrap().len(), &check["id"]), (1, &id.into()));
    let findings = document["findings"].as_array().unwrap();
    let severity = findings.first().map(|finding| finding["severity"].as_str().unwrap().to_owned());
    for finding in findings {
        for text in ["finding", "evidence", "remedy"] {
            let text = finding[text].as_str().unwrap();
            assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('\n'), "{text}");
        }
    }
    // A single check that is skipped means that nothing was checked.
    let is_skipped = check["status"] == "skipped";
    let failed = is_skipped || matches!(severity.as_deref(), Some("error" | "warning"));
    assert_eq!(run.code, i32::from(failed), "{run:?}");
    let verdict = severity.unwrap_or_else(|| check["status"].as_str().unwrap().to_owned());
    if let Some(file) = std::env::var_os(RECORD) {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        // A single write, so that the lines of tests that run at the same time do not mix.
        file.write_all(format!("{id} {verdict}\n").as_bytes()).unwrap();
    }
    verdict
}

/// The file to which [`verdict`] appends each result.
const RECORD: &str = "MCCTL_TEST_VERDICTS";

/// Every host and wheel check has a test in which it passes, and one in which it finds a problem.
/// To find out, this test runs the other tests of this module in a second process that records all
/// verdicts. New tests and modules are included automatically.
#[test]
fn every_check_has_a_passing_and_a_failing_test() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args([
        "doctor::",
        "--skip=cli::",
        "--skip=rdma::doctor",
        "--skip=rdma::transfer",
        "--skip=every_check_has_a_",
    ]);
    // A test that fails there fails in this process too, or leaves a verdict out.
    let run = finish(tests.env(RECORD, record.path()).output().unwrap());
    let verdicts = fs::read_to_string(record.path()).unwrap();
    let has = |id: &str, verdict: &str| verdicts.lines().any(|line| line == format!("{id} {verdict}"));
    let list = mcctl(&["doctor", "--list", "--json"]);
    let list: Value = serde_json::from_str(list.succeeds()).unwrap();
    for check in list["checks"].as_array().unwrap() {
        let id = check["id"].as_str().unwrap();
        let group = check["group"].as_str().unwrap();
        // verbs-registration opens real devices. Its tests are in tests/it/rdma.
        if matches!(group, "host" | "wheel") && id != "verbs-registration" {
            assert!(
                ["error", "warning", "info"].iter().any(|severity| has(id, severity)),
                "no test provokes {id}: {run:?}"
            );
            assert!(has(id, "passed"), "{id} passes in no test: {run:?}");
        }
    }
}

#[test]
fn a_healthy_host_has_no_findings() {
    let host = Host::healthy();
    let root = format!("--root={}", host.path().display());
    let run = mcctl(&["doctor", &root, "--only=host", "--json", "--expect-memory=20gb", "--expect-hugepages=1gb"]);
    let document: Value = serde_json::from_str(run.succeeds()).unwrap();
    assert_eq!(document["findings"], serde_json::json!([]), "{run:?}");
    assert_eq!(run.stderr, "");
}
