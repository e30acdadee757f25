//! Running processes and environments, from the contents of `/proc` files. This module does no I/O.

use crate::lint::model::{LocatedValue, Process, ProcessRole, RuntimeKind, Variable};
use crate::lint::read::{PARTS_MAX, launch};
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::shell::word::base_name;
use mcctl_base::check::SourceLocation;

/// The process `pid`, from `/proc/PID/cmdline` and, if readable, `/proc/PID/environ`. `None` if it
/// is not a supported program.
pub fn process(pid: u32, cmdline: &[u8], environ: Option<&[u8]>) -> Option<Process> {
    let place = SourceLocation { file: format!("pid {pid}").into(), line: 0 };
    let words = parts(cmdline).map(|word| LocatedValue::new(word, place.clone())).collect::<Vec<_>>();
    let mut base = Process::new(format!("pid {pid}"), ProcessRole::Other, place.clone(), RuntimeKind::Running);
    base.network = "this host".to_owned();
    base.env_whole = environ.is_some();
    for pair in parts(environ.unwrap_or_default()) {
        if let Some((name, value)) = pair.split_once('=') {
            base.env.insert(name.to_owned(), Variable::Text(LocatedValue::new(value, place.clone())));
        }
    }
    // A shell that waits for its child must not be reported as the child.
    let shell =
        words.first().is_some_and(|w| matches!(base_name(&w.text), "sh" | "bash" | "dash" | "docker" | "podman"));
    let mut out = ScriptEffects::default();
    if !shell {
        launch::start(&base, &words, 0, &mut out);
    }
    out.processes.pop().filter(|process| process.role != ProcessRole::Other)
}

/// An environment without a process, located at `place` (`environment`).
pub fn environment(place: &str, variables: impl IntoIterator<Item = (String, String)>) -> Process {
    let place = SourceLocation { file: place.into(), line: 0 };
    let mut process =
        Process::new(place.file.to_string(), ProcessRole::Environment, place.clone(), RuntimeKind::Running);
    process.network = "this host".to_owned();
    process.args_whole = false;
    let ours = |name: &str| ["MC_", "MOONCAKE_", "SGLANG_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in variables.into_iter().filter(|(name, _)| ours(name)).take(PARTS_MAX) {
        process.env.insert(name, Variable::Text(LocatedValue::new(value, place.clone())));
    }
    process
}

fn parts(bytes: &[u8]) -> impl Iterator<Item = String> {
    let parts = bytes.split(|byte| *byte == 0).take(PARTS_MAX);
    parts.filter(|part| !part.is_empty()).map(|part| String::from_utf8_lossy(part).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::model::SglangMode;

    #[test]
    fn a_server_is_recognized_by_its_command_line_and_a_shell_is_not() {
        let line = b"/usr/bin/python3\0-m\0sglang.launch_server\0--disaggregation-mode\0decode\0";
        let process = process(7, line, Some(b"MOONCAKE_MASTER=m:1\0A=b\0")).expect("one of ours");
        assert_eq!((process.role, process.name.as_str()), (ProcessRole::Sglang(SglangMode::Decode), "pid 7"));
        assert_eq!(process.var("MOONCAKE_MASTER").map(|v| v.text.as_str()), Some("m:1"));
        assert_eq!(process.place.to_string(), "pid 7");
        assert_eq!(super::process(8, b"sh\0-c\0mooncake_master\0", None), None);
        assert_eq!(super::process(9, b"", None), None);
    }
}
