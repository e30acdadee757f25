//! `mcctl completions` and `mcctl man` cover every command.

use std::process::{Command, Stdio};

use super::mcctl;

/// All commands, each as the arguments that select it.
pub const COMMANDS: &[&[&str]] = &[
    &["serve"],
    &["serve", "master"],
    &["serve", "metadata"],
    &["serve", "sim"],
    &["serve", "store"],
    &["up"],
    &["store"],
    &["store", "put"],
    &["store", "get"],
    &["store", "exists"],
    &["store", "rm"],
    &["store", "ls"],
    &["store", "stat"],
    &["store", "verify"],
    &["master"],
    &["master", "step-down"],
    &["status"],
    &["bench"],
    &["bench", "multi-turn"],
    &["bench", "serving"],
    &["bench", "compare"],
    &["bench", "dataset"],
    &["bench", "ladder"],
    &["bench", "store"],
    &["bench", "transfer"],
    &["bench", "verify"],
    &["size-hugepages"],
    &["devices"],
    &["doctor"],
    &["lint"],
    &["init"],
    &["render"],
    &["completions"],
    &["man"],
    &["help"],
    &["version"],
];

/// The names under "Commands:" in a help text.
fn listed(words: &[&str]) -> Vec<String> {
    let run = mcctl(&[words, &["--help"]].concat());
    let commands = run.succeeds().split("\nCommands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap();
    let name = |line: &str| {
        line.strip_prefix("  ").filter(|l| !l.starts_with(' ')).map(|l| l.split(' ').next().unwrap().to_owned())
    };
    commands.lines().filter_map(name).collect()
}

#[test]
fn the_list_of_commands_in_this_file_is_complete() {
    assert!(listed(&[]).len() > 10 && !listed(&["bench"]).is_empty(), "help texts list commands");
    for words in COMMANDS.iter().copied().chain([&[][..]]) {
        for name in listed(words) {
            let found = [words, &[&name]].concat();
            assert!(COMMANDS.contains(&found.as_slice()), "{found:?}");
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a folder");
    let into = dir.path().join("man1");
    assert_eq!(mcctl(&["man", "--dir", into.to_str().expect("text")]).succeeds(), "");
    let mut pages: Vec<String> = std::fs::read_dir(&into)
        .expect("a folder")
        .map(|e| e.expect("read").file_name().into_string().expect("text"))
        .collect();
    pages.sort();
    let mut wanted: Vec<String> = COMMANDS.iter().map(|words| format!("mcctl-{}.1", words.join("-"))).collect();
    wanted.push("mcctl.1".to_owned());
    wanted.sort();
    assert_eq!(pages, wanted);
    for page in pages {
        let text = std::fs::read_to_string(into.join(&page)).expect("text");
        assert!(text.contains(".SH NAME\n") && text.contains(".SH SYNOPSIS\n"), "{page}");
    }
}

#[test]
fn one_manual_page_goes_to_stdout_with_the_flags_of_its_command() {
    let page = mcctl(&["man"]);
    assert!(page.succeeds().contains(".TH mcctl 1"), "{page:?}");
    let page = mcctl(&["man", "serve", "master"]);
    let page = page.succeeds();
    assert!(
        page.contains(".TH mcctl-serve-master 1") && page.contains("rpc\\-port") && page.contains("default: 50051"),
        "{page}"
    );
    mcctl(&["man", "store", "--dir=/tmp"]).fails(2);
}

#[test]
fn completion_scripts_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = mcctl(&["completions", shell]);
        let script = run.succeeds();
        for word in COMMANDS.concat() {
            assert!(script.contains(word), "{shell}: {word}");
        }
        // clap does not parse the flags of a service.
        assert!(script.contains("enable-http-metadata-server"), "{shell}");
    }
    mcctl(&["completions", "tcsh"]).fails(2);
}

#[test]
fn the_bash_script_parses_and_completes() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("mcctl.bash");
    std::fs::write(&file, mcctl(&["completions", "bash"]).succeeds()).expect("written");
    let check = Command::new("bash").arg("-n").arg(&file).stdin(Stdio::null()).output().expect("bash");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    // The call of readline: the words so far and the cursor position. Without a result, bash
    // completes a path.
    let complete = |words: &[&str]| {
        let line = words.join(" ");
        let at = words.len() - 1;
        let current = words[at];
        let before = words[at - 1];
        let ask = format!(
            "source \"$0\"; COMP_WORDS=({line} ''); COMP_CWORD={at}; _mcctl mcctl '{current}' {before}; echo \"${{COMPREPLY[*]}}\""
        );
        let answer = Command::new("bash").args(["-c", &ask]).arg(&file).stdin(Stdio::null()).output().expect("bash");
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    };
    assert_eq!(complete(&["mcctl", "store", "pu"]), "put");
    assert_eq!(
        complete(&["mcctl", "render", ""]),
        "env sglang systemd docker compose k8s kustomize rbg prometheus grafana"
    );
    assert_eq!(complete(&["mcctl", "render", "k8s", ""]), "");
    assert_eq!(complete(&["mcctl", "lint", ""]), "");
    assert!(complete(&["mcctl", "render", "--"]).starts_with("--out "));
    assert!(complete(&["mcctl", "size-hugepages", "--model", "Qwen3-3"]).contains("Qwen3-32B"));
    assert!(complete(&["mcctl", ""]).split(' ').any(|word| word == "serve"));
}
