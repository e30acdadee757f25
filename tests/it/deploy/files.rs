//! What `init` and `render` write: complete files, or none if the disk is full.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::fixture;
use crate::cli::{Run, command, finish, mcctl};

/// Runs mcctl with a limit of 512 bytes per file, above which a write fails as on a full disk.
fn on_full_disk(args: &[&str]) -> Run {
    let program = command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]);
    shell.arg(program.get_program()).args(program.get_args());
    finish(shell.output().expect("a shell"))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
}

#[test]
fn init_leaves_no_file_on_a_full_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    let out = path.to_str().expect("text");
    assert!(on_full_disk(&["init", "--model", "m", "--out", out]).fails(4).contains("cannot write"));
    assert!(names(folder.path()).is_empty());
    mcctl(&["init", "--model", "m", "--out", out]).succeeds();
    let before = fs::read(&path).expect("the file");
    on_full_disk(&["init", "--model", "other", "--out", out, "--force"]).fails(4);
    assert_eq!((fs::read(&path).expect("the file"), names(folder.path()).len()), (before, 1));
}

#[test]
fn render_writes_all_files_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("a/units");
    let args = ["render", "systemd", &fixture("single.toml"), "--out", out.to_str().expect("text")];
    let run = on_full_disk(&args);
    assert!(run.fails(4).contains("nothing was changed"), "{run:?}");
    assert!(names(folder.path()).is_empty(), "the directories are removed");
    mcctl(&args).succeeds();
    assert!(names(&out.join("10.0.0.1/etc/systemd/system")).iter().all(|name| name.ends_with(".service")));
}

#[test]
fn the_next_step_of_init_is_quoted_for_the_shell() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("my file.toml");
    let run = mcctl(&["init", "--model", "m", "--out", path.to_str().expect("text")]);
    run.succeeds();
    let next = run.stderr.lines().find_map(|line| line.strip_prefix("next: ")).expect("a next step");
    assert!(next.contains(&format!(" '{}' --out", path.display())), "{next}");
}

#[test]
fn the_extension_may_be_in_upper_case() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("D.TOML");
    let path = path.to_str().expect("text");
    mcctl(&["init", "--model", "m", "--out", path]).succeeds();
    mcctl(&["render", "env", path]).succeeds();
    mcctl(&["lint", path]).succeeds();
}

#[test]
fn a_file_over_the_limit_is_refused_with_its_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    fs::write(&path, "# é\n".repeat(1 << 20)).expect("written");
    let run = mcctl(&["render", "env", path.to_str().expect("text")]);
    assert!(run.fails(2).contains(&format!("{} bytes; the limit is", 5 << 20)), "{run:?}");
}

#[test]
fn secrets_in_plain_text_are_reported_without_their_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d.toml");
    fs::write(&path, "[model]\npath = 'm'\n[model.env]\nHF_TOKEN = 'hf_example'\n").expect("written");
    let path = path.to_str().expect("text");
    let run = mcctl(&["render", "env", path]);
    run.succeeds();
    assert!(run.stderr.contains("HF_TOKEN") && run.stderr.contains("model.token_file"), "{run:?}");
    assert!(!run.stderr.contains("hf_example"), "{run:?}");
    let monitoring = mcctl(&["render", "prometheus", path]);
    monitoring.succeeds();
    assert_eq!(monitoring.stderr, "");
}
