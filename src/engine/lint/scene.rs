//! What the files of a deployment say: processes, each with the words and variables that it is started with, and what stands around
//! them. Every text knows its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::check::{Finding, Place};
use crate::engine::lint::node::Node;

/// A text, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The text, quotes removed.
    pub text: String,
    /// Where it begins.
    pub place: Place,
}

impl Said {
    /// A text at a place.
    pub fn new(text: impl Into<String>, place: Place) -> Said {
        Said { text: text.into(), place }
    }

    /// Is it known when it is read? A text with a `$` is decided elsewhere.
    pub fn is_known(&self) -> bool {
        !self.text.contains('$')
    }
}

/// What a process is to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// `mooncake_master`, `mcctl serve master`.
    Master,
    /// An HTTP metadata service on its own.
    Metadata,
    /// `mooncake_store_service`, `mcctl serve store`: lends memory.
    Store,
    /// `mooncake_client`, the real client of dummy clients.
    RealClient,
    /// A SGLang server.
    Sglang(Mode),
    /// A vLLM server.
    Vllm,
    /// A router in front of SGLang servers.
    Router,
    /// `mcctl up`: all in one.
    Up,
    /// Variables without a program: an environment file, a shell's environment. SGLang or a store service may be meant.
    Environment,
    /// Something else.
    Other,
}

/// What a SGLang server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Prefill and decode.
    Whole,
    /// Prefill alone.
    Prefill,
    /// Decode alone.
    Decode,
}

impl Role {
    /// The words of a sentence.
    pub const fn noun(self) -> &'static str {
        match self {
            Role::Master => "master",
            Role::Metadata => "metadata service",
            Role::Store => "store service",
            Role::RealClient => "real client",
            Role::Sglang(Mode::Whole) => "SGLang server",
            Role::Sglang(Mode::Prefill) => "prefill server",
            Role::Sglang(Mode::Decode) => "decode server",
            Role::Vllm => "vLLM server",
            Role::Router => "router",
            Role::Up => "mcctl up",
            Role::Environment => "environment",
            Role::Other => "process",
        }
    }

    /// Is it a SGLang server?
    pub const fn is_sglang(self) -> bool {
        matches!(self, Role::Sglang(_))
    }

    /// Has it a Mooncake client in it?
    pub const fn is_client(self) -> bool {
        matches!(self, Role::Store | Role::RealClient | Role::Sglang(_))
    }
}

/// Whose program it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// Mooncake's, SGLang's.
    Upstream,
    /// This one.
    Mcctl,
}

impl Make {
    /// The value in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Make::Upstream => "upstream",
            Make::Mcctl => "mcctl",
        }
    }
}

/// Who starts a process, and so what its limits are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habitat {
    /// A container of a pod.
    Kubernetes,
    /// A service of a compose file.
    Compose,
    /// `docker run`.
    Docker,
    /// A systemd unit.
    Unit,
    /// A command line or a script, on whatever host.
    Shell,
    /// It runs.
    Running,
    /// A file of settings only.
    File,
}

impl Habitat {
    /// Has it a file system and devices of its own?
    pub const fn is_container(self) -> bool {
        matches!(self, Habitat::Kubernetes | Habitat::Compose | Habitat::Docker)
    }
}

/// A variable of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// A text; it may still have a `$` in it.
    Text(Said),
    /// Given elsewhere: a field of the pod, a secret, the user's shell. The text says what.
    Elsewhere(Said),
}

impl Variable {
    /// Where it is set.
    pub fn place(&self) -> &Place {
        match self {
            Variable::Text(said) | Variable::Elsewhere(said) => &said.place,
        }
    }
}

/// When a container counts as started, alive or ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFor {
    /// It gets requests.
    Readiness,
    /// It is not restarted.
    Liveness,
    /// It has started.
    Startup,
}

impl ProbeFor {
    /// The key in a manifest.
    pub const fn key(self) -> &'static str {
        match self {
            ProbeFor::Readiness => "readinessProbe",
            ProbeFor::Liveness => "livenessProbe",
            ProbeFor::Startup => "startupProbe",
        }
    }
}

/// How a probe asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeHow {
    /// Does the port accept a connection?
    Tcp {
        /// The port, if its number is known.
        port: Option<u16>,
    },
    /// Is the answer good?
    Http {
        /// The port, if its number is known.
        port: Option<u16>,
        /// The path.
        path: String,
    },
    /// A command; its words joined.
    Exec(String),
}

/// A probe of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What it decides.
    pub what: ProbeFor,
    /// How it asks.
    pub how: ProbeHow,
    /// Where it is.
    pub place: Place,
}

/// A resource of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// What it may take.
    pub limit: Option<Said>,
    /// What is kept for it.
    pub request: Option<Said>,
}

/// Where a path of a container really lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// In the container.
    pub path: String,
    /// What is there.
    pub source: MountSource,
    /// Where that is said.
    pub place: Place,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A path of the host.
    Host(String),
    /// Memory (`emptyDir` with medium Memory, tmpfs), with its limit.
    Memory(Option<String>),
    /// Anything else that outlives nothing or something: a claim, a named volume, a config map.
    Volume(String),
}

/// The walls around a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Resources by name: `memory`, `cpu`, `hugepages-2Mi`, `rdma/hca`.
    pub resources: BTreeMap<String, Resource>,
    /// `privileged`, and where.
    pub privileged: Option<Place>,
    /// Capabilities that are added.
    pub capabilities: Vec<Said>,
    /// The user that it runs as, if it is said.
    pub user: Option<Said>,
    /// `runAsNonRoot`.
    pub non_root: Option<Place>,
    /// The memlock limit.
    pub memlock: Option<Said>,
    /// The size of /dev/shm.
    pub shm_size: Option<Said>,
    /// It has the host's IPC namespace.
    pub host_ipc: bool,
    /// It has the host's network.
    pub host_network: bool,
    /// Devices of the host that it gets.
    pub devices: Vec<Said>,
    /// What is mounted.
    pub mounts: Vec<Mount>,
    /// Seconds from the wish to end to the kill.
    pub grace: Option<Said>,
}

/// A port that a container declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredPort {
    /// The port number in the container.
    pub number: u16,
    /// The name by which Services may refer to it.
    pub name: Option<String>,
    /// The line of the declaration.
    pub place: Place,
}

/// A process that is to be started, or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// How a person calls it: `role store of group demo`, `service master`.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Whose it is.
    pub make: Make,
    /// Where it is started.
    pub place: Place,
    /// Who starts it.
    pub habitat: Habitat,
    /// Its words, without the program.
    pub args: Vec<Said>,
    /// Its variables.
    pub env: BTreeMap<String, Variable>,
    /// Are these all of its variables? A shell has more, and so has a container whose variables come from an unread file.
    pub env_whole: bool,
    /// Are these all of its words? False for a settings file on its own.
    pub args_whole: bool,
    /// Processes with the same text share one network.
    pub network: String,
    /// Which pods it is in.
    pub pod: Option<usize>,
    /// How many of it there are.
    pub replicas: Option<Said>,
    /// The image of its container.
    pub image: Option<Said>,
    /// The walls around it.
    pub limits: Limits,
    /// How it is probed.
    pub probes: Vec<Probe>,
    /// Ports that are declared.
    pub ports: Vec<DeclaredPort>,
    /// Options of `docker run` behind the image, where they are arguments of the program.
    pub misplaced: Vec<Said>,
    /// What is run before it is ended.
    pub pre_stop: Option<Said>,
    /// The settings file that it reads, if it was given, too.
    pub config: Option<usize>,
    /// Environment files that it reads: their names.
    pub env_files: Vec<Said>,
}

/// A set of equal pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// `Deployment store`, `role store of group demo`.
    pub name: String,
    /// The labels of its pods.
    pub labels: BTreeMap<String, String>,
    /// The namespace, if it is said.
    pub namespace: Option<String>,
    /// The group and the role of a RoleBasedGroup.
    pub group: Option<(String, String)>,
    /// Where it is.
    pub place: Place,
}

/// A Kubernetes Service, or what answers to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// The namespace, if it is said.
    pub namespace: Option<String>,
    /// The labels that it selects.
    pub selector: BTreeMap<String, Said>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// Has it no address of its own?
    pub headless: bool,
    /// Where it is.
    pub place: Place,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// What is called, if its number is known.
    pub port: Option<u16>,
    /// Where it leads; `None` where that is a name.
    pub target: Option<u16>,
    /// Where that is said.
    pub place: Place,
}

/// A RoleBasedGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleGroup {
    /// Its name.
    pub name: String,
    /// Its roles.
    pub roles: Vec<Said>,
    /// Where it is.
    pub place: Place,
}

impl RoleGroup {
    /// The name of the headless service of a role: at most 63 characters, without a trailing hyphen.
    pub fn service_of(&self, role: &str) -> String {
        let name = format!("s-{}-{role}", self.name);
        let cut: String = name.chars().take(63).collect();
        cut.trim_end_matches('-').to_owned()
    }
}

/// What a settings file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DocumentKind {
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

impl DocumentKind {
    /// May a process that names a file of kind `wanted` read one of this kind? vLLM and the store service share a variable.
    pub fn is_read_as(self, wanted: DocumentKind) -> bool {
        let shared = [DocumentKind::Store, DocumentKind::Vllm];
        self == wanted || shared.contains(&self) && shared.contains(&wanted)
    }
}

/// A settings file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The last part of its name.
    pub base: String,
    /// The file it stands in.
    pub file: Arc<str>,
    /// What it is for.
    pub kind: DocumentKind,
    /// What it says.
    pub node: Node,
    /// Is it JSON?
    pub json: bool,
}

/// A value of a Kubernetes ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigData {
    /// Its name.
    pub name: String,
    /// Key and text.
    pub data: BTreeMap<String, (Said, u32)>,
    /// Is it a Secret?
    pub secret: bool,
}

/// All that is known of a deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Its processes.
    pub processes: Vec<Process>,
    /// Sets of pods.
    pub pods: Vec<Pods>,
    /// Kubernetes Services.
    pub services: Vec<Service>,
    /// RoleBasedGroups.
    pub groups: Vec<RoleGroup>,
    /// Settings files.
    pub documents: Vec<Document>,
    /// Names that the services of a compose file answer to; `None` where there is no compose file.
    pub compose_names: Option<Vec<String>>,
    /// What the readers found at once: structure, names.
    pub found: Vec<Finding>,
    /// The release of Mooncake that is meant, as `0.3.12`, if it was said.
    pub release: Option<String>,
}

impl Scene {
    /// The release of Mooncake that `process` runs: the one that was given, or that of the tag of its image.
    pub fn release_of(&self, process: &Process) -> Option<String> {
        let image = || release_of_image(&process.image.as_ref()?.text);
        self.release.clone().or_else(image)
    }
}

/// The release in the tag of an image of Mooncake: `0.3.12.post1`.
pub fn release_of_image(image: &str) -> Option<String> {
    let (path, tag) = image.rsplit_once(':')?;
    let tag = tag.trim_start_matches('v');
    let plain = tag.starts_with("0.3.") && path.contains("mooncake");
    plain.then(|| tag.split('-').next().unwrap_or(tag).to_owned())
}

impl Process {
    /// A process of which only its place is known.
    pub fn new(name: impl Into<String>, role: Role, place: Place, habitat: Habitat) -> Process {
        Process {
            name: name.into(),
            role,
            make: Make::Upstream,
            network: format!("{place}"),
            place,
            habitat,
            args: Vec::new(),
            env: BTreeMap::new(),
            env_whole: true,
            args_whole: true,
            pod: None,
            replicas: None,
            image: None,
            limits: Limits::default(),
            probes: Vec::new(),
            ports: Vec::new(),
            misplaced: Vec::new(),
            pre_stop: None,
            config: None,
            env_files: Vec::new(),
        }
    }

    /// The variable `name`, if its text is known.
    pub fn var(&self, name: &str) -> Option<&Said> {
        match self.env.get(name)? {
            Variable::Text(said) if said.is_known() => Some(said),
            _ => None,
        }
    }

    /// The variable `name` as it is written, with what stands in for it.
    pub fn raw_var(&self, name: &str) -> Option<&Said> {
        match self.env.get(name)? {
            Variable::Text(said) | Variable::Elsewhere(said) => Some(said),
        }
    }

    /// Is `name` certainly not set?
    pub fn lacks_var(&self, name: &str) -> bool {
        self.env_whole && !self.env.contains_key(name)
    }

    /// Its role and name in a sentence: `the store service (role store of group demo)`.
    pub fn called(&self) -> String {
        format!("the {} ({})", self.role.noun(), self.name)
    }
}
