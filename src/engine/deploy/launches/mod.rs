//! Which processes a deployment means, and everything about each.

mod engine;
mod master;
mod router;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use crate::engine::base::HostPort;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::deploy::check::check;
use crate::engine::deploy::{
    DeployError, Deployment, HugePageSize, Launch, MetadataKind, Programs, Protocol, Release, Role, Wait,
};

/// Where the processes run: that decides how they name each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Hosts that the file names.
    Hosts,
    /// Pods of Deployments and StatefulSets.
    Kubernetes,
    /// Pods of a RoleBasedGroup.
    Rbg,
}

/// Seconds that a process waits for those before it.
const WAIT_S: u32 = 600;

/// The processes of `wanted` on `ground`, in the order in which they are started.
///
/// # Errors
/// The file contradicts itself, or the store or SGLang would refuse it.
pub fn launches(wanted: &Deployment, ground: Ground) -> Result<Vec<Launch>, DeployError> {
    check(wanted, ground)?;
    let place = Place { wanted, ground };
    let mut all = master::launches(&place)?;
    all.extend(store::launches(&place)?);
    all.extend(engine::launches(&place)?);
    all.extend(router::launches(&place));
    ports_are_free(&all, ground)?;
    Ok(all)
}

/// Two processes of one host, or of one pod, cannot have one port.
fn ports_are_free(all: &[Launch], ground: Ground) -> Result<(), DeployError> {
    let mut taken: BTreeMap<(&str, u16), &str> = BTreeMap::new();
    for launch in all {
        let place = if ground == Ground::Hosts { &launch.host } else { &launch.workload };
        for port in &launch.ports {
            if let Some(first) = taken.insert((place, port.number), &launch.name) {
                return Err(DeployError::PortTaken {
                    host: place.clone(),
                    port: port.number,
                    first: first.to_owned(),
                    second: launch.name.clone(),
                });
            }
        }
    }
    Ok(())
}

/// A deployment on a ground: how its processes call each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub wanted: &'a Deployment,
    pub ground: Ground,
}

impl Place<'_> {
    pub fn on_hosts(&self) -> bool {
        self.ground == Ground::Hosts
    }

    /// The name of a workload.
    pub fn workload(&self, role: Role) -> String {
        format!("{}-{}", self.wanted.name, role.word())
    }

    /// The `index`-th pod of a workload, as DNS knows it within the namespace.
    pub fn pod(&self, workload: &str, index: u32) -> String {
        match self.ground {
            Ground::Rbg => format!("{workload}-{index}.s-{workload}"),
            Ground::Hosts | Ground::Kubernetes => format!("{workload}-{index}.{workload}"),
        }
    }

    /// The address by which others reach a process of `host`.
    pub fn own_address(&self, host: &str) -> String {
        if self.on_hosts() { host.to_owned() } else { "$(POD_IP)".to_owned() }
    }

    /// The address that a port of `host` is bound to: only the loopback is kept to itself.
    pub fn bind_address(&self, host: &str) -> &'static str {
        if self.on_hosts() && host_is_loopback(host) { "127.0.0.1" } else { "0.0.0.0" }
    }

    /// Addresses of the masters, with the port `port`.
    pub fn masters(&self, port: u16) -> Vec<HostPort> {
        let master = &self.wanted.master;
        let workload = self.workload(Role::Master);
        match (self.ground, &master.ha) {
            (Ground::Hosts, _) => master.hosts.iter().map(|host| HostPort::new(host, port)).collect(),
            (_, Some(ha)) => (0..ha.replicas).map(|i| HostPort::new(self.pod(&workload, i), port)).collect(),
            (Ground::Kubernetes, None) => vec![HostPort::new(workload, port)],
            (Ground::Rbg, None) => vec![HostPort::new(self.pod(&workload, 0), port)],
        }
    }

    /// What clients take for the master's address.
    fn master_address(&self) -> String {
        match &self.wanted.master.ha {
            Some(ha) => format!("etcd://{}", ha.etcd.join(";")),
            None => self.masters(self.wanted.master.rpc_port).iter().map(HostPort::to_string).collect(),
        }
    }

    /// What transfer engines are told to find each other.
    fn metadata(&self) -> String {
        let metadata = &self.wanted.metadata;
        match (metadata.kind, metadata.url.is_empty()) {
            (MetadataKind::P2p, _) => "P2PHANDSHAKE".to_owned(),
            (MetadataKind::Http, false) => metadata.url.clone(),
            (MetadataKind::Http, true) => {
                let at: String = self.masters(metadata.port).iter().map(HostPort::to_string).collect();
                format!("http://{at}/metadata")
            }
        }
    }

    /// What every client of the store on `host` is told, engines and nodes alike.
    pub fn client_env(&self, host: &str) -> Vec<(String, String)> {
        let (wanted, transfer) = (self.wanted, &self.wanted.transfer);
        let own = self.own_address(host);
        let mut env = vec![
            ("MOONCAKE_MASTER", self.master_address()),
            ("MOONCAKE_TE_META_DATA_SERVER", self.metadata()),
            ("MOONCAKE_LOCAL_HOSTNAME", own.clone()),
            ("MOONCAKE_PROTOCOL", transfer.protocol.text().to_owned()),
        ];
        if transfer.protocol == Protocol::Rdma {
            env.push(("MOONCAKE_DEVICE", transfer.devices.join(",")));
            if let Some(index) = transfer.gid_index {
                env.push(("MC_GID_INDEX", index.to_string()));
            }
        }
        if wanted.metadata.kind == MetadataKind::Http {
            // Else the engine announces the first address of the host, whichever network that is in.
            env.push(("MC_TCP_BIND_ADDRESS", own));
        }
        if let Some(ha) = &wanted.master.ha {
            env.push(("MC_STORE_CLUSTER_ID", ha.cluster_id.clone()));
        }
        let page = match wanted.hugepages.size {
            HugePageSize::None => None,
            HugePageSize::Mib2 => Some("2MB"),
            HugePageSize::Gib1 => Some("1GB"),
        };
        if let Some(page) = page {
            env.push(("MC_STORE_USE_HUGEPAGE", "1".to_owned()));
            env.push(("MC_STORE_HUGEPAGE_SIZE", page.to_owned()));
        }
        env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// A client of the store starts when a master serves: a stand-by's RPC port is closed.
    pub fn wait_for_master(&self) -> Wait {
        Wait { any_of: self.masters(self.wanted.master.rpc_port), seconds: WAIT_S }
    }

    /// A program of the store: upstream's name, or mcctl with its words.
    pub fn program(&self, upstream: &str, ours: [&str; 2]) -> Vec<String> {
        let dir = &self.wanted.host.bin_dir;
        let at = |name: &str| {
            if self.on_hosts() && !dir.is_empty() {
                format!("{}/{name}", dir.trim_end_matches('/'))
            } else {
                name.to_owned()
            }
        };
        match self.wanted.programs {
            Programs::Upstream => vec![at(upstream)],
            Programs::Mcctl => [&[at("mcctl")][..], &ours.map(str::to_owned)].concat(),
        }
    }

    pub fn is_ours(&self) -> bool {
        self.wanted.programs == Programs::Mcctl
    }

    /// Has the release what came with `release`?
    pub fn has(&self, release: Release) -> bool {
        self.is_ours() || self.wanted.mooncake >= release
    }

    /// Python with SGLang. In a container it is the image's.
    pub fn python(&self) -> String {
        if self.on_hosts() { self.wanted.host.python.clone() } else { "python3".to_owned() }
    }

    /// Names of the processes, or the workload, of the masters.
    pub fn master_names(&self) -> Vec<String> {
        let workload = self.workload(Role::Master);
        if self.on_hosts() && self.wanted.master.ha.is_some() {
            (0..self.wanted.master.hosts.len()).map(|i| format!("{workload}-{i}")).collect()
        } else {
            vec![workload]
        }
    }
}
