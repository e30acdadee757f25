//! `mcctl lint` on scripts and manifests in the forms that public ones have
//! (`fixtures/lint/public`), and its three results.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mcctl::engine::check::Severity;
use mcctl::engine::lint::{ParsedDeployment, ReadError, SourceFile, check_deployment, read};
use serde_json::Value;

use crate::cli::mcctl;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/lint/public")
}

fn files() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn deployment(name: &str, text: &str) -> ParsedDeployment {
    let source = SourceFile { name, bytes: text.as_bytes(), kind: None };
    read(&[source]).unwrap_or_else(|(name, error)| panic!("{name}: {error}"))
}

/// Findings above info as `LINE: RULE SEVERITY`, and places that were not read as `LINE: not-read`.
fn results(deployment: &ParsedDeployment) -> BTreeSet<String> {
    let findings = check_deployment(deployment).into_iter().filter(|finding| finding.severity > Severity::Info);
    let found = findings.map(|f| format!("{}: {} {}", f.place.map_or(0, |place| place.line), f.id, f.severity));
    found.chain(deployment.unread.iter().map(|unread| format!("{}: not-read", unread.place.line))).collect()
}

#[test]
fn public_forms_have_their_expected_results() {
    let mut wrong = Vec::new();
    for path in files() {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let found = results(&deployment(name, &text));
        let wanted: BTreeSet<String> =
            text.lines().filter_map(|line| line.strip_prefix("# expect ")).map(str::to_owned).collect();
        if found != wanted {
            wrong.push(format!("{name}\n  wanted {wanted:?}\n  found  {found:?}"));
        }
    }
    assert!(files().len() >= 30 && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_override_file_alone_has_no_unknown_hosts() {
    let text = fs::read_to_string(folder().join("../clean/compose-override/compose.override.yaml")).unwrap();
    assert!(results(&deployment("compose.override.yaml", &text)).is_empty());
    assert!(!results(&deployment("compose.yaml", &text)).is_empty(), "it is not an override file");
}

/// The roles of the processes that `text` starts, without repeated variants of a command.
fn roles(text: &str) -> Vec<&'static str> {
    deployment("start.sh", text).distinct_processes().iter().map(|process| process.role.noun()).collect()
}

fn found(text: &str) -> Vec<String> {
    results(&deployment("start.sh", text)).into_iter().collect()
}

#[test]
fn a_question_is_not_a_start() {
    for question in [
        "command -v mooncake_master",
        "which mooncake_master",
        "type -p mooncake_master",
        "hash mooncake_master",
        "mooncake_master --version",
        "mooncake_master --help",
        "pgrep -f mooncake_master",
        "echo mooncake_master --rpc_port=50051",
        "if ! mooncake_master --version; then exit 1; fi",
    ] {
        let text = format!("{question}\nmooncake_master --rpc_port=50051 &\n");
        assert_eq!((roles(&text), found(&text)), (vec!["master"], vec![]), "{question}");
    }
}

#[test]
fn arguments_of_xargs_are_not_read() {
    assert_eq!(found("seq 2 | xargs -I{} mooncake_master --rpc_port=5005{}"), ["1: not-read"]);
}

/// Two starts in one script that need not meet, or not on one address.
#[test]
fn ports_of_processes_that_need_not_meet_are_free() {
    const M: &str = "mooncake_master";
    for text in [
        format!("{M} | cat\n{M}"),
        "for i in 1 2; do python3 -m sglang.launch_server --model-path /m 2>&1 | tee s.$i.log; done".to_owned(),
        format!("{M} & p=$!\nkill -0 $p || {M} &"),
        format!("{M} & p=$!\nwhile true; do if ! kill -0 $p; then {M} & p=$!; fi; sleep 5; done"),
        format!("{M} &\ncurl -sf http://127.0.0.1:9003/health || {M} &"),
        format!("{M} & P=$!\nwhile kill -0 $P; do sleep 1; done\n{M}"),
        format!("{M} & P=$!\ntail --pid=$P -f /dev/null\n{M}"),
        format!("setsid {M} & P=$!\nkill -- -$P\n{M} &"),
        format!("{M} & P=$!\nkill -TERM -$P\n{M} &"),
        format!("timeout 30 {M} &\nsleep 31\n{M} &"),
        format!("r() ( trap 'kill $(jobs -p)' EXIT; {M} & ./b; )\nr\nr"),
        format!("unshare -n {M} &\nunshare -n {M} &"),
        format!("sudo ip netns exec a {M} &\nsudo ip netns exec b {M} &"),
        format!("{M} --rpc_address=127.0.0.2 --metrics_port=9003 &\n{M} --rpc_address=127.0.0.3 --metrics_port=9004 &"),
        format!("s=0\nfor i in a b; do if ((!s)); then {M} & s=1; fi; done"),
        format!("P=$(port -c)\n{M} --rpc_port=$P"),
        format!("{M} --rpc_port=0xb004"),
    ] {
        assert_eq!(found(&text), [""; 0], "{text}");
    }
}

#[test]
fn a_stopped_process_does_not_hold_its_port() {
    let first = "mooncake_master --rpc_port=50051 &\n";
    let second = "mooncake_master --rpc_port=50051 &\n";
    let taken = ["2: port-taken error".to_owned()];
    assert_eq!(found(&format!("{first}{second}")), taken);
    for stop in [
        "kill $!",
        "kill %1",
        "wait",
        "pkill mooncake_master",
        "killall -9 mooncake_master",
        "PID=$!; kill -9 \"$PID\"",
        "kill $(cat master.pid)",
        "stop() { kill $M; }; M=$!; stop",
        "./stop_all.sh",
    ] {
        assert_eq!(found(&format!("{first}{stop}\n{second}")), [""; 0], "{stop}");
    }
    for other in ["sleep 5", "echo killed", "curl -s http://127.0.0.1:9003/metrics"] {
        let wanted: Vec<String> = vec!["3: port-taken error".to_owned()];
        assert_eq!(found(&format!("{first}{other}\n{second}")), wanted, "{other}");
    }
}

#[test]
fn branches_that_exclude_each_other_never_conflict() {
    let start = "mooncake_master --rpc_port=50051 &";
    for text in [
        format!("if [ $1 = a ]; then\n{start}\nelse\n{start}\nfi\n"),
        format!("case $1 in\na) {start} ;;\nb) {start} ;;\nesac\n"),
        format!("[ \"$R\" = a ] && {start}\n[ \"$R\" = b ] && {start}\n"),
        format!("if [[ $R == a ]]; then\n{start}\nexit 0\nfi\n{start}\n"),
        format!("if test -f x; then {start} fi\nif test -f y; then {start} fi\n").replace("& fi", "& fi"),
        format!("a() {{ {start} }}\nb() {{ {start} }}\n\"$1\"\n"),
        format!("( {start} ) || {start}\n"),
    ] {
        let errors: Vec<String> = found(&text).into_iter().filter(|line| line.ends_with("error")).collect();
        assert_eq!(errors, [""; 0], "{text}");
    }
}

#[test]
fn values_follow_the_rules_of_the_shell() {
    let port = |text: &str| {
        let deployment = deployment("start.sh", &format!("{text} &\n"));
        let process = deployment.processes.first().expect("a process");
        process.args.iter().map(|word| word.text.clone()).collect::<Vec<_>>().join(" ")
    };
    for (text, wanted) in [
        ("P=${P:-\"10001\"}\nmooncake_master --port $P", "--port 10001"),
        ("mooncake_master --port ${P:-'7'}", "--port 7"),
        ("B=7000\nmooncake_master --port $((B + 2 * 3))", "--port 7006"),
        ("A=(mooncake_master)\nA+=(--port 7)\nA+=(\n  --x # c\n)\n\"${A[@]}\"", "--port 7 --x"),
        ("A='--port 7 --x'\nmooncake_master $A", "--port 7 --x"),
        ("A=\"--port 7\"\nA=\"$A --x\"\nmooncake_master $A", "--port 7 --x"),
        ("F=a/b/7.json\nF=${F##*/}\nmooncake_master --port ${F%.json}", "--port 7"),
        ("H=host:7\nmooncake_master --port ${H#*:}", "--port 7"),
        ("set -- 7 8\nshift\nmooncake_master --port $1", "--port 8"),
        ("f() { local p=$1; mooncake_master --port $p & }\nf 7", "--port 7"),
        ("read P\nmooncake_master --port $P", "--port $P"),
        ("mooncake_master --port=$(free_port)", "--port=$(free_port)"),
        ("mooncake_master --port 7 \\\n  `# a comment` \\\n  --x", "--port 7 --x"),
        ("E=()\nmooncake_master \"${E[@]}\" --port 7", "--port 7"),
        ("[ \"$P\" = 7 ] && mooncake_master --port $P", "--port 7"),
        // An unset variable differs from its default.
        ("[ \"${P:-7}\" = 7 ] && mooncake_master --port $P", "--port $P"),
    ] {
        assert_eq!(port(text), wanted, "{text}");
    }
}

#[test]
fn unknown_values_never_cause_an_error() {
    for text in [
        "mooncake_master --rpc_port=$P --metrics_port=9061 --eviction_ratio=$(r) &\nmooncake_master --rpc_port=$P &\n",
        "mooncake_master $FLAGS &\nmooncake_master --rpc_port=50061 --metrics_port=9061 $MORE &\n",
        "export MOONCAKE_PROTOCOL=$P MOONCAKE_MASTER=$M\npython3 -m mooncake.mooncake_store_service --port $X\n",
        "cat > s.json <<EOF\n{\"protocol\": \"$P\", \"global_segment_size\": $S, \"master_server_address\": \"${M}:1\"}\nEOF\n",
        "python3 -m sglang.launch_server --model-path $M $(flags) --hicache-storage-backend mooncake\n",
    ] {
        let errors: Vec<String> = found(text).into_iter().filter(|line| line.ends_with("error")).collect();
        assert_eq!(errors, [""; 0], "{text}");
    }
}

#[test]
fn the_bytes_of_a_comment_need_not_be_utf_8() {
    let bytes = b"#!/bin/sh\n# caf\xe9\nmooncake_master --rpc_port=none\n";
    let source = |name| SourceFile { name, bytes, kind: None };
    let deployment = read(&[source("start.sh")]).unwrap();
    assert_eq!(results(&deployment), BTreeSet::from(["3: master-value error".to_owned()]));
    let (_, error) = read(&[SourceFile { bytes: b"# caf\xe9\na: 1\n", ..source("a.yaml") }]).unwrap_err();
    assert_eq!(error, ReadError::Binary { at: 5 });
}

#[test]
fn carriage_returns_break_continued_lines_once_per_script() {
    let text = "mooncake_master \\\r\n  --rpc_port=50061 \\\r\n  --metrics_port=9061 &\r\n";
    assert_eq!(found(text), ["1: continuation error"]);
    assert_eq!(found(&text.replace("\\\r\n", "")), [""; 0]);
}

#[test]
fn a_range_with_too_many_numbers_is_unknown() {
    assert_eq!(found("for p in {1..70000}; do mooncake_master --rpc_port=$p & done"), ["1: not-read"]);
}

#[test]
fn the_result_tells_whether_everything_was_read() {
    let at = |name: &str| folder().join(name).to_str().unwrap().to_owned();
    let json = |name: &str| {
        let run = mcctl(&["lint", "--json", &at(name)]);
        let document: Value = serde_json::from_str(&run.stdout).expect("one JSON document");
        (run.code, document)
    };
    let (code, document) = json("eval-text.sh");
    assert_eq!((code, document["result"].as_str()), (0, Some("partly-read")));
    assert_eq!((&document["unread_places"][0]["line"], &document["unread_places"][0]["lines"]), (&4.into(), &1.into()));
    assert_eq!(document["script_lines"]["read"], 3);
    let (code, document) = json("array-router.sh");
    assert_eq!((code, document["result"].as_str()), (0, Some("passed")));
    assert_eq!(document["unread_places"].as_array().map(Vec::len), Some(0));
    let (code, document) = json("array-command.sh");
    assert_eq!((code, document["result"].as_str()), (1, Some("failed")));
    let run = mcctl(&["lint", &at("eval-text.sh")]);
    assert!(run.code == 0 && run.stdout.contains("eval-text.sh:4: not read: "), "{run:?}");
    assert!(run.stdout.ends_with("result: passed, 1 place not read\n"), "{run:?}");
}

#[test]
fn the_sarif_report_has_what_its_schema_requires() {
    let at = |name: &str| folder().join(name).to_str().unwrap().to_owned();
    let run = mcctl(&["lint", "--sarif", &at("array-command.sh"), &at("eval-text.sh"), "/nowhere.sh"]);
    let document: Value = serde_json::from_str(&run.stdout).expect("one JSON document");
    assert_eq!((run.code, document["version"].as_str()), (2, Some("2.1.0")));
    let run = &document["runs"][0];
    assert!(run["tool"]["driver"]["name"].is_string());
    let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
    assert!(rules.iter().all(|rule| rule["id"].is_string()));
    assert_eq!(run["invocations"][0]["executionSuccessful"], false);
    let results = run["results"].as_array().expect("results");
    assert!(results.iter().all(|result| {
        let level = result["level"].as_str().unwrap_or_default();
        let at = result["ruleIndex"].as_u64().and_then(|at| rules.get(usize::try_from(at).ok()?));
        let region = &result["locations"][0]["physicalLocation"]["region"]["startLine"];
        result["message"]["text"].is_string()
            && ["note", "warning", "error"].contains(&level)
            && at.is_some_and(|rule| rule["id"] == result["ruleId"])
            && region.as_u64().is_some_and(|line| line > 0)
    }));
    let error = results.iter().find(|result| result["ruleId"] == "master-flag").expect("the misspelt flag");
    assert_eq!(error["locations"][0]["physicalLocation"]["region"]["startLine"], 8);
    let notes = run["invocations"][0]["toolExecutionNotifications"].as_array().expect("notes");
    assert!(notes.iter().any(|note| note["level"] == "note") && notes.iter().any(|note| note["level"] == "error"));
    assert_eq!(run["properties"]["result"], "incomplete");
}
