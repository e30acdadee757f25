//! The scripts in `.ci`: every file has one package, and every ignored test has a step.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::style::sources;

/// Ignored tests that no step runs, each with its reason.
const WITHOUT_STEP: &[(&str, &str)] = &[
    ("deploy::written::", "needs docker"),
    ("kube::", "needs the schemas of another project"),
    ("many_keys::", "needs the release profile: .ci/release many-keys"),
    ("rdma::", "needs two RDMA devices: tests/rdma-vm/run-tests runs these by the name of their module"),
];

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

fn run(command: &str, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(command));
    let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("bash");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("written");
    child.wait_with_output().expect("ended")
}

/// The package that `.ci/packages` prints for each path.
fn packages(paths: &[String]) -> BTreeMap<String, String> {
    let output = run(".ci/packages", &[], &(paths.join("\n") + "\n"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    let lines = lines.lines().map(|line| line.split_once(' ').expect("two columns"));
    let found: BTreeMap<String, String> = lines.map(|(package, path)| (path.to_owned(), package.to_owned())).collect();
    assert_eq!(found.len(), paths.len(), "one line for each path");
    found
}

#[test]
fn every_source_file_belongs_to_one_package() {
    let paths: Vec<String> = sources("src").into_iter().map(|(path, _)| path.display().to_string()).collect();
    let mut found = BTreeSet::new();
    for (path, package) in packages(&paths) {
        let folder = path.strip_prefix("src/engine/").and_then(|rest| Some(rest.split_once('/')?.0));
        let expected = match folder {
            _ if path.starts_with("src/python/") => "mcctl-python".to_owned(),
            _ if path.starts_with("src/engine/sys/ibverbs-sys/") => "ibverbs-sys".to_owned(),
            Some(folder) => format!("mcctl-{folder}"),
            None => "mcctl".to_owned(),
        };
        assert_eq!(package, expected, "{path}");
        found.insert(package);
    }
    let manifest: toml::Table = toml::from_str(&text("Cargo.lock")).expect("TOML");
    let locked = manifest["package"].as_array().expect("a list").iter();
    let own = locked.filter(|package| package.get("source").is_none());
    let own: BTreeSet<String> = own.map(|package| package["name"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(found, own);
}

#[test]
fn files_outside_the_sources_belong_to_a_package_to_all_or_to_none() {
    let expected = [
        ("Cargo.toml", "*"),
        ("Cargo.lock", "*"),
        (".clippy.toml", "*"),
        (".cargo/config.toml", "*"),
        ("src/engine/deploy/Cargo.toml", "mcctl-deploy"),
        ("src/engine/journal/a_new_file.rs", "mcctl-journal"),
        ("src/engine/base/upstream/a_new_list.txt", "mcctl-base"),
        ("build.rs", "mcctl"),
        ("tests/it/docs.rs", "mcctl"),
        ("benches/core.rs", "mcctl"),
        ("README.md", "-"),
        ("fixtures/lint/README.md", "-"),
    ];
    let paths = expected.map(|(path, _)| path.to_owned());
    let expected = expected.map(|(path, package)| (path.to_owned(), package.to_owned()));
    assert_eq!(packages(&paths), BTreeMap::from(expected));
}

/// `cargo test -p PACKAGE --lib MODULE::` in CONTRIBUTING.md names packages, and a module of the
/// last one.
#[test]
fn recipes_name_the_package_of_their_unit_tests() {
    let text = text("CONTRIBUTING.md");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for rest in text.split("cargo test ").skip(1).filter(|rest| rest.starts_with("-p ")) {
        let command = rest.split(['`', '\n']).next().expect("a part");
        let packages = command.split_whitespace().filter(|word| word.starts_with("mcctl"));
        let folders = packages.map(|package| match package.strip_prefix("mcctl-") {
            Some(name) => root.join("src/engine").join(name),
            None => root.join("src"),
        });
        let folders: Vec<_> = folders.collect();
        assert!(folders.iter().all(|folder| folder.join("lib.rs").exists()), "{command}");
        for module in command.split_whitespace().filter_map(|word| word.strip_suffix("::")) {
            let path = folders.last().expect("a package").join(module);
            assert!(path.is_dir() || path.with_extension("rs").exists(), "{command}");
            count += 1;
        }
    }
    assert!(count > 3, "{count} commands");
}

/// The names of the tests in `tests/it` that are always ignored.
fn ignored_tests() -> Vec<String> {
    let mut names = Vec::new();
    for (path, text) in sources("tests/it") {
        let path = path.with_extension("").display().to_string();
        let path = path.trim_start_matches("tests/it/");
        let module = path.strip_suffix("/mod").unwrap_or(path).replace('/', "::");
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("#[ignore = ")) {
            let function = lines[at..].iter().find_map(|line| line.trim_start_matches("async ").strip_prefix("fn "));
            let name = function.and_then(|rest| rest.split('(').next()).expect("a function");
            names.push(format!("{module}::{name}"));
        }
    }
    names
}

/// libtest passes if a filter selects no test, and does not report which ignored tests never run.
#[test]
fn every_ignored_test_is_run_by_one_step_or_has_a_reason() {
    let steps = text(".ci/steps.sh");
    let filters = steps.lines().filter_map(|line| line.trim_start().strip_prefix("run_ignored "));
    let filters: Vec<&str> = filters.flat_map(str::split_whitespace).collect();
    let exceptions: Vec<&str> = WITHOUT_STEP.iter().map(|(filter, _)| *filter).collect();
    let all = [filters, exceptions].concat();
    let names = ignored_tests();
    for name in &names {
        let matching: Vec<&&str> = all.iter().filter(|filter| name.contains(**filter)).collect();
        assert_eq!(matching.len(), 1, "{name}: {matching:?}");
    }
    for filter in &all {
        assert!(names.iter().any(|name| name.starts_with(filter)), "{filter} selects no ignored test");
    }
}

#[test]
fn every_step_has_a_line_and_an_unknown_one_is_an_error_with_the_list() {
    let list = run(".ci/run", &["--list"], "");
    assert!(list.status.success());
    let list = String::from_utf8(list.stdout).expect("text");
    for script in [".ci/run", ".ci/release"] {
        let output = run(script, &["fmt", "no-such-step"], "");
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert!(stderr.contains("'no-such-step'") && stderr.ends_with(&list), "{stderr}");
    }
    let steps = text(".ci/steps.sh");
    let (_, table) = steps.split_once("\nSTEPS='\n").expect("a table");
    let (table, functions) = table.split_once("\n'\n").expect("an end");
    for row in table.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [name, when, command, what] = cells[..] else { panic!("{row}") };
        assert!(["change", "release"].contains(&when) && list.contains(what), "{row}");
        let is_file = Path::new(env!("CARGO_MANIFEST_DIR")).join(command).is_file();
        assert!(is_file || functions.contains(&format!("\n{command}() {{\n")), "{name}: no {command}");
    }
}

/// Debug assertions include the mistakes that tests plant. `packaging/planted` checks the programs.
#[test]
fn optimized_builds_have_no_debug_assertions() {
    let manifest: toml::Table = toml::from_str(&text("Cargo.toml")).expect("TOML");
    let profiles = manifest["profile"].as_table().expect("profiles");
    for name in ["release", "dist"] {
        let profile = profiles[name].as_table().expect("a profile");
        let packages = profile.get("package").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
        for settings in packages.filter_map(toml::Value::as_table).chain([profile]) {
            assert!(!settings.contains_key("debug-assertions"), "{name}");
        }
    }
    assert!(text("packaging/lib.sh").contains("packaging/planted \"$(program_path"));
}
