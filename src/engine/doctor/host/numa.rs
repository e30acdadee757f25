//! NUMA placement of devices and memory.

use crate::host::HostFacts;
use crate::{find, status};
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_base::text::counted;

pub(super) fn numa(facts: &HostFacts, check: &Check) -> CheckStatus {
    let nodes = &facts.host.nodes;
    if nodes.is_empty() {
        return CheckStatus::Skipped("the kernel does not report NUMA nodes".to_owned());
    }
    let mut findings = Vec::new();
    for device in &facts.host.devices {
        let Some(at) = device.numa_node else { continue };
        if nodes.iter().any(|node| node.id == at && node.memory_bytes == Some(0)) {
            let severity = facts.intent.over_rdma(Severity::Warning);
            let finding = format!(
                "{} is on NUMA node {at}, which has no memory: all its traffic crosses to another node",
                device.name
            );
            let remedy = "install memory on that node, or use devices on other nodes (mcctl devices)";
            findings.push(find(check, severity, finding, format!("MemTotal of node {at} is 0"), remedy));
        }
    }
    if nodes.len() > 1 && facts.text("/proc/sys/vm/zone_reclaim_mode").is_some_and(|mode| mode != "0") {
        let finding = "the kernel reclaims pages of a full NUMA node before it uses another node: allocating large buffers is slow";
        findings.push(find(
            check,
            Severity::Warning,
            finding,
            "vm.zone_reclaim_mode is not 0",
            "sysctl -w vm.zone_reclaim_mode=0",
        ));
    }
    if nodes.len() > 1 && facts.text("/proc/sys/kernel/numa_balancing").is_some_and(|mode| mode != "0") {
        let finding = "the kernel migrates pages between NUMA nodes, which briefly stalls access to registered memory";
        let remedy = "sysctl -w kernel.numa_balancing=0, and bind each process to a node (numactl, NUMAPolicy=bind)";
        findings.push(find(check, Severity::Info, finding, "kernel.numa_balancing is not 0", remedy));
    }
    status(findings, || counted(nodes.len(), "node"))
}
