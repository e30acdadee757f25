//! The `mcctl` binary: passes its arguments to the library and returns the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    mcctl::commands::main(std::env::args_os().collect())
}
