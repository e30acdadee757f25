//! Texts in, a [`Scene`] out: which kind each text is of, and what it says.

pub mod compose;
pub mod env_file;
pub mod kubernetes;
pub mod launch;
pub mod pod;
pub mod proc;
pub mod script;
pub mod systemd;

use std::sync::Arc;

use crate::engine::check::{Finding, Place, Severity};
use crate::engine::kube;
use crate::engine::lint::flags;
use crate::engine::lint::names::{MASTER_FLAGS, SERVICE_KEYS, SGLANG_KEYS};
use crate::engine::lint::node::{FILE_BYTES_MAX, Node};
use crate::engine::lint::rules::{CONTINUATION, MANIFEST};
use crate::engine::lint::scene::{ConfigData, Document, DocumentKind, Habitat, Process, Role, Said, Scene};

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Kubernetes documents in YAML (or one in JSON).
    Kubernetes,
    /// A compose file of Docker.
    Compose,
    /// A unit of systemd.
    Unit,
    /// `NAME=value` lines.
    Env,
    /// Shell: a script or command lines.
    Shell,
    /// The store service's settings (JSON).
    StoreConfig,
    /// SGLang's extra config for its storage backend, or its Mooncake settings file.
    ExtraConfig,
    /// The master's `--config_path` (YAML or JSON).
    MasterConfig,
    /// The file that `MOONCAKE_CONFIG_PATH` of vLLM names (JSON).
    VllmConfig,
    /// LMCache's configuration (YAML).
    LmcacheConfig,
}

impl Kind {
    /// All of them with their words.
    pub const ALL: [(Kind, &'static str); 10] = [
        (Kind::Kubernetes, "kubernetes"),
        (Kind::Compose, "compose"),
        (Kind::Unit, "unit"),
        (Kind::Env, "env"),
        (Kind::Shell, "shell"),
        (Kind::StoreConfig, "store-config"),
        (Kind::ExtraConfig, "extra-config"),
        (Kind::MasterConfig, "master-config"),
        (Kind::VllmConfig, "vllm-config"),
        (Kind::LmcacheConfig, "lmcache-config"),
    ];

    /// The word in messages.
    pub fn word(self) -> &'static str {
        Kind::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, word)| word)
    }
}

/// A text that was given.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name, as the user gave it.
    pub name: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What it is, if the user said so.
    pub kind: Option<Kind>,
}

/// The most processes of a deployment: rules compare each with each.
pub const PROCESSES_MAX: usize = 1024;
/// The most sets of pods, and the most Services.
const OBJECTS_MAX: usize = 4096;
/// The most words and variables of one process.
pub const PARTS_MAX: usize = 4096;
/// The most bytes of a script, a unit or an environment file.
const SCRIPT_BYTES_MAX: usize = 256 << 10;
/// The most `=` in one: each may set a variable that all further processes get.
const ASSIGNMENTS_MAX: usize = 4096;

/// Why a text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is nothing in it.
    #[error("it is empty")]
    Empty,
    /// It is no text.
    #[error("it is no text: byte {at} is not UTF-8, or is 0")]
    Binary {
        /// The first byte that is wrong.
        at: usize,
    },
    /// It is too large for a manifest.
    #[error("it has {bytes} bytes; a manifest may have {most}")]
    TooLarge {
        /// What it has.
        bytes: usize,
        /// What is read.
        most: usize,
    },
    /// It says more than one deployment does.
    #[error("it has more than {most} {what}")]
    TooMany {
        /// Of what there are too many.
        what: &'static str,
        /// As many are read.
        most: usize,
    },
    /// It is nested too deep, or expands to too much.
    #[error("it is nested too deep")]
    TooDeep {
        /// The line.
        line: u32,
    },
    /// It is no YAML.
    #[error("it is no YAML: {reason}")]
    Yaml {
        /// The line.
        line: u32,
        /// What is wrong.
        reason: String,
        /// Has it `{{` in it?
        templated: bool,
    },
    /// It is no JSON.
    #[error("it is no JSON: {reason}")]
    Json {
        /// The line.
        line: u32,
        /// What is wrong.
        reason: String,
    },
    /// It is known, and starts nothing: no mistake, and nothing to say about it.
    #[error("nothing to check: it is {what}")]
    NothingToCheck {
        /// What it is.
        what: &'static str,
    },
    /// It is nothing that is known here.
    #[error(
        "it is no Kubernetes or compose YAML, no systemd unit, no environment file, no command line and no settings file"
    )]
    Unknown,
}

impl ReadError {
    /// The line, where it is on one.
    pub fn line(&self) -> Option<u32> {
        match self {
            ReadError::TooDeep { line } | ReadError::Yaml { line, .. } | ReadError::Json { line, .. } => Some(*line),
            _ => None,
        }
    }
}

/// Read all of `sources` as one deployment.
///
/// # Errors
/// The name of the first that cannot be read, and why.
pub fn read(sources: &[Source<'_>]) -> Result<Scene, (String, ReadError)> {
    let mut parsed = Vec::new();
    for source in sources {
        match parse(source) {
            Ok(part) => parsed.push(part),
            Err(ReadError::NothingToCheck { .. }) => {}
            Err(error) => return Err((source.name.to_owned(), error)),
        }
    }
    together(&parsed)
}

/// As often a file that says too much is left out before all are refused: each time the others are read anew.
const RETRIES_MAX: usize = 8;

/// Read those of `sources` that can be read as one deployment; names and reasons of the others.
pub fn read_each(sources: &[Source<'_>]) -> (Scene, Vec<(String, ReadError)>) {
    let (mut parsed, mut left) = (Vec::new(), Vec::new());
    for source in sources {
        match parse(source) {
            Ok(part) => parsed.push(part),
            Err(error) => left.push((source.name.to_owned(), error)),
        }
    }
    for _ in 0..RETRIES_MAX {
        match together(&parsed) {
            Ok(scene) => return (scene, left),
            Err((name, error)) => {
                parsed.retain(|part| *part.file != *name);
                left.push((name, error));
            }
        }
    }
    let error = ReadError::TooMany { what: "files that say too much", most: RETRIES_MAX };
    left.extend(parsed.iter().map(|part| (part.file.to_string(), error.clone())));
    (Scene::default(), left)
}

fn together(parsed: &[Parsed]) -> Result<Scene, (String, ReadError)> {
    let mut scene = Scene::default();
    let data: Vec<ConfigData> = parsed.iter().flat_map(|p| p.data()).collect();
    for part in parsed {
        part.add(&data, &mut scene);
    }
    // Settings files may stand in a ConfigMap.
    for (base, (said, _)) in data.iter().flat_map(|map| &map.data) {
        document_in(base, said, &mut scene);
    }
    bound(&scene)?;
    link(&mut scene, parsed);
    bound(&scene)?;
    Ok(scene)
}

/// Refuse what no deployment has: rules compare processes with each other, and each name with all that are known.
fn bound(scene: &Scene) -> Result<(), (String, ReadError)> {
    let too_many = |file: &str, what, most| Err((file.to_owned(), ReadError::TooMany { what, most }));
    if let Some(process) = scene.processes.get(PROCESSES_MAX) {
        return too_many(&process.place.file, "processes", PROCESSES_MAX);
    }
    if let Some(pods) = scene.pods.get(OBJECTS_MAX) {
        return too_many(&pods.place.file, "sets of pods", OBJECTS_MAX);
    }
    if let Some(service) = scene.services.get(OBJECTS_MAX) {
        return too_many(&service.place.file, "Services", OBJECTS_MAX);
    }
    match scene.processes.iter().find(|process| process.args.len() + process.env.len() > PARTS_MAX) {
        Some(process) => too_many(&process.place.file, "words and variables of a process", PARTS_MAX),
        None => Ok(()),
    }
}

/// As [`bound`], for what is read line by line.
fn bound_script(text: &str) -> Result<(), ReadError> {
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(ReadError::TooLarge { bytes: text.len(), most: SCRIPT_BYTES_MAX });
    }
    if text.matches('=').nth(ASSIGNMENTS_MAX).is_some() {
        return Err(ReadError::TooMany { what: "assignments", most: ASSIGNMENTS_MAX });
    }
    Ok(())
}

/// A text that was understood.
struct Parsed {
    file: Arc<str>,
    kind: Kind,
    text: String,
    nodes: Vec<Node>,
    json: bool,
}

fn parse(source: &Source<'_>) -> Result<Parsed, ReadError> {
    if source.bytes.len() > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge { bytes: source.bytes.len(), most: FILE_BYTES_MAX });
    }
    let text = std::str::from_utf8(source.bytes).map_err(|e| ReadError::Binary { at: e.valid_up_to() })?;
    if let Some(at) = text.bytes().position(|byte| byte == 0) {
        return Err(ReadError::Binary { at });
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(ReadError::Empty);
    }
    let (kind, nodes, json) = detect(source, text)?;
    Ok(Parsed { file: source.name.into(), kind, text: text.to_owned(), nodes, json })
}

fn extension(name: &str) -> &str {
    launch::program(name).rsplit_once('.').map_or("", |(_, extension)| extension)
}

fn detect(source: &Source<'_>, text: &str) -> Result<(Kind, Vec<Node>, bool), ReadError> {
    let is_json = extension(source.name) == "json" || text.trim_start().starts_with('{');
    let nodes = || if is_json { Node::json(text, true).map(|node| vec![node]) } else { Node::yaml(text) };
    match source.kind {
        Some(kind @ (Kind::Unit | Kind::Env | Kind::Shell)) => {
            bound_script(text)?;
            return Ok((kind, Vec::new(), false));
        }
        Some(kind) => return Ok((kind, nodes()?, is_json)),
        None => {}
    }
    if let Some(what) = sets_up_the_host(source.name, text) {
        return Err(ReadError::NothingToCheck { what });
    }
    if systemd::is_one(text) {
        bound_script(text)?;
        return Ok((Kind::Unit, Vec::new(), false));
    }
    let named_env = extension(source.name) == "env" || launch::program(source.name).starts_with(".env");
    if named_env || env_file::is_one(text) {
        bound_script(text)?;
        return Ok((Kind::Env, Vec::new(), false));
    }
    let named_yaml = matches!(extension(source.name), "yaml" | "yml" | "json");
    let named_shell = matches!(extension(source.name), "sh" | "bash") || text.starts_with("#!");
    if is_json || named_yaml || !named_shell {
        match nodes() {
            Ok(nodes) => {
                if let Some(kind) = nodes.iter().find_map(kind_of) {
                    return Ok((kind, nodes, is_json));
                }
                if let Some(what) = starts_nothing(source.name, &nodes) {
                    return Err(ReadError::NothingToCheck { what });
                }
                if named_yaml || is_json {
                    return Err(if nodes.is_empty() { ReadError::Empty } else { ReadError::Unknown });
                }
            }
            Err(error) if named_yaml || is_json => return Err(error),
            // What looks like a manifest is one that is broken, and not a script.
            Err(error) if text.lines().any(|line| line.starts_with("apiVersion:") || line.starts_with("services:")) => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
    bound_script(text)?;
    let mut started = Vec::new();
    let place = Place { file: source.name.into(), line: 1 };
    let base = Process::new("command line", Role::Other, place.clone(), Habitat::Shell);
    script::run(&base, text, &place, &[], 0, &mut started);
    let of_use = |process: &Process| {
        process.role != Role::Other || !process.misplaced.is_empty() || process.env.keys().any(|name| is_ours(name))
    };
    if started.iter().any(of_use) || named_shell {
        Ok((Kind::Shell, Vec::new(), false))
    } else {
        Err(ReadError::Unknown)
    }
}

/// What a file is that prepares a host for processes, and starts none.
fn sets_up_the_host(name: &str, text: &str) -> Option<&'static str> {
    let is_in = |folder: &str| name.rsplit('/').nth(1) == Some(folder);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    if extension(name) == "conf" {
        let is_kernel_setting = |line: &str| {
            let key = line.split_once('=').map(|(key, _)| key.trim().trim_start_matches('-')).unwrap_or_default();
            let known = ["vm.", "net.", "kernel.", "fs.", "vm/", "net/", "kernel/", "fs/"];
            known.iter().any(|start| key.starts_with(start))
        };
        let is_path = |line: &str| {
            let mut words = line.split_whitespace();
            let kind = words.next().is_some_and(|w| w.len() <= 3 && w.starts_with(|c: char| c.is_ascii_alphabetic()));
            kind && words.next().is_some_and(|path| path.starts_with('/'))
        };
        if is_in("sysctl.d") || lines.clone().next().is_some() && lines.clone().all(is_kernel_setting) {
            return Some("kernel settings (sysctl.d)");
        }
        if is_in("tmpfiles.d") || lines.clone().next().is_some() && lines.clone().all(is_path) {
            return Some("files to create (tmpfiles.d)");
        }
    }
    let is_unit = ["target", "slice", "socket", "timer", "mount", "path"].contains(&extension(name))
        && lines.next().is_some_and(|line| line.starts_with('[') && line.ends_with(']'));
    is_unit.then_some("a unit without a [Service]")
}

/// What YAML is that others read, and that starts nothing by itself.
fn starts_nothing(name: &str, nodes: &[Node]) -> Option<&'static str> {
    let base = launch::program(name).rsplit_once('.').map_or("", |(base, _)| base);
    if nodes.is_empty() || nodes.iter().any(|node| node.entries().is_empty()) {
        return None;
    }
    let of_helm = |node: &Node| node.path(&["image", "repository"]).is_some() || node.get("replicaCount").is_some();
    match base {
        "Chart" => Some("the description of a Helm chart"),
        "kustomization" => Some("a list of manifests; give what kustomize build prints"),
        _ if base.starts_with("values") || base.ends_with("values") || nodes.iter().any(of_helm) => {
            Some("values of a Helm chart; give what helm template prints")
        }
        _ => None,
    }
}

/// Is it a variable that is read here?
pub fn is_ours(name: &str) -> bool {
    ["MC_", "MOONCAKE_", "SGLANG_", "MCCTL_"].iter().any(|prefix| name.starts_with(prefix))
}

fn kind_of(node: &Node) -> Option<Kind> {
    if kubernetes::is_one(node) {
        return Some(Kind::Kubernetes);
    }
    if compose::is_one(node) {
        return Some(Kind::Compose);
    }
    document_kind(node).map(|kind| match kind {
        DocumentKind::Store => Kind::StoreConfig,
        DocumentKind::Extra => Kind::ExtraConfig,
        DocumentKind::Master => Kind::MasterConfig,
        DocumentKind::Vllm => Kind::VllmConfig,
        DocumentKind::Lmcache => Kind::LmcacheConfig,
    })
}

/// Which settings file `node` is, by its keys.
fn document_kind(node: &Node) -> Option<DocumentKind> {
    let has = |key: &str| node.get(key).is_some();
    let of_store = SERVICE_KEYS.iter().filter(|(key, _)| has(key)).count();
    let of_sglang = SGLANG_KEYS.iter().filter(|(key, _)| has(key)).count();
    let only_sglang = ["extra_backend_tag", "check_server", "standalone_storage", "prefetch_threshold", "tp_lcm_size"];
    let of_master = MASTER_FLAGS.iter().filter(|flag| has(flag.name)).count() + usize::from(has("client_live_ttl_sec"));
    // `mode` is vLLM's alone among the readers of the store's settings.
    if has("mode") && has("master_server_address") {
        return Some(DocumentKind::Vllm);
    }
    let of_lmcache = ["chunk_size", "local_cpu", "max_local_cpu_size", "remote_serde", "extra_config"];
    if has("remote_url") || of_lmcache.iter().filter(|key| has(key)).count() > 1 {
        return Some(DocumentKind::Lmcache);
    }
    if of_master > of_store.max(of_sglang) {
        return Some(DocumentKind::Master);
    }
    if of_sglang > 0 && (only_sglang.iter().any(|key| has(key)) || of_sglang > of_store) {
        return Some(DocumentKind::Extra);
    }
    (of_store > 0).then_some(DocumentKind::Store)
}

impl Parsed {
    fn documents(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flat_map(|node| kubernetes::documents(node))
    }

    fn data(&self) -> Vec<ConfigData> {
        match self.kind {
            Kind::Kubernetes => self.documents().filter_map(|node| kubernetes::data(node, &self.file)).collect(),
            _ => Vec::new(),
        }
    }

    fn add(&self, data: &[ConfigData], scene: &mut Scene) {
        let place = Place { file: self.file.clone(), line: 1 };
        let base_name = launch::program(&self.file).to_owned();
        match self.kind {
            Kind::Kubernetes => {
                for node in self.documents() {
                    scene.found.extend(complaints(node, &self.file));
                    kubernetes::read(node, &self.file, data, scene);
                }
            }
            Kind::Compose => self.nodes.iter().for_each(|node| compose::read(node, &self.file, scene)),
            Kind::Unit => scene.processes.extend(systemd::read(&self.text, &self.file)),
            Kind::Shell => {
                let mut base = Process::new("command line", Role::Other, place.clone(), Habitat::Shell);
                base.network = format!("host of {}", self.file);
                base.env_whole = false;
                let mut started = Vec::new();
                scene.found.extend(broken_lines(&self.text, &self.file));
                script::run(&base, &self.text, &place, &[], 0, &mut started);
                for mut process in started {
                    if process.role == Role::Other {
                        process.role = Role::Environment;
                        process.args_whole = false;
                    }
                    if process.name == "command line" {
                        process.name = format!("line {}", process.place.line);
                    }
                    scene.processes.push(process);
                }
            }
            // Variables are given to processes by `link`, or stand for themselves.
            Kind::Env => {}
            Kind::StoreConfig | Kind::ExtraConfig | Kind::MasterConfig | Kind::VllmConfig | Kind::LmcacheConfig => {
                let kind = match self.kind {
                    Kind::StoreConfig => DocumentKind::Store,
                    Kind::ExtraConfig => DocumentKind::Extra,
                    Kind::VllmConfig => DocumentKind::Vllm,
                    Kind::LmcacheConfig => DocumentKind::Lmcache,
                    _ => DocumentKind::Master,
                };
                if let Some(node) = self.nodes.first() {
                    let (node, json) = (node.clone(), self.json);
                    scene.documents.push(Document { base: base_name, file: self.file.clone(), kind, node, json });
                }
            }
        }
    }
}

/// A blank behind the backslash ends the command: what follows as its flags is a command of its own.
fn broken_lines(text: &str, file: &Arc<str>) -> impl Iterator<Item = Finding> {
    let lines = text.lines().zip(text.lines().skip(1)).zip(1u32..);
    lines.filter_map(|((line, next), number)| {
        let is_broken = line.ends_with([' ', '\t']) && line.trim_end().ends_with(" \\");
        if !is_broken || line.trim_start().starts_with('#') || !next.trim_start().starts_with('-') {
            return None;
        }
        Some(Finding {
            id: CONTINUATION.id,
            severity: Severity::Error,
            finding: "the command ends in this line, and the flags below it are lost".to_owned(),
            evidence: format!(
                "a blank stands behind the backslash; the next line begins with {}",
                next.split_whitespace().next()?
            ),
            remedy: "take the blank at the end of the line away".to_owned(),
            place: Some(Place { file: file.clone(), line: number }),
        })
    })
}

/// What is wrong with a document of Kubernetes as such.
fn complaints(node: &Node, file: &Arc<str>) -> impl Iterator<Item = Finding> {
    kube::validate(&node.to_json()).into_iter().map(|complaint| {
        let place = Place { file: file.clone(), line: node.line_of(&complaint.path) };
        let kind = node.get("kind").and_then(Node::text).unwrap_or("document");
        let name = node.path(&["metadata", "name"]).and_then(Node::text).unwrap_or("without a name");
        let at = if complaint.path.is_empty() { "the document itself" } else { &complaint.path };
        Finding {
            id: MANIFEST.id,
            severity: Severity::Error,
            finding: format!("{kind} {name} is refused, or loses a field without a word: {}", complaint.what),
            evidence: format!("at {at}"),
            remedy: "write what the kind has there; a field of another version may have another name".to_owned(),
            place: Some(place),
        }
    })
}

/// A settings file in a ConfigMap.
fn document_in(base: &str, said: &Said, scene: &mut Scene) {
    let json = extension(base) == "json";
    let parsed = match extension(base) {
        "json" => Node::json(&said.text, true).ok(),
        "yaml" | "yml" => Node::yaml(&said.text).ok().and_then(|mut nodes| nodes.pop()),
        _ => None,
    };
    let Some(mut node) = parsed else { return };
    let Some(kind) = document_kind(&node) else { return };
    shift(&mut node, said.place.line.saturating_sub(1));
    scene.documents.push(Document { base: base.to_owned(), file: said.place.file.clone(), kind, node, json });
}

fn shift(node: &mut Node, by: u32) {
    use crate::engine::lint::node::Value;
    node.line = node.line.saturating_add(by);
    match &mut node.value {
        Value::Null => {}
        Value::Scalar(text) => text.first_line = text.first_line.saturating_add(by),
        Value::List(items) => items.iter_mut().for_each(|item| shift(item, by)),
        Value::Map(entries) => {
            for entry in entries {
                entry.line = entry.line.saturating_add(by);
                shift(&mut entry.value, by);
            }
        }
    }
}

/// Give processes the files that they name and that were given, too; what nobody names stands for itself.
fn link(scene: &mut Scene, parsed: &[Parsed]) {
    let mut used = vec![false; parsed.len()];
    for process in &mut scene.processes {
        let mut whole = !process.env_files.is_empty() && process.habitat != Habitat::Shell;
        for named in process.env_files.clone() {
            let files = parsed.iter().enumerate().filter(|(_, p)| p.kind == Kind::Env).map(|(at, p)| (at, &*p.file));
            let Some(at) = nearest_file(&named.text, &process.place.file, files) else {
                whole = false;
                continue;
            };
            used[at] = true;
            for (name, value) in env_file::variables(&parsed[at].text, &parsed[at].file) {
                // systemd's EnvironmentFile wins over Environment; `-e` and `environment:` win over their files.
                if process.habitat == Habitat::Unit {
                    process.env.insert(name, value);
                } else {
                    process.env.entry(name).or_insert(value);
                }
            }
        }
        process.env_whole |= whole;
        process.args = launch::expanded(&process.args, &process.env);
    }
    for (part, _) in parsed.iter().zip(&used).filter(|(part, used)| part.kind == Kind::Env && !**used) {
        let place = Place { file: part.file.clone(), line: 1 };
        let mut process = Process::new(part.file.to_string(), Role::Environment, place, Habitat::File);
        process.env = env_file::variables(&part.text, &part.file);
        process.env_whole = false;
        process.args_whole = false;
        scene.processes.push(process);
    }
    let mut claimed = vec![false; scene.documents.len()];
    for process in &mut scene.processes {
        let Some((kind, path)) = config_path(process) else { continue };
        let files = scene.documents.iter().enumerate().filter(|(_, d)| d.kind.is_read_as(kind));
        // The name of a file in a ConfigMap is its key.
        let files =
            files.map(|(at, d)| (at, if launch::program(&d.file) == d.base { &*d.file } else { d.base.as_str() }));
        if let Some(at) = nearest_file(&path.text, &process.place.file, files) {
            process.config = Some(at);
            claimed[at] = true;
        }
    }
    for (at, document) in scene.documents.iter().enumerate().filter(|(at, _)| !claimed[*at]) {
        let place = Place { file: document.file.clone(), line: document.node.line };
        let role = match document.kind {
            DocumentKind::Store => Role::Store,
            DocumentKind::Extra => Role::Sglang(crate::engine::lint::scene::Mode::Whole),
            DocumentKind::Master => Role::Master,
            DocumentKind::Vllm => Role::Vllm,
            // Its rules look at the file itself.
            DocumentKind::Lmcache => continue,
        };
        let mut process = Process::new(document.base.clone(), role, place, Habitat::File);
        process.args_whole = false;
        process.env_whole = false;
        process.config = Some(at);
        scene.processes.push(process);
    }
    // Units that reach their master by a loopback name are on its host.
    let master = scene.processes.iter().find(|p| p.habitat == Habitat::Unit && p.role == Role::Master);
    if let Some(host) = master.map(|p| p.network.clone()) {
        for process in scene.processes.iter_mut().filter(|p| p.habitat == Habitat::Unit) {
            let text = process.env.values().any(|v| match v {
                crate::engine::lint::scene::Variable::Text(said) => is_on_loopback(&said.text),
                crate::engine::lint::scene::Variable::Elsewhere(_) => false,
            });
            if text || process.args.iter().any(|word| is_on_loopback(&word.text)) {
                process.network = host.clone();
            }
        }
    }
}

/// The file that is meant by `path`, named in the file `by`: of those with its last part the one that shares most of the rest, and then
/// the one nearest to `by`.
fn nearest_file<'f>(path: &str, by: &str, files: impl Iterator<Item = (usize, &'f str)>) -> Option<usize> {
    let score = |file: &str| {
        let same_end = path.rsplit('/').zip(file.rsplit('/')).take_while(|(a, b)| a == b).count();
        let same_start = by.split('/').zip(file.split('/')).take_while(|(a, b)| a == b).count();
        (same_end, same_start)
    };
    let scored = files.map(|(at, file)| (score(file), at)).filter(|((same_end, _), _)| *same_end > 0);
    scored.max_by_key(|(score, at)| (*score, std::cmp::Reverse(*at))).map(|(_, at)| at)
}

fn is_on_loopback(text: &str) -> bool {
    let text = text.rsplit('=').next().unwrap_or(text);
    ["127.0.0.1:", "localhost:", "[::1]:"].iter().any(|host| text.starts_with(host))
}

/// The settings file that a process reads.
pub fn config_path(process: &Process) -> Option<(DocumentKind, Said)> {
    let given = flags::of(process);
    let flag = |names: &[&str]| flags::last(&given, names).and_then(|f| f.value.clone());
    match process.role {
        Role::Master => flag(&["config_path"]).map(|path| (DocumentKind::Master, path)),
        Role::Store => {
            let path = flag(&["config"]).or_else(|| process.var("MOONCAKE_CONFIG_PATH").cloned());
            path.map(|path| (DocumentKind::Store, path))
        }
        Role::Sglang(_) => {
            let extra = flag(&["hicache_storage_backend_extra_config"]);
            let from_file = extra.and_then(|said| Some(Said::new(said.text.strip_prefix('@')?, said.place)));
            let path = from_file.or_else(|| process.var("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH").cloned());
            path.map(|path| (DocumentKind::Extra, path))
        }
        Role::Vllm => process.var("MOONCAKE_CONFIG_PATH").map(|path| (DocumentKind::Vllm, path.clone())),
        _ => None,
    }
}
