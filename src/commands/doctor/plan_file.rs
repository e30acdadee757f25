//! `--plan FILE` with a deployment file: what the processes on this host need.

use std::path::Path;

use crate::commands::cli::deployment_file;
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::doctor::Args;
use crate::engine::base::HostPort;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::deploy::{
    ComponentRole, DeploymentSpec, HostDemand, Platform, ProcessPlan, StoreProtocol, demands, host_key,
};
use crate::engine::doctor::host::{DataProtocol, HugePageDemand, Intent, PlannedData};
use crate::engine::sys::{FileTree, interface};

/// Adds what the deployment file `path` plans for this host to `intent`. Flags and the environment
/// take precedence.
///
/// # Errors
/// The file is invalid, or does not contain this host.
pub(super) fn fill(intent: &mut Intent, args: &Args, path: &Path, tree: &FileTree) -> Result<(), Failure> {
    let spec = deployment_file::read(path, &[])?;
    let (platform, plans) = deployment_file::planned(path, &spec)?;
    let all = demands(&plans, platform);
    let demand = choose(args, path, platform, &all, tree)?;
    output::say(format!("note: checking this host as {} of {}", demand.host, path.display()));
    let here: Vec<&ProcessPlan> = plans.iter().filter(|plan| demand.processes.contains(&plan.name)).collect();
    if demand.pages > 0 {
        intent.pages = Some(HugePageDemand { bytes: demand.page, count: demand.pages });
        intent.pages_per_node = per_node(demand);
    }
    // Without headroom and estimates, because too little memory is an error. Without SGLang, its
    // check does not apply.
    intent.memory = intent.memory.or(Some(demand.memory_min));
    intent.guard = Some(demand.guard.unwrap_or(0));
    intent.locked = demand.locked;
    if intent.ports.is_none() && platform == Platform::Hosts {
        intent.ports = Some(demand.ports.clone());
    }
    intent.protocol = intent.protocol.or(Some(match spec.transfer.protocol {
        StoreProtocol::Tcp => DataProtocol::Tcp,
        StoreProtocol::Rdma => DataProtocol::Rdma,
    }));
    if platform == Platform::Hosts {
        intent.data = intent.data.take().or_else(|| data(&spec, &here));
        if intent.master.is_none() && spec.master.ha.is_none() {
            intent.master = spec.master.hosts.first().map(|host| HostPort::new(host, spec.master.rpc_port));
        }
    }
    for plan in here {
        for (name, value) in plan.env.iter().filter(|(_, value)| !value.contains("$(")) {
            intent.environment.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    Ok(())
}

/// The pages of each NUMA node to which processes are bound.
fn per_node(demand: &HostDemand) -> Vec<(u32, u64)> {
    let mut nodes: Vec<(u32, u64)> = Vec::new();
    for (node, count) in &demand.bound_pages {
        match nodes.iter_mut().find(|(known, _)| known == node) {
            Some((_, sum)) => *sum = sum.saturating_add(*count),
            None => nodes.push((*node, *count)),
        }
    }
    nodes
}

/// The data directory of a master on this host.
fn data(spec: &DeploymentSpec, here: &[&ProcessPlan]) -> Option<PlannedData> {
    let data = here.iter().filter(|plan| plan.role == ComponentRole::Master).find_map(|plan| plan.data.as_ref())?;
    let cluster_id = spec.master.ha.as_ref().map(|ha| ha.cluster_id.clone());
    let origin = format!("master.data_dir = {}", data.path);
    Some(PlannedData { path: data.path.clone(), origin, cluster_id, keys: None, may_write: false })
}

/// Maximum number of hosts that an error lists.
const HOSTS_MAX: usize = 16;

/// The names of the hosts or workloads, separated by commas.
fn listed(all: &[HostDemand]) -> String {
    let names: Vec<&str> = all.iter().take(HOSTS_MAX).map(|demand| demand.host.as_str()).collect();
    let more = all.len() - names.len();
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}

/// The host or workload to check: that of `--plan-host`, or the only one, or the one with an
/// address of this host. In Kubernetes, the pod that needs most.
fn choose<'a>(
    args: &Args,
    path: &Path,
    platform: Platform,
    all: &'a [HostDemand],
    tree: &FileTree,
) -> Result<&'a HostDemand, Failure> {
    let names = || listed(all);
    if let Some(name) = &args.plan_host {
        let is_named = |demand: &&HostDemand| match platform {
            Platform::Hosts => host_key(&demand.host) == host_key(name),
            Platform::Kubernetes | Platform::Rbg => demand.host == *name,
        };
        return all.iter().find(is_named).ok_or_else(|| {
            Failure::usage(format!("{name} is not a host of {}", path.display()))
                .tried(format!("--plan-host {name}"))
                .next(format!("use one of {}", names()))
        });
    }
    if let [only] = all {
        return Ok(only);
    }
    let most = || all.iter().max_by_key(|demand| demand.hugepages().saturating_add(demand.memory_min));
    if platform != Platform::Hosts {
        return most().ok_or_else(|| Failure::usage(format!("{} starts no processes", path.display())));
    }
    let own = if tree.is_this_host() { interface::addresses().unwrap_or_default() } else { Vec::new() };
    let is_own = |demand: &&HostDemand| {
        host_is_loopback(&demand.host) || own.iter().any(|(_, address)| demand.host.parse() == Ok(*address))
    };
    all.iter().find(is_own).ok_or_else(|| {
        Failure::usage(format!("no host of {} has an address of this host", path.display()))
            .tried(format!("--plan {}", path.display()))
            .found(format!("hosts {}", names()))
            .next("name the host to check with --plan-host HOST")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_lists_only_some_of_many_hosts() {
        let hosts = |count: usize| -> Vec<HostDemand> {
            (0..count).map(|i| HostDemand { host: format!("h{i}"), ..HostDemand::default() }).collect()
        };
        assert_eq!(listed(&hosts(2)), "h0, h1");
        assert!(listed(&hosts(2500)).ends_with("h15 and 2484 more"));
    }
}
