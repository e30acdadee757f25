//! Finds the Python interpreter, and runs a program in it that reports which Mooncake wheel it
//! imports. `cause.rs` and `mod.rs` judge the report.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use mcctl_sys::FileTree;
use serde::Deserialize;

use crate::running::{Fact, Unavailable};

/// Maximum time of one interpreter.
const RUN_MAX: Duration = Duration::from_secs(15);
/// Maximum time in which the output of an interpreter that was killed ends.
const DRAIN_MAX: Duration = Duration::from_millis(100);
/// Maximum output that is read from an interpreter, in bytes.
const OUTPUT_MAX: u64 = 1 << 20;
/// File names of a Python interpreter.
const PYTHONS: &[&str] = &["python3", "python"];
/// The program that the interpreter runs.
const PROBE: &str = include_str!("probe.py");

/// Where to search for an interpreter.
#[derive(Clone, Debug, Default)]
pub struct WheelSearch {
    /// An interpreter, or the directory that contains its `bin`. If set, only this one is used.
    pub python: Option<String>,
    /// `VIRTUAL_ENV`, `CONDA_PREFIX`.
    pub prefixes: Vec<String>,
    /// The directories in `PATH`.
    pub path: Vec<String>,
}

/// A Mooncake wheel that `sys.path` contains.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Wheel {
    /// The distribution name, e.g. `mooncake-transfer-engine`.
    pub name: String,
    /// The version, e.g. `0.3.13.post1`.
    pub release: String,
    /// The package directory that contains it.
    pub packages: String,
}

impl Wheel {
    /// Whether the wheel was built without CUDA.
    pub(super) fn is_without_cuda(&self) -> bool {
        self.name.ends_with("-non-cuda")
    }
}

/// What an interpreter reported before the import.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Installed {
    /// Python's version.
    pub version: String,
    /// The wheels on `sys.path`, in its order.
    pub wheels: Vec<Wheel>,
}

/// The result of `import mooncake.store`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum ImportResult {
    Loaded {
        file: String,
    },
    Failed {
        /// The class of the exception.
        kind: String,
        /// The module that was not found or did not load.
        module: Option<String>,
        message: String,
    },
    /// The interpreter ended, or was ended, during the import.
    #[serde(skip)]
    Ended(String),
}

/// An interpreter's report.
#[derive(Clone, Debug)]
pub(super) struct PythonReport {
    pub python: String,
    pub installed: Installed,
    pub import: ImportResult,
}

/// The interpreter that `search` selects.
pub(super) fn interpreter(tree: &FileTree, search: &WheelSearch) -> Option<String> {
    let in_folder = |folder: &str| {
        let names = PYTHONS.iter().map(|name| format!("{}/{name}", folder.trim_end_matches('/')));
        names.into_iter().find(|path| tree.resolve(path).is_some())
    };
    let bin = |prefix: &String| format!("{}/bin", prefix.trim_end_matches('/'));
    match &search.python {
        Some(prefix) if matches!(tree.names(prefix), Ok(Some(_))) => in_folder(&bin(prefix)),
        Some(python) => Some(python.clone()),
        None => {
            search.prefixes.iter().map(bin).chain(search.path.iter().cloned()).find_map(|folder| in_folder(&folder))
        }
    }
}

/// Runs `python`, and returns its report.
///
/// # Errors
/// The interpreter cannot be started, or does not list its packages.
pub(super) fn report(python: &str) -> Fact<PythonReport> {
    let (text, ended) =
        run(python, RUN_MAX).map_err(|error| Unavailable::new(format!("cannot run {python}: {error}")))?;
    parse(python, &text, &ended)
}

/// The report of `python`, which wrote `text` and `ended` so.
///
/// # Errors
/// `text` has no list of packages.
fn parse(python: &str, text: &str, ended: &str) -> Fact<PythonReport> {
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    let Some(installed) = text.lines().find_map(|line| serde_json::from_str(line).ok()) else {
        return Err(Unavailable::new(format!("{python} cannot list its packages ({ended}): {}", last.trim())));
    };
    let import = text.lines().find_map(|line| serde_json::from_str(line).ok());
    let import = import.unwrap_or_else(|| ImportResult::Ended(ended.to_owned()));
    Ok(PythonReport { python: python.to_owned(), installed, import })
}

/// Runs the probe in `python` without input, for at most `limit`. Returns its output, and how it
/// ended.
fn run(python: &str, limit: Duration) -> io::Result<(String, String)> {
    let (reader, writer) = io::pipe()?;
    // -B: nothing is written, not even compiled modules.
    let mut child = Command::new(python)
        .args(["-B", "-c", PROBE])
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    let (sender, receiver) = mpsc::channel();
    let read = move || {
        let mut bytes = Vec::new();
        // What was read before an error counts. The receiver is gone if the time is over.
        let _ = reader.take(OUTPUT_MAX).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    };
    let reading = thread::Builder::new().name("python-output".to_owned()).spawn(read);
    let on_time = receiver.recv_timeout(limit);
    // It has closed its output or exceeds a limit. The exit status of a process that has ended
    // stays the same.
    let _ = child.kill();
    let status = child.wait()?;
    reading?;
    let ended =
        if on_time.is_ok() { status.to_string() } else { format!("it did not end within {} s", limit.as_secs_f64()) };
    let bytes = on_time.or_else(|_| receiver.recv_timeout(DRAIN_MAX)).unwrap_or_default();
    Ok((String::from_utf8_lossy(&bytes).into_owned(), ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_import_follows_the_list_of_packages() {
        let first = r#"{"version": "3.11.7", "wheels": [{"name": "mooncake-x", "release": "1", "packages": "/p"}]}"#;
        let import = |rest: &str| parse("python3", &format!("note\n{first}\n{rest}"), "signal: 4").unwrap().import;
        assert_eq!(import(r#"{"file": "/p/store.so"}"#), ImportResult::Loaded { file: "/p/store.so".to_owned() });
        let failed = import(r#"{"kind": "ImportError", "module": null, "message": "no"}"#);
        assert!(matches!(failed, ImportResult::Failed { module: None, .. }), "{failed:?}");
        assert_eq!(import("Fatal"), ImportResult::Ended("signal: 4".to_owned()));
        let text = "Traceback\nModuleNotFoundError: importlib.metadata\n";
        let reason = String::from(parse("python2", text, "exit status: 1").unwrap_err());
        assert!(reason.contains("python2") && reason.ends_with("importlib.metadata"), "{reason}");
    }

    #[test]
    fn an_interpreter_that_hangs_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let python = dir.path().join("python3");
        std::fs::write(&python, "#!/bin/sh\necho started\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (text, ended) = run(python.to_str().unwrap(), Duration::from_millis(500)).unwrap();
        assert_eq!((text.as_str(), ended.as_str()), ("started\n", "it did not end within 0.5 s"));
    }
}
