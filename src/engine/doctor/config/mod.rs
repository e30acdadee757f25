//! The rules of `lint` over what is about to run or runs here: files that were named, this environment, processes of this host.
//!
//! Reads `/proc` only; a process of another user is known by its command line alone.

use std::io::Read;

use crate::engine::check::{Check, Finding, Report, Status};
use crate::engine::doctor::Selection;
use crate::engine::env::Env;
use crate::engine::lint::{
    ParsedDeployment, Process, ReadError, SourceFile, check_deployment, environment, read, running_process,
};
use crate::engine::sys::FileTree;

/// The catalogue: that of `lint`.
pub use crate::engine::lint::CHECKS;

/// The most of a command line or an environment that is read, bytes.
const PROC_BYTES_MAX: u64 = 1 << 20;
/// Processes that are kept.
const PROCESSES_MAX: usize = 4096;

/// What to look at.
#[derive(Debug, Default)]
pub struct Question {
    /// The files of one deployment; `None`: none were named.
    pub files: Option<ParsedDeployment>,
    /// Variables of an environment that something is started with.
    pub environment: Vec<(String, String)>,
    pub processes: Vec<Process>,
}

/// The deployment that the files of these names and bytes make.
///
/// # Errors
/// The name of one that is nothing of the kind, and why.
pub fn files(texts: &[(String, Vec<u8>)]) -> Result<ParsedDeployment, (String, ReadError)> {
    let sources: Vec<SourceFile<'_>> =
        texts.iter().map(|(name, bytes)| SourceFile { name, bytes, kind: None }).collect();
    read(&sources)
}

/// Why the file `name` cannot be judged, if it cannot.
pub fn file(name: &str, bytes: &[u8]) -> Option<ReadError> {
    read(&[SourceFile { name, bytes, kind: None }]).err().map(|(_, error)| error)
}

/// The process `pid`; `None` where there is none, or none of SGLang, Mooncake or mcctl.
pub fn process(tree: &FileTree, pid: u32) -> Option<Process> {
    let bytes = |name: &str| {
        let mut bytes = Vec::new();
        let file = tree.open(&format!("/proc/{pid}/{name}")).ok()??;
        file.take(PROC_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    };
    let line = bytes("cmdline")?;
    // The environment of those alone that it matters of.
    running_process(pid, &line, None)?;
    running_process(pid, &line, bytes("environ").as_deref())
}

/// All processes of SGLang, Mooncake and mcctl that can be seen, but `own`.
pub fn processes(tree: &FileTree, own: u32) -> Vec<Process> {
    let names = tree.names("/proc").ok().flatten().unwrap_or_default();
    let pids = names.iter().filter_map(|name| name.parse().ok()).filter(|pid| *pid != own);
    pids.filter_map(|pid| process(tree, pid)).take(PROCESSES_MAX).collect()
}

/// Run the wanted rules.
pub fn run(env: &impl Env, question: &Question, selection: &Selection) -> Vec<Report> {
    let wanted: Vec<&Check> = CHECKS.iter().filter(|check| selection.wants(check)).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let start = env.now();
    let (mut findings, mut member): (Vec<Finding>, Vec<String>) = (Vec::new(), Vec::new());
    let mut judge = |deployment: &ParsedDeployment, what: String| {
        findings.extend(check_deployment(deployment));
        member.push(what);
    };
    if let Some(deployment) = &question.files {
        judge(deployment, format!("{} of the files", plural(deployment.processes.len())));
    }
    let around = environment("environment", question.environment.iter().cloned());
    if !around.env.is_empty() {
        judge(
            &ParsedDeployment { processes: vec![around], ..ParsedDeployment::default() },
            "the environment".to_owned(),
        );
    }
    if !question.processes.is_empty() {
        let what = format!("{} running here", plural(question.processes.len()));
        judge(&ParsedDeployment { processes: question.processes.clone(), ..ParsedDeployment::default() }, what);
    }
    // All rules look at once; that is the time of each.
    let took = env.now().since(start);
    let report = |check: &Check| {
        let own: Vec<Finding> = findings.iter().filter(|finding| finding.id == check.id).cloned().collect();
        let status = match (member.is_empty(), own.is_empty()) {
            (true, _) => Status::Skipped(
                "nothing to look at: give --file FILE, or set the variables that a store is started with".to_owned(),
            ),
            (false, true) => Status::Passed(format!("looked at {}", member.join(", "))),
            (false, false) => Status::Found(own),
        };
        Report { check: *check, status, took }
    };
    wanted.into_iter().map(report).collect()
}

fn plural(n: usize) -> String {
    format!("{n} process{}", if n == 1 { "" } else { "es" })
}
