//! `mcctl lint` on the deployments in fixtures/lint: each mistake is reported at its line, and
//! nothing else is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mcctl::commands::cli::flags::{FlagSupport, FlagTable};
use mcctl::commands::cli::service_flags::{master_flags, metadata_flags, store_flags};
use mcctl::engine::check::{Finding, Severity};
use mcctl::engine::lint::{
    CHECKS, METADATA_FLAGS, NODE_FLAGS, REFUSED_BY_MASTER, REFUSED_BY_NODE, ReadError, SourceFile, UP_FLAGS,
    check_deployment, read, read_each,
};
use proptest::prelude::*;
use serde_json::Value;

use crate::cli::mcctl;

fn fixtures(which: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/lint").join(which);
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "{which}");
    found
}

/// The files of a fixture (a file or a folder) as pairs of name and text. The names are those in
/// findings.
fn texts(fixture: &Path) -> Vec<(String, String)> {
    let files = if fixture.is_dir() {
        let mut files: Vec<PathBuf> = fs::read_dir(fixture).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    } else {
        vec![fixture.to_owned()]
    };
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn lint(texts: &[(String, String)]) -> Vec<Finding> {
    let sources: Vec<SourceFile<'_>> = texts
        .iter()
        .filter(|(name, _)| name != "expect.txt")
        .map(|(name, text)| SourceFile { name, bytes: text.as_bytes(), kind: None })
        .collect();
    let deployment = read(&sources).unwrap_or_else(|(name, error)| panic!("{name}: {error}"));
    check_deployment(&deployment)
}

/// A finding as `file line rule severity`.
fn shown(finding: &Finding) -> String {
    let place = finding.place.as_ref().unwrap();
    format!("{} {} {} {}", place.file, place.line, finding.id, finding.severity)
}

/// The findings that the fixture expects, from its comments.
fn expected(texts: &[(String, String)]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (name, text) in texts {
        if name == "expect.txt" {
            all.extend(text.lines().map(str::to_owned));
            continue;
        }
        for (line, number) in text.lines().zip(1..) {
            let below = line.split_once("expect below: ").map(|(_, rest)| (rest, number + 1));
            let here = line.split_once("expect: ").map(|(_, rest)| (rest, number));
            if let Some((rest, number)) = below.or(here) {
                let words: Vec<&str> = rest.split([' ', '`']).take(2).collect();
                all.insert(format!("{name} {number} {}", words.join(" ")));
            }
        }
    }
    all
}

#[test]
fn every_mistake_is_reported_at_its_line_and_nothing_else() {
    let mut wrong = Vec::new();
    for fixture in fixtures("bad") {
        let texts = texts(&fixture);
        let found = lint(&texts);
        let wanted = expected(&texts);
        assert!(!wanted.is_empty(), "{} expects nothing", fixture.display());
        let counted: BTreeSet<String> = found
            .iter()
            .filter(|finding| finding.severity > Severity::Info || wanted.contains(&shown(finding)))
            .map(shown)
            .collect();
        if counted != wanted {
            wrong.push(format!("{}\n  wanted {wanted:?}\n  found  {counted:?}\n  {found:#?}", fixture.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn correct_deployments_yield_no_warning() {
    let mut wrong = Vec::new();
    for fixture in fixtures("clean") {
        let found: Vec<Finding> = lint(&texts(&fixture)).into_iter().filter(|f| f.severity > Severity::Info).collect();
        if !found.is_empty() {
            wrong.push(format!("{}\n{found:#?}", fixture.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_clients_of_the_wheel_need_the_variable_for_checksums() {
    let start = |before: &str, program: &str| {
        let text =
            format!("export MOONCAKE_MASTER=127.0.0.1:50051 {before}\n{program} -m sglang.launch_server {HICACHE}\n");
        lint(&[("start.sh".to_owned(), text)]).iter().filter(|finding| finding.id == "checksum").count()
    };
    assert_eq!(start("", "python3"), 1);
    assert_eq!(start("MOONCAKE_STORE_CHECKSUM=True", "python3"), 0);
    assert_eq!(start("MOONCAKE_CLIENT=127.0.0.1:50052", "python3"), 0);
    assert_eq!(start("", "python3 -m mcctl_mooncake.run --"), 0);
    assert_eq!(start("MOONCAKE_STORE_CHECKSUM=0", "python3 -m mcctl_mooncake.run --"), 1);
    assert_eq!(start("", ". /etc/store.env; python3"), 0);
    let image = "docker run --network host lmsysorg/mooncake-sglang";
    assert_eq!(start("", &format!("{image}:0.3.13.post1 python3")), 1);
    assert_eq!(start("", &format!("{image}:0.3.12.post1 python3")), 0);
    let dynamic = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/lint/clean/mcctl-client.sh");
    assert!(lint(&texts(&dynamic)).iter().all(|finding| finding.id != "checksum"));
}

/// Flags with which an SGLang server uses the store.
const HICACHE: &str = "--model-path /m --page-size 64 --enable-hierarchical-cache --hicache-size 32 \
    --hicache-mem-layout page_first --hicache-storage-backend mooncake";

#[test]
fn a_group_with_pods_that_are_refused_is_accepted() {
    let finding = |kind: &str, template: &str| {
        let spec = match kind {
            "Deployment" => format!("selector: {{matchLabels: {{a: b}}}}, template: {template}"),
            _ => format!("roles: [{{name: r, replicas: 1, standalonePattern: {{template: {template}}}}}]"),
        };
        let version = if kind == "Deployment" { "apps/v1" } else { "workloads.x-k8s.io/v1alpha2" };
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n");
        let all = lint(&[("a.yaml".to_owned(), text)]);
        let found: Vec<String> =
            all.into_iter().filter(|finding| finding.id == "manifest").map(|finding| finding.finding).collect();
        found.into_iter().next().expect("a finding")
    };
    let gpu = "{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: 'i:1', resources: {requests: {nvidia.com/gpu: 1}}}]}}";
    for template in ["{}", gpu] {
        let group = finding("RoleBasedGroup", template);
        assert!(group.contains("accepts RoleBasedGroup a, but rejects its pods"), "{group}");
        let deployment = finding("Deployment", template);
        assert!(deployment.contains("rejects Deployment a"), "{deployment}");
    }
}

#[test]
fn every_rule_has_a_fixture() {
    let covered: BTreeSet<String> = fixtures("bad")
        .iter()
        .flat_map(|fixture| expected(&texts(fixture)))
        .filter_map(|line| line.split(' ').nth(2).map(str::to_owned))
        .collect();
    let without: Vec<&str> = CHECKS.iter().map(|check| check.id).filter(|id| !covered.contains(*id)).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn lint_reports_the_flags_that_mcctl_serve_refuses() {
    let absent = |table: &'static FlagTable| {
        let refused = table.flags().filter(|flag| matches!(flag.class, FlagSupport::Absent(_)));
        refused.map(|flag| (flag.name, flag.default)).collect::<BTreeSet<_>>()
    };
    let known: BTreeSet<_> = REFUSED_BY_MASTER.iter().map(|refused| (refused.name, refused.default)).collect();
    assert_eq!(known, absent(&master_flags::TABLE));
    let node = absent(&store_flags::TABLE);
    assert!(REFUSED_BY_NODE.iter().all(|refused| node.contains(&(refused.name, refused.default))), "{node:?}");
}

/// The flags of `table` and their aliases, without the logging flags that all services share.
fn flags_of(table: &'static FlagTable) -> BTreeSet<&'static str> {
    let names = table.flags().flat_map(|flag| std::iter::once(flag.name).chain(flag.aliases.iter().copied()));
    names.filter(|name| !name.starts_with("log_")).collect()
}

#[test]
fn lint_lists_the_flags_of_mcctl_programs() {
    let known = |list: &[&'static str]| list.iter().copied().filter(|name| !matches!(*name, "help" | "h")).collect();
    let node: BTreeSet<&str> = known(NODE_FLAGS);
    assert_eq!(node, flags_of(&store_flags::TABLE));
    let metadata: BTreeSet<&str> = known(METADATA_FLAGS);
    assert!(flags_of(&metadata_flags::TABLE).is_subset(&metadata), "{metadata:?}");
    let up: BTreeSet<&str> = known(UP_FLAGS);
    let help = mcctl(&["up", "--help"]);
    let flags = help
        .succeeds()
        .lines()
        .filter_map(|line| line.trim_start().split("--").nth(1).filter(|_| line.trim_start().starts_with('-')));
    let flags: BTreeSet<String> = flags
        .map(|flag| flag.split([' ', '=', '[']).next().unwrap().replace('-', "_"))
        .filter(|f| f != "help" && !f.starts_with("log_"))
        .collect();
    // A former name is accepted, and not shown.
    let flags = flags.iter().map(String::as_str).chain(["host"]).collect();
    assert_eq!(up, flags);
}

#[test]
fn known_sglang_flags_are_sorted() {
    let known = include_str!("../../src/engine/base/upstream/sglang_flags.txt");
    let names: Vec<&str> = known.lines().collect();
    assert!(names.len() > 500 && names.is_sorted() && names.contains(&"hicache_size"));
    assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')));
}

#[test]
fn a_folder_is_read_with_its_subfolders() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("base/.git")).unwrap();
    for name in ["service.yaml", "master.yaml"] {
        fs::copy(
            fixtures("bad").iter().find(|f| f.ends_with("selector-files")).unwrap().join(name),
            at("base").join(name),
        )
        .unwrap();
    }
    fs::write(at("package.json"), "{\"name\": \"a\"}\n").unwrap();
    fs::write(at("notes.md"), "# Notes\n").unwrap();
    fs::write(at("base/.git/x.yaml"), "[").unwrap();
    let folder = dir.path().to_str().unwrap();
    let run = mcctl(&["lint", folder, "--json"]);
    let document: Value = serde_json::from_str(&run.stdout).expect("one JSON document");
    assert_eq!((run.code, document["files"].as_array().map(Vec::len)), (1, Some(2)), "{run:?}");
    let ids: Vec<_> = document["findings"].as_array().unwrap().iter().map(|finding| &finding["id"]).collect();
    assert!(ids.iter().any(|id| **id == "selector"), "{ids:?}");
    assert!(run.stderr.contains("package.json") && !run.stderr.contains("notes.md"), "{run:?}");
    fs::remove_dir_all(at("base")).unwrap();
    // No file in it is part of a deployment, so nothing was checked.
    for args in [&["lint", folder, "--json"][..], &["doctor", "--only", "config", "--file", folder]] {
        let run = mcctl(args);
        assert!(run.code == 2 && run.stderr.contains(folder), "{run:?}");
    }
    fs::remove_file(at("package.json")).unwrap();
    let run = mcctl(&["lint", folder]);
    assert!(run.code == 2 && run.stderr.contains(folder), "{run:?}");
    assert_eq!(mcctl(&["doctor", "--only", "config", "--file", folder]).code, 2);
}

#[test]
fn fixes_for_mcctl_serve_master_never_name_a_refused_flag() {
    let found = |line: &str| lint(&[("start.sh".to_owned(), format!("mcctl serve master{line}\n"))]);
    let mut all = found("");
    for refused in REFUSED_BY_MASTER {
        let value = if refused.default == "false" { "true" } else { "enforce" };
        let of_flag = found(&format!(" --{}={value}", refused.name));
        assert!(of_flag.iter().any(|f| f.id == "unsupported" && f.severity == Severity::Error), "{of_flag:#?}");
        all.extend(of_flag);
    }
    for finding in all {
        let next = &finding.remedy;
        assert!(!next.contains("add --") && !next.contains("=true"), "{finding:#?}");
    }
}

#[test]
fn rule_ids_are_unique_and_kebab_case() {
    let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
    for check in CHECKS {
        assert!(check.id.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", check.id);
        assert!(check.problems.iter().all(|problem| (1..=26).contains(problem)), "{}", check.id);
    }
}

#[test]
fn finding_texts_are_single_lines_without_a_full_stop() {
    for fixture in fixtures("bad") {
        for finding in lint(&texts(&fixture)) {
            for text in [&finding.finding, &finding.evidence, &finding.remedy] {
                assert!(!text.is_empty() && !text.contains('\n') && !text.ends_with('.'), "{}: {text}", finding.id);
            }
        }
    }
}

/// The first finding of a rule in the JSON document.
fn of_rule<'d>(document: &'d Value, id: &str) -> Option<&'d Value> {
    document["findings"].as_array()?.iter().find(|finding| finding["id"] == id)
}

#[test]
fn report_has_locations_and_the_exit_code_reflects_findings() {
    let bad = fixtures("bad").into_iter().find(|f| f.ends_with("memory-limit.yaml")).unwrap();
    let bad = bad.to_str().unwrap();
    let run = mcctl(&["lint", bad]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("memory-limit.yaml:30: error: "), "{run:?}");
    assert!(
        run.stdout.contains("[memory-limit]\n    found: ") && run.stdout.ends_with("\nresult: failed\n"),
        "{run:?}"
    );
    assert_eq!(mcctl(&["lint", "--skip", "memory-limit", bad]).code, 0);
    assert_eq!(mcctl(&["lint", "--only", "selector", bad]).code, 0);
    assert_eq!(mcctl(&["lint", "--fail-on", "never", bad]).code, 0);
    let run = mcctl(&["lint", "--json", bad]);
    let document: Value = serde_json::from_str(&run.stdout).expect("one JSON document");
    assert_eq!((run.code, document["schema"].as_str()), (1, Some("mcctl.lint/1")));
    let finding = of_rule(&document, "memory-limit").expect("a finding");
    assert_eq!(finding["place"]["line"], 30);
    assert_eq!(document["counts"]["error"], 1);
}

#[test]
fn templates_are_places_that_were_not_read() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("helm.yaml", "a: 1\n{{ if .x }}\nb: 2\n{{ end }}\n"),
        ("first.yaml", "{{- if .x }}\nb: 2\n{{- end }}\n"),
        ("jinja.yaml", "a:\n{% for i in x %}\n  {{ i }}: 1\n{% endfor %}\n"),
        ("python.json", "{{\"protocol\": \"{protocol}\"}}\n"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        let run = mcctl(&["lint", "--json", path.to_str().unwrap()]);
        let document: Value = serde_json::from_str(&run.stdout).expect("one JSON document");
        assert_eq!((run.code, document["result"].as_str()), (0, Some("partly-read")), "{name}: {run:?}");
        let places = &document["unread_places"];
        let lines = text.lines().count();
        assert_eq!((&places[0]["line"], &places[0]["lines"]), (&1.into(), &lines.into()), "{name}");
        assert!(places[0]["reason"].as_str().is_some_and(|reason| reason.starts_with("template")), "{name}");
        assert_eq!(document["script_lines"]["read"], 0, "{name}");
    }
}

#[test]
fn unreadable_inputs_are_reported_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let says = |name: &str, bytes: &[u8], words: &[&str]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let run = mcctl(&["lint", path.to_str().unwrap()]);
        assert_eq!(run.code, 2, "{name}: {run:?}");
        for word in words {
            assert!(run.stderr.contains(word), "{name}: {run:?}");
        }
    };
    says("a.yaml", b"apiVersion: v1\nkind: [\n", &["a.yaml:", "invalid YAML"]);
    says("c.json", b"{\n \"protocol\": \"tcp\",\n}\n", &["c.json:3", "invalid JSON"]);
    says("d.yaml", b"", &["empty"]);
    says("e.sh", b"\x7fELF\x00\x01", &["not a text file"]);
    says("f.txt", b"Dear all,\nthe cache is slow.\n", &["--kind", "kubernetes, compose, unit", "lmcache-config"]);
    says("g.yaml", b"title: a song\nverses: 3\n", &["--kind"]);
    let run = mcctl(&["lint", "/nowhere/at-all.yaml"]);
    assert!(run.code == 2 && run.stderr.contains("/nowhere/at-all.yaml"), "{run:?}");
    let run = mcctl(&["lint", "--only", "memory-limits", "x.yaml"]);
    assert!(run.code == 2 && run.stderr.contains("memory-limit"), "{run:?}");
    assert_eq!(mcctl(&["lint"]).code, 2);
}

#[test]
fn an_unreadable_input_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let bad = fixtures("bad").into_iter().find(|f| f.ends_with("memory-limit.yaml")).unwrap();
    let bad = bad.to_str().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("letter.txt"), "Dear all,\nthe cache is slow.\n").unwrap();
    let many = "- {}\n".repeat(10) + &"mooncake_master\n".repeat(2000);
    fs::write(at("many.sh"), many).unwrap();
    let run = mcctl(&["lint", &at("letter.txt"), "/nowhere/at-all.yaml", bad, &at("many.sh")]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stdout.contains("[memory-limit]") && run.stdout.contains("1 file ("), "{run:?}");
    assert_eq!(run.stderr.lines().count(), 3, "{run:?}");
    for name in ["letter.txt", "/nowhere/at-all.yaml", "many.sh"] {
        assert!(run.stderr.lines().any(|line| line.contains(name)), "{name}: {run:?}");
    }
    let run = mcctl(&["lint", "--json", &at("letter.txt"), bad]);
    let document: Value = serde_json::from_str(&run.stdout).expect("one JSON document");
    assert!(run.code == 2 && of_rule(&document, "memory-limit").is_some(), "{document}");
    assert_eq!(document["unread"][0]["name"].as_str(), Some(at("letter.txt").as_str()));
}

#[test]
fn files_that_start_nothing_are_not_errors() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        ("60-hicache.conf", "# pages\nvm.nr_hugepages = 1024\n"),
        ("hicache-hugepages.conf", "d /dev/hugepages/hicache 0770 root root -\n"),
        ("values.yaml", "image:\n  repository: a/mooncake\n  tag: 0.3.13\nmaster:\n  replicas: 1\n"),
        ("hicache.target", "[Unit]\nDescription=all of it\n"),
    ];
    let mut paths = Vec::new();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        paths.push(path.to_str().unwrap().to_owned());
    }
    let args: Vec<&str> = std::iter::once("lint").chain(paths.iter().map(String::as_str)).collect();
    let run = mcctl(&args);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.stderr.matches("nothing to check").count(), files.len(), "{run:?}");
    let out = dir.path().join("units");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/deploy");
    let example =
        fs::read_dir(example).unwrap().map(|e| e.unwrap().path()).find(|p| p.extension().is_some_and(|e| e == "toml"));
    mcctl(&["render", "systemd", example.unwrap().to_str().unwrap(), "--out", out.to_str().unwrap()]).succeeds();
    let mut folders = vec![out];
    let mut written = vec!["lint".to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                written.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    assert!(written.iter().any(|name| name.contains("sysctl.d")), "{written:?}");
    let run = mcctl(&written.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn pipes_and_devices_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.toml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    for args in [&["lint", pipe][..], &["doctor", "--file", pipe], &["render", "k8s", pipe], &["lint", "/dev/zero"]] {
        let run = mcctl(args);
        assert!(run.code == 2 && run.stderr.contains("expected a regular file"), "{args:?}: {run:?}");
    }
}

#[test]
fn an_invalid_release_is_a_usage_error() {
    let bad = fixtures("bad").into_iter().find(|f| f.ends_with("memory-limit.yaml")).unwrap();
    let run = mcctl(&["lint", "--release", "banana", bad.to_str().unwrap()]);
    assert!(run.code == 2 && run.stderr.contains("'banana'"), "{run:?}");
    assert_eq!(mcctl(&["lint", "--release", "v0.3.12.post1", bad.to_str().unwrap()]).code, 1);
}

#[test]
fn rules_are_listed_without_a_file() {
    let run = mcctl(&["lint", "--list"]);
    let list = run.succeeds();
    assert!(list.starts_with("rule") && list.lines().count() > CHECKS.len(), "{list}");
    let run = mcctl(&["lint", "--list", "--json"]);
    let document: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    assert_eq!(document["rules"].as_array().map(Vec::len), Some(CHECKS.len()));
}

/// The files that `mcctl render` writes for an example, as pairs of name and text.
fn rendered(format: &str, example: &Path) -> Vec<(String, String)> {
    let run = mcctl(&["render", format, example.to_str().unwrap(), "--json"]);
    let document: Value = serde_json::from_str(run.succeeds()).expect("JSON");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    document["files"].as_array().unwrap().iter().map(|file| (text(&file["name"]), text(&file["text"]))).collect()
}

/// Formats whose files start no processes. Lint does not check such files.
const MONITORING: [&str; 2] = ["prometheus", "grafana"];

/// Whether the file sets up the host. Lint does not check such files.
fn sets_up_the_host(name: &str) -> bool {
    name.ends_with(".conf") || name.ends_with(".target") || name.ends_with(".md") || name.ends_with(".slice")
}

#[test]
fn rendered_files_yield_no_warning() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/deploy");
    let mut examples: Vec<PathBuf> = fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path()).collect();
    examples.retain(|path| path.extension().is_some_and(|e| e == "toml" || e == "yaml"));
    examples.sort();
    assert!(examples.len() >= 5);
    let mut wrong = Vec::new();
    let mut processes = 0;
    for example in &examples {
        let formats = mcctl::engine::deploy::render::RenderFormat::ALL.iter().map(|(format, _)| *format);
        for format in formats.filter(|format| !MONITORING.contains(format)) {
            let texts = rendered(format, example);
            let texts: Vec<(String, String)> = texts.into_iter().filter(|(name, _)| !sets_up_the_host(name)).collect();
            let sources: Vec<SourceFile<'_>> =
                texts.iter().map(|(name, text)| SourceFile { name, bytes: text.as_bytes(), kind: None }).collect();
            let label = format!("{format} of {}", example.display());
            let deployment = read(&sources).unwrap_or_else(|(name, error)| panic!("{label}: {name}: {error}"));
            processes += deployment.processes.iter().filter(|process| process.role.is_client()).count();
            let found: Vec<Finding> =
                check_deployment(&deployment).into_iter().filter(|f| f.severity > Severity::Info).collect();
            for finding in found {
                let [finding_text, evidence, next] = [&finding.finding, &finding.evidence, &finding.remedy];
                wrong.push(format!("{label}: {}\n    {finding_text}\n    {evidence}\n    {next}", shown(&finding)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(processes > 30, "lint recognized only {processes} processes");
}

/// Any file of any fixture.
fn any_fixture() -> impl Strategy<Value = (String, String)> {
    let all: Vec<(String, String)> =
        ["bad", "clean"].iter().flat_map(|which| fixtures(which)).flat_map(|fixture| texts(&fixture)).collect();
    prop::sample::select(all)
}

fn must_not_panic(name: &str, bytes: &[u8]) {
    for kind in std::iter::once(None).chain(mcctl::engine::lint::FileKind::ALL.iter().map(|(kind, _)| Some(*kind))) {
        if let Ok(deployment) = read(&[SourceFile { name, bytes, kind }]) {
            check_deployment(&deployment);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), name in "[a-z]{1,4}\\.(yaml|json|sh|env|service|x)") {
        must_not_panic(&name, &bytes);
    }

    #[test]
    fn texts_of_the_grammar_alphabet_do_not_panic(text in "[-\\[\\]{}:,&*!|>'\"#%@`$ \\\\\\n=a-zA-Z0-9._/]{0,300}", name in "[a-z]{1,4}\\.(yaml|json|sh|env|service|x)") {
        must_not_panic(&name, text.as_bytes());
    }

    #[test]
    fn pieces_of_fixtures_do_not_panic((name, text) in any_fixture(), from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), junk in "[-:{}\\[\\]&*'\"|\\n ]{0,4}") {
        let from = from.index(text.len() + 1);
        let to = to.index(text.len() + 1);
        let bytes = text.as_bytes();
        must_not_panic(&name, &bytes[..to]);
        let mixed = [&bytes[..from.min(to)], junk.as_bytes(), &bytes[from.max(to)..]].concat();
        must_not_panic(&name, &mixed);
    }
}

fn read_error(name: &str, text: &str) -> ReadError {
    let sources = [SourceFile { name, bytes: text.as_bytes(), kind: None }];
    read(&sources).map(|_| ()).expect_err("the input is over a limit").1
}

#[test]
fn inputs_over_a_limit_are_rejected_before_they_cost_time() {
    let over = |name: &str, text: &str| match read_error(name, text) {
        ReadError::TooMany { what, most } => (what, most),
        error => panic!("{name}: {error}"),
    };
    let service = "  sN: {image: x, command: [mc_store_rest_server], environment: {MOONCAKE_MASTER: \"m:50051\"}}\n";
    let services: String = (0..2000).map(|n| service.replace("sN", &format!("s{n}"))).collect();
    assert_eq!(over("compose.yaml", &format!("services:\n{services}")), ("processes", 1024));
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {selector: {a: b}}\n---\n";
    assert_eq!(over("many.yaml", &service.repeat(5000)), ("Services", 4096));
    let words = "--x, ".repeat(10_000);
    let compose = format!("services:\n  m: {{image: x, command: [mooncake_master, {words}]}}\n");
    assert_eq!(over("compose.yaml", &compose).1, 4096);
    assert_eq!(over("long.sh", &format!("mooncake_master {}", "--x ".repeat(10_000))).1, 4096);
    let variables: String = (0..10_000).map(|n| format!("MC_{n}=1\n")).collect();
    assert_eq!(over("long.env", &variables), ("assignments", 4096));
    assert_eq!(over("many.sh", &"mooncake_master\n".repeat(2000)), ("processes", 1024));
    let long = read_error("long.sh", &"mooncake_master\n".repeat(100_000));
    assert!(matches!(long, ReadError::TooLarge { most: 262_144, .. }), "{long}");
}

#[test]
fn read_errors_have_plain_texts() {
    let texts = [
        ("a.yaml", "apiVersion: v1\nkind: [\n"),
        ("a.json", "{\n \"protocol\": \"tcp\",\n}\n"),
        ("a.yaml", ""),
        ("a.sh", "a\0b"),
        ("a.txt", "Dear all,\nthe cache is slow.\n"),
        ("a.conf", "vm.nr_hugepages = 1\n"),
        ("Chart.yaml", "name: a\n"),
        ("values.yaml", "image: {repository: a}\n"),
        ("kustomization.yaml", "resources: [a.yaml]\n"),
    ];
    let error = |name: &str, text: &str| {
        let source = SourceFile { name, bytes: text.as_bytes(), kind: None };
        read_each(&[source]).1.into_iter().map(|(name, error)| format!("{name}: {error}\n")).collect::<String>()
    };
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("lint_read_errors", texts.map(|(name, text)| error(name, text)).concat());
    });
}

/// Every finding text of the fixtures, once per rule and text.
#[test]
fn finding_texts_of_all_fixtures() {
    let mut all = BTreeSet::new();
    for fixture in fixtures("bad") {
        for f in lint(&texts(&fixture)) {
            all.insert(format!(
                "{} {}: {}\n    found: {}\n    next:  {}\n",
                f.id, f.severity, f.finding, f.evidence, f.remedy
            ));
        }
    }
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("lint_findings", all.into_iter().collect::<String>());
    });
}

#[test]
fn passwords_in_urls_are_masked() {
    let text =
        "MOONCAKE_MASTER=http://me:secret@10.1.2.3:50051 MOONCAKE_LOCAL_HOSTNAME=10.1.2.4 mc_store_rest_server\n";
    let found = lint(&[("start.sh".to_owned(), text.to_owned())]);
    assert!(found.iter().any(|finding| finding.evidence.contains("http://me:***@")), "{found:#?}");
    assert!(!format!("{found:?}").contains("secret"), "{found:#?}");
}

#[test]
fn root_units_need_no_memlock_and_mounts_match_whole_path_components() {
    let ids = |name: &str, text: &str| -> Vec<&'static str> {
        let found = lint(&[(name.to_owned(), text.to_owned())]);
        found.iter().filter(|finding| finding.severity > Severity::Info).map(|finding| finding.id).collect()
    };
    let unit = "[Service]\nEnvironment=MOONCAKE_MASTER=10.1.2.3:50051 MOONCAKE_LOCAL_HOSTNAME=10.1.2.4\n\
                Environment=MOONCAKE_PROTOCOL=rdma MOONCAKE_DEVICE=mlx5_0\nExecStart=/usr/bin/mc_store_rest_server\n";
    assert_eq!(ids("a.service", unit), Vec::<&str>::new());
    assert_eq!(ids("a.service", &format!("{unit}User=mooncake\n")), ["memlock"]);
    let able = format!("{unit}User=mooncake\nAmbientCapabilities=CAP_IPC_LOCK\n");
    assert_eq!(ids("a.service", &able), Vec::<&str>::new());
    let compose = "services:\n  store:\n    image: a/mooncake:0.3.13.post1\n    command: mc_store_rest_server\n    \
                   volumes: [FOLDER]\n    environment: {MOONCAKE_MASTER: \"10.1.2.3:50051\", \
                   MOONCAKE_LOCAL_HOSTNAME: 10.1.2.4, MOONCAKE_OFFLOAD_ENABLED: \"true\", \
                   MOONCAKE_OFFLOAD_FILE_STORAGE_PATH: /data/ssd}\n";
    assert_eq!(ids("compose.yaml", &compose.replace("FOLDER", "/mnt:/data")), Vec::<&str>::new());
    assert_eq!(ids("compose.yaml", &compose.replace("FOLDER", "/mnt:/data/s")), ["ssd"]);
}

#[test]
fn running_processes_may_belong_to_different_stores() {
    use mcctl::engine::lint::{ParsedDeployment, running_process};
    let store = |pid, master: &str, protocol: &str| {
        let variables =
            format!("MOONCAKE_MASTER={master}\0MOONCAKE_PROTOCOL={protocol}\0MOONCAKE_LOCAL_HOSTNAME=10.1.2.4\0");
        running_process(pid, b"mc_store_rest_server\0", Some(variables.as_bytes())).unwrap()
    };
    let found = |processes| {
        let found = check_deployment(&ParsedDeployment { processes, ..ParsedDeployment::default() });
        found.into_iter().filter(|f| f.severity == Severity::Error).map(|f| f.id).collect::<Vec<_>>()
    };
    let one = store(1, "10.1.2.3:50051", "tcp");
    assert_eq!(found(vec![one.clone(), store(2, "10.9.9.9:50051", "efa")]), Vec::<&str>::new());
    assert_eq!(found(vec![one, store(2, "10.1.2.3:50051", "efa")]), ["protocol"]);
}

#[test]
fn control_characters_in_names_and_values_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let value = file("a\u{1b}[32m\nb.env", "MOONCAKE_MASTER=h:1\u{1b}[31m\u{7}\u{9b}\n");
    let broken = file("c\u{1b}[33m\nd.yaml", "a: [\n");
    let missing = dir.path().join("e\u{1b}[34m\nf.yaml");
    let run = mcctl(&["lint", &value, &broken, missing.to_str().unwrap()]);
    assert_eq!(run.code, 2, "{run:?}");
    for (text, shown) in [
        (&run.stdout, "h:1\\u{1b}[31m\\u{7}\\u{9b}"),
        (&run.stdout, "a\\u{1b}[32m\\nb.env:1"),
        (&run.stderr, "c\\u{1b}[33m\\nd.yaml"),
        (&run.stderr, "e\\u{1b}[34m\\nf.yaml"),
    ] {
        assert!(text.contains(shown), "{shown}: {run:?}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{run:?}");
    }
}
