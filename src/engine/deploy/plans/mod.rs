//! Plans the processes of a deployment.

mod access;
mod engine;
#[cfg(test)]
mod host_tests;
mod master;
mod metadata_proxy;
mod router;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use crate::check::check;
use crate::error::PortUser;
use crate::host_address::{self, host_key, is_ipv6, is_same_host};
use crate::{
    ComponentRole, DeployError, DeploymentSpec, ImageSource, MetadataKind, Platform, ProcessPlan, Programs,
    StartupWait, StoreProtocol,
};
use mcctl_base::HostPort;
use mcctl_base::upstream::{checksum, master_flag};

/// Seconds that a process waits for the processes that start before it.
const WAIT_S: u32 = 600;
/// The variable with the metadata service of a client.
const METADATA_VARIABLE: &str = "MOONCAKE_TE_META_DATA_SERVER";

/// The processes of `spec` on `platform`, in start order.
///
/// # Errors
/// The file is invalid or contradicts itself, or the store or SGLang would reject a value.
pub fn plan_processes(spec: &DeploymentSpec, platform: Platform) -> Result<Vec<ProcessPlan>, DeployError> {
    check(spec, platform)?;
    let context = PlanContext { spec, platform };
    let mut all = master::plans(&context)?;
    let mut clients = store::plans(&context)?;
    clients.extend(engine::plans(&context)?);
    all.extend(metadata_proxy::plans(&context, &mut clients));
    all.extend(clients);
    all.extend(router::plans(&context));
    ports_are_free(&all, platform)?;
    Ok(all)
}

/// Checks that no two processes on a host or in a pod use the same port.
fn ports_are_free(all: &[ProcessPlan], platform: Platform) -> Result<(), DeployError> {
    let mut used: BTreeMap<(String, u16), (&ProcessPlan, &'static str)> = BTreeMap::new();
    for plan in all {
        let (host, shown) = match platform {
            Platform::Hosts => (host_key(&plan.host), &plan.host),
            Platform::Kubernetes | Platform::Rbg => (plan.workload.clone(), &plan.workload),
        };
        for port in &plan.ports {
            if let Some((first, key)) = used.insert((host.clone(), port.number), (plan, port.key)) {
                return Err(DeployError::PortTaken {
                    host: shown.clone(),
                    port: port.number,
                    first: Box::new(PortUser { process: first.name.clone(), host: first.host.clone(), key }),
                    second: Box::new(PortUser { process: plan.name.clone(), host: plan.host.clone(), key: port.key }),
                });
            }
        }
    }
    Ok(())
}

/// A deployment on a platform. It determines the addresses of its processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanContext<'a> {
    pub spec: &'a DeploymentSpec,
    pub platform: Platform,
}

impl PlanContext<'_> {
    pub(crate) fn on_hosts(&self) -> bool {
        self.platform == Platform::Hosts
    }

    /// The workload name for `role`.
    pub(crate) fn workload(&self, role: ComponentRole) -> String {
        format!("{}-{}", self.spec.name, role.word())
    }

    /// The DNS name of the `index`-th pod of a workload within its namespace.
    pub(crate) fn pod(&self, workload: &str, index: u32) -> String {
        match self.platform {
            Platform::Rbg => format!("{workload}-{index}.s-{workload}"),
            Platform::Hosts | Platform::Kubernetes => format!("{workload}-{index}.{workload}"),
        }
    }

    /// The address that peers use to reach a process on `host`.
    pub(crate) fn own_address(&self, host: &str) -> String {
        if self.on_hosts() { host.to_owned() } else { "$(POD_IP)".to_owned() }
    }

    /// The bind address for ports on `host`. A loopback host binds to loopback only.
    pub(crate) fn bind_address(&self, host: &str) -> &'static str {
        if self.on_hosts() { host_address::bind_address(host) } else { "0.0.0.0" }
    }

    /// How many masters before the `index`-th one run on the same host. Above 0 only in a lab. They
    /// use the ports before those of this one.
    pub(crate) fn earlier_masters(&self, index: usize) -> u16 {
        let hosts = &self.spec.master.hosts;
        // Without a lab, each master has a host of its own. A long list is then not compared with
        // itself.
        let Some(host) = hosts.get(index).filter(|_| self.spec.master.lab) else { return 0 };
        let same = hosts[..index].iter().filter(|other| is_same_host(other, host)).count();
        u16::try_from(same).unwrap_or(u16::MAX)
    }

    /// Addresses of the masters with port `port` (in a lab, that port of the first master on a
    /// host).
    pub(crate) fn masters(&self, port: u16) -> Vec<HostPort> {
        let master = &self.spec.master;
        let workload = self.workload(ComponentRole::Master);
        match (self.platform, &master.ha) {
            (Platform::Hosts, _) => {
                let hosts = master.hosts.iter().enumerate();
                hosts.map(|(i, host)| HostPort::new(host, port.saturating_add(self.earlier_masters(i)))).collect()
            }
            (_, Some(ha)) => (0..ha.replicas).map(|i| HostPort::new(self.pod(&workload, i), port)).collect(),
            (Platform::Kubernetes, None) => vec![HostPort::new(workload, port)],
            (Platform::Rbg, None) => vec![HostPort::new(self.pod(&workload, 0), port)],
        }
    }

    /// The master address for clients.
    fn master_address(&self) -> String {
        match &self.spec.master.ha {
            Some(ha) => format!("etcd://{}", ha.etcd.join(";")),
            None => self.masters(self.spec.master.rpc_port).iter().map(HostPort::to_string).collect(),
        }
    }

    /// The name of the Kubernetes Service in front of the metadata services of all masters.
    pub(crate) fn metadata_service(&self) -> String {
        format!("{}-metadata", self.workload(ComponentRole::Master))
    }

    /// The metadata server setting for transfer engines.
    fn metadata(&self) -> String {
        let metadata = &self.spec.metadata;
        match (metadata.kind, metadata.url.is_empty()) {
            (MetadataKind::P2p, _) => "P2PHANDSHAKE".to_owned(),
            (MetadataKind::Http, false) => metadata.url.clone(),
            (MetadataKind::Http, true) => {
                let at = match (self.spec.replicates_metadata(), self.on_hosts()) {
                    (false, _) => self.masters(metadata.port).iter().map(HostPort::to_string).collect(),
                    (true, true) => HostPort::new(metadata_proxy::HOST, metadata.proxy_port).to_string(),
                    (true, false) => HostPort::new(self.metadata_service(), metadata.port).to_string(),
                };
                format!("http://{at}/metadata")
            }
        }
    }

    /// The environment for store clients (engines and nodes) on `host`.
    pub(crate) fn client_env(&self, host: &str) -> Vec<(String, String)> {
        let spec = self.spec;
        let transfer = &self.spec.transfer;
        let own = self.own_address(host);
        let mut env = vec![
            ("MOONCAKE_MASTER", self.master_address()),
            (METADATA_VARIABLE, self.metadata()),
            ("MOONCAKE_LOCAL_HOSTNAME", own.clone()),
            ("MOONCAKE_PROTOCOL", transfer.protocol.text().to_owned()),
        ];
        if transfer.protocol == StoreProtocol::Rdma {
            env.push(("MOONCAKE_DEVICE", transfer.devices.join(",")));
            if let Some(index) = transfer.gid_index {
                env.push(("MC_GID_INDEX", index.to_string()));
            }
        }
        if spec.metadata.kind == MetadataKind::Http {
            // By default, the engine announces the first address of the host, which may be in
            // another network.
            env.push(("MC_TCP_BIND_ADDRESS", own));
        }
        if self.on_hosts() && is_ipv6(host) {
            // Without it, upstream's transfer engine listens for handshakes on IPv4 only.
            env.push(("MC_USE_IPV6", "1".to_owned()));
        }
        if let Some(ha) = &spec.master.ha {
            env.push(("MC_STORE_CLUSTER_ID", ha.cluster_id.clone()));
        }
        if let Some(page) = spec.hugepages.size.text() {
            env.push(("MC_STORE_USE_HUGEPAGE", "1".to_owned()));
            env.push(("MC_STORE_HUGEPAGE_SIZE", page.to_owned()));
        }
        env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The variable for the checksums of a store client: the wheel's, or mcctl's. `None` if the
    /// client's default is right.
    pub(crate) fn checksum_env(&self, is_mcctl: bool) -> Option<(String, String)> {
        let value = match (is_mcctl, self.spec.transfer.checksums) {
            (true, Some(false)) => "0",
            (false, Some(true)) if self.spec.mooncake.has(Some(checksum::SINCE)) => "1",
            _ => return None,
        };
        Some((checksum::VARIABLE.to_owned(), value.to_owned()))
    }

    /// How a store client waits for a serving master. A standby's RPC port is closed.
    pub(crate) fn wait_for_master(&self) -> StartupWait {
        StartupWait { any_of: self.masters(self.spec.master.rpc_port), seconds: WAIT_S }
    }

    /// The program of a store process: upstream's, or mcctl with its subcommand.
    pub(crate) fn program(&self, upstream: &str, ours: [&str; 2]) -> Vec<String> {
        let dir = &self.spec.host.bin_dir;
        let at = |name: &str| {
            if self.on_hosts() && !dir.is_empty() {
                format!("{}/{name}", dir.trim_end_matches('/'))
            } else {
                name.to_owned()
            }
        };
        match self.spec.programs {
            Programs::Upstream => vec![at(upstream)],
            Programs::Mcctl => [&[at("mcctl")][..], &ours.map(str::to_owned)].concat(),
        }
    }

    pub(crate) fn is_mcctl(&self) -> bool {
        self.spec.programs == Programs::Mcctl
    }

    /// The image with the master and the store nodes.
    pub(crate) fn store_image(&self) -> ImageSource {
        if self.is_mcctl() { ImageSource::Mcctl } else { ImageSource::Store }
    }

    /// Whether the master has the upstream flag `name`.
    pub(crate) fn has_flag(&self, name: &str) -> bool {
        self.is_mcctl() || master_flag(name).is_none_or(|flag| self.spec.mooncake.has(flag.since))
    }

    /// The Python interpreter with SGLang. In a container, the image's interpreter.
    pub(crate) fn python(&self) -> String {
        if self.on_hosts() { self.spec.host.python.clone() } else { "python3".to_owned() }
    }

    /// Process or workload names of the masters.
    pub(crate) fn master_names(&self) -> Vec<String> {
        let workload = self.workload(ComponentRole::Master);
        if self.on_hosts() && self.spec.master.ha.is_some() {
            (0..self.spec.master.hosts.len()).map(|i| format!("{workload}-{i}")).collect()
        } else {
            vec![workload]
        }
    }
}
