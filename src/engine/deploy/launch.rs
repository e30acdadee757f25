//! A process that a deployment starts: all that a writer needs to know of it.

use crate::engine::base::HostPort;

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The index of the store.
    Master,
    /// Lends memory.
    Store,
    /// Serves a model.
    Server,
    /// Prefills for others.
    Prefill,
    /// Decodes what others prefilled.
    Decode,
    /// Hands requests to prefill and decode servers.
    Router,
}

impl Role {
    /// The word in names: `master`, `store`, ...
    pub fn word(self) -> &'static str {
        match self {
            Role::Master => "master",
            Role::Store => "store",
            Role::Server => "server",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Router => "router",
        }
    }

    /// Does it run SGLang with a model?
    pub fn is_engine(self) -> bool {
        matches!(self, Role::Server | Role::Prefill | Role::Decode)
    }
}

/// Which image has the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// `images.sglang`.
    Sglang,
    /// `images.store`, else `images.sglang`.
    Store,
    /// `images.router`.
    Router,
    /// `images.mcctl`.
    Mcctl,
}

/// A port that a process listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// At most 15 characters, for Kubernetes.
    pub name: &'static str,
    /// The number.
    pub number: u16,
}

/// How to ask a process whether it is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeBy {
    /// It answers GET with 2xx.
    Http {
        /// Port.
        port: u16,
        /// Path.
        path: &'static str,
    },
    /// It accepts a connection.
    Tcp {
        /// Port.
        port: u16,
    },
    /// A command beside it ends with 0.
    Exec {
        /// The command.
        argv: Vec<String>,
    },
}

/// A question that is asked again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// How.
    pub by: ProbeBy,
    /// Seconds between two.
    pub period_s: u32,
    /// Seconds for an answer.
    pub timeout_s: u32,
    /// Answers that must be missing in a row.
    pub failures: u32,
}

/// The three questions of Kubernetes; Compose asks the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Has it started? Until then the others are not asked.
    pub startup: Probe,
    /// May it get requests?
    pub readiness: Probe,
    /// Must it be started again?
    pub liveness: Probe,
}

/// What a process takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Ordinary memory in bytes, with headroom: a limit. `None` where a ratio of an unknown pool decides.
    pub memory: Option<u64>,
    /// CPUs that it should have: a request, no limit.
    pub cpus: u32,
    /// Bytes of a huge page, and how many pages; `None` without.
    pub hugepages: Option<(u64, u64)>,
    /// GPUs.
    pub gpus: u64,
    /// Does it open RDMA devices?
    pub rdma: bool,
    /// Bytes of `/dev/shm`, contained in `memory`; 0 leaves it as it is.
    pub shm: u64,
    /// Must it be able to lock all its memory?
    pub memlock: bool,
}

/// A folder of the host that a process reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The same inside and outside.
    pub path: String,
    /// Is it written?
    pub writes: bool,
}

/// What must accept connections before a process starts: any of `any_of`. Empty: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Addresses, of which one is enough.
    pub any_of: Vec<HostPort>,
    /// Seconds after which waiting ends with an error.
    pub seconds: u32,
}

/// What is done before a process is told to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// Port of the process that is asked.
    pub port: u16,
    /// Path that is posted to.
    pub path: &'static str,
    /// JSON body.
    pub body: String,
    /// Seconds that it may take.
    pub seconds: u32,
}

/// A process, or, in Kubernetes, the container of a workload.
///
/// On plain hosts there is one `Launch` per process: `host` names its host, `replicas` and `size` are 1. In Kubernetes there is one per
/// container template: launches of one `workload` are containers of one pod (NUMA nodes), of which there are `replicas` groups of
/// `size` pods; values may name `$(POD_IP)` and, where `size` is more than 1, `$(NODE_RANK)` (RBG: its own variables), which the
/// writer has to put before them.
///
/// Names that values rely on in Kubernetes: a ClusterIP Service `NAME-master` (without high availability), else and for engines a
/// headless Service with the name of the workload, whose pods are `WORKLOAD-i`. With RBG the Service is `s-WORKLOAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What it is for.
    pub role: Role,
    /// Unique in the deployment, a DNS label.
    pub name: String,
    /// Name of its workload: without the host's number and NUMA node.
    pub workload: String,
    /// Its host, on plain hosts; else empty.
    pub host: String,
    /// Copies, in Kubernetes.
    pub replicas: u32,
    /// Pods that make one copy, in Kubernetes.
    pub size: u32,
    /// The NUMA node that it is bound to.
    pub numa: Option<u32>,
    /// Which image has the program.
    pub image: Image,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables, each once.
    pub env: Vec<(String, String)>,
    /// Ports, each once.
    pub ports: Vec<Port>,
    /// What it takes.
    pub resources: Resources,
    /// Folders of the host.
    pub mounts: Vec<Mount>,
    /// How it is asked whether it is well.
    pub probes: Probes,
    /// Names (on plain hosts) or workloads (in Kubernetes) that are started before it.
    pub after: Vec<String>,
    /// What must accept connections before it starts.
    pub wait: Wait,
    /// Seconds from the request to end to the kill, the drain included.
    pub stop_s: u32,
    /// What is done before that.
    pub drain: Option<Drain>,
}

impl Launch {
    /// The value of a variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The number of the port `name`.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|port| port.name == name).map(|port| port.number)
    }

    /// The script that waits for [`Launch::wait`], for bash; `None` when there is nothing to wait for.
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
            "n=0; until {}; do n=$((n+1)); [ $n -lt {} ] || {{ echo no answer from {} >&2; exit 1; }}; sleep 1; done",
            tries.join(" || "),
            self.wait.seconds,
            names.join(" or "),
        ))
    }

    /// The command that drains, for Python; the program of the node is one, too.
    pub fn drain_argv(&self) -> Option<Vec<String>> {
        let drain = self.drain.as_ref()?;
        let script = format!(
            "import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:{}{}', data=b'{}', \
             headers={{'content-type': 'application/json'}}), timeout={})",
            drain.port, drain.path, drain.body, drain.seconds
        );
        Some(vec!["python3".to_owned(), "-c".to_owned(), script])
    }

    /// Program and arguments for a container: bound to its NUMA node by numactl (which needs SYS_NICE), behind the wait. The process itself is the first one
    /// of the container in the end, so that signals reach it.
    pub fn container_argv(&self) -> Vec<String> {
        let mut argv = self.argv.clone();
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

    /// A launch in which nothing is set.
    pub(crate) fn bare() -> Launch {
        let probe = Probe { by: ProbeBy::Tcp { port: 1 }, period_s: 1, timeout_s: 1, failures: 1 };
        Launch {
            role: Role::Store,
            name: "a-store-0".to_owned(),
            workload: "a-store".to_owned(),
            host: "h".to_owned(),
            replicas: 1,
            size: 1,
            numa: None,
            image: Image::Store,
            argv: vec!["p".to_owned(), "x y".to_owned()],
            env: Vec::new(),
            ports: Vec::new(),
            resources: Resources::default(),
            mounts: Vec::new(),
            probes: Probes { startup: probe.clone(), readiness: probe.clone(), liveness: probe },
            after: Vec::new(),
            wait: Wait::default(),
            stop_s: 30,
            drain: None,
        }
    }

    #[test]
    fn a_container_waits_and_then_becomes_the_program() {
        assert_eq!(bare().container_argv(), ["p", "x y"]);
        let wait = Wait { any_of: vec![HostPort::new("m", 1), HostPort::new("n", 2)], seconds: 9 };
        let argv = Launch { numa: Some(1), wait, ..bare() }.container_argv();
        assert_eq!(&argv[..2], ["bash", "-c"]);
        assert!(argv[2].ends_with("; exec \"$@\"") && argv[2].contains("</dev/tcp/n/2"), "{}", argv[2]);
        assert_eq!(&argv[3..], ["wait", "numactl", "--cpunodebind=1", "--membind=1", "p", "x y"]);
    }
}
