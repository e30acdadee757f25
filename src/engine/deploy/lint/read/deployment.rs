//! mcctl's own deployment file: its errors, whether it fits its hosts, and the processes that it
//! describes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lint::catalogue::{DEPLOYMENT_FILE, DEPLOYMENT_FIT, PLAIN_SECRET};
use crate::lint::model::{
    InstalledPackage, LocatedValue, ParsedDeployment, Process, ProcessRole, RuntimeKind, Variable,
};
use crate::lint::read::launch;
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::yaml::YamlNode;
use crate::{
    ComponentRole, DeployError, DeploymentSpec, FileFormat, ProcessPlan, fit, is_deployment_key, parse, plain_secrets,
    plan_processes, size_notes,
};
use mcctl_base::check::{Finding, Severity, SourceLocation};
use mcctl_base::text::escaped;

/// Whether the TOML file `text` is a deployment file. A file with a syntax error is one if it has a
/// section of one.
pub(crate) fn is_toml_deployment(text: &str) -> bool {
    match toml::from_str::<toml::Table>(text) {
        Ok(table) => {
            let known = table.keys().filter(|key| is_deployment_key(key)).count();
            known * 2 > table.len()
                && (table.contains_key("model") || known > 1 && table.values().any(toml::Value::is_table))
        }
        Err(_) => text.lines().any(|line| line.trim_end() == "[model]"),
    }
}

/// Limit on the number of processes of one role that are checked. They differ only in their
/// addresses, and rules compare all pairs.
const ALIKE_MAX: usize = 64;

/// Whether `node` is a deployment file in YAML: it has the section of the model, and at most one
/// unknown key. Other tools have YAML files with similar keys.
pub(crate) fn is_yaml_deployment(node: &YamlNode) -> bool {
    let unknown = node.entries().iter().filter(|entry| !is_deployment_key(&entry.key)).count();
    let has_model = node.get("model").is_some_and(|model| !model.entries().is_empty());
    has_model && unknown <= 1
}

/// The format of the file, by its extension. Standard input has none, so its format is found from
/// the text.
fn format(file: &str, text: &str) -> FileFormat {
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    let of_text = || if text.parse::<toml::Table>().is_ok() { FileFormat::Toml } else { FileFormat::Yaml };
    FileFormat::of_extension(extension).unwrap_or_else(of_text)
}

/// Adds the findings and processes of the deployment file `text` to `deployment`.
pub(crate) fn read(text: &str, file: &Arc<str>, deployment: &mut ParsedDeployment) {
    let lines = FileLines { text, file };
    let format = format(file, text);
    let spec = match parse(text, format, &[]) {
        Ok(spec) => spec,
        Err(error) => return deployment.found.push(lines.refused(&error)),
    };
    for note in size_notes(text, format, &[]) {
        deployment.found.push(Finding {
            id: DEPLOYMENT_FILE.id,
            severity: Severity::Info,
            finding: note.to_string(),
            evidence: format!("{} = {}", note.key, escaped(&note.text)),
            remedy: "use a unit with an i, such as GiB, to make this explicit".to_owned(),
            place: Some(lines.of_key(&note.key)),
        });
    }
    for secret in plain_secrets(&spec) {
        deployment.found.push(Finding {
            id: PLAIN_SECRET.id,
            severity: Severity::Warning,
            finding: secret.finding(),
            evidence: format!("{} in {}", secret.name, secret.key),
            remedy: secret.remedy.to_owned(),
            place: Some(lines.containing(&secret.name).unwrap_or_else(|| lines.of_key(secret.key))),
        });
    }
    let platform = spec.main_platform();
    let plans = match plan_processes(&spec, platform) {
        Ok(plans) => plans,
        Err(error) => return deployment.found.push(lines.refused(&error)),
    };
    for misfit in fit(&spec, &plans, platform) {
        deployment.found.push(Finding {
            id: DEPLOYMENT_FIT.id,
            severity: misfit.severity,
            finding: misfit.what,
            evidence: misfit.key.to_owned(),
            remedy: misfit.remedy,
            place: Some(lines.of_key(misfit.key)),
        });
    }
    let mut checked: BTreeMap<ComponentRole, usize> = BTreeMap::new();
    let mut alike = 0;
    for plan in &plans {
        let count = checked.entry(plan.role).or_default();
        if *count >= ALIKE_MAX {
            alike += 1;
            continue;
        }
        *count += 1;
        deployment.processes.extend(processes(plan, &spec, &lines));
    }
    if alike > 0 {
        deployment.found.push(Finding {
            id: DEPLOYMENT_FILE.id,
            severity: Severity::Info,
            finding: format!(
                "the first {ALIKE_MAX} processes of each role are checked; {alike} others have the same settings"
            ),
            evidence: format!("{} processes", plans.len()),
            remedy: "nothing to do".to_owned(),
            place: Some(lines.of_section("model")),
        });
    }
}

/// The process that `plan` starts, as the rules see it.
fn processes(plan: &ProcessPlan, spec: &DeploymentSpec, lines: &FileLines<'_>) -> Vec<Process> {
    let section = match plan.role {
        ComponentRole::Master => "master",
        ComponentRole::MetadataProxy => "metadata",
        ComponentRole::Store => "nodes",
        ComponentRole::Router => "serving.router",
        ComponentRole::Prefill => "serving.prefill",
        ComponentRole::Decode => "serving.decode",
        ComponentRole::Server => "model",
    };
    let place = lines.of_section(section);
    let given = [
        &spec.model.extra_args,
        &spec.serving.prefill.extra_args,
        &spec.serving.decode.extra_args,
        &spec.serving.router.extra_args,
        &spec.master.extra_flags,
    ];
    let is_given = |word: &String| given.iter().any(|list| list.contains(word));
    let mut base = Process::new(plan.name.clone(), ProcessRole::Other, place.clone(), RuntimeKind::Shell);
    base.network = format!("host {} of {}", if plan.host.is_empty() { &plan.workload } else { &plan.host }, lines.file);
    for (name, value) in &plan.env {
        let at = lines.containing(name).unwrap_or_else(|| place.clone());
        base.env.insert(name.clone(), Variable::Text(LocatedValue::new(value.clone(), at)));
    }
    let word = |word: &String| {
        let at = Some(word).filter(|word| is_given(word)).and_then(|word| lines.containing(word));
        let at = at.unwrap_or_else(|| place.clone());
        LocatedValue::new(word.clone(), at)
    };
    let words: Vec<LocatedValue> = without_repetitions(&plan.argv).map(word).collect();
    let mut started = ScriptEffects::default();
    launch::start(&base, &words, 0, &mut started);
    for process in &mut started.processes {
        process.place = place.clone();
        let version = Some(spec.mooncake.text().to_owned());
        let name = "mooncake-transfer-engine".to_owned();
        process.packages.push(InstalledPackage { name, version, is_published: true });
    }
    started.processes
}

/// The arguments of a command line without more than [`ALIKE_MAX`] occurrences of a flag and its
/// values. A router has one per server.
fn without_repetitions(argv: &[String]) -> impl Iterator<Item = &String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut is_kept = true;
    argv.iter().filter(move |word| {
        if word.starts_with("--") {
            let count = counts.entry(word).or_default();
            *count += 1;
            is_kept = *count <= ALIKE_MAX;
        }
        is_kept
    })
}

/// The text of a file, to find the line of a key.
struct FileLines<'a> {
    text: &'a str,
    file: &'a Arc<str>,
}

impl FileLines<'_> {
    fn at(&self, line: usize) -> SourceLocation {
        SourceLocation { file: self.file.clone(), line: u32::try_from(line).unwrap_or(u32::MAX) }
    }

    /// The number of the first line for which `is_it` is true, from 1.
    fn find(&self, from: usize, is_it: impl Fn(&str) -> bool) -> Option<usize> {
        let mut lines = self.text.lines().enumerate().skip(from.saturating_sub(1));
        lines.find(|(_, line)| is_it(line.trim())).map(|(at, _)| at + 1)
    }

    /// The first line, outside comments, that contains `text`.
    fn containing(&self, text: &str) -> Option<SourceLocation> {
        self.find(1, |line| !line.starts_with('#') && line.contains(text)).map(|line| self.at(line))
    }

    /// The line with the header of a section, or else of its parent.
    fn of_section(&self, section: &str) -> SourceLocation {
        let last = section.rsplit('.').next().unwrap_or(section);
        let is_header = |line: &str| {
            line.starts_with(&format!("[{section}]"))
                || line.strip_prefix(last).is_some_and(|rest| rest.starts_with(':'))
        };
        match (self.find(1, is_header), section.rsplit_once('.')) {
            (Some(line), _) => self.at(line),
            (None, Some((parent, _))) => self.of_section(parent),
            (None, None) => self.at(1),
        }
    }

    /// The line of a key such as `model.tp`. If it is not in the file, that of its section.
    fn of_key(&self, key: &str) -> SourceLocation {
        let Some((section, name)) = key.rsplit_once('.') else {
            let is_it =
                |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', ':']));
            return self.find(1, is_it).map_or_else(|| self.of_section(key), |line| self.at(line));
        };
        let header = self.of_section(section);
        let is_it = |line: &str| {
            let line = line.trim_start_matches(['{', ' ']);
            line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(['=', ':']))
        };
        self.find(header.line as usize, is_it).map_or(header, |line| self.at(line))
    }

    /// The finding for a file that `render` refuses.
    fn refused(&self, error: &DeployError) -> Finding {
        let (place, remedy) = match error {
            DeployError::Syntax { line, .. } => (line.map(|line| self.at(line)), "fix the file".to_owned()),
            DeployError::UnknownKey { line, near, .. } => {
                let near = near.as_deref().map(|near| format!("use {near}, or remove the key"));
                (line.map(|line| self.at(line)), near.unwrap_or_else(|| "remove the key".to_owned()))
            }
            DeployError::Value { key, .. } | DeployError::Plan { key, .. } => {
                (Some(self.of_key(key)), format!("change {key}"))
            }
            DeployError::WrongValue { line, key, .. } => (line.map(|line| self.at(line)), format!("change {key}")),
            DeployError::PortTaken { first, second, .. } => {
                let remedy = match first.key == second.key {
                    true => format!("list each host once, or change {}", second.key),
                    false => format!("change {} or {}", first.key, second.key),
                };
                (Some(self.of_key(second.key)), remedy)
            }
            _ => (None, "fix the file".to_owned()),
        };
        Finding {
            id: DEPLOYMENT_FILE.id,
            severity: Severity::Error,
            finding: format!("mcctl render refuses the file: {error}"),
            evidence: place.as_ref().map_or_else(|| self.file.to_string(), ToString::to_string),
            remedy,
            place: Some(place.unwrap_or_else(|| self.at(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::{SourceFile, check_deployment, read as read_sources};

    fn findings(name: &str, text: &str) -> Vec<(&'static str, Severity, u32)> {
        let source = SourceFile { name, bytes: text.as_bytes(), kind: None };
        let deployment = read_sources(&[source]).expect("readable");
        let all = check_deployment(&deployment).into_iter().filter(|finding| finding.severity > Severity::Info);
        all.map(|finding| (finding.id, finding.severity, finding.place.map_or(0, |place| place.line))).collect()
    }

    #[test]
    fn errors_of_the_file_have_a_line() {
        let file = |line| [("deployment-file", Severity::Error, line)];
        assert_eq!(findings("a.toml", "[model]\npaht = \"m\"\n"), file(2));
        assert_eq!(findings("a.toml", "[model]\npath = \"m\"\ntp = 0\n"), file(3));
        assert_eq!(findings("a.yaml", "model:\n  path: m\n  layout: none\nnodes: {}\n"), file(3));
        assert_eq!(findings("a.toml", "[model]\npath = \n"), file(2));
    }

    #[test]
    fn a_file_that_does_not_fit_its_hosts_is_an_error() {
        let text =
            "[model]\npath = 'Qwen/Qwen3-32B'\ntp = 8\nhicache_size_gb = 64\n\n[host]\ngpus = 4\nmemory = '256GiB'\n";
        let fit = |line| ("deployment-fit", Severity::Error, line);
        assert_eq!(findings("a.toml", text), [fit(7), fit(8)]);
    }

    #[test]
    fn a_secret_in_plain_text_is_a_warning_at_its_line() {
        let text = "[model]\npath = 'm'\nhicache_size_gb = 8\n[model.env]\nHF_TOKEN = 'hf_1'\n";
        assert_eq!(findings("a.toml", text), [("plain-secret", Severity::Warning, 5)]);
    }

    #[test]
    fn a_port_that_is_used_twice_has_the_line_of_a_key_that_sets_it() {
        let text = "[model]\npath = 'm'\n[master]\nadmin_port = 30000\n[serving]\nport = 30000\n";
        assert_eq!(findings("a.toml", text), [("deployment-file", Severity::Error, 6)]);
    }

    #[test]
    fn the_extension_of_a_deployment_file_may_be_in_upper_case() {
        assert_eq!(findings("A.TOML", "[model]\npaht = 'm'\n"), [("deployment-file", Severity::Error, 2)]);
        assert_eq!(findings("A.YAML", "model:\n  path: m\n  tp: two\n"), [("deployment-file", Severity::Error, 3)]);
    }

    #[test]
    fn a_router_in_front_of_thousands_of_servers_is_checked() {
        let hosts: Vec<String> = (0..1500).map(|i| format!("'10.0.{}.{}'", i / 250, i % 250 + 1)).collect();
        let hosts = hosts.join(", ");
        let text = format!(
            "[model]\npath = 'm'\nhicache_size_gb = 8\n[master]\nhosts = ['10.1.0.1']\n[serving]\nmode = 'pd'\n[serving.prefill]\n\
             hosts = [{hosts}]\n[serving.decode]\nhosts = [{hosts}]\n[serving.router]\nhost = '10.1.0.1'\n"
        );
        assert_eq!(findings("a.toml", &text), []);
    }

    #[test]
    fn the_rules_see_extra_flags_at_their_line() {
        let text = "[model]\npath = 'm'\nhicache_size_gb = 8\nextra_args = [\n  '--hicache-sizes',\n  '4',\n]\n";
        assert_eq!(findings("a.toml", text), [("sglang-flag", Severity::Error, 5)]);
        assert_eq!(findings("a.toml", "[model]\npath = 'm'\nhicache_size_gb = 8\n"), []);
    }

    #[test]
    fn other_toml_and_yaml_files_are_not_deployments() {
        for text in ["[project]\nname = \"x\"\n", "[package]\nname = \"x\"\nversion = \"1\"\n", "name = \"x\"\n"] {
            assert!(!is_toml_deployment(text), "{text}");
        }
        let is_yaml = |text: &str| is_yaml_deployment(&YamlNode::yaml(text).expect("YAML")[0]);
        assert!(is_yaml("model: {path: m}\nserving: {replicas: 4}\n"));
        assert!(!is_yaml("model: m\nchunk_size: 1\nlocal_cpu: true\n"));
    }
}
