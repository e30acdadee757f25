//! Reads sources into a [`ParsedDeployment`]: detects the type of each source and parses it.

pub(super) mod compose;
pub(super) mod compose_merge;
pub(super) mod continuation;
pub(super) mod deployment;
mod detect;
mod embedded_settings;
pub(super) mod env_file;
pub(super) mod kubernetes;
pub(super) mod launch;
mod link;
pub(super) mod passive;
pub(super) mod pod;
pub(super) mod proc;
pub(super) mod script;
pub(super) mod session;
pub(super) mod systemd;
pub(super) mod template;
mod written;

use std::borrow::Cow;
use std::sync::Arc;

use crate::kube;
use crate::lint::catalogue::MANIFEST;
use crate::lint::model::{
    ConfigData, ParsedDeployment, Process, ProcessRole, RuntimeKind, SettingsFile, SettingsFileKind,
};
use crate::lint::read::compose_merge::ComposeFile;
use crate::lint::read::detect::{detect, is_named_script};
use crate::lint::read::embedded_settings::add_embedded_settings;
use crate::lint::read::link::{link, nearest_file};
use crate::lint::read::written::add_written;
use crate::lint::shell::choice::ScriptSpan;
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::shell::places::UnreadPlace;
use crate::lint::shell::word::base_name;
use crate::lint::source::{FileKind, ReadError, SourceFile};
use crate::lint::yaml::{FILE_BYTES_MAX, YamlNode};
use mcctl_base::check::{Finding, Severity, SourceLocation};

/// Limit on the number of processes in a deployment: rules compare all pairs.
pub(super) const PROCESSES_MAX: usize = 1024;
/// Limit on the number of pod sets, and on the number of Services.
const OBJECTS_MAX: usize = 4096;
/// Limit on the total number of arguments and variables of one process.
pub(super) const PARTS_MAX: usize = 4096;
/// Reads all of `sources` as one deployment.
///
/// # Errors
/// A source cannot be read. The returned name identifies the first unreadable source.
pub fn read(sources: &[SourceFile<'_>]) -> Result<ParsedDeployment, (String, ReadError)> {
    let mut parsed = Vec::new();
    let mut templates = Vec::new();
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

/// Maximum number of files that are skipped because they exceed a limit. If there are more, the
/// entire input is rejected: each skipped file requires another pass over the remaining files.
const RETRIES_MAX: usize = 8;

/// Reads all readable `sources` as one deployment, and returns the names and errors of the others.
pub fn read_each(sources: &[SourceFile<'_>]) -> (ParsedDeployment, Vec<(String, ReadError)>) {
    let mut parsed = Vec::new();
    let mut left = Vec::new();
    let mut templates = Vec::new();
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
    let mut deployment = ParsedDeployment::default();
    let mut sink = ScriptEffects::default();
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

/// Rejects inputs larger than any real deployment: rules compare all pairs of processes, and each
/// name with all known names.
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

    /// Adds the content to `deployment`. `data` and `all` are the ConfigMaps and the files of the
    /// deployment.
    fn add(
        &self,
        data: &[ConfigData],
        all: &[ParsedFile],
        deployment: &mut ParsedDeployment,
        sink: &mut ScriptEffects,
    ) {
        let place = SourceLocation { file: self.file.clone(), line: 1 };
        let base_name = base_name(&self.name).to_owned();
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
                    let node = node.clone();
                    let json = self.json;
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
    // A text such as ${REPLICAS} or {{ .Values.replicas }} is replaced before the document is
    // applied.
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
