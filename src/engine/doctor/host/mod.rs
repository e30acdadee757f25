//! Checks of a host: memory, huge pages, limits, ports, clock, names, devices.
//!
//! They read files below a root (`sys::FileTree`), so a directory can serve as a test host. Some
//! facts are not available in any file (whether a port can be bound, whether the clock is
//! synchronized). They are determined only for this host and skipped for other hosts.

mod cgroup;
mod clock;
mod cpu;
mod data_directory;
mod data_facts;
mod disk;
mod hugepages;
mod limits;
mod memory;
mod names;
mod numa;
mod ports;
mod rdma;
mod verbs;

use std::collections::BTreeMap;

use crate::{CheckEntry, Selection, each};
use mcctl_base::HostPort;
use mcctl_base::check::{Check, CheckGroup, CheckReport, Severity};
use mcctl_sys::FileTree;
use mcctl_sys::env::Env;
use mcctl_transfer::topology::{self, DeviceChoice};

/// The transport that the deployment uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataProtocol {
    Tcp,
    Rdma,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePageDemand {
    /// Size of a page, in bytes.
    pub bytes: u64,
    /// Number of pages on the whole host.
    pub count: u64,
}

/// The planned deployment, as far as it is known. Checks require only what this plan needs.
#[derive(Clone, Debug, Default)]
pub struct Intent {
    /// The transport; `None` if unknown.
    pub protocol: Option<DataProtocol>,
    /// Regular (non-hugepage) memory that the processes use, in bytes.
    pub memory: Option<u64>,
    /// Regular memory that SGLang's startup memory check requires, in bytes.
    pub guard: Option<u64>,
    /// Huge pages that the processes use.
    pub pages: Option<HugePageDemand>,
    /// How many of `pages` are needed on each NUMA node.
    pub pages_per_node: Vec<(u32, u64)>,
    /// Bytes that one process registers with devices and therefore locks.
    pub locked: Option<u64>,
    /// Bytes to register with each RDMA device as a test.
    pub mr_test_size: Option<u64>,
    /// Ports that services will listen on; `None` means the ports of a default deployment.
    pub ports: Option<Vec<u16>>,
    pub master: Option<HostPort>,
    /// The data directory of the master.
    pub data: Option<PlannedData>,
    /// Environment variables that Mooncake and SGLang read.
    pub environment: BTreeMap<String, String>,
}

/// The data directory with which a master will be started.
#[derive(Clone, Debug)]
pub struct PlannedData {
    /// Absolute path of the directory.
    pub path: String,
    /// The flag or variable that specifies the path.
    pub origin: String,
    /// The cluster that the directory must belong to, if it is known.
    pub cluster_id: Option<String>,
    /// Planned number of keys.
    pub keys: Option<u64>,
    /// Whether a temporary file may be written, to time syncs.
    pub may_write: bool,
}

impl Intent {
    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn is_rdma(&self) -> bool {
        self.protocol == Some(DataProtocol::Rdma)
    }

    /// Lowers the severity of an RDMA-only problem to info unless RDMA was requested.
    fn over_rdma(&self, severity: Severity) -> Severity {
        if self.is_rdma() { severity } else { Severity::Info }
    }
}

/// The facts that the checks evaluate.
#[derive(Debug)]
pub struct HostFacts {
    tree: FileTree,
    intent: Intent,
    host: topology::HostTopology,
    choice: DeviceChoice,
    data: Option<data_facts::DataFacts>,
    now: mcctl_base::Unix,
}

impl HostFacts {
    /// The contents of a file; `None` if it does not exist or cannot be read.
    fn text(&self, path: &str) -> Option<String> {
        self.tree.text(path).ok().flatten()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The container runtime; `None` if the host does not look like a container.
    fn container(&self) -> Option<&'static str> {
        let exists = |path: &str| self.tree.resolve(path).is_some();
        if exists("/.dockerenv") {
            return Some("docker");
        }
        if exists("/run/.containerenv") {
            return Some("podman");
        }
        if exists("/var/run/secrets/kubernetes.io") {
            return Some("Kubernetes");
        }
        let cgroup = self.text("/proc/self/cgroup").unwrap_or_default();
        ["kubepods", "docker", "containerd", "libpod"]
            .iter()
            .any(|word| cgroup.contains(word))
            .then_some("a container runtime")
    }
}

/// The checks with their functions.
pub const CHECKS: &[CheckEntry<HostFacts>] = &[
    (
        entry(
            "memory",
            "enough memory is available for the planned processes and for SGLang's startup memory check (10 GiB reserve)",
            &[8],
        ),
        memory::memory,
    ),
    (entry("cgroup-memory", "the cgroup allows the planned memory plus 10 %", &[8, 9]), cgroup::memory),
    (entry("overcommit", "the kernel does not reject mappings that are not yet used", &[8]), memory::overcommit),
    (entry("dev-shm", "/dev/shm of a container is large enough for SGLang", &[]), memory::shared),
    (entry("hugepages", "the planned number of huge pages is free", &[7]), hugepages::free),
    (entry("hugepages-per-node", "each NUMA node has its share of the planned huge pages", &[7]), hugepages::per_node),
    (entry("hugepage-size", "huge pages are reserved in the size that processes request", &[7]), hugepages::size),
    (
        entry("hugepages-present", "MC_STORE_USE_HUGEPAGE is set only if huge pages are available", &[7]),
        hugepages::switch,
    ),
    (
        entry("locked-memory", "the locked-memory limit covers the memory registered with RDMA devices", &[4, 5]),
        limits::memlock,
    ),
    (entry("ipc-lock", "a container's IPC_LOCK capability is effective for this user", &[5]), limits::ipc_lock),
    (entry("open-files", "the open-files limit suffices for the connections of a store", &[]), limits::open_files),
    (entry("ports", "the service ports are free", &[12]), ports::free),
    (entry("ephemeral-range", "no outgoing connection can use a service port", &[12]), ports::range),
    (entry("cpu-limit", "the cgroup gives the master enough CPU time", &[13]), cpu::limit),
    (entry("cpu-pressure", "processes do not wait long for a CPU", &[13]), cpu::pressure),
    (entry("clock", "the wall clock is synchronized, and the monotonic clock is fast to read", &[]), clock::clock),
    (entry("hostname", "the host name does not resolve to a loopback address", &[1]), names::hostname),
    (
        entry(
            "announced-name",
            "the name that a store announces resolves to an address of this host that other hosts can reach",
            &[1],
        ),
        names::local,
    ),
    (
        entry(
            "interface",
            "the interface that Mooncake announces by default is the one used to reach other hosts",
            &[1, 6],
        ),
        names::interface,
    ),
    (entry("numa", "NUMA nodes with devices also have memory", &[23]), numa::numa),
    (
        entry("ssd-directory", "the SSD tier's directory exists, is a plain path and has free space", &[26]),
        disk::directory,
    ),
    (
        entry(
            DATA_DIRECTORY,
            "the master's data directory is writable, on a local disk with enough space, and belongs to its cluster",
            &[21],
        ),
        data_directory::check,
    ),
    (
        entry(
            "rdma-devices",
            "an RDMA device exists if the protocol is rdma: without one, Mooncake silently uses TCP",
            &[2],
        ),
        rdma::devices,
    ),
    (entry("rdma-choice", "all devices that Mooncake would use are equivalent", &[23]), rdma::choice),
    (entry("port-down", "the ports of the RDMA devices are up", &[2, 6]), rdma::finding),
    (entry("no-gid", "the ports have GIDs", &[6]), rdma::finding),
    (entry("roce-v1-only", "the RoCE ports have routable (RoCE v2) GIDs", &[6]), rdma::finding),
    (entry("no-ipv4-gid", "the RoCE ports have a GID derived from an IPv4 address", &[6]), rdma::finding),
    (entry("empty-gid-row", "MC_GID_INDEX is the index of an existing GID", &[6]), rdma::finding),
    (entry("filter-names-none", "MC_TE_FILTERS lists devices that exist on this host", &[2, 23]), rdma::finding),
    (entry("no-uverbs", "user-space access to the devices (uverbs) is available", &[2]), rdma::finding),
    (entry("uverbs-closed", "this process may open the devices", &[2]), rdma::finding),
    (entry("no-libibverbs", "libibverbs is installed", &[2, 22]), rdma::finding),
    (entry("no-provider", "the user-space driver of each device is installed", &[2, 22]), rdma::finding),
    (
        entry(
            "verbs-registration",
            "each RDMA device can be opened and can register one page, plus --mr-test-size bytes",
            &[4, 5],
        ),
        verbs::registration,
    ),
    (entry("iwarp", "no device uses iWARP, which Mooncake does not support", &[2]), rdma::finding),
    (entry("efa", "no device is an EFA, which protocol rdma does not support", &[2]), rdma::finding),
    (entry("erdma", "eRDMA devices are in compatibility mode", &[4, 6]), rdma::finding),
    (entry("software", "the devices are not emulated in software", &[2]), rdma::finding),
    (
        entry(
            "packet-backlog",
            "the kernel's network backlog is large enough for concurrent soft-RoCE reads: otherwise, reads may silently lose bytes",
            &[],
        ),
        rdma::backlog,
    ),
    (entry("unreadable", "the kernel's sysfs files for RDMA devices are readable", &[]), rdma::finding),
    (entry("odd-text", "the kernel's sysfs files for RDMA devices have the expected format", &[]), rdma::finding),
];

/// The check of the data directory.
const DATA_DIRECTORY: &str = "data-directory";

const fn entry(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: CheckGroup::Host, about, problems }
}

/// The checks of this group.
pub fn checks() -> Vec<Check> {
    CHECKS.iter().map(|(check, _)| *check).collect()
}

/// Runs the selected checks on the files in `tree`.
pub fn run(env: &impl Env, tree: &FileTree, intent: &Intent, selection: &Selection) -> Vec<CheckReport> {
    if !CHECKS.iter().any(|(check, _)| selection.includes(check)) {
        return Vec::new();
    }
    let mut host = topology::HostTopology::read(tree);
    let (selection_from_env, _) = topology::DeviceSelection::from_env(&|name| intent.environment.get(name).cloned());
    let (choice, warnings) = DeviceChoice::of(&host, &selection_from_env);
    host.findings.extend(warnings);
    let planned = intent.data.as_ref().filter(|_| selection.includes_id(DATA_DIRECTORY));
    let data = planned.map(|planned| data_facts::gather(env, tree, planned));
    let facts = HostFacts { tree: tree.clone(), intent: intent.clone(), host, choice, data, now: env.unix() };
    each(env, CHECKS, &facts, selection)
}
