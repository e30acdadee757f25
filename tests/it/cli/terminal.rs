//! Terminals and pipes: 60 columns, `NO_COLOR`, and readers that close a pipe early.

use std::io::Read;
use std::process::Stdio;

use super::objects::Store;
use super::serve::master;
use super::{command, finish};

/// The program on a pseudo-terminal of `script`; returns what the terminal shows.
fn on_terminal(line: &str, variables: &[(&str, &str)]) -> String {
    let program = command(&[]);
    let line = format!("stty cols 60; {} {line}", program.get_program().to_string_lossy());
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).env_remove("NO_COLOR").env_remove("COLUMNS");
    script.envs(variables.iter().copied());
    String::from_utf8_lossy(&script.output().expect("script of util-linux").stdout).into_owned()
}

#[test]
fn errors_are_coloured_blocks_on_a_terminal_and_no_color_disables_colour() {
    let coloured = on_terminal("store stat k --master=127.0.0.1:1", &[]);
    assert!(coloured.contains("\x1b[1;31merror:") && coloured.contains("\n  tried   "), "{coloured}");
    let plain = on_terminal("store stat k --master=127.0.0.1:1", &[("NO_COLOR", "1")]);
    assert!(plain.contains("error: ") && plain.contains("\n  tried   ") && !plain.contains('\x1b'), "{plain}");
}

#[test]
fn severities_and_headings_are_in_colour_on_a_terminal() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = dir.path().join("start.sh");
    std::fs::write(&script, "mooncake_master --rpc_prot=1\n").expect("written");
    for (line, coloured) in [
        (format!("lint {}", script.display()), "\x1b[1;31merror\x1b[0m: "),
        ("status --help".to_owned(), "\x1b[1mCommon options:\x1b[0m"),
    ] {
        let shown = on_terminal(&line, &[]);
        assert!(shown.contains(coloured), "{line}: {shown}");
        let plain = on_terminal(&line, &[("NO_COLOR", "1")]);
        assert!(!plain.contains('\x1b'), "{line}: {plain}");
        let words: Vec<&str> = line.split(' ').collect();
        let piped = finish(command(&words).output().expect("the program starts"));
        assert!(!piped.stdout.contains('\x1b'), "{piped:?}");
    }
}

#[test]
fn the_list_of_subcommands_on_stderr_has_no_colour() {
    let shown = on_terminal("store", &[]);
    assert!(shown.contains("Commands:") && !shown.contains("1b") && !shown.contains('\x1b'), "{shown}");
}

#[test]
fn long_work_shows_progress_on_a_terminal_and_removes_it() {
    const BENCH: &str = "bench store --object-size=1kb --objects=16 --read-ratio=0.5";
    let store = Store::start();
    let bench = |more: &str, variables: &[(&str, &str)]| {
        let names = ["MOONCAKE_MASTER", "MOONCAKE_TE_META_DATA_SERVER"].map(|name| (name, store.variable(name)));
        on_terminal(&format!("{BENCH} {more}"), &[&names[..], &[("TERM", "xterm")], variables].concat())
    };
    let long = bench("--duration=4s", &[]);
    let (before, after) = long.rsplit_once("put and get: ").expect(&long);
    assert!(before.contains("\x1b[") && after.contains(" objects, "), "{long}");
    assert!(after.contains("\x1b[2K") && after.contains("store at "), "the bar is removed before the report: {long}");
    for quiet in
        [bench("", &[]), bench("--duration=3s", &[("NO_COLOR", "1")]), bench("--duration=3s", &[("TERM", "dumb")])]
    {
        assert!(quiet.contains("store at ") && !quiet.contains("put and get: "), "{quiet}");
    }
}

#[test]
fn output_into_a_pipe_has_no_colour() {
    let (_master, _, admin) = master(&[]);
    for args in [&["status", &format!("--admin=127.0.0.1:{admin}"), "--interval=0"][..], &["store", "stat", "k"]] {
        let run = finish(command(args).output().expect("the program starts"));
        assert!(!run.stdout.contains('\x1b') && !run.stderr.contains('\x1b'), "{run:?}");
    }
}

#[test]
fn tables_fit_60_columns() {
    let store = Store::start();
    assert_eq!(store.run(&["store", "put", "a/key", "--value", "x"]).code, 0);
    for args in
        [&["status"][..], &["store", "ls", "--long"], &["store", "stat", "a/key"], &["store", "verify", "--all"]]
    {
        let mut command = store.command(args);
        let run = finish(command.env("COLUMNS", "60").output().expect("the program starts"));
        let text = run.succeeds();
        assert!(text.lines().count() > 1, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{args:?}\n{text}");
    }
}

#[test]
fn a_pipe_that_is_closed_early_is_success_for_every_report() {
    let store = Store::start();
    for number in 0..50 {
        let key = format!("key/{number}/{}", "k".repeat(2000));
        assert_eq!(store.run(&["store", "put", &key, "--value", "x"]).code, 0);
    }
    for args in [&["store", "ls"][..], &["store", "ls", "--long"], &["store", "ls", "--json"], &["status"]] {
        let mut child = store.command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut first = [0];
        child.stdout.take().expect("piped").read_exact(&mut first).expect("a byte");
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{args:?}");
    }
}
