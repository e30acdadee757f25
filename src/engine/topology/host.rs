//! A host: its RDMA devices, GPUs, memory nodes and interfaces, and what is wrong with them.

use serde::Serialize;

use crate::engine::sys::{FileTree, host};
use crate::engine::topology::device::{self, Device};
use crate::engine::topology::finding::Finding;
use crate::engine::topology::interface::{self, Interface};
use crate::engine::topology::pci::{self, Link, Place};
use crate::engine::topology::reader::Reader;

/// How much RDMA there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rdma {
    /// The kernel has none: `/sys/class/infiniband` is absent.
    NoKernelSupport,
    /// The kernel has it, and no device.
    NoDevice,
    Devices,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    pub pci: String,
    /// `NVIDIA` or `AMD`.
    pub vendor: &'static str,
    /// Mooncake's name for its memory, e.g. `cuda:0`: by PCI address, as with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. NVIDIA's only.
    pub location: Option<String>,
    /// NUMA node; `None` where nobody knows.
    pub numa_node: Option<u32>,
    /// Where it sits below `/sys/devices`.
    #[serde(skip)]
    pub path: String,
}

/// A node of memory and CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    pub id: u32,
    /// Its memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Its CPUs, e.g. `0-31,64-95`.
    pub cpus: Option<String>,
    /// Distance to each node in their order, itself included; 10 is the own memory.
    pub distances: Vec<u32>,
}

/// How much memory this process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memlock {
    /// The limit that holds, bytes; `None` = none.
    pub soft_bytes: Option<u64>,
    /// What it may be raised to, bytes; `None` = no limit.
    pub hard_bytes: Option<u64>,
    /// Has the process CAP_IPC_LOCK, for which there is no limit?
    pub exempt: bool,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// How much RDMA there is.
    pub rdma: Rdma,
    /// RDMA devices, in the kernel's order.
    pub devices: Vec<Device>,
    /// GPUs, by PCI address.
    pub gpus: Vec<Gpu>,
    pub nodes: Vec<Node>,
    pub interfaces: Vec<Interface>,
    /// How much memory may be locked; `None` where nobody knows.
    pub memlock: Option<Memlock>,
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Folders where libraries are looked for.
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

/// The bit of CAP_IPC_LOCK in a set of capabilities.
const IPC_LOCK: u64 = 1 << 14;

impl Host {
    /// Read a host's files.
    pub fn read(tree: &FileTree) -> Host {
        let mut reader = Reader { tree, findings: Vec::new() };
        let devices = device::read(&mut reader);
        let rdma = match &devices {
            None => Rdma::NoKernelSupport,
            Some(none) if none.is_empty() => Rdma::NoDevice,
            Some(_) => Rdma::Devices,
        };
        let mut host = Host {
            rdma,
            devices: devices.unwrap_or_default(),
            gpus: gpus(&mut reader),
            nodes: nodes(&mut reader),
            interfaces: interface::read(&mut reader),
            memlock: memlock(&mut reader),
            findings: Vec::new(),
        };
        if rdma == Rdma::Devices {
            host.look_at_libraries(&mut reader);
            host.look_at_memlock(&mut reader);
        }
        host.findings = reader.findings;
        host
    }

    /// What lies between a device and a GPU; `None` for a device without a place.
    pub fn link(&self, device: &Device, gpu: &Gpu) -> Option<Link> {
        let place = Place { path: device.path.as_deref()?, numa: device.numa_node };
        Some(pci::link(place, Place { path: &gpu.path, numa: gpu.numa_node }))
    }

    /// The kernel's figure for the way from a device to the memory of a node; `None` where nobody knows.
    pub fn distance(&self, device: &Device, node: u32) -> Option<u32> {
        let at = self.nodes.iter().position(|n| n.id == node)?;
        self.nodes.iter().find(|n| Some(n.id) == device.numa_node)?.distances.get(at).copied()
    }

    fn look_at_libraries(&self, reader: &mut Reader<'_>) {
        let there =
            |file: &str| LIBRARY_FOLDERS.iter().any(|dir| reader.tree.resolve(&format!("{dir}/{file}")).is_some());
        if !there("libibverbs.so.1") {
            reader.findings.push(Finding::NoVerbsLibrary);
            return;
        }
        let mut drivers = Vec::new();
        for dir in LIBRARY_FOLDERS {
            drivers.extend(reader.names(&format!("{dir}/libibverbs")));
        }
        for device in &self.devices {
            let Some(provider) = &device.provider else { continue };
            if !drivers.iter().any(|d| d.starts_with(&format!("lib{provider}-rdmav"))) {
                let (device, provider) = (device.name.clone(), provider.clone());
                reader.findings.push(Finding::NoProvider { device, provider });
            }
        }
    }

    /// A limit as large as the memory is none.
    fn look_at_memlock(&self, reader: &mut Reader<'_>) {
        let memory =
            reader.text("/proc/meminfo").and_then(|text| host::parse_meminfo(&text)).map_or(u64::MAX, |m| m.total);
        if let Some(Memlock { soft_bytes: Some(soft), hard_bytes: hard, exempt: false }) = self.memlock
            && soft < memory
        {
            reader.findings.push(Finding::Memlock { soft, hard });
        }
    }
}

fn gpus(reader: &mut Reader<'_>) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    let mut cuda = 0;
    let mut addresses = reader.names("/sys/bus/pci/devices");
    addresses.sort();
    for pci in addresses {
        let at = format!("/sys/bus/pci/devices/{pci}");
        let Some(class) = reader.text_if_any(&format!("{at}/class")) else { continue };
        // Display controllers; accelerators are what AMD calls its larger ones.
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

fn nodes(reader: &mut Reader<'_>) -> Vec<Node> {
    let mut nodes = Vec::new();
    for name in reader.names("/sys/devices/system/node") {
        let Some(id) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else { continue };
        let file = |file: &str| format!("/sys/devices/system/node/{name}/{file}");
        let meminfo = reader.text_if_any(&file("meminfo")).unwrap_or_default();
        let total = meminfo.lines().find_map(|line| line.split_once("MemTotal:")?.1.trim().strip_suffix(" kB"));
        let distances = reader.text_if_any(&file("distance")).unwrap_or_default();
        nodes.push(Node {
            id,
            memory_bytes: total.and_then(|kib| kib.trim().parse::<u64>().ok()?.checked_mul(1024)),
            cpus: reader.text_if_any(&file("cpulist")),
            distances: distances.split_whitespace().map_while(|d| d.parse().ok()).collect(),
        });
    }
    nodes
}

impl Memlock {
    /// What this process may lock; `None` where its files do not tell.
    pub fn read(tree: &FileTree) -> Option<Memlock> {
        memlock(&mut Reader { tree, findings: Vec::new() })
    }
}

fn memlock(reader: &mut Reader<'_>) -> Option<Memlock> {
    let limits = reader.text("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut fields = line.split_whitespace();
    let mut limit = || match fields.next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    };
    let (soft, hard) = (limit(), limit());
    let status = reader.text("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let limits = soft.zip(hard);
    let (soft_bytes, hard_bytes) =
        reader.wanted(limits, "/proc/self/limits", line.trim(), "two limits of locked memory")?;
    Some(Memlock { soft_bytes, hard_bytes, exempt: effective & IPC_LOCK != 0 })
}
