//! Checks of Mooncake's Python wheel: an interpreter imports it, and the checks judge its report.

mod cause;
mod python;

use std::collections::BTreeMap;

use crate::running::Fact;
use crate::{CheckEntry, Selection, each, find, skipped, status};
use mcctl_base::check::{Check, CheckGroup, CheckReport, CheckStatus, Severity};
use mcctl_base::upstream::Release;
use mcctl_sys::FileTree;
use mcctl_sys::env::Env;

pub use python::WheelSearch;

use python::{ImportResult, PythonReport, Wheel};

/// The facts that the checks evaluate.
#[derive(Debug)]
pub struct WheelFacts {
    report: PythonReport,
    /// The directory of NVIDIA's packages with the library that the import lacks.
    elsewhere: Option<String>,
    /// The `mooncake_master` on PATH, and the report of its interpreter, or why there is none.
    master: Option<(String, Fact<PythonReport>)>,
}

/// The checks with their functions.
pub const CHECKS: &[CheckEntry<WheelFacts>] = &[
    (entry("wheel-installed", "exactly one Mooncake wheel is installed, and mcctl knows its release", &[3]), wheel),
    (entry("wheel-import", "Python imports the wheel: its libraries and modules are found", &[2, 22]), import),
    (entry("wheel-release", "the wheel and the mooncake_master on PATH work together", &[3]), release),
];

const fn entry(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: CheckGroup::Wheel, about, problems }
}

/// The checks of this group.
pub fn checks() -> Vec<Check> {
    CHECKS.iter().map(|(check, _)| *check).collect()
}

/// Runs the interpreter that `search` selects, and the selected checks.
pub fn run(env: &impl Env, tree: &FileTree, search: &WheelSearch, selection: &Selection) -> Vec<CheckReport> {
    if !CHECKS.iter().any(|(check, _)| selection.includes(check)) {
        return Vec::new();
    }
    match facts(tree, search) {
        Ok(facts) => each(env, CHECKS, &facts, selection),
        Err(reason) => skipped(&checks(), selection, &String::from(reason)),
    }
}

fn facts(tree: &FileTree, search: &WheelSearch) -> Fact<WheelFacts> {
    if !tree.is_this_host() {
        return Err("the files of another host (--root) do not show what its Python imports".into());
    }
    let python =
        python::interpreter(tree, search).ok_or("no Python interpreter was found; select one with --python")?;
    let report = python::report(&python)?;
    let Some(first) = report.installed.wheels.first() else {
        return Err(format!("no Mooncake wheel is installed for {python}; --python selects another interpreter").into());
    };
    let library = cause::missing_library(&report.import);
    let elsewhere = library.and_then(|library| elsewhere(tree, &first.packages, library));
    let master = master(tree, search).map(|(path, python)| match python {
        python if python == report.python => (path, Ok(report.clone())),
        python => (path, python::report(&python)),
    });
    Ok(WheelFacts { elsewhere, master, report })
}

/// NVIDIA packages install libraries in their own directories, e.g. `nvidia/cuda_runtime/lib`.
fn elsewhere(tree: &FileTree, packages: &str, library: &str) -> Option<String> {
    let names = tree.names(&format!("{packages}/nvidia")).ok().flatten()?;
    let mut folders = names.iter().map(|name| format!("{packages}/nvidia/{name}/lib"));
    folders.find(|folder| tree.resolve(&format!("{folder}/{library}")).is_some())
}

/// The `mooncake_master` on PATH, and its interpreter, which the first line of pip's script names.
fn master(tree: &FileTree, search: &WheelSearch) -> Option<(String, String)> {
    let name = |folder: &String| format!("{}/mooncake_master", folder.trim_end_matches('/'));
    let path = search.path.iter().map(name).find(|path| tree.resolve(path).is_some())?;
    let text = tree.text(&path).ok().flatten()?;
    let python = text.lines().next()?.strip_prefix("#!")?.trim().to_owned();
    python.contains("python").then_some((path, python))
}

fn describe(wheel: &Wheel) -> String {
    format!("{} {} in {}", wheel.name, wheel.release, wheel.packages)
}

fn wheel(facts: &WheelFacts, check: &Check) -> CheckStatus {
    let wheels = &facts.report.installed.wheels;
    let mut findings = Vec::new();
    let mut of_folder: BTreeMap<&str, Vec<&Wheel>> = BTreeMap::new();
    for wheel in wheels {
        of_folder.entry(&wheel.packages).or_default().push(wheel);
    }
    for (folder, wheels) in of_folder {
        if let [first, _, ..] = wheels.as_slice() {
            let names: Vec<String> = wheels.iter().map(|w| format!("{} {}", w.name, w.release)).collect();
            let all: Vec<&str> = wheels.iter().map(|w| w.name.as_str()).collect();
            findings.push(find(
                check,
                Severity::Error,
                "several wheels share one directory and have overwritten each other's files: imports load a mixture of them",
                format!("{} in {folder}", names.join(", ")),
                format!("pip uninstall -y {}, then install one of them: pip install {}", all.join(" "), first.name),
            ));
        }
    }
    for wheel in wheels.iter().filter(|wheel| Release::of_version(&wheel.release).is_none()) {
        let (first, last) = (Release::FIRST, Release::LATEST);
        findings.push(find(
            check,
            Severity::Warning,
            format!("this wheel's release is unknown to this mcctl, whose master serves {first} to {last}: its puts may fail"),
            describe(wheel),
            format!("update mcctl, or install a release that it serves: pip install '{}=={last}'", wheel.name),
        ));
    }
    status(findings, || wheels.iter().map(describe).collect::<Vec<_>>().join("; "))
}

fn import(facts: &WheelFacts, check: &Check) -> CheckStatus {
    let report = &facts.report;
    if let ImportResult::Loaded { file } = &report.import {
        return CheckStatus::Passed(format!("{} imports {file}", report.python));
    }
    let cause = cause::of(report, facts.elsewhere.as_deref());
    let wheel = report.installed.wheels.first().map(describe).unwrap_or_default();
    let evidence = format!("{} with Python {} ({}): {}", wheel, report.installed.version, report.python, cause.message);
    CheckStatus::Found(vec![find(check, cause.severity, cause.finding, evidence, cause.remedy)])
}

/// Whether clients of one of the versions work with an upstream master of the other one.
fn work_together(one: &str, other: &str) -> bool {
    Release::of_version(one).zip(Release::of_version(other)).is_some_and(|(one, other)| one.works_with(other))
}

fn release(facts: &WheelFacts, check: &Check) -> CheckStatus {
    let wheel = facts.report.installed.wheels.first();
    let Some((wheel, (path, master))) = wheel.zip(facts.master.as_ref()) else {
        return CheckStatus::Skipped("no mooncake_master of a wheel is on PATH".to_owned());
    };
    match master.as_ref().map(|report| report.installed.wheels.first()) {
        Err(reason) => CheckStatus::Skipped(format!("the release of {path} is unknown: {reason}")),
        Ok(None) => CheckStatus::Skipped(format!("the interpreter of {path} has no wheel")),
        Ok(Some(of)) if of.release == wheel.release => {
            CheckStatus::Passed(format!("{path}: {}, same as the wheel", of.release))
        }
        Ok(Some(of)) if work_together(&of.release, &wheel.release) => {
            CheckStatus::Passed(format!("{path}: {}, works with the wheel {}", of.release, wheel.release))
        }
        Ok(Some(of)) => CheckStatus::Found(vec![find(
            check,
            Severity::Warning,
            "the mooncake_master on PATH has a different release than the wheel that Python imports: they connect, but store nothing",
            format!("{path}: {}; {}", of.release, describe(wheel)),
            "run mcctl serve master instead, install one release in both environments, or put the intended mooncake_master first on PATH",
        )]),
    }
}
