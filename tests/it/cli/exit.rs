//! Exit codes and error messages. `docs/commands.md` documents the codes.

use std::io::Read;
use std::process::Stdio;

use super::{command, mcctl};
use crate::peer::process::free_port;

/// Errors that depend on nothing but the command line, with their exit codes.
#[test]
fn errors_have_codes_and_texts() {
    let mut text = String::new();
    for (code, line) in [
        (2, "serv"),
        (2, "up --segment-size=lots"),
        (2, "up --segment-size=0"),
        (2, "--log-level loud status"),
        (2, "status --master=a:b:c"),
        (3, "status --master=etcd://127.0.0.1:1"),
        (2, "status --timeout=soon"),
        (2, "status --timeout=0"),
        (2, "store get --prefix x"),
        (2, "store put k"),
        (2, "store rm --all --master=127.0.0.1:1"),
        (2, "man store putt"),
        (2, "help store putt"),
        (4, "man --dir=/dev/null/x"),
        (2, "serve master --rpc-prot=50051"),
        (2, "serve store --segment_sise=1gb"),
        (2, "serve metadata --prot 1"),
        (2, "serve store --rest-timeout=1"),
        (2, "serve master --enable_ha=true"),
        (2, "serve store --master=127.0.0.1:1 -Denable_ssd_offload=true"),
        (2, "serve master --rpc_port=many"),
        (2, "serve master --rpc-thread-num=1025"),
        (2, "serve master --config_path=/nonexistent/m.yaml"),
        (2, "serve master --metrics_port=50051"),
        (2, "serve metadata --host 192.0.2.1 --port 0"),
        (2, "serve store"),
        (4, "serve metadata --port=0 --log-file=/nowhere/log"),
        (3, "status --admin=127.0.0.1:1"),
        (3, "store rm k --master=127.0.0.1:1"),
        (3, "store get k --master=127.0.0.1:1 --metadata-server=P2PHANDSHAKE"),
        (2, "store get k --master=127.0.0.1:1 -o /nonexistent/file"),
        (2, "store get k --master=127.0.0.1:1 -o /proc"),
        (2, "store put k /nonexistent"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let run = command(&words).stdin(Stdio::null()).output().map(super::finish).expect("the program starts");
        assert_eq!(run.code, code, "{line}: {run:?}");
        assert_eq!(run.stdout, "", "{line}");
        text.push_str(&format!("$ mcctl {line}\n{}\n", run.stderr));
    }
    insta::with_settings!({prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!("errors", text);
    });
}

#[test]
fn a_command_without_subcommand_lists_the_subcommands() {
    assert!(mcctl(&[]).fails(2).contains("Usage: mcctl"));
    assert!(mcctl(&["serve"]).fails(2).contains("\n  master "));
}

#[test]
fn an_error_is_one_line_if_stderr_is_not_a_terminal() {
    for args in [&["serv"][..], &["serve", "master", "--rpc_prot=1"], &["bench", "transfer", "--nonsense"]] {
        assert_eq!(mcctl(args).fails(2).lines().count(), 1, "{args:?}");
    }
}

#[test]
fn a_closed_pipe_is_success() {
    let mut child = command(&["serve", "master", "--help"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let mut child = command(&["--help"]).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut first = [0; 1];
    child.stdout.take().expect("piped").read_exact(&mut first).expect("a byte");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn an_unreachable_master_is_3() {
    // A port that was free a moment ago.
    let port = free_port();
    let at = format!("--master=127.0.0.1:{port}");
    let admin = format!("--admin=127.0.0.1:{port}");
    for args in [&["status", &*admin][..], &["store", "exists", "k", &at, &admin], &["store", "ls", &at, &admin]] {
        assert!(mcctl(args).fails(3).contains(&format!("127.0.0.1:{port}")), "{args:?}");
    }
}

#[test]
fn a_variable_that_is_not_utf8_is_2() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = command(&["store", "exists", "k"]);
    command.env("MOONCAKE_MASTER", std::ffi::OsStr::from_bytes(b"\xff:1"));
    let run = super::finish(command.output().expect("the program starts"));
    assert!(run.fails(2).contains("MOONCAKE_MASTER is not UTF-8"), "{run:?}");
}
