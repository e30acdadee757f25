//! Whether the processes of a deployment fit the hosts that its file describes.
//!
//! An error is certain: without headroom and estimates, a host has too little memory, or lacks a
//! device. A warning depends on estimates. An info states that sizes are upper bounds.

use std::collections::BTreeMap;

use crate::plan::{SizingError, models};
use crate::{BoundCause, DeploymentSpec, Platform, ProcessPlan, ServingMode, StoreProtocol, host_key};
use mcctl_base::ByteSize;
use mcctl_base::check::Severity;
use mcctl_base::text::Quoted;

/// What the processes on a host need. In Kubernetes, the containers of a pod, whose node may run
/// other pods, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDemand {
    /// The host. In Kubernetes, the workload.
    pub host: String,
    /// Names of the processes.
    pub processes: Vec<String>,
    /// Base-page memory with headroom, in bytes. `None` if that of a process cannot be computed.
    pub memory: Option<u64>,
    /// Base-page memory that is certainly needed, in bytes.
    pub memory_min: u64,
    /// Huge page size in bytes; 0 without huge pages.
    pub page: u64,
    /// Number of huge pages.
    pub pages: u64,
    /// Huge page memory that is certainly needed, in bytes.
    pub hugepages_min: u64,
    /// Huge pages of processes that are bound to a NUMA node: the node and the number.
    pub bound_pages: Vec<(u32, u64)>,
    /// Memory, including huge pages, that processes certainly use on the NUMA node to which they
    /// are bound, in bytes.
    pub bound_bytes: Vec<(u32, u64)>,
    /// Base-page memory that must be available when an SGLang server starts, in bytes.
    pub guard: Option<u64>,
    /// Bytes that a process locks for RDMA.
    pub locked: Option<u64>,
    /// The number of the last GPU plus one.
    pub gpus: u64,
    pub ports: Vec<u16>,
    /// Why sizes are bounds; `None` if they are exact.
    pub bound: Option<BoundCause>,
}

impl HostDemand {
    /// Huge page memory in bytes.
    pub fn hugepages(&self) -> u64 {
        self.page.saturating_mul(self.pages)
    }

    fn add(&mut self, plan: &ProcessPlan) {
        let resources = &plan.resources;
        let firm = &plan.resources.firm;
        self.processes.push(plan.name.clone());
        self.memory = self.memory.zip(resources.memory).map(|(sum, more)| sum.saturating_add(more));
        self.memory_min = self.memory_min.saturating_add(firm.memory);
        self.bound_bytes.extend(plan.numa.map(|node| (node, firm.memory.saturating_add(firm.hugepages))));
        if let Some((page, count)) = resources.hugepages {
            self.page = page;
            self.pages = self.pages.saturating_add(count);
            self.bound_pages.extend(plan.numa.map(|node| (node, count)));
        }
        self.hugepages_min = self.hugepages_min.saturating_add(firm.hugepages);
        self.guard = self.guard.max(firm.guard);
        self.locked = self.locked.max(firm.locked.filter(|_| resources.rdma));
        let first = plan.argv.iter().skip_while(|word| *word != "--base-gpu-id").nth(1);
        let first: u64 = first.and_then(|text| text.parse().ok()).unwrap_or(0);
        if resources.gpus > 0 {
            self.gpus = self.gpus.max(first.saturating_add(resources.gpus));
        }
        self.ports.extend(plan.ports.iter().map(|port| port.number));
        self.bound = self.bound.or(firm.bound);
    }
}

/// The needs of each host, or of a pod of each workload, in start order.
pub fn demands(plans: &[ProcessPlan], platform: Platform) -> Vec<HostDemand> {
    let mut all: Vec<HostDemand> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for plan in plans {
        let (host, key) = match platform {
            Platform::Hosts => (&plan.host, host_key(&plan.host)),
            Platform::Kubernetes | Platform::Rbg => (&plan.workload, plan.workload.clone()),
        };
        let at = *known.entry(key).or_insert(all.len());
        if at == all.len() {
            all.push(HostDemand { host: host.clone(), memory: Some(0), ..HostDemand::default() });
        }
        all[at].add(plan);
    }
    all
}

/// Why a deployment does not fit its hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitFinding {
    pub severity: Severity,
    /// The key of the file to which the finding refers.
    pub key: &'static str,
    /// The host or workload. Empty if all hosts are the same in this respect.
    pub host: String,
    pub what: String,
    pub remedy: String,
}

/// Compares the needs of `plans` with the hosts in `spec`. Capacities that the file does not
/// contain are unknown, and never a finding.
pub fn fit(spec: &DeploymentSpec, plans: &[ProcessPlan], platform: Platform) -> Vec<FitFinding> {
    let demands = demands(plans, platform);
    let mut found: Vec<FitFinding> = demands.iter().flat_map(|demand| memory(spec, demand)).collect();
    for demand in &demands {
        if let Some(gpus) = spec.host.gpus.filter(|gpus| demand.gpus > *gpus) {
            found.push(error(
                "host.gpus",
                &demand.host,
                format!("{} needs {} GPUs; it has {gpus}", demand.host, demand.gpus),
                "lower tp or the number of servers on the host".to_owned(),
            ));
        }
    }
    found.extend(numa(spec));
    found.extend(devices(spec));
    if let Some(cause) = demands.iter().find_map(|demand| demand.bound) {
        found.push(bounds(spec, cause));
    }
    found
}

/// States that sizes are bounds.
fn bounds(spec: &DeploymentSpec, cause: BoundCause) -> FitFinding {
    let path = &spec.model.path;
    let subject = match cause {
        BoundCause::UnknownModel => format!("the model {} is unknown", Quoted(path)),
        BoundCause::UnknownCacheType => format!("the type of the cache of {} is unknown", Quoted(path)),
        BoundCause::UnknownDevicePools => "how L2 is split over its pools depends on the device".to_owned(),
    };
    let remedy = match models::by_name(path) {
        Err(SizingError::UnknownModel { nearest, .. }) if cause == BoundCause::UnknownModel && !nearest.is_empty() => {
            format!(
                "set model.known_as to a model with the same config.json. The most similar names are {}",
                nearest.join(", ")
            )
        }
        _ => cause.remedy().to_owned(),
    };
    let over = if cause == BoundCause::UnknownModel { " over the known models" } else { "" };
    let what = format!("{subject}: memory and huge pages are upper bounds{over}");
    FitFinding { severity: Severity::Info, key: cause.key(), host: String::new(), what, remedy }
}

fn error(key: &'static str, host: &str, what: String, remedy: String) -> FitFinding {
    FitFinding { severity: Severity::Error, key, host: host.to_owned(), what, remedy }
}

/// Compares memory and huge pages.
fn memory(spec: &DeploymentSpec, demand: &HostDemand) -> Vec<FitFinding> {
    let host = &spec.host;
    let name = &demand.host;
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let smaller = || "lower model.hicache_size_gb, segment.engines or nodes.segment".to_owned();
    let mut found = Vec::new();
    if let Some(pool) = host.hugepages
        && demand.hugepages() > pool.0
    {
        let what = format!("{name} needs {} of huge pages; it has {}", size(demand.hugepages()), size(pool.0));
        let severity = if demand.hugepages_min > pool.0 { Severity::Error } else { Severity::Warning };
        let remedy = match severity {
            Severity::Error => smaller(),
            _ => demand.bound.map_or_else(smaller, |cause| format!("for an exact number, {}", cause.remedy())),
        };
        found.push(FitFinding { severity, key: "host.hugepages", host: name.clone(), what, remedy });
    }
    let Some(total) = host.memory else { return found };
    let certain = demand.memory_min.saturating_add(demand.hugepages_min);
    let planned = demand.memory.unwrap_or(demand.memory_min).saturating_add(demand.hugepages());
    let left = total.0.saturating_sub(demand.hugepages_min);
    if certain > total.0 {
        let what = format!("{name} needs at least {} of memory; it has {}", size(certain), size(total.0));
        found.push(error("host.memory", name, what, smaller()));
    } else if let Some(guard) = demand.guard.filter(|guard| *guard > left) {
        let what = format!(
            "SGLang does not start on {name}: it requires {} of available regular memory for L2 plus 10 GiB, even with huge pages; at most {} \
             is left",
            size(guard),
            size(left)
        );
        found.push(error("host.memory", name, what, "lower model.hicache_size_gb".to_owned()));
    } else if planned > total.0 {
        let what = format!("{name} needs about {} of memory, with headroom; it has {}", size(planned), size(total.0));
        let severity = Severity::Warning;
        found.push(FitFinding { severity, key: "host.memory", host: name.clone(), what, remedy: smaller() });
    } else if let Some((node, bytes, share)) = overfull_node(spec, demand, total.0) {
        let what = format!(
            "the processes bound to NUMA node {node} of {name} need {}; an equal share of its memory is {}",
            size(bytes),
            size(share)
        );
        // Nodes may differ in size.
        let remedy = "lower nodes.segment".to_owned();
        found.push(FitFinding { severity: Severity::Warning, key: "nodes.numa", host: name.clone(), what, remedy });
    }
    found
}

/// The first NUMA node whose processes need more than an equal share of the memory, with their need
/// and the share.
fn overfull_node(spec: &DeploymentSpec, demand: &HostDemand, total: u64) -> Option<(u32, u64, u64)> {
    let share = total / u64::from(spec.host.numa_nodes.filter(|count| *count > 0)?);
    let sum = |node: u32| demand.bound_bytes.iter().filter(|(known, _)| *known == node).map(|(_, bytes)| bytes).sum();
    demand.bound_bytes.iter().map(|(node, _)| (*node, sum(*node), share)).find(|(_, bytes, share)| bytes > share)
}

/// Compares the NUMA nodes that the file uses with the number of nodes.
fn numa(spec: &DeploymentSpec) -> Vec<FitFinding> {
    let Some(count) = spec.host.numa_nodes else { return Vec::new() };
    let lists = [("nodes.numa", &spec.nodes.numa), ("host.nic_numa", &spec.host.nic_numa)];
    let bad = lists.into_iter().filter_map(|(key, list)| Some((key, list.iter().find(|node| **node >= count)?)));
    let finding = |(key, node): (&'static str, &u32)| {
        let what = format!("NUMA node {node} does not exist on hosts with {count} nodes, which are numbered from 0");
        error(key, "", what, "use lower numbers, or correct host.numa_nodes".to_owned())
    };
    let mut found: Vec<FitFinding> = bad.map(finding).collect();
    if spec.transfer.protocol == StoreProtocol::Rdma && spec.nic_nodes() > u64::from(count) {
        let what = format!("NICs cannot be on {} NUMA nodes of hosts with {count}", spec.nic_nodes());
        found.push(error("transfer.nic_nodes", "", what, "lower it, or correct host.numa_nodes".to_owned()));
    }
    found
}

/// Compares the RDMA devices that the file uses with those of the hosts.
fn devices(spec: &DeploymentSpec) -> Vec<FitFinding> {
    if spec.host.nics.is_empty() {
        return Vec::new();
    }
    let serving = &spec.serving;
    let mut lists = vec![("transfer.devices", &spec.transfer.devices)];
    if serving.mode == ServingMode::Pd {
        lists.extend([
            ("serving.ib_devices", &serving.ib_devices),
            ("serving.prefill.devices", &serving.prefill.devices),
            ("serving.decode.devices", &serving.decode.devices),
        ]);
    }
    let port = |device: &str| device.split(':').next().unwrap_or_default().to_owned();
    let is_known = |device: &String| spec.host.nics.iter().any(|nic| port(nic) == port(device));
    let bad = lists.into_iter().filter_map(|(key, list)| Some((key, list.iter().find(|device| !is_known(device))?)));
    let finding = |(key, device): (&'static str, &String)| {
        let what = format!("the hosts have no RDMA device {device}; host.nics lists {}", spec.host.nics.join(", "));
        error(key, "", what, "use a device of host.nics; mcctl devices lists them".to_owned())
    };
    bad.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileFormat, parse, plan_processes};

    fn found(text: &str) -> Vec<FitFinding> {
        let spec = parse(text, FileFormat::Toml, &[]).unwrap();
        let plans = plan_processes(&spec, spec.main_platform()).unwrap();
        fit(&spec, &plans, spec.main_platform())
    }

    fn keys(text: &str) -> Vec<(&'static str, Severity)> {
        found(text).into_iter().map(|finding| (finding.key, finding.severity)).collect()
    }

    const EIGHT: &str =
        "[model]\npath = 'Qwen/Qwen3-235B-A22B'\ntp = 8\nhicache_size_gb = 64\n[segment]\nengines = '320GiB'\n";

    #[test]
    fn unknown_capacities_are_never_a_finding() {
        assert_eq!(keys(EIGHT), []);
    }

    #[test]
    fn a_host_with_too_little_memory_is_an_error_and_an_estimate_a_warning() {
        assert_eq!(keys(&format!("{EIGHT}[host]\nmemory = '512GiB'\n")), [("host.memory", Severity::Error)]);
        assert_eq!(keys(&format!("{EIGHT}[host]\nmemory = '840GiB'\n")), [("host.memory", Severity::Warning)]);
        assert_eq!(keys(&format!("{EIGHT}[host]\nmemory = '2TiB'\n")), []);
    }

    #[test]
    fn huge_pages_and_the_memory_check_of_sglang_are_compared() {
        let text = |memory: &str, pages: &str| {
            format!("{EIGHT}[hugepages]\nsize = '2MiB'\n[host]\nmemory = '{memory}'\nhugepages = '{pages}'\n")
        };
        assert_eq!(
            keys(&text("1TiB", "512GiB")),
            [("host.hugepages", Severity::Error), ("host.memory", Severity::Error)]
        );
        assert!(found(&text("1TiB", "900GiB"))[0].what.contains("SGLang does not start"));
        assert_eq!(keys(&text("2TiB", "900GiB")), []);
    }

    #[test]
    fn gpus_numa_nodes_and_devices_are_compared() {
        let text = format!(
            "{EIGHT}[transfer]\nprotocol = 'rdma'\ndevices = ['mlx5_9']\nnic_nodes = 4\n[nodes]\nhosts = ['127.0.0.1']\nnuma = [0, 2]\n\
             [host]\ngpus = 4\nnuma_nodes = 2\nnics = ['mlx5_0', 'mlx5_1']\n"
        );
        let found: Vec<&str> = keys(&text).into_iter().map(|(key, _)| key).collect();
        assert_eq!(found, ["host.gpus", "nodes.numa", "transfer.nic_nodes", "transfer.devices"]);
        let bound = "[model]\npath = 'm'\n[nodes]\nhosts = ['127.0.0.1']\nnuma = [0, 1]\nsegment = '300GiB'\n[host]\nmemory = '1TiB'\n";
        assert_eq!(keys(&format!("{bound}numa_nodes = 4\n")), [("nodes.numa", Severity::Warning)]);
        assert_eq!(keys(&format!("{bound}numa_nodes = 2\n")), []);
    }

    #[test]
    fn bounds_for_an_unknown_model_are_only_a_warning() {
        let text = "[model]\npath = 'a/b'\ntp = 8\nhicache_size_gb = 64\n[hugepages]\nsize = '2MiB'\n[host]\nhugepages = '490GiB'\n";
        let expected = [("host.hugepages", Severity::Warning), ("model.known_as", Severity::Info)];
        assert_eq!(keys(text), expected);
    }

    #[test]
    fn the_needs_of_a_host_are_the_sum_of_its_processes() {
        let text = "[model]\npath = 'm'\ntp = 2\n[serving]\nmode = 'pd'\n[serving.decode]\ntp = 4\n";
        let spec = parse(text, FileFormat::Toml, &[]).unwrap();
        let all = demands(&plan_processes(&spec, Platform::Hosts).unwrap(), Platform::Hosts);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].gpus, all[0].processes.len(), all[0].memory), (6, 4, None));
    }
}
