//! Checks of Mooncake's Python wheel and the libraries that it links against. No Python code runs and no library is loaded.

mod elf;
mod libraries;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use crate::{CheckEntry, Selection, each, find, status};
use mcctl_base::check::{Check, CheckGroup, CheckReport, CheckStatus, Finding, Severity};
use mcctl_base::upstream::SERIES;
use mcctl_sys::FileTree;
use mcctl_sys::env::Env;

pub use search::{Wheel, WheelSearch};

use libraries::LibraryLoader;

/// The programs in a wheel that are inspected, in addition to its shared objects.
const BINARIES: &[&str] = &["mooncake_master", "mooncake_client", "transfer_engine_bench"];

/// The facts that the checks evaluate.
#[derive(Debug)]
pub struct WheelFacts {
    tree: FileTree,
    search: WheelSearch,
    wheels: Vec<Wheel>,
}

/// The checks with their functions.
pub const CHECKS: &[CheckEntry<WheelFacts>] = &[
    (
        entry("wheel-installed", "exactly one Mooncake wheel is installed, and its release series matches mcctl", &[3]),
        wheel,
    ),
    (entry("wheel-libraries", "all libraries that the wheel's binaries link against exist", &[2, 22]), missing),
    (entry("wheel-flavour", "a wheel without CUDA does not require CUDA libraries", &[22]), flavour),
    (entry("wheel-release", "all wheels and the mooncake_master on this host have the same release", &[3]), release),
];

const fn entry(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: CheckGroup::Wheel, about, problems }
}

/// The checks of this group.
pub fn checks() -> Vec<Check> {
    CHECKS.iter().map(|(check, _)| *check).collect()
}

/// Runs the selected checks.
pub fn run(env: &impl Env, tree: &FileTree, search: &WheelSearch, selection: &Selection) -> Vec<CheckReport> {
    if !CHECKS.iter().any(|(check, _)| selection.includes(check)) {
        return Vec::new();
    }
    let wheels = search::wheels(tree, search);
    each(env, CHECKS, &WheelFacts { tree: tree.clone(), search: search.clone(), wheels }, selection)
}

/// The result if no wheel is installed.
fn none(facts: &WheelFacts) -> CheckStatus {
    let searched = match &facts.search.python {
        Some(python) => format!("for {python}"),
        None => "for the interpreters on PATH; select another one with --python".to_owned(),
    };
    CheckStatus::Skipped(format!("no Mooncake wheel is installed {searched}"))
}

fn describe(wheel: &Wheel) -> String {
    format!("{} {} in {}", wheel.name, wheel.release, wheel.packages)
}

fn wheel(facts: &WheelFacts, check: &Check) -> CheckStatus {
    if facts.wheels.is_empty() {
        return none(facts);
    }
    let mut findings = Vec::new();
    let mut of_folder: BTreeMap<&str, Vec<&Wheel>> = BTreeMap::new();
    for wheel in &facts.wheels {
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
    for wheel in facts.wheels.iter().filter(|wheel| series(&wheel.release) != SERIES) {
        findings.push(find(
            check,
            Severity::Info,
            format!("this wheel belongs to series {}, but mcctl implements {SERIES}: puts between the two fail without an error message", series(&wheel.release)),
            describe(wheel),
            format!("to match mcctl's master and nodes: pip install '{}>={SERIES}'", wheel.name),
        ));
    }
    status(findings, || facts.wheels.iter().map(describe).collect::<Vec<_>>().join("; "))
}

/// `0.3.13.post1` belongs to the series `0.3.13`.
fn series(release: &str) -> String {
    let numbers = release.split('.').take(3).take_while(|part| part.chars().all(|c| c.is_ascii_digit()));
    numbers.collect::<Vec<_>>().join(".")
}

/// The shared objects and programs of a wheel.
fn binaries(tree: &FileTree, wheel: &Wheel) -> Vec<String> {
    let folder = wheel.folder();
    let names = tree.names(&folder).ok().flatten().unwrap_or_default();
    let is_binary = |name: &String| name.ends_with(".so") || name.contains(".so.") || BINARIES.contains(&name.as_str());
    names.into_iter().filter(is_binary).map(|name| format!("{folder}/{name}")).collect()
}

fn missing(facts: &WheelFacts, check: &Check) -> CheckStatus {
    if facts.wheels.is_empty() {
        return none(facts);
    }
    let loader = LibraryLoader::new(&facts.tree, &facts.search.library_path);
    let (mut findings, mut count) = (Vec::new(), 0);
    for wheel in &facts.wheels {
        let files = binaries(&facts.tree, wheel);
        count += files.len();
        for (library, needed_by) in loader.missing(&files) {
            findings.push(absent(facts, check, wheel, &library, &needed_by));
        }
    }
    status(findings, || format!("all libraries for {count} binaries exist"))
}

fn absent(facts: &WheelFacts, check: &Check, wheel: &Wheel, library: &str, needed_by: &BTreeSet<String>) -> Finding {
    let names: Vec<&str> = needed_by.iter().filter_map(|path| path.rsplit('/').next()).collect();
    let evidence = format!("required by {} in {} {}", names.join(", "), wheel.name, wheel.release);
    match elsewhere(&facts.tree, &wheel.packages, library) {
        Some(folder) => find(
            check,
            Severity::Warning,
            format!(
                "{library} is found only after its own package has been imported (as importing torch does): the wheel's programs do not start"
            ),
            format!("{evidence}; present in {folder}"),
            format!("export LD_LIBRARY_PATH={folder}"),
        ),
        None => find(
            check,
            Severity::Error,
            format!(
                "{library} is missing: importing the wheel or starting its programs fails with 'cannot open shared object file'"
            ),
            evidence,
            libraries::remedy(library, wheel.flavour()),
        ),
    }
}

/// NVIDIA packages install libraries in their own directories, e.g. `nvidia/cuda_runtime/lib`.
fn elsewhere(tree: &FileTree, packages: &str, library: &str) -> Option<String> {
    let names = tree.names(&format!("{packages}/nvidia")).ok().flatten()?;
    let folders = names.iter().map(|name| format!("{packages}/nvidia/{name}/lib"));
    folders.into_iter().find(|folder| tree.resolve(&format!("{folder}/{library}")).is_some())
}

fn flavour(facts: &WheelFacts, check: &Check) -> CheckStatus {
    if facts.wheels.is_empty() {
        return none(facts);
    }
    let mut findings = Vec::new();
    for wheel in facts.wheels.iter().filter(|wheel| wheel.flavour() == "non-cuda") {
        let wrong: Vec<String> = binaries(&facts.tree, wheel)
            .into_iter()
            .filter(|path| {
                let dynamic = facts.tree.open(path).ok().flatten().and_then(elf::read);
                dynamic.is_some_and(|dynamic| dynamic.needed.iter().any(|name| name.starts_with("libcuda")))
            })
            .filter_map(|path| path.rsplit('/').next().map(str::to_owned))
            .collect();
        if !wrong.is_empty() {
            findings.push(find(
                check,
                Severity::Warning,
                "this wheel is named non-cuda but requires the CUDA runtime, as 0.3.12.post1 does: without CUDA, it cannot be imported",
                format!("{} from {}", wrong.join(", "), describe(wheel)),
                format!("pip install '{}>={SERIES}'", wheel.name),
            ));
        }
    }
    status(findings, || facts.wheels.iter().map(|wheel| wheel.flavour().to_owned()).collect::<Vec<_>>().join(", "))
}

fn release(facts: &WheelFacts, check: &Check) -> CheckStatus {
    let Some(first) = facts.wheels.first() else { return none(facts) };
    let mut findings = Vec::new();
    if let Some(other) = facts.wheels.iter().find(|wheel| wheel.release != first.release) {
        findings.push(find(
            check,
            Severity::Warning,
            "this host has wheels of different releases: a client of one and a master of the other pass the handshake, but store nothing",
            format!("{}; {}", describe(first), describe(other)),
            format!("pip install '{}=={}' in both environments", other.name, first.release),
        ));
    }
    if let Some((path, Some(of))) = master(facts)
        && of.release != first.release
        && findings.is_empty()
    {
        findings.push(find(
            check,
            Severity::Warning,
            "the mooncake_master on PATH has a different release than the wheel that Python imports",
            format!("{path}: {}; {}", of.release, describe(first)),
            "put the intended one first on PATH",
        ));
    }
    status(findings, || match master(facts) {
        Some((path, Some(of))) => format!("{path}: {}, same as the wheel", of.release),
        Some((path, None)) => {
            format!(
                "the wheel has release {}; the release of {path} cannot be determined without running it",
                first.release
            )
        }
        None => format!("{}; mooncake_master is not on PATH", first.release),
    })
}

/// The `mooncake_master` on PATH, and the wheel that it belongs to.
fn master(facts: &WheelFacts) -> Option<(String, Option<Wheel>)> {
    let name = |folder: &String| format!("{}/mooncake_master", folder.trim_end_matches('/'));
    let path = facts.search.path.iter().map(name).find(|path| facts.tree.resolve(path).is_some())?;
    // pip's script names its interpreter on its first line.
    let text = facts.tree.text(&path).ok().flatten().unwrap_or_default();
    let python = text.lines().next().and_then(|entry| entry.strip_prefix("#!")).map(|entry| entry.trim().to_owned());
    let of = python.and_then(|python| {
        let search = WheelSearch { python: Some(python), ..WheelSearch::default() };
        search::wheels(&facts.tree, &search).into_iter().next()
    });
    Some((path, of))
}
