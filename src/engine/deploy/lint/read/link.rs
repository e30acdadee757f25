//! Links processes to the files that they read.

use crate::lint::connectors;
use crate::lint::model::{
    ParsedDeployment, Process, ProcessRole, RuntimeKind, SettingsFile, SettingsFileKind, SglangMode, Variable,
};
use crate::lint::read::embedded_settings::lmcache_variables;
use crate::lint::read::{ParsedFile, env_file, launch};
use crate::lint::settings::config_path;
use crate::lint::shell::word::base_name;
use crate::lint::source::FileKind;
use mcctl_base::check::SourceLocation;

/// Links processes to the files that they reference. A file that no process references becomes a
/// separate entry.
pub(super) fn link(deployment: &mut ParsedDeployment, parsed: &[&ParsedFile]) {
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
                // In systemd, EnvironmentFile overrides Environment. In Docker and Compose, `-e`
                // and `environment:` override files.
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
        let base = base_name(&path.text);
        let candidates = deployment.documents.iter().enumerate().filter(|(_, d)| d.kind.is_read_as(kind));
        let files = last_written(process, base, candidates.collect()).into_iter();
        // In a ConfigMap, the file name is the key.
        let files = files.map(|(at, d)| (at, if base_name(&d.file) == d.base { &*d.file } else { d.base.as_str() }));
        if let Some(at) = nearest_file(&path.text, &process.place.file, files) {
            process.config = Some(at);
            claimed[at] = true;
        }
    }
    for (at, document) in deployment.documents.iter().enumerate().filter(|(at, _)| !claimed[*at]) {
        let place = SourceLocation { file: document.file.clone(), line: document.node.line };
        let role = match document.kind {
            SettingsFileKind::Store => ProcessRole::Store,
            SettingsFileKind::Extra => ProcessRole::Sglang(SglangMode::Whole),
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
                Variable::Text(located) => is_on_loopback(&located.text),
                Variable::Elsewhere(_) => false,
            });
            if text || process.args.iter().any(|name| is_on_loopback(&name.text)) {
                process.network = host.clone();
            }
        }
    }
}

/// The documents that `process` may read under the name `base`. Of those that its own script
/// writes, only the last one before its start, and none if it depends on other branches which one
/// that is.
fn last_written<'d>(
    process: &Process,
    base: &str,
    candidates: Vec<(usize, &'d SettingsFile)>,
) -> Vec<(usize, &'d SettingsFile)> {
    let own = |document: &SettingsFile| match (&document.span, &process.span) {
        (Some(written), Some(runs)) => written.script == runs.script && document.base == base,
        _ => false,
    };
    let mut last = None;
    let mut is_open = false;
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

/// The index of the file that `path`, named in the file `by`, refers to. Candidates have the same
/// base name. The candidate that shares the most of the remaining path wins; among equals, the one
/// nearest to `by`.
pub(super) fn nearest_file<'f>(path: &str, by: &str, files: impl Iterator<Item = (usize, &'f str)>) -> Option<usize> {
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
