//! The documents hold what they promise: named tests exist, links lead to files, and README stays
//! short.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Markdown files that users and contributors read.
fn documents() -> Vec<(PathBuf, String)> {
    let names = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    let pages = ["docs", "docs/figures"].map(|folder| std::fs::read_dir(root().join(folder)).unwrap());
    let pages = pages.into_iter().flatten().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let paths = names.iter().map(|name| root().join(name)).chain(pages);
    paths.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The paragraphs of a document: its blocks without headings.
fn paragraphs(text: &str) -> Vec<&str> {
    text.split("\n\n").map(str::trim).filter(|block| !block.is_empty() && !block.starts_with('#')).collect()
}

/// The names between backticks after `Tested by:`.
fn named_tests(paragraph: &str) -> Vec<&str> {
    let tests = paragraph.split_once("\nTested by: ").map_or("", |(_, tests)| tests);
    tests.split('`').skip(1).step_by(2).collect()
}

/// The module of a source file: its name, or its folder's for `mod.rs` and `tests.rs`.
fn module(path: &Path) -> &str {
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = path.parent().and_then(|folder| folder.file_name()).and_then(|folder| folder.to_str());
    if ["mod", "tests"].contains(&name) { folder.unwrap_or_default() } else { name }
}

/// Whether `text` has a test function `name`.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let declares = |line: &str| {
        let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        rest.is_some_and(|rest| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('(')))
    };
    let is_attribute = |line: &&&str| line.starts_with("#[");
    lines.iter().enumerate().filter(|(_, line)| declares(line)).any(|(at, _)| {
        let mut attributes = lines[..at].iter().rev().take_while(is_attribute);
        attributes.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn every_paragraph_of_semantics_names_a_test() {
    let text = std::fs::read_to_string(root().join("docs/SEMANTICS.md")).unwrap();
    let sources = [crate::style::sources("src"), crate::style::sources("tests")].concat();
    let mut wrong = Vec::new();
    for paragraph in paragraphs(&text) {
        let first = paragraph.lines().next().unwrap_or("");
        let tests = named_tests(paragraph);
        if tests.is_empty() {
            wrong.push(format!("no test: {first}"));
        }
        for test in tests {
            let Some((path, name)) = test.rsplit_once("::") else {
                wrong.push(format!("no module: {test}"));
                continue;
            };
            let path = path.strip_suffix("::tests").unwrap_or(path);
            let owner = path.rsplit("::").next().unwrap_or(path);
            if !sources.iter().any(|(path, text)| module(path) == owner && has_test(text, name)) {
                wrong.push(format!("no such test: {test}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// The targets of all links to files in `text`, without anchors.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace)).collect()
}

/// The anchor that a heading gets: lower case, blanks as dashes, punctuation dropped.
pub fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_of_the_documents_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for (path, text) in documents() {
        for link in links(&text) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let Ok(there) = std::fs::read_to_string(&target) else {
                broken.push(format!("{}: {link}", path.display()));
                continue;
            };
            let headings =
                there.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#')));
            if !heading.is_empty() && !headings.into_iter().any(|known| known == heading) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
}

#[test]
fn readme_has_at_most_120_lines_and_links_every_page() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 120, "{} lines", text.lines().count());
    let pages =
        documents().into_iter().filter(|(path, _)| path.parent().is_some_and(|folder| folder.ends_with("docs")));
    let missing: Vec<String> = pages
        .map(|(path, _)| format!("docs/{}", path.file_name().unwrap().to_string_lossy()))
        .filter(|page| !text.contains(page.as_str()))
        .collect();
    assert_eq!(missing, [""; 0]);
}

/// The words between backticks, without those in code blocks.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(|part| part.lines().flat_map(|line| line.split('`').skip(1).step_by(2))).collect()
}

/// Paths from the root that a document names exist.
#[test]
fn paths_in_the_documents_exist() {
    let folders = ["src/", "tests/", "fixtures/", "benches/", ".ci/", "docs/"];
    let is_path = |word: &&str| !word.contains([' ', '*', '{', '<']) && !word.contains("VERSION");
    let mut missing = Vec::new();
    for (path, text) in documents() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        if name == "CHANGELOG.md" {
            continue;
        }
        let words = quoted(&text);
        let words = words.iter().filter(|word| folders.iter().any(|folder| word.starts_with(folder))).copied();
        missing.extend(
            words.filter(is_path).filter(|word| !root().join(word).exists()).map(|word| format!("{name}: {word}")),
        );
    }
    assert_eq!(missing, [""; 0]);
}

/// `cargo test MODULE` in the documents selects something.
#[test]
fn test_filters_in_the_documents_name_modules() {
    let sources = [crate::style::sources("src"), crate::style::sources("tests")].concat();
    let mut unknown = Vec::new();
    for (_, text) in documents() {
        for command in quoted(&text).into_iter().filter_map(|word| word.strip_prefix("cargo test ")) {
            let Some(module) = command.rsplit("::").next().filter(|module| !module.is_empty() && *module != "NAME")
            else {
                continue;
            };
            let is_there = |path: &Path| path.with_extension("").components().any(|part| part.as_os_str() == module);
            if !command.starts_with('-') && !sources.iter().any(|(path, _)| is_there(path)) {
                unknown.push(command.to_owned());
            }
        }
    }
    assert_eq!(unknown, [""; 0]);
}

/// Every problem that doctor knows has its section, with the number and a command.
#[test]
fn troubleshooting_has_a_section_for_each_problem() {
    let text = std::fs::read_to_string(root().join("docs/TROUBLESHOOTING.md")).unwrap();
    for problem in mcctl::engine::doctor::problems::ALL {
        let heading = format!("\n### {}. ", problem.number);
        let section = text.split_once(&heading).map(|(_, rest)| rest.split("\n### ").next().unwrap_or(rest));
        let section = section.unwrap_or_else(|| panic!("no section {}", problem.number));
        assert!(section.contains("mcctl "), "section {} has no command", problem.number);
    }
    let known: Vec<&str> = mcctl::engine::doctor::catalogue().iter().map(|check| check.id).collect();
    let checks = text.lines().filter_map(|line| line.strip_prefix("- Checks: "));
    let named: Vec<&str> = checks.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 26);
    let unknown: Vec<&&str> = named.iter().filter(|name| !known.contains(name)).collect();
    assert_eq!(unknown, [&""; 0]);
}

/// The names in the tables of ARCHITECTURE.md's section Dependencies: of the program, and of tests
/// only.
fn documented_dependencies() -> (BTreeSet<String>, BTreeSet<String>) {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("Dependencies")).expect("a section");
    let (program, tests) = section.split_once("For tests only:").expect("two tables");
    let names = |table: &str| -> BTreeSet<String> {
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
        let rows: Vec<(&str, &str)> = rows.map(|row| row.split_once("` | ").expect("two columns")).collect();
        assert!(rows.iter().all(|(_, purpose)| !purpose.is_empty()) && rows.is_sorted(), "{rows:?}");
        rows.into_iter().map(|(name, _)| name.to_owned()).collect()
    };
    (names(program), names(tests))
}

/// The name and the manifest of each crate in `src/engine`.
fn crates() -> impl Iterator<Item = (String, PathBuf)> {
    let folders = std::fs::read_dir(root().join("src/engine")).unwrap().map(|entry| entry.unwrap());
    let names = folders.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap());
    names.map(|name| (format!("mcctl-{name}"), Path::new("src/engine").join(name).join("Cargo.toml")))
}

fn manifest(path: &Path) -> toml::Table {
    toml::from_str(&std::fs::read_to_string(root().join(path)).unwrap()).unwrap()
}

#[test]
fn the_table_of_crates_has_the_dependencies_of_the_manifests() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `mcctl-")?.strip_suffix(" |"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
    let documented: BTreeSet<(String, String)> =
        rows.iter().map(|row| (format!("mcctl-{}", row[0].trim_end_matches('`')), row[1].to_owned())).collect();
    let found = crates().map(|(name, path)| {
        let manifest = manifest(&path);
        let dependencies = manifest["dependencies"].as_table().unwrap().keys();
        let own: Vec<&str> = dependencies.filter_map(|name| name.strip_prefix("mcctl-")).collect();
        (name, if own.is_empty() { "-".to_owned() } else { own.join(", ") })
    });
    assert_eq!(documented, found.collect());
    let order: Vec<&str> = rows.iter().map(|row| row[0].trim_end_matches('`')).collect();
    let is_above = |name: &str, at: usize| order[..at].contains(&name);
    let wrong = rows
        .iter()
        .enumerate()
        .filter(|(at, row)| row[1] != "-" && !row[1].split(", ").all(|name| is_above(name, *at)));
    assert_eq!(wrong.count(), 0, "a crate stands above one that it uses: {order:?}");
}

/// The direct dependencies of all packages in the workspace on other packages: of the program, and
/// of tests only.
fn direct_dependencies() -> (BTreeSet<String>, BTreeSet<String>) {
    let manifests = ["Cargo.toml", "src/engine/sys/ibverbs-sys/Cargo.toml", "src/python/Cargo.toml"];
    let manifests = manifests.map(PathBuf::from).into_iter().chain(crates().map(|(_, path)| path));
    let mut program = BTreeSet::new();
    let mut tests = BTreeSet::new();
    for path in manifests {
        let manifest = manifest(&path);
        for (table, into) in [("dependencies", &mut program), ("dev-dependencies", &mut tests)] {
            let names = manifest.get(table).and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
            into.extend(names.filter(|name| !name.starts_with("mcctl-")).cloned());
        }
    }
    let only_tests = tests.difference(&program).cloned().collect();
    (program, only_tests)
}

#[test]
fn every_direct_dependency_has_a_line_with_its_purpose() {
    assert_eq!(documented_dependencies(), direct_dependencies());
}
