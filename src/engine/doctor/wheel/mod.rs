//! Checks of Mooncake's Python wheel and of the libraries that it is linked to. No Python is run, nothing is loaded.

mod elf;
mod find;
mod libraries;

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::check::{Check, Finding, Group, Report, Severity, Status};
use crate::engine::doctor::{Line, Selection, each, find as finding, status};
use crate::engine::env::Env;
use crate::engine::sys::FileTree;

pub use find::{Places, Wheel};

use libraries::Loader;

/// The series that this program speaks on the wire.
const SPOKEN: &str = "0.3.13";
/// Binaries of a wheel that are looked at.
const BINARIES: &[&str] = &["mooncake_master", "mooncake_client", "transfer_engine_bench"];

/// What the checks look at.
#[derive(Debug)]
pub struct Look {
    tree: FileTree,
    places: Places,
    wheels: Vec<Wheel>,
}

/// The checks, and what does each.
pub const CHECKS: &[Line<Look>] = &[
    (line("wheel-installed", "Mooncake's wheel is installed, once, and of the series that mcctl speaks", &[3]), wheel),
    (line("wheel-libraries", "every library that the wheel's binaries are linked to is there", &[2, 22]), missing),
    (line("wheel-flavour", "a wheel without CUDA asks for none", &[22]), flavour),
    (line("wheel-release", "the wheels and the mooncake_master of this host are of one release", &[3]), release),
];

const fn line(id: &'static str, about: &'static str, problems: &'static [u8]) -> Check {
    Check { id, group: Group::Wheel, about, problems }
}

/// Its lines of the catalogue.
pub fn checks() -> Vec<Check> {
    CHECKS.iter().map(|(check, _)| *check).collect()
}

/// Do the wanted checks.
pub fn run(env: &impl Env, tree: &FileTree, places: &Places, selection: &Selection) -> Vec<Report> {
    if !CHECKS.iter().any(|(check, _)| selection.wants(check)) {
        return Vec::new();
    }
    let wheels = find::wheels(tree, places);
    each(env, CHECKS, &Look { tree: tree.clone(), places: places.clone(), wheels }, selection)
}

/// There is nothing to look at.
fn none(look: &Look) -> Status {
    let place = match &look.places.python {
        Some(python) => format!("of {python}"),
        None => "of the interpreters on PATH; name another one with --python".to_owned(),
    };
    Status::Skipped(format!("no Mooncake wheel is among the packages {place}"))
}

fn describe(wheel: &Wheel) -> String {
    format!("{} {} in {}", wheel.name, wheel.release, wheel.packages)
}

fn wheel(look: &Look, check: &Check) -> Status {
    if look.wheels.is_empty() {
        return none(look);
    }
    let mut findings = Vec::new();
    let mut of_folder: BTreeMap<&str, Vec<&Wheel>> = BTreeMap::new();
    for wheel in &look.wheels {
        of_folder.entry(&wheel.packages).or_default().push(wheel);
    }
    for (folder, wheels) in of_folder {
        if let [first, _, ..] = wheels.as_slice() {
            let names: Vec<String> = wheels.iter().map(|w| format!("{} {}", w.name, w.release)).collect();
            let all: Vec<&str> = wheels.iter().map(|w| w.name.as_str()).collect();
            findings.push(finding(
                check,
                Severity::Error,
                "several wheels share one folder and have overwritten each other's files: what is imported is a mixture",
                format!("{} in {folder}", names.join(", ")),
                format!("pip uninstall -y {}, then install one of them: pip install {}", all.join(" "), first.name),
            ));
        }
    }
    for wheel in look.wheels.iter().filter(|wheel| series(&wheel.release) != SPOKEN) {
        findings.push(finding(
            check,
            Severity::Info,
            format!("this wheel is of series {}, and mcctl speaks {SPOKEN}: between the two, puts fail and nothing says why", series(&wheel.release)),
            describe(wheel),
            format!("for mcctl's master and nodes: pip install '{}>={SPOKEN}'", wheel.name),
        ));
    }
    status(findings, || look.wheels.iter().map(describe).collect::<Vec<_>>().join("; "))
}

/// `0.3.13.post1` is of the series `0.3.13`.
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

fn missing(look: &Look, check: &Check) -> Status {
    if look.wheels.is_empty() {
        return none(look);
    }
    let loader = Loader::new(&look.tree, &look.places.library_path);
    let (mut findings, mut count) = (Vec::new(), 0);
    for wheel in &look.wheels {
        let files = binaries(&look.tree, wheel);
        count += files.len();
        for (library, needed_by) in loader.missing(&files) {
            findings.push(absent(look, check, wheel, &library, &needed_by));
        }
    }
    status(findings, || format!("all libraries of {count} binaries are found"))
}

fn absent(look: &Look, check: &Check, wheel: &Wheel, library: &str, needed_by: &BTreeSet<String>) -> Finding {
    let names: Vec<&str> = needed_by.iter().filter_map(|path| path.rsplit('/').next()).collect();
    let evidence = format!("{} of {} {} ask for it", names.join(", "), wheel.name, wheel.release);
    match elsewhere(&look.tree, &wheel.packages, library) {
        Some(folder) => finding(
            check,
            Severity::Warning,
            format!(
                "{library} is found by those alone who import its own package first (as torch does): the programs of the wheel do not start"
            ),
            format!("{evidence}; it is in {folder}"),
            format!("export LD_LIBRARY_PATH={folder}"),
        ),
        None => finding(
            check,
            Severity::Error,
            format!(
                "{library} is missing: importing the wheel or starting its programs ends with 'cannot open shared object file'"
            ),
            evidence,
            libraries::remedy(library, wheel.flavour()),
        ),
    }
}

/// Packages of NVIDIA bring libraries in folders of their own: `nvidia/cuda_runtime/lib`.
fn elsewhere(tree: &FileTree, packages: &str, library: &str) -> Option<String> {
    let names = tree.names(&format!("{packages}/nvidia")).ok().flatten()?;
    let folders = names.iter().map(|name| format!("{packages}/nvidia/{name}/lib"));
    folders.into_iter().find(|folder| tree.resolve(&format!("{folder}/{library}")).is_some())
}

fn flavour(look: &Look, check: &Check) -> Status {
    if look.wheels.is_empty() {
        return none(look);
    }
    let mut findings = Vec::new();
    for wheel in look.wheels.iter().filter(|wheel| wheel.flavour() == "non-cuda") {
        let wrong: Vec<String> = binaries(&look.tree, wheel)
            .into_iter()
            .filter(|path| {
                let dynamic = look.tree.open(path).ok().flatten().and_then(elf::read);
                dynamic.is_some_and(|dynamic| dynamic.needed.iter().any(|name| name.starts_with("libcuda")))
            })
            .filter_map(|path| path.rsplit('/').next().map(str::to_owned))
            .collect();
        if !wrong.is_empty() {
            findings.push(finding(
                check,
                Severity::Warning,
                "this wheel is called non-cuda and asks for CUDA's runtime all the same, as 0.3.12.post1 does: where there is none it cannot be imported",
                format!("{} of {}", wrong.join(", "), describe(wheel)),
                format!("pip install '{}>=0.3.13'", wheel.name),
            ));
        }
    }
    status(findings, || look.wheels.iter().map(|wheel| wheel.flavour().to_owned()).collect::<Vec<_>>().join(", "))
}

fn release(look: &Look, check: &Check) -> Status {
    let Some(first) = look.wheels.first() else { return none(look) };
    let mut findings = Vec::new();
    if let Some(other) = look.wheels.iter().find(|wheel| wheel.release != first.release) {
        findings.push(finding(
            check,
            Severity::Warning,
            "wheels of different releases are on this host: a client of one and a master of the other agree at the handshake, and store nothing",
            format!("{}; {}", describe(first), describe(other)),
            format!("pip install '{}=={}' in both", other.name, first.release),
        ));
    }
    if let Some((path, Some(of))) = master(look)
        && of.release != first.release
        && findings.is_empty()
    {
        findings.push(finding(
            check,
            Severity::Warning,
            "the mooncake_master that a shell here starts is of another release than the wheel that Python imports",
            format!("{path} is of {}; {}", of.release, describe(first)),
            "put the one that is meant first on PATH",
        ));
    }
    status(findings, || match master(look) {
        Some((path, Some(of))) => format!("{path} is of {}, as the wheel", of.release),
        Some((path, None)) => {
            format!("the wheel is of {}; of which release {path} is cannot be told without running it", first.release)
        }
        None => format!("{}; no mooncake_master is on PATH", first.release),
    })
}

/// The `mooncake_master` that a shell would start, and the wheel that it belongs to.
fn master(look: &Look) -> Option<(String, Option<Wheel>)> {
    let name = |folder: &String| format!("{}/mooncake_master", folder.trim_end_matches('/'));
    let path = look.places.path.iter().map(name).find(|path| look.tree.resolve(path).is_some())?;
    // pip's script names its interpreter in its first line.
    let text = look.tree.text(&path).ok().flatten().unwrap_or_default();
    let python = text.lines().next().and_then(|line| line.strip_prefix("#!")).map(|line| line.trim().to_owned());
    let of = python.and_then(|python| {
        let places = Places { python: Some(python), ..Places::default() };
        find::wheels(&look.tree, &places).into_iter().next()
    });
    Some((path, of))
}
