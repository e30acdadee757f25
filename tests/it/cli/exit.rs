//! The exit codes that the README promises.

use std::io::Read;
use std::process::Stdio;

use super::{command, mcctl};

#[test]
fn a_wrong_command_line_is_2() {
    let run = mcctl(&["serv"]);
    assert!(run.fails(2).starts_with("error: unrecognized subcommand 'serv'"), "{run:?}");
    mcctl(&[]).fails(2);
    mcctl(&["--log-level", "loud", "bench", "transfer"]).fails(2);
}

#[test]
fn an_error_is_one_line_when_stderr_is_no_terminal() {
    for args in [&["serv"][..], &["serve", "master", "--rpc_prot=1"], &["bench", "transfer", "--nonsense"]] {
        assert_eq!(mcctl(args).fails(2).lines().count(), 1, "{args:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_success() {
    let mut child = command(&["serve", "master", "--help"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let mut child = command(&["--help"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut first = [0; 1];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("a byte");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
