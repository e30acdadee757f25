//! Reads sources into a [`ParsedDeployment`]: detects the type of each source and parses it.

pub mod compose;
pub mod compose_merge;
pub mod continuation;
pub mod deployment;
pub mod env_file;
pub mod kubernetes;
pub mod launch;
pub mod passive;
pub mod pod;
pub mod proc;
pub mod script;
pub mod session;
pub mod systemd;
pub mod template;

use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::check::{Finding, Severity, SourceLocation};
use crate::engine::kube;
use crate::engine::lint::catalogue::MANIFEST;
use crate::engine::lint::connectors;
use crate::engine::lint::model::{
    ConfigData, LocatedValue, ParsedDeployment, Process, ProcessRole, RuntimeKind, SettingsFile, SettingsFileKind,
};
use crate::engine::lint::read::compose_merge::ComposeFile;
use crate::engine::lint::settings::config_path;
use crate::engine::lint::shell::choice::ScriptSpan;
use crate::engine::lint::shell::effects::ScriptEffects;
use crate::engine::lint::shell::places::{UnreadPlace, WrittenText};
use crate::engine::lint::shell::word::is_name;
use crate::engine::lint::source::{FileKind, ReadError, SourceFile};
use crate::engine::lint::yaml::{FILE_BYTES_MAX, ScalarKind, YamlEntry, YamlNode, YamlScalar, YamlValue};
use crate::engine::upstream::{MASTER_FLAGS, STORE_KEYS, UpstreamFlag, sglang};

/// Limit on the number of processes in a deployment: rules compare all pairs.
pub const PROCESSES_MAX: usize = 1024;
/// Limit on the number of pod sets, and on the number of Services.
const OBJECTS_MAX: usize = 4096;
/// Limit on the total number of arguments and variables of one process.
pub const PARTS_MAX: usize = 4096;
/// Limit on the size of a script, a unit or an environment file, in bytes.
const SCRIPT_BYTES_MAX: usize = 256 << 10;
/// Limit on the number of `=` in a script, a unit or an environment file. Each one may set a variable that all later processes inherit.
const ASSIGNMENTS_MAX: usize = 4096;

/// Reads all of `sources` as one deployment.
///
/// # Errors
/// A source cannot be read. The returned name identifies the first unreadable source.
pub fn read(sources: &[SourceFile<'_>]) -> Result<ParsedDeployment, (String, ReadError)> {
    let (mut parsed, mut templates) = (Vec::new(), Vec::new());
    for source in sources {
        match parse(source) {
            Ok(part) => parsed.push(part),
            Err(ReadError::NothingToCheck { .. }) => {}
            Err(ReadError::Template) => templates.push(template::place(source)),
            Err(error) => return Err((source.name.to_owned(), error)),
        }
    }
    combine(&parsed).map(|deployment| with_templates(deployment, templates))
}

/// Maximum number of files that are skipped because they exceed a limit. If there are more, the entire input is rejected: each skipped file
/// requires another pass over the remaining files.
const RETRIES_MAX: usize = 8;

/// Reads all readable `sources` as one deployment, and returns the names and errors of the others.
pub fn read_each(sources: &[SourceFile<'_>]) -> (ParsedDeployment, Vec<(String, ReadError)>) {
    let (mut parsed, mut left, mut templates) = (Vec::new(), Vec::new(), Vec::new());
    for source in sources {
        match parse(source) {
            Ok(part) => parsed.push(part),
            Err(ReadError::Template) => templates.push(template::place(source)),
            Err(error) => left.push((source.name.to_owned(), error)),
        }
    }
    for _ in 0..RETRIES_MAX {
        match combine(&parsed) {
            Ok(deployment) => return (with_templates(deployment, templates), left),
            Err((name, error)) => {
                parsed.retain(|part| *part.file != *name);
                left.push((name, error));
            }
        }
    }
    let error = ReadError::TooMany { what: "files over a limit", most: RETRIES_MAX };
    left.extend(parsed.iter().map(|part| (part.file.to_string(), error.clone())));
    (ParsedDeployment::default(), left)
}

/// Adds the templates as places that were not read. Their lines count as those of scripts.
fn with_templates(mut deployment: ParsedDeployment, templates: Vec<UnreadPlace>) -> ParsedDeployment {
    let lines = templates.iter().fold(0u32, |sum, template| sum.saturating_add(template.lines));
    deployment.script_lines = deployment.script_lines.saturating_add(lines);
    deployment.unread.extend(templates);
    deployment.unread.sort();
    deployment
}

/// The Compose files among `parsed`.
fn compose_files(parsed: &[ParsedFile]) -> Vec<ComposeFile<'_>> {
    let of_compose = parsed.iter().filter(|part| part.kind == FileKind::Compose);
    of_compose.flat_map(|part| part.nodes.iter().map(|node| (&*part.file, node))).collect()
}

fn combine(parsed: &[ParsedFile]) -> Result<ParsedDeployment, (String, ReadError)> {
    let (mut deployment, mut sink) = (ParsedDeployment::default(), ScriptEffects::default());
    let data: Vec<ConfigData> = parsed.iter().flat_map(|p| p.data()).collect();
    for part in parsed {
        part.add(&data, parsed, &mut deployment, &mut sink);
        deployment.processes.append(&mut sink.processes);
        if part.kind == FileKind::Shell {
            deployment.script_lines = deployment.script_lines.saturating_add(lines_of(&part.text));
        }
    }
    // The file that an override file belongs to may define more services.
    if parsed.iter().any(|part| compose_merge::lacks_base(&part.file, &compose_files(parsed))) {
        deployment.compose_names = None;
    }
    let written = add_written(&mut deployment, &mut sink);
    let parsed: Vec<&ParsedFile> = parsed.iter().chain(&written).collect();
    // A ConfigMap may contain settings files.
    for (base, (located, _)) in data.iter().flat_map(|map| &map.data) {
        add_embedded_settings(base, located, &mut deployment);
    }
    check_limits(&deployment)?;
    link(&mut deployment, &parsed);
    // Of a command that lost its flags, the line with a space after the backslash is reported.
    let known: Vec<Option<SourceLocation>> = deployment.found.iter().map(|finding| finding.place.clone()).collect();
    let is_new = |finding: &Finding| {
        let above = finding.place.clone().map(|place| SourceLocation { line: place.line.saturating_sub(1), ..place });
        !known.contains(&above)
    };
    let text_of = |file: &str| parsed.iter().find(|part| &*part.file == file).map(|part| part.text.as_str());
    let found = continuation::sort_lost_flags(sink.found, text_of, &mut sink.unread);
    deployment.found.extend(found.into_iter().filter(is_new));
    deployment.unread = sink.unread;
    deployment.unread.retain(|unread| !is_provided(unread, &parsed));
    deployment.unread.sort();
    // A command may have two reasons. Its lines count once.
    deployment.unread.dedup_by(|next, kept| {
        let is_same = kept.place == next.place && kept.needs.is_none() && next.needs.is_none();
        if is_same {
            kept.lines = kept.lines.max(next.lines);
        }
        is_same
    });
    check_limits(&deployment)?;
    Ok(deployment)
}

/// Rejects inputs larger than any real deployment: rules compare all pairs of processes, and each name with all known names.
fn check_limits(deployment: &ParsedDeployment) -> Result<(), (String, ReadError)> {
    let too_many = |file: &str, what, most| Err((file.to_owned(), ReadError::TooMany { what, most }));
    if let Some(process) = deployment.processes.get(PROCESSES_MAX) {
        return too_many(&process.place.file, "processes", PROCESSES_MAX);
    }
    if let Some(pods) = deployment.pods.get(OBJECTS_MAX) {
        return too_many(&pods.place.file, "pod sets", OBJECTS_MAX);
    }
    if let Some(service) = deployment.services.get(OBJECTS_MAX) {
        return too_many(&service.place.file, "Services", OBJECTS_MAX);
    }
    match deployment.processes.iter().find(|process| process.args.len() + process.env.len() > PARTS_MAX) {
        Some(process) => too_many(&process.place.file, "arguments and variables of one process", PARTS_MAX),
        None => Ok(()),
    }
}

/// Applies [`check_limits`]'s limits to files that are parsed line by line.
fn check_script_limits(text: &str) -> Result<(), ReadError> {
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(ReadError::TooLarge { most: SCRIPT_BYTES_MAX });
    }
    if text.matches('=').nth(ASSIGNMENTS_MAX).is_some() {
        return Err(ReadError::TooMany { what: "assignments", most: ASSIGNMENTS_MAX });
    }
    Ok(())
}

struct ParsedFile {
    /// The file that contains the text.
    file: Arc<str>,
    /// The name under which processes refer to it: another one than `file` if a script writes it.
    name: Arc<str>,
    /// When a script writes it.
    span: Option<ScriptSpan>,
    kind: FileKind,
    text: String,
    nodes: Vec<YamlNode>,
    json: bool,
}

fn parse(source: &SourceFile<'_>) -> Result<ParsedFile, ReadError> {
    if source.bytes.len() > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge { most: FILE_BYTES_MAX });
    }
    let text = match std::str::from_utf8(source.bytes) {
        Ok(text) => Cow::Borrowed(text),
        // A shell reads bytes. A comment in another encoding changes nothing.
        Err(_) if is_named_script(source) => String::from_utf8_lossy(source.bytes),
        Err(error) => return Err(ReadError::Binary { at: error.valid_up_to() }),
    };
    if let Some(at) = text.bytes().position(|byte| byte == 0) {
        return Err(ReadError::Binary { at });
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.trim().is_empty() {
        return Err(ReadError::Empty);
    }
    let (kind, nodes, json) = detect(source, text).map_err(|error| template::or_template(error, text))?;
    let file: Arc<str> = source.name.into();
    Ok(ParsedFile { name: file.clone(), file, span: None, kind, text: text.to_owned(), nodes, json })
}

/// Whether the user, the file's name or its first line marks it as a shell script.
fn is_named_script(source: &SourceFile<'_>) -> bool {
    match source.kind {
        Some(kind) => kind == FileKind::Shell,
        None => matches!(extension(source.name).as_str(), "sh" | "bash") || source.bytes.starts_with(b"#!"),
    }
}

/// The extension of a file in lower case.
fn extension(name: &str) -> String {
    launch::program(name).rsplit_once('.').map_or_else(String::new, |(_, extension)| extension.to_ascii_lowercase())
}

fn detect(source: &SourceFile<'_>, text: &str) -> Result<(FileKind, Vec<YamlNode>, bool), ReadError> {
    let is_script = matches!(extension(source.name).as_str(), "sh" | "bash");
    let is_json = extension(source.name) == "json" || !is_script && text.trim_start().starts_with('{');
    let nodes = || if is_json { YamlNode::json(text, true).map(|node| vec![node]) } else { YamlNode::yaml(text) };
    match source.kind {
        Some(kind @ (FileKind::Unit | FileKind::Env | FileKind::Shell)) => {
            check_script_limits(text)?;
            return Ok((kind, Vec::new(), false));
        }
        Some(FileKind::Deployment) => return Ok((FileKind::Deployment, Vec::new(), false)),
        Some(kind) => return Ok((kind, nodes()?, is_json)),
        None => {}
    }
    if extension(source.name) == "toml" {
        let is_deployment = deployment::is_toml_deployment(text);
        return if is_deployment { Ok((FileKind::Deployment, Vec::new(), false)) } else { Err(ReadError::Unknown) };
    }
    if let Some(what) = host_setup_kind(source.name, text) {
        return Err(ReadError::NothingToCheck { what });
    }
    if systemd::is_unit(text) {
        check_script_limits(text)?;
        return Ok((FileKind::Unit, Vec::new(), false));
    }
    let named_env = extension(source.name) == "env" || launch::program(source.name).starts_with(".env");
    if named_env || env_file::is_env_file(text) {
        check_script_limits(text)?;
        return Ok((FileKind::Env, Vec::new(), false));
    }
    let named_yaml = matches!(extension(source.name).as_str(), "yaml" | "yml" | "json");
    let named_shell = matches!(extension(source.name).as_str(), "sh" | "bash") || text.starts_with("#!");
    if is_json || named_yaml || !named_shell {
        match nodes() {
            Ok(nodes) => {
                let is_other = nodes.iter().any(|node| node.get("prefill_url").is_some());
                if let Some(kind) = nodes.iter().find_map(kind_of).filter(|_| !is_other) {
                    return Ok((kind, nodes, is_json));
                }
                if let Some(what) = passive_yaml_kind(source.name, &nodes).or_else(|| passive::monitoring_kind(&nodes))
                {
                    return Err(ReadError::NothingToCheck { what });
                }
                if named_yaml && nodes.first().is_some_and(deployment::is_yaml_deployment) {
                    return Ok((FileKind::Deployment, Vec::new(), false));
                }
                if named_yaml || is_json {
                    return Err(if nodes.is_empty() { ReadError::Empty } else { ReadError::Unknown });
                }
            }
            Err(error) if named_yaml || is_json => return Err(error),
            // A file that looks like a manifest is a broken manifest, not a script.
            Err(error) if text.lines().any(|line| line.starts_with("apiVersion:") || line.starts_with("services:")) => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
    check_script_limits(text)?;
    if named_shell {
        return Ok((FileKind::Shell, Vec::new(), false));
    }
    let mut started = ScriptEffects::default();
    let place = SourceLocation { file: source.name.into(), line: 1 };
    let base = Process::new("command line", ProcessRole::Other, place.clone(), RuntimeKind::Shell);
    script::run(&base, text, &place, None, 0, &mut started);
    let of_use = |process: &Process| {
        process.role != ProcessRole::Other
            || !process.misplaced.is_empty()
            || process.env.keys().any(|name| has_known_prefix(name))
    };
    if started.processes.iter().any(of_use) {
        Ok((FileKind::Shell, Vec::new(), false))
    } else {
        Err(ReadError::Unknown)
    }
}

/// A description of the file, if it configures a host but starts no processes.
fn host_setup_kind(name: &str, text: &str) -> Option<&'static str> {
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
        if is_in("sysusers.d") {
            return Some("users to create (sysusers.d)");
        }
        if is_in("tmpfiles.d") || lines.clone().next().is_some() && lines.clone().all(is_path) {
            return Some("files to create (tmpfiles.d)");
        }
    }
    let is_unit = ["target", "slice", "socket", "timer", "mount", "path"].contains(&extension(name).as_str())
        && lines.next().is_some_and(|line| line.starts_with('[') && line.ends_with(']'));
    is_unit.then_some("a unit without a [Service] section")
}

/// A description of the YAML file, if it is for another tool and starts no processes itself.
fn passive_yaml_kind(name: &str, nodes: &[YamlNode]) -> Option<&'static str> {
    let base = launch::program(name).rsplit_once('.').map_or("", |(base, _)| base);
    if nodes.is_empty() || nodes.iter().any(|node| node.entries().is_empty()) {
        return None;
    }
    if nodes.iter().all(|node| node.get("prefill_url").is_some() || node.get("decode_url").is_some()) {
        return Some("settings of vLLM's transfer between prefill and decode");
    }
    let of_helm = |node: &YamlNode| node.path(&["image", "repository"]).is_some() || node.get("replicaCount").is_some();
    match base {
        "Chart" => Some("Helm chart metadata"),
        "kustomization" => Some("a kustomization; check the output of kustomize build instead"),
        _ if base.starts_with("values") || base.ends_with("values") || nodes.iter().any(of_helm) => {
            Some("Helm values; check the output of helm template instead")
        }
        _ => None,
    }
}

/// Whether the variable belongs to one of the supported programs.
pub fn has_known_prefix(name: &str) -> bool {
    ["MC_", "MOONCAKE_", "SGLANG_", "MCCTL_"].iter().any(|prefix| name.starts_with(prefix))
}

fn kind_of(node: &YamlNode) -> Option<FileKind> {
    if kubernetes::is_kubernetes_document(node) {
        return Some(FileKind::Kubernetes);
    }
    if compose::is_compose_file(node) {
        return Some(FileKind::Compose);
    }
    document_kind(node).map(|kind| match kind {
        SettingsFileKind::Store => FileKind::StoreConfig,
        SettingsFileKind::Extra => FileKind::ExtraConfig,
        SettingsFileKind::Master => FileKind::MasterConfig,
        SettingsFileKind::Vllm => FileKind::VllmConfig,
        SettingsFileKind::Lmcache => FileKind::LmcacheConfig,
    })
}

/// The type of the settings file `node`, by its keys.
fn document_kind(node: &YamlNode) -> Option<SettingsFileKind> {
    let has = |key: &str| node.get(key).is_some();
    let of_store = STORE_KEYS.iter().filter(|row| has(row.key)).count();
    let of_sglang = sglang::KEYS.iter().filter(|(key, _)| has(key)).count();
    let only_sglang = ["extra_backend_tag", "check_server", "standalone_storage", "prefetch_threshold", "tp_lcm_size"];
    let own_key = |flag: &UpstreamFlag| flag.key.is_some_and(|key| key != flag.name && has(key));
    let of_master =
        MASTER_FLAGS.iter().map(|flag| usize::from(has(flag.name)) + usize::from(own_key(flag))).sum::<usize>();
    // Only vLLM's settings have `mode`.
    if has("mode") && has("master_server_address") {
        return Some(SettingsFileKind::Vllm);
    }
    let of_lmcache = ["chunk_size", "local_cpu", "max_local_cpu_size", "remote_serde", "extra_config"];
    if has("remote_url") || of_lmcache.iter().filter(|key| has(key)).count() > 1 {
        return Some(SettingsFileKind::Lmcache);
    }
    if of_master > of_store.max(of_sglang) {
        return Some(SettingsFileKind::Master);
    }
    if of_sglang > 0 && (only_sglang.iter().any(|key| has(key)) || of_sglang > of_store) {
        return Some(SettingsFileKind::Extra);
    }
    (of_store > 0).then_some(SettingsFileKind::Store)
}

impl ParsedFile {
    fn documents(&self) -> impl Iterator<Item = &YamlNode> {
        self.nodes.iter().flat_map(|node| kubernetes::documents(node))
    }

    fn data(&self) -> Vec<ConfigData> {
        match self.kind {
            FileKind::Kubernetes => self.documents().filter_map(|node| kubernetes::data(node, &self.file)).collect(),
            _ => Vec::new(),
        }
    }

    /// Adds the content to `deployment`. `data` and `all` are the ConfigMaps and the files of the deployment.
    fn add(
        &self,
        data: &[ConfigData],
        all: &[ParsedFile],
        deployment: &mut ParsedDeployment,
        sink: &mut ScriptEffects,
    ) {
        let place = SourceLocation { file: self.file.clone(), line: 1 };
        let base_name = launch::program(&self.name).to_owned();
        match self.kind {
            FileKind::Kubernetes => {
                for node in self.documents() {
                    deployment.found.extend(violations(node, &self.file));
                    kubernetes::read(node, &self.file, data, deployment, sink);
                }
            }
            FileKind::Compose => {
                let all = compose_files(all);
                self.nodes.iter().for_each(|node| compose::read(node, &self.file, &all, deployment, sink));
            }
            FileKind::Unit => systemd::read(&self.text, &self.file, sink),
            FileKind::Shell => {
                let mut base = Process::new("command line", ProcessRole::Other, place.clone(), RuntimeKind::Shell);
                base.network = format!("host of {}", self.name);
                base.env_whole = false;
                base.span = self.span.clone();
                deployment.found.extend(continuation::broken_continuations(&self.text, &self.file));
                script::run(&base, &self.text, &place, None, 0, sink);
                for process in &mut sink.processes {
                    if process.role == ProcessRole::Other {
                        process.role = ProcessRole::Environment;
                        process.args_whole = false;
                    }
                    if process.name == "command line" {
                        process.name = format!("line {}", process.place.line);
                    }
                }
            }
            FileKind::Deployment => deployment::read(&self.text, &self.file, deployment),
            // `link` assigns the variables to processes, or adds them as a separate entry.
            FileKind::Env => {}
            FileKind::StoreConfig
            | FileKind::ExtraConfig
            | FileKind::MasterConfig
            | FileKind::VllmConfig
            | FileKind::LmcacheConfig => {
                let kind = match self.kind {
                    FileKind::StoreConfig => SettingsFileKind::Store,
                    FileKind::ExtraConfig => SettingsFileKind::Extra,
                    FileKind::VllmConfig => SettingsFileKind::Vllm,
                    FileKind::LmcacheConfig => SettingsFileKind::Lmcache,
                    _ => SettingsFileKind::Master,
                };
                if let Some(node) = self.nodes.first() {
                    let (node, json) = (node.clone(), self.json);
                    deployment.documents.push(SettingsFile {
                        base: base_name,
                        file: self.file.clone(),
                        kind,
                        node,
                        json,
                        span: self.span.clone(),
                    });
                }
            }
        }
    }
}

/// Violations of the Kubernetes schema in one document.
fn violations(node: &YamlNode, file: &Arc<str>) -> impl Iterator<Item = Finding> {
    // A text such as ${REPLICAS} or {{ .Values.replicas }} is replaced before the document is applied.
    let is_open = |value: &YamlNode| value.text().is_some_and(|text| text.contains('$') || text.contains("{{"));
    let is_known = move |path: &str| {
        !node.at(path).is_some_and(|value| is_open(value) || value.entries().iter().any(|entry| is_open(&entry.value)))
    };
    kube::validate(&node.to_json()).into_iter().filter(move |violation| is_known(&violation.path)).map(|violation| {
        let place = SourceLocation { file: file.clone(), line: node.line_of(&violation.path) };
        let kind = node.get("kind").and_then(YamlNode::text).unwrap_or("document");
        let name = node.path(&["metadata", "name"]).and_then(YamlNode::text).unwrap_or("(unnamed)");
        let at = if violation.path.is_empty() { "the top level" } else { &violation.path };
        let (severity, finding) = match violation.kind.is_certain() {
            true if violation.is_refused_as_pod(kind) => {
                let what = format!("the API server accepts {kind} {name}, but rejects its pods: {}", violation.message);
                (Severity::Error, what)
            }
            true => {
                let what = format!("the API server rejects {kind} {name} or drops a field: {}", violation.message);
                (Severity::Error, what)
            }
            false => (Severity::Warning, format!("a field of {kind} {name} may not work: {}", violation.message)),
        };
        Finding {
            id: MANIFEST.id,
            severity,
            finding,
            evidence: format!("at {at}"),
            remedy: "fix the field; its name may differ in another API version".to_owned(),
            place: Some(place),
        }
    })
}

/// The documents that `process` may read under the name `base`. Of those that its own script writes, only the last one before its start,
/// and none if it depends on other branches which one that is.
fn last_written<'d>(
    process: &Process,
    base: &str,
    candidates: Vec<(usize, &'d SettingsFile)>,
) -> Vec<(usize, &'d SettingsFile)> {
    let own = |document: &SettingsFile| match (&document.span, &process.span) {
        (Some(written), Some(runs)) => written.script == runs.script && document.base == base,
        _ => false,
    };
    let (mut last, mut is_open) = (None, false);
    for (at, document) in candidates.iter().filter(|(_, document)| own(document)) {
        let (Some(written), Some(runs)) = (&document.span, &process.span) else { continue };
        if written.start > runs.start || written.path.contradicts(&runs.path) {
            continue;
        }
        let is_certain = runs.path.implies(&written.path);
        is_open = !is_certain;
        last = Some(*at).filter(|_| is_certain);
    }
    let keeps = |(at, document): &(usize, &SettingsFile)| match own(document) {
        true => Some(*at) == last,
        false => !is_open && (last.is_none() || document.base != base),
    };
    candidates.into_iter().filter(keeps).collect()
}

/// Reads the texts that scripts write.
fn add_written(deployment: &mut ParsedDeployment, sink: &mut ScriptEffects) -> Vec<ParsedFile> {
    let mut out = Vec::new();
    // A script that a script writes may itself write files, but those are rare.
    for written in std::mem::take(&mut sink.written) {
        if written.is_followed {
            continue;
        }
        let part = match (parse_written(&written), &written.changed) {
            (Ok(None), _) => continue,
            (Ok(Some(part)), None) => part,
            (parsed, changed) => {
                let name = if written.name.is_empty() { "a manifest" } else { launch::program(&written.name) };
                let lines = u32::try_from(written.text.lines().count()).unwrap_or(u32::MAX);
                let reason = match (changed, parsed) {
                    (None, Err(error)) => format!("the text of {name}: {error}"),
                    (changed, _) => format!("{name} {}", changed.as_deref().unwrap_or("is not known")),
                };
                sink.not_read(written.place, lines, reason);
                continue;
            }
        };
        let data = part.data();
        let documents = deployment.documents.len();
        part.add(&data, &[], deployment, sink);
        for (base, (located, _)) in data.iter().flat_map(|map| &map.data) {
            add_embedded_settings(base, located, deployment);
        }
        for process in &mut sink.processes {
            match &mut process.span {
                Some(span) if part.kind != FileKind::Shell => span.path.extend(&written.span.path),
                Some(_) => {}
                None => process.span = Some(written.span.clone()),
            }
        }
        deployment.processes.append(&mut sink.processes);
        for document in &mut deployment.documents[documents..] {
            document.span = Some(written.span.clone());
        }
        out.push(part);
    }
    out
}

/// Parses a text that a script writes. `None` if it is for another program.
fn parse_written(written: &WrittenText) -> Result<Option<ParsedFile>, ReadError> {
    let name = if written.name.is_empty() { "stdin.yaml" } else { &written.name };
    let quoted = if extension(name) == "json" { quoted_unknowns(&written.text) } else { written.text.clone() };
    let source = SourceFile { name, bytes: quoted.as_bytes(), kind: None };
    let first = parse(&source);
    // An unknown value that is a line of its own may be any number of lines.
    let shorter = without_unknown_lines(&quoted);
    let (quoted, first) = match first {
        Err(ReadError::Yaml { .. } | ReadError::Template) if shorter != quoted => {
            let source = SourceFile { name, bytes: shorter.as_bytes(), kind: None };
            let second = parse(&source);
            (shorter, second)
        }
        first => (quoted, first),
    };
    let (kind, json) = match first {
        Ok(part) => (part.kind, part.json),
        Err(error @ (ReadError::Yaml { .. } | ReadError::Json { .. } | ReadError::Template)) => return Err(error),
        Err(_) => return Ok(None),
    };
    // Blank lines make the line numbers those of the script.
    let before = usize::try_from(written.place.line.saturating_sub(1)).unwrap_or_default();
    let text = "\n".repeat(before) + &quoted;
    let source = SourceFile { name, bytes: text.as_bytes(), kind: Some(kind) };
    let mut part = parse(&source)?;
    part.json = json;
    if json {
        part.nodes = vec![YamlNode::json(&text, true)?];
    }
    part.file = written.place.file.clone();
    if kind == FileKind::Shell {
        part.span = Some(ScriptSpan { uncertain: true, foreground: true, ..written.span.clone() });
    } else {
        part.span = Some(written.span.clone());
    }
    Ok(Some(part))
}

/// `text` with empty lines in place of those that consist of an unknown value.
fn without_unknown_lines(text: &str) -> String {
    let is_unknown = |line: &str| line.trim().strip_prefix('$').is_some_and(is_name);
    let lines: Vec<&str> = text.split('\n').map(|line| if is_unknown(line) { "" } else { line }).collect();
    lines.join("\n")
}

/// JSON text in which unknown values without quotes are strings.
fn quoted_unknowns(text: &str) -> String {
    let (mut out, mut in_string, mut in_name, mut escaped) = (String::with_capacity(text.len()), false, false, false);
    for c in text.chars() {
        if in_name && !c.is_ascii_alphanumeric() && c != '_' {
            out.push('"');
            in_name = false;
        }
        if !in_string && !in_name && c == '$' {
            out.push('"');
            in_name = true;
        }
        if c == '"' && !escaped && !in_name {
            in_string = !in_string;
        }
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    out
}

/// Whether the file that a place needs was provided.
fn is_provided(unread: &UnreadPlace, parsed: &[&ParsedFile]) -> bool {
    let Some(needs) = &unread.needs else { return false };
    let files = parsed.iter().enumerate().filter(|(_, part)| part.kind == FileKind::Env && part.span.is_none());
    nearest_file(needs, &unread.place.file, files.map(|(at, part)| (at, &*part.file))).is_some()
}

/// The lines of a script that are neither empty nor comments.
fn lines_of(text: &str) -> u32 {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    u32::try_from(lines.count()).unwrap_or(u32::MAX)
}

/// Adds a settings file that is stored in a ConfigMap.
fn add_embedded_settings(base: &str, located: &LocatedValue, deployment: &mut ParsedDeployment) {
    let json = extension(base) == "json";
    let parsed = match extension(base).as_str() {
        "json" => YamlNode::json(&located.text, true).ok(),
        "yaml" | "yml" => YamlNode::yaml(&located.text).ok().and_then(|mut nodes| nodes.pop()),
        _ => None,
    };
    let Some(mut node) = parsed else { return };
    let Some(kind) = document_kind(&node) else { return };
    shift(&mut node, located.place.line.saturating_sub(1));
    deployment.documents.push(SettingsFile {
        base: base.to_owned(),
        file: located.place.file.clone(),
        kind,
        node,
        json,
        span: None,
    });
}

fn shift(node: &mut YamlNode, by: u32) {
    node.line = node.line.saturating_add(by);
    match &mut node.value {
        YamlValue::Null => {}
        YamlValue::Scalar(text) => text.first_line = text.first_line.saturating_add(by),
        YamlValue::List(items) => items.iter_mut().for_each(|item| shift(item, by)),
        YamlValue::Map(entries) => {
            for entry in entries {
                entry.line = entry.line.saturating_add(by);
                shift(&mut entry.value, by);
            }
        }
    }
}

/// Links processes to the files that they reference. A file that no process references becomes a separate entry.
fn link(deployment: &mut ParsedDeployment, parsed: &[&ParsedFile]) {
    let mut used = vec![false; parsed.len()];
    for process in &mut deployment.processes {
        let mut whole = !process.env_files.is_empty() && process.runtime != RuntimeKind::Shell;
        for named in process.env_files.clone() {
            let files =
                parsed.iter().enumerate().filter(|(_, p)| p.kind == FileKind::Env).map(|(at, p)| (at, &*p.name));
            let Some(at) = nearest_file(&named.text, &process.place.file, files) else {
                whole = false;
                continue;
            };
            used[at] = true;
            for (name, value) in env_file::variables(&parsed[at].text, &parsed[at].file) {
                // In systemd, EnvironmentFile overrides Environment. In Docker and Compose, `-e` and `environment:` override files.
                if process.runtime == RuntimeKind::Unit {
                    process.env.insert(name, value);
                } else {
                    process.env.entry(name).or_insert(value);
                }
            }
        }
        process.env_whole |= whole;
        process.args = launch::expanded(&process.args, &process.env);
    }
    for (part, _) in parsed.iter().zip(&used).filter(|(part, used)| part.kind == FileKind::Env && !**used) {
        let place = SourceLocation { file: part.file.clone(), line: 1 };
        let mut process = Process::new(part.file.to_string(), ProcessRole::Environment, place, RuntimeKind::File);
        process.env = env_file::variables(&part.text, &part.file);
        process.span = part.span.clone();
        process.env_whole = false;
        process.args_whole = false;
        deployment.processes.push(process);
    }
    lmcache_variables(deployment);
    let mut claimed = vec![false; deployment.documents.len()];
    for process in &mut deployment.processes {
        let Some((kind, path)) = config_path(process) else { continue };
        let base = launch::program(&path.text);
        let candidates = deployment.documents.iter().enumerate().filter(|(_, d)| d.kind.is_read_as(kind));
        let files = last_written(process, base, candidates.collect()).into_iter();
        // In a ConfigMap, the file name is the key.
        let files =
            files.map(|(at, d)| (at, if launch::program(&d.file) == d.base { &*d.file } else { d.base.as_str() }));
        if let Some(at) = nearest_file(&path.text, &process.place.file, files) {
            process.config = Some(at);
            claimed[at] = true;
        }
    }
    for (at, document) in deployment.documents.iter().enumerate().filter(|(at, _)| !claimed[*at]) {
        let place = SourceLocation { file: document.file.clone(), line: document.node.line };
        let role = match document.kind {
            SettingsFileKind::Store => ProcessRole::Store,
            SettingsFileKind::Extra => ProcessRole::Sglang(crate::engine::lint::model::SglangMode::Whole),
            SettingsFileKind::Master => ProcessRole::Master,
            SettingsFileKind::Vllm => ProcessRole::Vllm,
            SettingsFileKind::Lmcache if connectors::uses_mooncake(&document.node) => ProcessRole::Lmcache,
            SettingsFileKind::Lmcache => continue,
        };
        let mut process = Process::new(document.base.clone(), role, place, RuntimeKind::File);
        process.args_whole = false;
        process.env_whole = false;
        process.config = Some(at);
        process.span = document.span.clone();
        deployment.processes.push(process);
    }
    // Units that reach their master on loopback run on the master's host.
    let master = deployment.processes.iter().find(|p| p.runtime == RuntimeKind::Unit && p.role == ProcessRole::Master);
    if let Some(host) = master.map(|p| p.network.clone()) {
        for process in deployment.processes.iter_mut().filter(|p| p.runtime == RuntimeKind::Unit) {
            let text = process.env.values().any(|v| match v {
                crate::engine::lint::model::Variable::Text(located) => is_on_loopback(&located.text),
                crate::engine::lint::model::Variable::Elsewhere(_) => false,
            });
            if text || process.args.iter().any(|name| is_on_loopback(&name.text)) {
                process.network = host.clone();
            }
        }
    }
}

/// Adds the settings that LMCache reads from variables, as a settings file of their own.
fn lmcache_variables(deployment: &mut ParsedDeployment) {
    let variable = |process: &Process| process.var("LMCACHE_EXTRA_CONFIG").cloned();
    let found: Vec<(LocatedValue, Option<LocatedValue>)> = deployment
        .processes
        .iter()
        .filter_map(|process| Some((variable(process)?, process.var("LMCACHE_REMOTE_URL").cloned())))
        .collect();
    for (located, url) in found {
        let Ok(mut extra) = YamlNode::json(&located.text, false) else { continue };
        shift(&mut extra, located.place.line.saturating_sub(1));
        let line = located.place.line;
        let entry = |key: &str, value: YamlNode| YamlEntry { key: key.to_owned(), line, value };
        let mut entries = vec![entry("extra_config", extra)];
        entries.extend(url.map(|url| {
            let first_line = url.place.line;
            let text = YamlScalar { text: url.text, kind: ScalarKind::Text, first_line };
            YamlEntry {
                line: first_line,
                ..entry("remote_url", YamlNode { line: first_line, value: YamlValue::Scalar(text) })
            }
        }));
        let node = YamlNode { line, value: YamlValue::Map(entries) };
        // Several processes may have the variable from one line.
        let is_known = |known: &SettingsFile| known.file == located.place.file && known.node == node;
        if !deployment.documents.iter().any(is_known) {
            let base = "LMCACHE_EXTRA_CONFIG".to_owned();
            let file = located.place.file.clone();
            let kind = SettingsFileKind::Lmcache;
            deployment.documents.push(SettingsFile { base, file, kind, node, json: true, span: None });
        }
    }
}

/// The index of the file that `path`, named in the file `by`, refers to. Candidates have the same base name. The candidate that shares the
/// most of the remaining path wins; among equals, the one nearest to `by`.
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
