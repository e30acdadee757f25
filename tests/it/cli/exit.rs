//! The exit codes that the README promises.

use std::io::Read;
use std::process::Stdio;

use super::{command, mcctl};

#[test]
fn a_wrong_command_line_is_2() {
    let run = mcctl(&["serv"]);
    assert!(run.fails(2).starts_with("error: unrecognized subcommand 'serv'"), "{run:?}");
    assert!(mcctl(&[]).fails(2).contains("Usage: mcctl"));
    assert!(mcctl(&["serve"]).fails(2).contains("\n  master    The master"));
    assert_eq!(
        mcctl(&["up", "--segment-size=lots"]).fails(2),
        "error: invalid value 'lots' for '--segment-size <SIZE>': 'lots' is not a size: write a number of bytes, or a number with \
         kb, mb, gb or tb (powers of 1024), e.g. 16gb; next: --help tells more"
    );
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

#[test]
fn a_master_that_is_not_there_is_3() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let (at, admin) = (format!("--master=127.0.0.1:{port}"), format!("--admin=127.0.0.1:{port}"));
    let run = mcctl(&["status", &admin]);
    assert_eq!(
        run.fails(3),
        format!(
            "error: no answer from the master's admin HTTP at 127.0.0.1:{port}; tried: GET /health ({admin}); found: Connection \
             refused (os error 111); next: start the master, or name its admin port with --admin HOST:PORT"
        )
        .replace("--admin=", "--admin ")
    );
    let run = mcctl(&["store", "rm", "k", &at]);
    assert_eq!(
        run.fails(3),
        format!(
            "error: cannot reach the master at 127.0.0.1:{port}; tried: call 127.0.0.1:{port} (--master 127.0.0.1:{port}); found: \
             Connection refused (os error 111); next: start the master (mcctl serve master), or name the right one with \
             --master HOST:PORT"
        )
    );
    assert_eq!(mcctl(&["store", "exists", "k", &at, &admin]).code, 3);
    assert_eq!(mcctl(&["store", "ls", &at, &admin]).code, 3);
}

#[test]
fn an_address_that_is_none_is_2() {
    assert!(mcctl(&["status", "--master=a:b:c"]).fails(2).starts_with("error: --master a:b:c is not an address"));
    assert!(mcctl(&["status", "--master=etcd://h:1"]).fails(2).contains("is not there yet"));
    mcctl(&["status", "--timeout=soon"]).fails(2);
    assert!(mcctl(&["status", "--timeout=0"]).fails(2).contains("give at least 1ms"));
}

#[test]
fn a_variable_that_is_no_text_is_2_and_not_taken_for_unset() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = command(&["store", "exists", "k"]);
    command.env("MOONCAKE_MASTER", std::ffi::OsStr::from_bytes(b"\xff:1"));
    let run = super::finish(command.output().expect("the program starts"));
    assert!(run.fails(2).contains("the environment variable MOONCAKE_MASTER is not UTF-8"), "{run:?}");
}
