//! The parsed deployment: processes with their arguments and variables, and the objects around
//! them. Every string carries its location.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lint::shell::choice::ScriptSpan;
use crate::lint::shell::places::UnreadPlace;
use crate::lint::yaml::YamlNode;
use mcctl_base::check::{Finding, SourceLocation};

/// A string and its location in the source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedValue {
    /// The string without quotes.
    pub text: String,
    pub place: SourceLocation,
}

impl LocatedValue {
    /// A string at `place`.
    pub fn new(text: impl Into<String>, place: SourceLocation) -> LocatedValue {
        LocatedValue { text: text.into(), place }
    }

    /// Whether the value is known statically. A string that contains a `$` is resolved at run time,
    /// and one with `{{` by a template engine.
    pub fn is_known(&self) -> bool {
        !self.text.contains('$') && !self.text.contains("{{")
    }
}

/// The role of a process in the deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProcessRole {
    /// `mooncake_master` or `mcctl serve master`.
    Master,
    /// A standalone HTTP metadata service.
    Metadata,
    /// `mooncake_store_service` or `mcctl serve store`: contributes memory.
    Store,
    /// `mooncake_client`, the real client that serves dummy clients.
    RealClient,
    Sglang(SglangMode),
    Vllm,
    /// LMCache inside an engine, with Mooncake as its remote store.
    Lmcache,
    /// A router in front of SGLang servers.
    Router,
    /// `mcctl up`: the whole stack in one process.
    Up,
    /// Variables without a program, from an environment file or a shell. They may be for SGLang or
    /// for a store service.
    Environment,
    Other,
}

/// The serving mode of an SGLang server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SglangMode {
    Whole,
    Prefill,
    Decode,
}

impl ProcessRole {
    /// The role as a noun in messages.
    pub const fn noun(self) -> &'static str {
        match self {
            ProcessRole::Master => "master",
            ProcessRole::Metadata => "metadata service",
            ProcessRole::Store => "store service",
            ProcessRole::RealClient => "real client",
            ProcessRole::Sglang(SglangMode::Whole) => "SGLang server",
            ProcessRole::Sglang(SglangMode::Prefill) => "prefill server",
            ProcessRole::Sglang(SglangMode::Decode) => "decode server",
            ProcessRole::Vllm => "vLLM server",
            ProcessRole::Lmcache => "LMCache client",
            ProcessRole::Router => "router",
            ProcessRole::Up => "mcctl up",
            ProcessRole::Environment => "environment",
            ProcessRole::Other => "process",
        }
    }

    /// Whether this is an SGLang server.
    pub const fn is_sglang(self) -> bool {
        matches!(self, ProcessRole::Sglang(_))
    }

    /// Whether the process contains a Mooncake client.
    pub const fn is_client(self) -> bool {
        matches!(self, ProcessRole::Store | ProcessRole::RealClient | ProcessRole::Sglang(_))
    }
}

/// Which implementation a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    Upstream,
    Mcctl,
}

impl Implementation {
    /// The value in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Implementation::Upstream => "upstream",
            Implementation::Mcctl => "mcctl",
        }
    }
}

/// What starts a process. It determines the syntax of the process's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// A container of a pod.
    Kubernetes,
    /// A service of a Compose file.
    Compose,
    /// `docker run`.
    Docker,
    Unit,
    /// A command line or a script on any host.
    Shell,
    Running,
    /// A settings file without a process.
    File,
}

impl RuntimeKind {
    /// Whether the process has its own file system and devices.
    pub const fn is_container(self) -> bool {
        matches!(self, RuntimeKind::Kubernetes | RuntimeKind::Compose | RuntimeKind::Docker)
    }
}

/// An environment variable of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The value. It may still contain a `$`.
    Text(LocatedValue),
    /// Set outside the provided files: a pod field, a secret, or the caller's shell. The string
    /// names the source.
    Elsewhere(LocatedValue),
}

impl Variable {
    /// Where the variable is set.
    pub fn place(&self) -> &SourceLocation {
        match self {
            Variable::Text(located) | Variable::Elsewhere(located) => &located.place,
        }
    }
}

/// The purpose of a container probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePurpose {
    Readiness,
    /// If this probe fails, the container is restarted.
    Liveness,
    Startup,
}

impl ProbePurpose {
    /// The key in a Kubernetes manifest.
    pub const fn key(self) -> &'static str {
        match self {
            ProbePurpose::Readiness => "readinessProbe",
            ProbePurpose::Liveness => "livenessProbe",
            ProbePurpose::Startup => "startupProbe",
        }
    }
}

/// How a probe checks the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeMethod {
    /// The port accepts a connection.
    Tcp { port: Option<u16> },
    /// The response has a successful status code.
    Http { port: Option<u16>, path: String },
    /// A command, as a single line.
    Exec(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerProbe {
    pub what: ProbePurpose,
    pub how: ProbeMethod,
    pub place: SourceLocation,
}

/// Limit and request for one container resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAmounts {
    pub limit: Option<LocatedValue>,
    pub request: Option<LocatedValue>,
}

/// A mounted path of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerMount {
    pub path: String,
    pub source: MountSource,
    pub place: SourceLocation,
}

/// The source of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A path on the host.
    Host(String),
    /// Memory (`emptyDir` with medium Memory, or tmpfs) and its size limit.
    Memory(Option<String>),
    /// `emptyDir` on the host's disk. It exists as long as its pod.
    EmptyDir,
    /// Any other volume: a claim, a named volume, a config map.
    Volume(String),
}

/// Resource limits and privileges of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// By name: `memory`, `cpu`, `hugepages-2Mi`, `rdma/hca`.
    pub resources: BTreeMap<String, ResourceAmounts>,
    /// Location of `privileged`, if set.
    pub privileged: Option<SourceLocation>,
    pub capabilities: Vec<LocatedValue>,
    /// The user that the process runs as, if specified.
    pub user: Option<LocatedValue>,
    /// Location of `runAsNonRoot`, if set.
    pub non_root: Option<SourceLocation>,
    pub memlock: Option<LocatedValue>,
    pub shm_size: Option<LocatedValue>,
    /// The process uses the host's IPC namespace.
    pub host_ipc: bool,
    /// The process uses the host's network.
    pub host_network: bool,
    /// Host devices passed to the container.
    pub devices: Vec<LocatedValue>,
    pub mounts: Vec<ContainerMount>,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: Option<LocatedValue>,
    /// Whether another file may set more than what is known, or other values.
    pub is_partial: bool,
}

/// A port that a container declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredPort {
    /// Port number inside the container.
    pub number: u16,
    /// Name that Services use to refer to the port.
    pub name: Option<String>,
    pub place: SourceLocation,
}

/// A package with the version that a `pip install` command requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledPackage {
    /// In lower case, with hyphens and without extras.
    pub name: String,
    /// `None` if the command does not fix it.
    pub version: Option<String>,
    /// Whether it is surely from the package index: no path, URL or list of requirements that may
    /// contain a build of its own.
    pub is_published: bool,
}

impl InstalledPackage {
    /// The package if it is not known what is installed.
    pub fn unknown(self) -> InstalledPackage {
        InstalledPackage { version: None, is_published: false, ..self }
    }
}

/// A process that will be started or is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Name in messages: `role store of group demo`, `service master`.
    pub name: String,
    pub role: ProcessRole,
    pub implementation: Implementation,
    /// Whether mcctl's launcher starts the program, so that its store client is mcctl's.
    pub is_launched: bool,
    pub place: SourceLocation,
    pub runtime: RuntimeKind,
    /// Arguments without the program name.
    pub args: Vec<LocatedValue>,
    pub env: BTreeMap<String, Variable>,
    /// Whether `env` is complete. False for a shell, or if variables come from a file that was not
    /// provided.
    pub env_whole: bool,
    /// Whether `args` is complete. False for a settings file without a process.
    pub args_whole: bool,
    /// Processes with the same value share a network namespace.
    pub network: String,
    pub pod: Option<usize>,
    pub replicas: Option<LocatedValue>,
    pub image: Option<LocatedValue>,
    pub limits: ProcessLimits,
    pub probes: Vec<ContainerProbe>,
    pub ports: Vec<DeclaredPort>,
    /// `docker run` options placed after the image, where they become arguments of the program.
    pub misplaced: Vec<LocatedValue>,
    pub pre_stop: Option<LocatedValue>,
    /// Index into [`ParsedDeployment::documents`] of the settings file that the process reads, if
    /// it was provided.
    pub config: Option<usize>,
    /// Names of the environment files that the process reads.
    pub env_files: Vec<LocatedValue>,
    /// Python packages that commands before the process install, in order.
    pub packages: Vec<InstalledPackage>,
    /// When a script runs the process. `None` if no script starts it.
    pub span: Option<ScriptSpan>,
}

/// A set of identical pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSet {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub namespace: Option<String>,
    /// Group and role, if the pods belong to a RoleBasedGroup.
    pub group: Option<(String, String)>,
    /// The pods belong to a Deployment, so they share their volumes.
    pub is_deployment: bool,
    /// Location of the strategy with which a Deployment starts a new pod before it stops the old
    /// one.
    pub surge: Option<SourceLocation>,
    pub place: SourceLocation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeService {
    pub name: String,
    pub namespace: Option<String>,
    /// Labels that the Service selects.
    pub selector: BTreeMap<String, LocatedValue>,
    pub ports: Vec<ServicePort>,
    /// `clusterIP: None`.
    pub headless: bool,
    pub place: SourceLocation,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The port that clients connect to, if it is numeric.
    pub port: Option<u16>,
    /// The target port; `None` if it refers to a named port.
    pub target: Option<u16>,
    pub place: SourceLocation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleGroup {
    pub name: String,
    pub roles: Vec<LocatedValue>,
    pub place: SourceLocation,
}

impl RoleGroup {
    /// The name of a role's headless Service: at most 63 characters, without a trailing hyphen.
    pub fn service_of(&self, role: &str) -> String {
        let name = format!("s-{}-{role}", self.name);
        let cut: String = name.chars().take(63).collect();
        cut.trim_end_matches('-').to_owned()
    }
}

/// The program that reads a settings file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SettingsFileKind {
    /// `mooncake_store_service --config`, `MOONCAKE_CONFIG_PATH`.
    Store,
    /// `--hicache-storage-backend-extra-config`, `SGLANG_HICACHE_MOONCAKE_CONFIG_PATH`.
    Extra,
    /// `mooncake_master --config_path`.
    Master,
    /// `MOONCAKE_CONFIG_PATH` of a vLLM server: the store's keys, and `mode`.
    Vllm,
    /// `LMCACHE_CONFIG_FILE`.
    Lmcache,
}

impl SettingsFileKind {
    /// Whether a process that expects a file of kind `wanted` also reads this kind. vLLM and the
    /// store service use the same variable.
    pub fn is_read_as(self, wanted: SettingsFileKind) -> bool {
        let shared = [SettingsFileKind::Store, SettingsFileKind::Vllm];
        self == wanted || shared.contains(&self) && shared.contains(&wanted)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SettingsFile {
    /// Base name of the file.
    pub base: String,
    /// The file that contains it. For a ConfigMap entry, the manifest.
    pub file: Arc<str>,
    pub kind: SettingsFileKind,
    pub node: YamlNode,
    pub json: bool,
    /// When a script writes the file. `None` if it was provided.
    pub span: Option<ScriptSpan>,
}

/// The data of a Kubernetes ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ConfigData {
    pub name: String,
    pub data: BTreeMap<String, (LocatedValue, u32)>,
    pub secret: bool,
}

/// Everything that the provided files define.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedDeployment {
    pub processes: Vec<Process>,
    pub pods: Vec<PodSet>,
    pub services: Vec<KubeService>,
    pub groups: Vec<RoleGroup>,
    pub documents: Vec<SettingsFile>,
    /// Host names that the services of a Compose file can resolve; `None` without a Compose file.
    pub compose_names: Option<Vec<String>>,
    /// Findings of the parsers.
    pub found: Vec<Finding>,
    /// The Mooncake release specified on the command line, e.g. `0.3.12`.
    pub release: Option<String>,
    /// Parts of scripts that were not followed.
    pub unread: Vec<UnreadPlace>,
    /// The lines of all scripts that are neither empty nor comments.
    pub script_lines: u32,
}

impl ParsedDeployment {
    /// The processes of supported programs. Of several variants of one command, only the first.
    pub fn distinct_processes(&self) -> Vec<&Process> {
        let mut out: Vec<&Process> = Vec::new();
        for process in self.processes.iter().filter(|process| process.role != ProcessRole::Other) {
            let is_variant = |known: &&Process| {
                let spans = (&known.span, &process.span);
                known.place == process.place
                    && known.name == process.name
                    && matches!(spans, (Some(ours), Some(theirs)) if ours.excludes(theirs))
            };
            if !out.iter().any(is_variant) {
                out.push(process);
            }
        }
        out
    }
}

impl Process {
    /// A process with only a name and a location.
    pub fn new(name: impl Into<String>, role: ProcessRole, place: SourceLocation, runtime: RuntimeKind) -> Process {
        Process {
            name: name.into(),
            role,
            implementation: Implementation::Upstream,
            is_launched: false,
            network: format!("{place}"),
            place,
            runtime,
            args: Vec::new(),
            env: BTreeMap::new(),
            env_whole: true,
            args_whole: true,
            pod: None,
            replicas: None,
            image: None,
            limits: ProcessLimits::default(),
            probes: Vec::new(),
            ports: Vec::new(),
            misplaced: Vec::new(),
            pre_stop: None,
            config: None,
            env_files: Vec::new(),
            packages: Vec::new(),
            span: None,
        }
    }

    /// Whether both processes belong to the deployment at the same time: no branch of a script
    /// excludes one of them, and neither was stopped before the other started. Two processes that
    /// only may meet do not.
    pub fn surely_meets(&self, other: &Process) -> bool {
        match (&self.span, &other.span) {
            (Some(ours), Some(theirs)) => ours.surely_meets(theirs),
            (Some(span), None) | (None, Some(span)) => !span.uncertain,
            (None, None) => true,
        }
    }

    /// Like [`Process::surely_meets`], and the first one still runs when the second one starts.
    pub fn surely_overlaps(&self, other: &Process) -> bool {
        match (&self.span, &other.span) {
            (Some(ours), Some(theirs)) => ours.surely_overlaps(theirs),
            _ => self.surely_meets(other),
        }
    }

    /// The variable `name`, if its value is known.
    pub fn var(&self, name: &str) -> Option<&LocatedValue> {
        match self.env.get(name)? {
            Variable::Text(located) if located.is_known() => Some(located),
            _ => None,
        }
    }

    /// The variable `name` as written, unresolved.
    pub fn raw_var(&self, name: &str) -> Option<&LocatedValue> {
        match self.env.get(name)? {
            Variable::Text(located) | Variable::Elsewhere(located) => Some(located),
        }
    }

    /// Whether `name` is definitely unset.
    pub fn lacks_var(&self, name: &str) -> bool {
        self.env_whole && !self.env.contains_key(name)
    }

    /// Role and name for messages: `the store service (role store of group demo)`.
    pub fn describe(&self) -> String {
        format!("the {} ({})", self.role.noun(), self.name)
    }
}
