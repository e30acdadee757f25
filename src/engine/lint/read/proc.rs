//! Running processes and environments, from what `/proc` or the system says of them. Nothing is read here: bytes come in.

use crate::engine::check::Place;
use crate::engine::lint::read::{PARTS_MAX, launch};
use crate::engine::lint::scene::{Habitat, Process, Role, Said, Variable};

/// The process `pid` by its `/proc/PID/cmdline` and, if it may be read, its `/proc/PID/environ`; `None` when it is none of ours.
pub fn process(pid: u32, cmdline: &[u8], environ: Option<&[u8]>) -> Option<Process> {
    let place = Place { file: format!("pid {pid}").into(), line: 0 };
    let words = parts(cmdline).map(|word| Said::new(word, place.clone())).collect::<Vec<_>>();
    let mut base = Process::new(format!("pid {pid}"), Role::Other, place.clone(), Habitat::Running);
    base.network = "this host".to_owned();
    base.env_whole = environ.is_some();
    for pair in parts(environ.unwrap_or_default()) {
        if let Some((name, value)) = pair.split_once('=') {
            base.env.insert(name.to_owned(), Variable::Text(Said::new(value, place.clone())));
        }
    }
    // A shell that waits for what it started is not that process.
    let shell =
        words.first().is_some_and(|w| matches!(launch::program(&w.text), "sh" | "bash" | "dash" | "docker" | "podman"));
    let mut out = Vec::new();
    if !shell {
        launch::start(&base, &words, 0, &mut out);
    }
    out.pop().filter(|process| process.role != Role::Other)
}

/// An environment without a process, as `place` (`environment`).
pub fn environment(place: &str, variables: impl IntoIterator<Item = (String, String)>) -> Process {
    let place = Place { file: place.into(), line: 0 };
    let mut process = Process::new(place.file.to_string(), Role::Environment, place.clone(), Habitat::Running);
    process.network = "this host".to_owned();
    process.args_whole = false;
    let ours = |name: &str| ["MC_", "MOONCAKE_", "SGLANG_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in variables.into_iter().filter(|(name, _)| ours(name)).take(PARTS_MAX) {
        process.env.insert(name, Variable::Text(Said::new(value, place.clone())));
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
    use crate::engine::lint::scene::Mode;

    #[test]
    fn a_running_server_is_known_by_its_words_and_a_shell_is_not() {
        let line = b"/usr/bin/python3\0-m\0sglang.launch_server\0--disaggregation-mode\0decode\0";
        let process = process(7, line, Some(b"MOONCAKE_MASTER=m:1\0A=b\0")).expect("one of ours");
        assert_eq!((process.role, process.name.as_str()), (Role::Sglang(Mode::Decode), "pid 7"));
        assert_eq!(process.var("MOONCAKE_MASTER").map(|v| v.text.as_str()), Some("m:1"));
        assert_eq!(process.place.to_string(), "pid 7");
        assert_eq!(super::process(8, b"sh\0-c\0mooncake_master\0", None), None);
        assert_eq!(super::process(9, b"", None), None);
    }
}
