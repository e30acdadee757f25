//! NUMA: what is near to what.

use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::host::Look;
use crate::engine::doctor::{find, status};

pub(super) fn numa(look: &Look, check: &Check) -> Status {
    let nodes = &look.host.nodes;
    if nodes.is_empty() {
        return Status::Skipped("the kernel tells no NUMA nodes".to_owned());
    }
    let mut findings = Vec::new();
    for device in &look.host.devices {
        let Some(at) = device.numa_node else { continue };
        if nodes.iter().any(|node| node.id == at && node.memory_bytes == Some(0)) {
            let severity = look.intent.over_rdma(Severity::Warning);
            let finding = format!(
                "{} is on node {at}, which has no memory: all its traffic crosses to another node",
                device.name
            );
            let remedy = "put memory on that node's sockets, or choose devices of other nodes (mcctl devices)";
            findings.push(find(check, severity, finding, format!("MemTotal of node {at} is 0"), remedy));
        }
    }
    if nodes.len() > 1 && look.text("/proc/sys/vm/zone_reclaim_mode").is_some_and(|mode| mode != "0") {
        let finding =
            "the kernel frees pages of a full node before it takes those of another one: large buffers come slowly";
        findings.push(find(
            check,
            Severity::Warning,
            finding,
            "vm.zone_reclaim_mode is not 0",
            "sysctl -w vm.zone_reclaim_mode=0",
        ));
    }
    if nodes.len() > 1 && look.text("/proc/sys/kernel/numa_balancing").is_some_and(|mode| mode != "0") {
        let finding =
            "the kernel moves pages between nodes by itself, which stops registered and busy memory for moments";
        let remedy = "sysctl -w kernel.numa_balancing=0, and bind each process to a node (numactl, NUMAPolicy=bind)";
        findings.push(find(check, Severity::Info, finding, "kernel.numa_balancing is not 0", remedy));
    }
    status(findings, || format!("{} node{}", nodes.len(), if nodes.len() == 1 { "" } else { "s" }))
}
