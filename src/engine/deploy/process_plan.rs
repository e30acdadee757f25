//! The plan of one process. It contains everything that a writer needs.

use crate::bound::BoundCause;
use mcctl_base::HostPort;

/// The role of a process in the deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ComponentRole {
    /// Holds the store's metadata.
    Master,
    /// Forwards requests to the metadata service of a master that is alive.
    MetadataProxy,
    Store,
    Server,
    Prefill,
    /// Decodes requests after prefill on another server.
    Decode,
    /// Distributes requests to prefill and decode servers.
    Router,
}

impl ComponentRole {
    /// The role as it appears in names: `master`, `store`, ...
    pub fn word(self) -> &'static str {
        match self {
            ComponentRole::Master => "master",
            ComponentRole::MetadataProxy => "metadata-proxy",
            ComponentRole::Store => "store",
            ComponentRole::Server => "server",
            ComponentRole::Prefill => "prefill",
            ComponentRole::Decode => "decode",
            ComponentRole::Router => "router",
        }
    }

    /// Whether the process runs SGLang with a model.
    pub fn is_engine(self) -> bool {
        matches!(self, ComponentRole::Server | ComponentRole::Prefill | ComponentRole::Decode)
    }
}

/// The image that contains the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// `images.sglang`.
    Sglang,
    /// `images.store`, or `images.sglang` if it is empty.
    Store,
    /// `images.router`.
    Router,
    /// `images.mcctl`.
    Mcctl,
}

/// A listening port of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// At most 15 characters (a Kubernetes limit).
    pub name: &'static str,
    pub number: u16,
    /// The key of the deployment file that sets the number.
    pub key: &'static str,
}

/// How to probe a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    Http {
        port: u16,
        path: &'static str,
        /// Whether the port accepts only HTTPS.
        tls: bool,
    },
    /// The port accepts a connection.
    Tcp { port: u16 },
    /// A command in the container exits with 0.
    Exec { argv: Vec<String> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    pub by: ProbeAction,
    /// Seconds between two probes.
    pub period_s: u32,
    pub timeout_s: u32,
    /// Consecutive failures after which the probe counts as failed.
    pub failures: u32,
}

/// The Kubernetes probes of a process. Compose uses the readiness probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSet {
    /// The process has started. The other probes wait for it.
    pub startup: ProbeSpec,
    /// The process can receive requests.
    pub readiness: ProbeSpec,
    /// If this probe fails, the process is restarted.
    pub liveness: ProbeSpec,
}

/// Memory that a process certainly uses, without headroom and estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirmMemory {
    /// Base-page memory in bytes.
    pub memory: u64,
    /// Huge page memory in bytes.
    pub hugepages: u64,
    /// Base-page memory that must be available when SGLang starts, in bytes. SGLang checks it.
    pub guard: Option<u64>,
    /// Bytes that a rank or node registers with RDMA devices and therefore locks.
    pub locked: Option<u64>,
    /// Why the other numbers are bounds; `None` if they are exact.
    pub bound: Option<BoundCause>,
}

/// The resources of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessResources {
    /// Limit on base-page memory, including headroom, in bytes. `None` if the limit depends on a
    /// pool of unknown size.
    pub memory: Option<u64>,
    /// What of `memory` and `hugepages` is certain.
    pub firm: FirmMemory,
    /// CPU request. CPUs are not limited.
    pub cpus: u32,
    /// Huge page size in bytes, and the number of pages.
    pub hugepages: Option<(u64, u64)>,
    pub gpus: u64,
    /// Whether the process opens RDMA devices.
    pub rdma: bool,
    /// Size of `/dev/shm` in bytes, included in `memory`. 0 keeps the runtime's default.
    pub shm: u64,
    /// Whether the process must be able to lock all its memory.
    pub memlock: bool,
}

/// A host directory that a process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// The path, the same on the host and in the container.
    pub path: String,
    pub writes: bool,
}

/// A directory whose contents outlive the process. In containers, a volume of its own is mounted
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataVolume {
    /// Name of the volume: a DNS label, unique on its host. In a StatefulSet, each pod has a claim
    /// of its own.
    pub name: String,
    pub path: String,
    /// Disk space that the contents may need, in bytes.
    pub bytes: u64,
    /// Size of the volume in Kubernetes, in bytes.
    pub volume_bytes: u64,
}

/// A secret that a process reads from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    /// The flag that names the file, without dashes.
    pub flag: &'static str,
    /// On plain hosts, the path of the file. In Kubernetes, the name of a Secret with the key
    /// [`SecretFile::KEY`].
    pub source: String,
}

impl SecretFile {
    /// The key in a Kubernetes Secret, and the file's name in a pod and in the credentials of a
    /// unit.
    pub const KEY: &str = "ha-secret";
    /// Where a Secret is mounted in a pod.
    pub const DIRECTORY: &str = "/etc/mcctl-secret";
}

/// A file of access control that a process reads, and reads again when it changes. A flag in `argv`
/// names its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessFile {
    /// The path that the process opens.
    pub path: String,
    /// The Secret that contains the file in Kubernetes. `None` on plain hosts.
    pub secret: Option<SecretVolume>,
}

impl AccessFile {
    /// Where the Secrets are mounted in a pod, each in a directory with the name of its volume.
    pub const DIRECTORY: &str = "/etc/mcctl-access";
}

/// A Secret that is mounted as a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretVolume {
    /// Name of the volume: a DNS label.
    pub volume: &'static str,
    pub secret: String,
}

/// Addresses to wait for before a process starts. An empty list means no wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartupWait {
    /// The wait ends when one of these addresses accepts connections.
    pub any_of: Vec<HostPort>,
    pub seconds: u32,
}

/// A request that is sent to a process before it is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainHook {
    pub port: u16,
    /// Path of the POST request.
    pub path: &'static str,
    pub body: String,
    pub seconds: u32,
}

/// A process on a plain host, or the container of a workload in Kubernetes.
///
/// On plain hosts, each `ProcessPlan` is one process: `host` names its host; `replicas` and `size`
/// are 1. In Kubernetes, each one is a container template. Plans with the same `workload` are
/// containers of one pod (NUMA nodes). The workload has `replicas` groups of `size` pods. Values
/// may use `$(POD_IP)` and, if `size` is above 1, `$(NODE_RANK)` (with RBG, its own variables). The
/// writer must define these variables before the values that use them.
///
/// In Kubernetes, values rely on these names: without high availability, the ClusterIP Service
/// `NAME-master`. Otherwise, and for engines, a headless Service with the name of the workload,
/// whose pods are `WORKLOAD-i`. With RBG, the Service is `s-WORKLOAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessPlan {
    pub role: ComponentRole,
    /// A DNS label, unique in the deployment.
    pub name: String,
    /// Name of the workload: `name` without host number and NUMA node.
    pub workload: String,
    /// Host name on plain hosts, otherwise empty.
    pub host: String,
    pub replicas: u32,
    /// Pods per replica in Kubernetes.
    pub size: u32,
    /// NUMA node that the process is bound to.
    pub numa: Option<u32>,
    pub image: ImageSource,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub ports: Vec<NamedPort>,
    pub resources: ProcessResources,
    pub mounts: Vec<HostMount>,
    pub data: Option<DataVolume>,
    /// Its flag is not in `argv`, because the path depends on the platform.
    pub secret: Option<SecretFile>,
    /// Files of access control.
    pub access: Vec<AccessFile>,
    /// In containers on plain hosts, a named volume for downloaded models, at
    /// [`ProcessPlan::MODEL_CACHE`].
    pub model_cache: Option<String>,
    pub probes: ProbeSet,
    /// Roles whose processes start earlier.
    pub after: Vec<ComponentRole>,
    pub wait: StartupWait,
    /// Seconds between SIGTERM and SIGKILL, including the drain and a final snapshot.
    pub stop_s: u32,
    pub drain: Option<DrainHook>,
}

impl ProcessPlan {
    /// The directory for downloaded models in a container: the default of the Hub's client for
    /// root.
    pub const MODEL_CACHE: &str = "/root/.cache/huggingface";

    /// The value of the variable `name`.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The number of the port `name`.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|port| port.name == name).map(|port| port.number)
    }

    /// A bash script that waits for [`ProcessPlan::wait`]. `None` if the list is empty.
    pub fn wait_script(&self) -> Option<String> {
        if self.wait.any_of.is_empty() {
            return None;
        }
        let tries: Vec<String> = self
            .wait
            .any_of
            .iter()
            .map(|at| format!("timeout 2 bash -c '</dev/tcp/{}/{}' 2>/dev/null", at.host, at.port))
            .collect();
        let names: Vec<String> = self.wait.any_of.iter().map(HostPort::to_string).collect();
        Some(format!(
            "n=0; until {}; do n=$((n+1)); [ $n -lt {} ] || {{ echo no response from {} >&2; exit 1; }}; sleep 1; done",
            tries.join(" || "),
            self.wait.seconds,
            names.join(" or "),
        ))
    }

    /// The drain command. It needs Python, which upstream's node image contains. Upstream's nodes
    /// serve REST on IPv4 only.
    pub fn drain_argv(&self) -> Option<Vec<String>> {
        let drain = self.drain.as_ref()?;
        let script = format!(
            "import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:{}{}', data=b'{}', \
             headers={{'content-type': 'application/json'}}), timeout={})",
            drain.port, drain.path, drain.body, drain.seconds
        );
        Some(vec!["python3".to_owned(), "-c".to_owned(), script])
    }

    /// Program and arguments, for a secret file at `path`.
    pub fn argv_with_secret(&self, path: &str) -> Vec<String> {
        let flag = self.secret.iter().map(|secret| format!("--{}={path}", secret.flag));
        self.argv.iter().cloned().chain(flag).collect()
    }

    /// Program and arguments in a container: the wait, then numactl (which needs SYS_NICE) to bind
    /// to the NUMA node. The shell execs the program, so that signals reach it.
    pub fn container_argv(&self) -> Vec<String> {
        let in_pod = format!("{}/{}", SecretFile::DIRECTORY, SecretFile::KEY);
        let path = self.secret.as_ref().filter(|_| !self.host.is_empty()).map_or(&in_pod, |secret| &secret.source);
        let mut argv = self.argv_with_secret(path);
        if let Some(node) = self.numa {
            let bound = ["numactl".to_owned(), format!("--cpunodebind={node}"), format!("--membind={node}")];
            argv.splice(0..0, bound);
        }
        if let Some(script) = self.wait_script() {
            let shell = ["bash".to_owned(), "-c".to_owned(), format!("{script}; exec \"$@\""), "wait".to_owned()];
            argv.splice(0..0, shell);
        }
        argv
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan with default values.
    pub(crate) fn bare() -> ProcessPlan {
        let probe = ProbeSpec { by: ProbeAction::Tcp { port: 1 }, period_s: 1, timeout_s: 1, failures: 1 };
        ProcessPlan {
            role: ComponentRole::Store,
            name: "a-store-0".to_owned(),
            workload: "a-store".to_owned(),
            host: "h".to_owned(),
            replicas: 1,
            size: 1,
            numa: None,
            image: ImageSource::Store,
            argv: vec!["p".to_owned(), "x y".to_owned()],
            env: Vec::new(),
            ports: Vec::new(),
            resources: ProcessResources::default(),
            mounts: Vec::new(),
            data: None,
            secret: None,
            access: Vec::new(),
            model_cache: None,
            probes: ProbeSet { startup: probe.clone(), readiness: probe.clone(), liveness: probe },
            after: Vec::new(),
            wait: StartupWait::default(),
            stop_s: 30,
            drain: None,
        }
    }

    #[test]
    fn a_container_command_waits_and_then_execs_the_program() {
        assert_eq!(bare().container_argv(), ["p", "x y"]);
        let wait = StartupWait { any_of: vec![HostPort::new("m", 1), HostPort::new("n", 2)], seconds: 9 };
        let argv = ProcessPlan { numa: Some(1), wait, ..bare() }.container_argv();
        assert_eq!(&argv[..2], ["bash", "-c"]);
        assert!(argv[2].ends_with("; exec \"$@\"") && argv[2].contains("</dev/tcp/n/2"), "{}", argv[2]);
        assert_eq!(&argv[3..], ["wait", "numactl", "--cpunodebind=1", "--membind=1", "p", "x y"]);
    }
}
