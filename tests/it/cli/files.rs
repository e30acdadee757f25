//! `mcctl store get --output`: the file is complete or unchanged.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::objects::Store;
use super::{finish, mcctl};
use crate::peer::process::{PATIENCE, wait_until};

fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("read").file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = fs::read_dir(folder).expect("a folder").map(name).collect();
    names.sort();
    names
}

/// Whether the process `pid` handles `signal`.
fn catches(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask").trim();
    u64::from_str_radix(mask, 16).expect("a mask") >> (signal as i32 - 1) & 1 == 1
}

/// The program on `store`, run by a shell after `before`.
fn after(before: &str, store: &Store, args: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_mcctl")]).args(args);
    let inner = store.command(&[]);
    shell.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

#[test]
fn a_full_disk_leaves_the_old_file_unchanged() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", &"x".repeat(100_000)]).code, 0);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, "precious").expect("written");
    // No file may exceed 16 blocks of at most 1 KiB. mcctl turns SIGXFSZ into an error.
    let mut run = after("ulimit -f 16", &store, &["store", "get", "k", "-o"]);
    let run = finish(run.arg(&file).output().expect("a shell"));
    let error = run.fails(4);
    assert!(error.contains("100000 bytes") && error.contains("found: File too large"), "{error}");
    assert_eq!(fs::read_to_string(&file).expect("there"), "precious");
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn a_new_file_has_the_mode_of_the_umask() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "x"]).code, 0);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    let mut run = after("umask 027", &store, &["store", "get", "k", "-o"]);
    assert_eq!(finish(run.arg(&file).output().expect("a shell")).code, 0);
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o7777, 0o640);
}

#[test]
fn an_unwritable_path_is_2_before_the_master_is_called() {
    let dir = tempfile::tempdir().expect("a folder");
    for path in [dir.path().to_owned(), dir.path().join("none/file")] {
        let shown = path.to_str().expect("text");
        let run = mcctl(&["store", "get", "k", "--master=127.0.0.1:1", "-o", shown]);
        assert!(run.fails(2).contains(&format!("cannot write {shown};")), "{run:?}");
    }
}

#[test]
fn a_signal_ends_the_wait_for_the_reader_of_a_named_pipe() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "k", "--value", "through a pipe"]).code, 0);
    let dir = tempfile::tempdir().expect("a folder");
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let shown = pipe.to_str().expect("text");
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::read_to_string(pipe).expect("read"))
    };
    assert_eq!(store.run(&["store", "get", "k", "-o", shown]).code, 0);
    assert_eq!(reader.join().expect("read"), "through a pipe");
    assert_eq!(names(dir.path()), ["pipe"]);
    let mut alone = store.command(&["store", "get", "k", "-o", shown]);
    let mut alone = alone.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let pid = Pid::from_raw(i32::try_from(alone.id()).expect("a pid"));
    let channel = format!("/proc/{pid}/task");
    // It waits for a reader: one of its threads blocks in open().
    wait_until("it opens the pipe", PATIENCE, || {
        // Before it handles the signal, the signal kills it.
        if !catches(pid, Signal::SIGTERM) {
            return false;
        }
        let tasks = names(Path::new(&channel));
        tasks.iter().any(|task| {
            let at = fs::read_to_string(format!("{channel}/{task}/wchan")).unwrap_or_default();
            // Not every kernel reports the function.
            at.contains("fifo") || at.contains("wait_for_partner") || (tasks.len() > 1 && matches!(&*at, "" | "0"))
        })
    });
    kill(pid, Signal::SIGTERM).expect("it runs");
    wait_until("it ends", PATIENCE, || alone.try_wait().expect("our child").is_some());
    assert_eq!(alone.wait().expect("it ended").code(), Some(1));
}

#[test]
fn a_write_that_completes_despite_a_signal_is_success() {
    let store = Store::start();
    // More than a pipe holds.
    let text = "x".repeat(100_000);
    assert_eq!(store.run(&["store", "put", "k", "--value", &text]).code, 0);
    let mut get = store.command(&["store", "get", "k"]);
    let mut get = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdout = get.stdout.take().expect("piped");
    let mut first = [0];
    stdout.read_exact(&mut first).expect("it writes");
    let pid = Pid::from_raw(i32::try_from(get.id()).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("it runs");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    let run = finish(get.wait_with_output().expect("it ends"));
    assert_eq!((rest.len(), run.code, &*run.stderr), (99_999, 0, ""));
}
