//! Checks of a host: memory, huge pages, limits, ports, clock, names, devices.
//!
//! What is read are files below a root (`sys::FileTree`), so that a host is a folder in tests; the few things that no file tells (may a
//! port be bound, is the clock kept) are asked of this host only, and skipped for another one.

mod cgroup;
mod clock;
mod cpu;
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

use crate::engine::base::HostPort;
use crate::engine::check::{Check, Group, Report, Severity};
use crate::engine::doctor::{Line, Selection, each};
use crate::engine::env::Env;
use crate::engine::sys::FileTree;
use crate::engine::topology::{self, Choice};

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Rdma,
}

/// Huge pages that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Bytes of a page.
    pub bytes: u64,
    /// How many, on the whole host.
    pub count: u64,
}

/// What shall run on the host, as far as it was said. Nothing is asked of a host beyond that.
#[derive(Clone, Debug, Default)]
pub struct Intent {
    /// What moves the bytes; `None` where nobody said.
    pub protocol: Option<Protocol>,
    /// Ordinary memory that processes take, bytes.
    pub memory: Option<u64>,
    /// Ordinary memory that must be available at their start, bytes: SGLang's guard.
    pub guard: Option<u64>,
    /// Huge pages that processes take.
    pub pages: Option<Pages>,
    /// Of those, on each NUMA node.
    pub pages_per_node: Vec<(u32, u64)>,
    /// Bytes that one process registers with devices, and so locks.
    pub locked: Option<u64>,
    /// Bytes that are to be registered with each RDMA device for a trial.
    pub trial: Option<u64>,
    /// Ports that services shall listen on; those of a default deployment where nobody said.
    pub ports: Option<Vec<u16>>,
    pub master: Option<HostPort>,
    /// Variables of the environment that Mooncake and SGLang read.
    pub environment: BTreeMap<String, String>,
}

impl Intent {
    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn is_rdma(&self) -> bool {
        self.protocol == Some(Protocol::Rdma)
    }

    /// How bad it is what only RDMA would miss: no worse than info where nobody asked for that.
    fn over_rdma(&self, severity: Severity) -> Severity {
        if self.is_rdma() { severity } else { Severity::Info }
    }
}

/// What the checks look at.
#[derive(Debug)]
pub struct Look {
    tree: FileTree,
    intent: Intent,
    host: topology::Host,
    choice: Choice,
    now: crate::engine::base::Unix,
}

impl Look {
    /// The text of a file; `None` where there is none, or none that can be read.
    fn text(&self, path: &str) -> Option<String> {
        self.tree.text(path).ok().flatten()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// What a line `name: value` of a file says.
    fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
    }

    /// Who made this a container; `None` where it looks like none.
    fn container(&self) -> Option<&'static str> {
        let there = |path: &str| self.tree.resolve(path).is_some();
        if there("/.dockerenv") {
            return Some("docker");
        }
        if there("/run/.containerenv") {
            return Some("podman");
        }
        if there("/var/run/secrets/kubernetes.io") {
            return Some("Kubernetes");
        }
        let cgroup = self.text("/proc/self/cgroup").unwrap_or_default();
        ["kubepods", "docker", "containerd", "libpod"]
            .iter()
            .any(|word| cgroup.contains(word))
            .then_some("a container runtime")
    }
}

/// The checks, and what does each.
pub const CHECKS: &[Line<Look>] = &[
    (
        line("memory", "memory is available for what is planned, and for SGLang's own guard of 10 GiB", &[8]),
        memory::memory,
    ),
    (line("cgroup-memory", "the control group allows the planned memory and a tenth more", &[8, 9]), cgroup::memory),
    (
        line("overcommit", "the kernel does not refuse memory that is mapped before it is used", &[8]),
        memory::overcommit,
    ),
    (line("dev-shm", "/dev/shm of a container is large enough for SGLang", &[]), memory::shared),
    (line("hugepages", "as many huge pages are free as are planned", &[7]), hugepages::free),
    (line("hugepages-per-node", "each NUMA node has its share of the planned huge pages", &[7]), hugepages::per_node),
    (line("hugepage-size", "huge pages are reserved in the size that processes ask for", &[7]), hugepages::size),
    (
        line("hugepages-present", "MC_STORE_USE_HUGEPAGE is set only where there are huge pages", &[7]),
        hugepages::switch,
    ),
    (
        line("locked-memory", "as much memory may be locked as is registered with RDMA devices", &[4, 5]),
        limits::memlock,
    ),
    (line("ipc-lock", "the capability IPC_LOCK of a container is effective for this user", &[5]), limits::ipc_lock),
    (line("open-files", "a process may have as many connections open as a store has", &[]), limits::open_files),
    (line("ports", "the ports of the services are free", &[12]), ports::free),
    (line("ephemeral-range", "no outgoing connection can take a service's port", &[12]), ports::range),
    (line("cpu-limit", "the control group gives the master CPU time", &[13]), cpu::limit),
    (line("cpu-pressure", "processes do not wait long for a CPU", &[13]), cpu::pressure),
    (line("clock", "the wall clock is kept, and the monotonic one is fast to read", &[]), clock::clock),
    (line("hostname", "the host's name does not mean the loopback", &[1]), names::hostname),
    (
        line("announced-name", "the name that a store announces is one of this host that others can reach", &[1]),
        names::local,
    ),
    (
        line("interface", "the interface that Mooncake announces by itself is the one to the outside", &[1, 6]),
        names::interface,
    ),
    (line("numa", "devices and memory are on nodes that have both", &[23]), numa::numa),
    (line("ssd-directory", "the directory of the SSD tier exists, as a plain path, with room", &[26]), disk::directory),
    (
        line(
            "rdma-devices",
            "there is an RDMA device where the protocol is rdma: without one Mooncake takes TCP and says nothing",
            &[2],
        ),
        rdma::devices,
    ),
    (line("rdma-choice", "every device that Mooncake would take is alike", &[23]), rdma::choice),
    (line("port-down", "the ports of the RDMA devices are up", &[2, 6]), rdma::finding),
    (line("no-gid", "the ports have addresses", &[6]), rdma::finding),
    (line("roce-v1-only", "the RoCE ports have addresses that routers forward", &[6]), rdma::finding),
    (line("no-ipv4-gid", "the RoCE ports have an address that comes from IPv4", &[6]), rdma::finding),
    (line("empty-gid-row", "MC_GID_INDEX names a row that is in use", &[6]), rdma::finding),
    (line("filter-names-none", "MC_TE_FILTERS names devices of this host", &[2, 23]), rdma::finding),
    (line("no-uverbs", "programs have a way to the devices", &[2]), rdma::finding),
    (line("uverbs-closed", "this process may open the devices", &[2]), rdma::finding),
    (line("no-libibverbs", "libibverbs is installed", &[2, 22]), rdma::finding),
    (line("no-provider", "the user-space driver of each device is installed", &[2, 22]), rdma::finding),
    (
        line("verbs-registration", "each RDMA device can be opened and takes a page, and what --trial says", &[4, 5]),
        verbs::registration,
    ),
    (line("iwarp", "no device speaks iWARP, which Mooncake does not", &[2]), rdma::finding),
    (line("efa", "no device is an EFA, which the rdma protocol cannot use", &[2]), rdma::finding),
    (line("erdma", "an eRDMA device is in its compatibility mode", &[4, 6]), rdma::finding),
    (line("software", "the devices are made of more than software", &[2]), rdma::finding),
    (
        line(
            "packet-backlog",
            "the kernel has room for the packets that soft-RoCE devices read at once: without it reads may lose bytes unseen",
            &[],
        ),
        rdma::backlog,
    ),
    (line("unreadable", "what the kernel tells of devices can be read", &[]), rdma::finding),
    (line("odd-text", "what the kernel tells of devices is of the known form", &[]), rdma::finding),
];

const fn line(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: Group::Host, about, problems }
}

/// Its lines of the catalogue.
pub fn checks() -> Vec<Check> {
    CHECKS.iter().map(|(check, _)| *check).collect()
}

/// Do the wanted checks over the files of `tree`.
pub fn run(env: &impl Env, tree: &FileTree, intent: &Intent, selection: &Selection) -> Vec<Report> {
    if !CHECKS.iter().any(|(check, _)| selection.wants(check)) {
        return Vec::new();
    }
    let mut host = topology::Host::read(tree);
    let (wish, _) = topology::Wish::from_env(&|name| intent.environment.get(name).cloned());
    let (choice, doubts) = Choice::of(&host, &wish);
    host.findings.extend(doubts);
    let look = Look { tree: tree.clone(), intent: intent.clone(), host, choice, now: env.unix() };
    each(env, CHECKS, &look, selection)
}
