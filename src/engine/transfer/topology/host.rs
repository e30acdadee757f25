//! A host's RDMA devices, GPUs, NUMA nodes and network interfaces, and problems with them.

use serde::Serialize;

use crate::topology::device::{self, HostRdmaDevice};
use crate::topology::finding::DeviceFinding;
use crate::topology::interface::{self, Interface};
use crate::topology::pci::{self, PciLink, PciPosition};
use crate::topology::reader::TreeReader;
use mcctl_sys::{FileTree, procfs};

/// A host's RDMA support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RdmaSupport {
    /// The kernel does not support RDMA: `/sys/class/infiniband` does not exist.
    NoKernelSupport,
    /// The kernel supports RDMA, but no device exists.
    NoDevice,
    Devices,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    pub pci: String,
    /// `NVIDIA` or `AMD`.
    pub vendor: &'static str,
    /// Mooncake's name for the GPU's memory, e.g. `cuda:0`. GPUs are numbered by PCI address, as
    /// with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. Only NVIDIA GPUs have such a name.
    pub location: Option<String>,
    /// `None` if unknown.
    pub numa_node: Option<u32>,
    /// The path below `/sys/devices`.
    #[serde(skip)]
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    pub id: u32,
    pub memory_bytes: Option<u64>,
    pub cpus: Option<String>,
    /// Distances to all nodes in order, including this one; 10 means local memory.
    pub distances: Vec<u32>,
}

/// This process's locked-memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memlock {
    /// The effective limit, in bytes; `None` means unlimited.
    pub soft_bytes: Option<u64>,
    /// The maximum to which the process may raise the limit, in bytes; `None` means unlimited.
    pub hard_bytes: Option<u64>,
    /// Whether the process has CAP_IPC_LOCK, which disables the limit.
    pub exempt: bool,
}

/// A host's hardware that is relevant to transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostTopology {
    pub rdma: RdmaSupport,
    /// In the kernel's order.
    pub devices: Vec<HostRdmaDevice>,
    pub gpus: Vec<Gpu>,
    pub nodes: Vec<NumaNode>,
    pub interfaces: Vec<Interface>,
    /// `None` if unknown.
    pub memlock: Option<Memlock>,
    #[serde(skip)]
    pub findings: Vec<DeviceFinding>,
}

/// Directories that are searched for libraries.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/local/lib",
    "/opt/amazon/efa/lib",
    "/opt/amazon/efa/lib64",
];

/// The bit of `CAP_IPC_LOCK` in a capability set.
const IPC_LOCK: u64 = 1 << 14;

impl HostTopology {
    /// Reads a host's files.
    pub fn read(tree: &FileTree) -> HostTopology {
        let mut reader = TreeReader { tree, findings: Vec::new() };
        let devices = device::read(&mut reader);
        let rdma = match &devices {
            None => RdmaSupport::NoKernelSupport,
            Some(none) if none.is_empty() => RdmaSupport::NoDevice,
            Some(_) => RdmaSupport::Devices,
        };
        let mut host = HostTopology {
            rdma,
            devices: devices.unwrap_or_default(),
            gpus: gpus(&mut reader),
            nodes: nodes(&mut reader),
            interfaces: interface::read(&mut reader),
            memlock: memlock(&mut reader),
            findings: Vec::new(),
        };
        if rdma == RdmaSupport::Devices {
            host.check_libraries(&mut reader);
            host.check_memlock(&mut reader);
        }
        host.findings = reader.findings;
        host
    }

    /// The PCI connection between a device and a GPU; `None` for a device without a PCI address.
    pub fn link(&self, device: &HostRdmaDevice, gpu: &Gpu) -> Option<PciLink> {
        let place = PciPosition { path: device.path.as_deref()?, numa: device.numa_node };
        Some(pci::link(place, PciPosition { path: &gpu.path, numa: gpu.numa_node }))
    }

    /// The kernel's distance between a device and a NUMA node's memory; `None` if unknown.
    pub fn distance(&self, device: &HostRdmaDevice, node: u32) -> Option<u32> {
        let at = self.nodes.iter().position(|n| n.id == node)?;
        self.nodes.iter().find(|n| Some(n.id) == device.numa_node)?.distances.get(at).copied()
    }

    fn check_libraries(&self, reader: &mut TreeReader<'_>) {
        let there =
            |file: &str| LIBRARY_FOLDERS.iter().any(|dir| reader.tree.resolve(&format!("{dir}/{file}")).is_some());
        if !there("libibverbs.so.1") {
            reader.findings.push(DeviceFinding::NoVerbsLibrary);
            return;
        }
        let mut drivers = Vec::new();
        for dir in LIBRARY_FOLDERS {
            drivers.extend(reader.names(&format!("{dir}/libibverbs")));
        }
        for device in &self.devices {
            let Some(provider) = &device.provider else { continue };
            if !drivers.iter().any(|d| d.starts_with(&format!("lib{provider}-rdmav"))) {
                let device = device.name.clone();
                let provider = provider.clone();
                reader.findings.push(DeviceFinding::NoProvider { device, provider });
            }
        }
    }

    /// Adds a finding if the limit is lower than the host's memory.
    fn check_memlock(&self, reader: &mut TreeReader<'_>) {
        let memory =
            reader.text("/proc/meminfo").and_then(|text| procfs::meminfo(&text)).map_or(u64::MAX, |m| m.mem_total);
        if let Some(Memlock { soft_bytes: Some(soft), hard_bytes: hard, exempt: false }) = self.memlock
            && soft < memory
        {
            reader.findings.push(DeviceFinding::Memlock { soft, hard });
        }
    }
}

fn gpus(reader: &mut TreeReader<'_>) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    let mut cuda = 0;
    let mut addresses = reader.names("/sys/bus/pci/devices");
    addresses.sort();
    for pci in addresses {
        let at = format!("/sys/bus/pci/devices/{pci}");
        let Some(class) = reader.text_if_any(&format!("{at}/class")) else { continue };
        // Display controllers; 0x1200 (processing accelerators) is the class of AMD's larger GPUs.
        if !class.starts_with("0x03") && !class.starts_with("0x1200") {
            continue;
        }
        let vendor = match reader.text_if_any(&format!("{at}/vendor")).as_deref() {
            Some("0x10de") => "NVIDIA",
            Some("0x1002") => "AMD",
            _ => continue,
        };
        let location = (vendor == "NVIDIA").then(|| {
            cuda += 1;
            format!("cuda:{}", cuda - 1)
        });
        let numa: Option<i64> = reader.number(&format!("{at}/numa_node"));
        let numa_node = numa.and_then(|n| u32::try_from(n).ok());
        let path = reader.tree.resolve(&at).unwrap_or_default();
        gpus.push(Gpu { pci, vendor, location, numa_node, path });
    }
    gpus
}

fn nodes(reader: &mut TreeReader<'_>) -> Vec<NumaNode> {
    let mut nodes = Vec::new();
    for name in reader.names("/sys/devices/system/node") {
        let Some(id) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else { continue };
        let file = |file: &str| format!("/sys/devices/system/node/{name}/{file}");
        let meminfo = reader.text_if_any(&file("meminfo")).unwrap_or_default();
        // Lines begin with the node's name, and otherwise have the format of /proc/meminfo.
        let meminfo = procfs::meminfo(&meminfo.replace(&format!("Node {id} "), ""));
        let distances = reader.text_if_any(&file("distance")).unwrap_or_default();
        nodes.push(NumaNode {
            id,
            memory_bytes: meminfo.map(|meminfo| meminfo.mem_total),
            cpus: reader.text_if_any(&file("cpulist")),
            distances: distances.split_whitespace().map_while(|d| d.parse().ok()).collect(),
        });
    }
    nodes
}

impl Memlock {
    /// Reads this process's limit; `None` if unknown.
    pub fn read(tree: &FileTree) -> Option<Memlock> {
        memlock(&mut TreeReader { tree, findings: Vec::new() })
    }
}

fn memlock(reader: &mut TreeReader<'_>) -> Option<Memlock> {
    let text = reader.text("/proc/self/limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let limits = procfs::limits(&text).and_then(|limits| procfs::soft_and_hard(limits.max_locked_memory));
    let (soft_bytes, hard_bytes) =
        reader.parsed_or_finding(limits, "/proc/self/limits", line.trim(), "two locked-memory limits")?;
    let status = reader.text("/proc/self/status").and_then(|text| procfs::status(&text));
    Some(Memlock { soft_bytes, hard_bytes, exempt: status.is_some_and(|status| status.capeff & IPC_LOCK != 0) })
}
