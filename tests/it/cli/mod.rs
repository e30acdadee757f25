//! Tests of the command line through the built binary.

mod bench_flags;
mod bench_store;
mod bench_transfer;
mod describe;
mod doctor;
mod exit;
mod files;
mod flags;
mod help;
mod json;
mod link;
mod logs;
mod node;
mod objects;
mod patience;
mod real;
pub mod serve;
pub mod service;
mod shared_memory;
mod status;
mod terminal;
mod up;
mod verify;

use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::peer::process::PATIENCE;
use crate::schemas::{self, is_as_described};

/// Exit code and output of a finished run.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Assert the exit code `code`, and that stdout is empty or, with `--json`, the error document.
    /// Returns stderr.
    #[track_caller]
    pub fn fails(&self, code: i32) -> &str {
        assert_eq!(self.code, code, "{self:?}");
        if self.stdout.contains(schemas::ERROR) {
            self.error_document();
        } else {
            assert_eq!(self.stdout, "", "errors go to stderr");
        }
        self.stderr.trim_end()
    }

    /// Assert that stdout is one error document, with the exit code of the run. Returns it.
    #[track_caller]
    pub fn error_document(&self) -> Value {
        let document: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!((&document["schema"], &document["exit_code"]), (&schemas::ERROR.into(), &self.code.into()));
        document
    }

    /// Assert exit code 0. Returns stdout.
    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.code, 0, "{self:?}");
        &self.stdout
    }
}

/// The program in an environment without its variables.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcctl"));
    for (name, _) in std::env::vars_os() {
        if ["MC_", "MCCTL_", "MOONCAKE_", "FLAGS_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.args(args);
    command
}

/// `program` with the default reaction to SIGHUP, as a terminal starts it. Under `nohup` the tests
/// ignore SIGHUP, and their children inherit that.
pub fn with_hangups(program: &Command) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Run the program with `args` until it exits.
pub fn mcctl(args: &[&str]) -> Run {
    finish(command(args).output().expect("the program starts"))
}

/// Run the program with `args` until it exits.
///
/// # Panics
/// The program runs for longer than [`PATIENCE`].
#[track_caller]
pub fn mcctl_in_time(args: &[&str]) -> Run {
    mcctl_within(PATIENCE, args)
}

/// Like [`mcctl_in_time`], with another limit.
#[track_caller]
pub fn mcctl_within(limit: Duration, args: &[&str]) -> Run {
    let mut command = command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the program starts");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    let (send, ended) = channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(limit) else {
        let _ = kill(pid, Signal::SIGKILL);
        panic!("mcctl {args:?} runs for longer than {limit:?}");
    };
    finish(output.expect("our child"))
}

/// A finished process as a [`Run`]. Each JSON document on stdout must be as its schema describes
/// it.
pub fn finish(output: Output) -> Run {
    let run = Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    run.stdout.lines().filter_map(schemas::document_in).for_each(|document| is_as_described(&document));
    run
}
