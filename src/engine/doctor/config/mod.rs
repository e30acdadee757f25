//! Applies the `lint` rules to files, this environment and the processes on this host.
//!
//! It reads only `/proc`. For another user's processes, only the command line is available.

use std::io::Read;

use crate::Selection;
use mcctl_base::check::{Check, CheckReport, CheckStatus, Finding, listed};
use mcctl_base::text::counted_as;
use mcctl_deploy::lint::{
    ParsedDeployment, Process, ReadError, SourceFile, check_deployment, environment, read, running_process,
};
use mcctl_sys::FileTree;
use mcctl_sys::env::Env;

/// The checks of `lint`.
pub use mcctl_deploy::lint::CHECKS;

/// Maximum number of bytes read from a command line or an environment.
const PROC_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of processes inspected.
const PROCESSES_MAX: usize = 4096;

/// The inputs of the checks.
#[derive(Debug, Default)]
pub struct ConfigInputs {
    /// The files of one deployment; `None` if none were specified.
    pub files: Option<ParsedDeployment>,
    /// Environment variables of the calling process.
    pub environment: Vec<(String, String)>,
    pub processes: Vec<Process>,
}

/// Parses the files as one deployment.
///
/// # Errors
/// The name of a file that is not a known deployment file, and the reason.
pub fn files(texts: &[(String, Vec<u8>)]) -> Result<ParsedDeployment, (String, ReadError)> {
    let sources: Vec<SourceFile<'_>> =
        texts.iter().map(|(name, bytes)| SourceFile { name, bytes, kind: None }).collect();
    read(&sources)
}

/// The error that prevents `name` from being parsed, if any.
pub fn file(name: &str, bytes: &[u8]) -> Option<ReadError> {
    read(&[SourceFile { name, bytes, kind: None }]).err().map(|(_, error)| error)
}

/// Reads the process `pid`; `None` if it does not exist or is not SGLang, Mooncake or mcctl.
pub fn process(tree: &FileTree, pid: u32) -> Option<Process> {
    let bytes = |name: &str| {
        let mut bytes = Vec::new();
        let file = tree.open(&format!("/proc/{pid}/{name}")).ok()??;
        file.take(PROC_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    let line = bytes("cmdline")?;
    // The environment is read only for relevant processes.
    running_process(pid, &line, None)?;
    running_process(pid, &line, bytes("environ").as_deref())
}

/// All visible processes of SGLang, Mooncake and mcctl except `own`.
pub fn processes(tree: &FileTree, own: u32) -> Vec<Process> {
    let names = tree.names("/proc").ok().flatten().unwrap_or_default();
    let pids = names.iter().filter_map(|name| name.parse().ok()).filter(|pid| *pid != own);
    pids.filter_map(|pid| process(tree, pid)).take(PROCESSES_MAX).collect()
}

/// Runs the selected rules.
pub fn run(env: &impl Env, inputs: &ConfigInputs, selection: &Selection) -> Vec<CheckReport> {
    let wanted: Vec<&Check> = CHECKS.iter().filter(|check| selection.includes(check)).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let start = env.now();
    let (mut findings, mut seen): (Vec<Finding>, Vec<String>) = (Vec::new(), Vec::new());
    let mut judge = |deployment: &ParsedDeployment, what: String| {
        findings.extend(check_deployment(deployment));
        seen.push(what);
    };
    if let Some(deployment) = &inputs.files {
        judge(deployment, format!("{} in the files", counted_as(deployment.processes.len(), "process", "processes")));
    }
    let around = environment("environment", inputs.environment.iter().cloned());
    if !around.env.is_empty() {
        judge(
            &ParsedDeployment { processes: vec![around], ..ParsedDeployment::default() },
            "the environment".to_owned(),
        );
    }
    if !inputs.processes.is_empty() {
        let what = format!("{} running on this host", counted_as(inputs.processes.len(), "process", "processes"));
        judge(&ParsedDeployment { processes: inputs.processes.clone(), ..ParsedDeployment::default() }, what);
    }
    // All rules run together, so each reports the total time.
    let took = env.now().since(start);
    let report = |check: &Check| {
        let own = merged(findings.iter().filter(|finding| finding.id == check.id));
        let status = match (seen.is_empty(), own.is_empty()) {
            (true, _) => {
                CheckStatus::Skipped("no input: pass --file FILE, or set the store's environment variables".to_owned())
            }
            (false, true) => CheckStatus::Passed(format!("checked {}", seen.join(", "))),
            (false, false) => CheckStatus::Found(own),
        };
        CheckReport { check: *check, status, took }
    };
    wanted.into_iter().map(report).collect()
}

/// Merges findings that several processes have in common. The first finding's evidence lists the
/// locations of the others.
fn merged<'a>(findings: impl Iterator<Item = &'a Finding>) -> Vec<Finding> {
    let mut groups: Vec<(Finding, Vec<String>)> = Vec::new();
    for finding in findings {
        let is_same = |first: &Finding| (&first.finding, &first.remedy) == (&finding.finding, &finding.remedy);
        let location = || finding.place.as_ref().map(ToString::to_string);
        match groups.iter_mut().find(|(first, _)| is_same(first) && first.place.is_some()) {
            Some((first, others)) if first.place != finding.place => others.extend(location()),
            _ => groups.push((finding.clone(), Vec::new())),
        }
    }
    let merge = |(mut finding, others): (Finding, Vec<String>)| {
        if !others.is_empty() {
            finding.evidence = format!("{} (also in {})", finding.evidence, listed(&others));
        }
        finding
    };
    groups.into_iter().map(merge).collect()
}
