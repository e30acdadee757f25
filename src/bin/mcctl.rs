//! The `mcctl` binary: parse, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    mcctl::commands::main(std::env::args_os().collect())
}
