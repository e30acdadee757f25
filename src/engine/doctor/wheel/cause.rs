//! Why Python cannot import the wheel, and what to do next.

use mcctl_base::check::Severity;
use mcctl_base::upstream::SERIES;

use super::python::{ImportResult, PythonReport};

/// The cause of a failed import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImportCause {
    pub severity: Severity,
    pub finding: String,
    /// The error message, on one line.
    pub message: String,
    pub remedy: String,
}

/// The end of the dynamic loader's message about a library that it does not find.
const NOT_FOUND: &str = ": cannot open shared object file";

/// The shared library that the dynamic loader did not find.
pub(super) fn missing_library(import: &ImportResult) -> Option<&str> {
    let ImportResult::Failed { message, .. } = import else { return None };
    message.split_once(NOT_FOUND)?.0.rsplit([' ', '/']).next().filter(|name| name.contains(".so"))
}

/// Whether `library` has a digest in its name, as the wheel's own libraries do:
/// `libglog-6ed04f2c.so.0`.
fn is_of_wheel(library: &str) -> bool {
    let digest = library.split_once(".so").and_then(|(name, _)| name.rsplit_once('-'));
    digest.is_some_and(|(_, digest)| digest.len() == 8 && digest.chars().all(|c| c.is_ascii_hexdigit()))
}

/// The cause of the failed import of `report`. `elsewhere` is a directory with the library that the
/// loader did not find.
pub(super) fn of(report: &PythonReport, elsewhere: Option<&str>) -> ImportCause {
    let (kind, module, text) = match &report.import {
        ImportResult::Failed { kind, module, message } => (kind.as_str(), module.as_deref(), message.clone()),
        ImportResult::Ended(how) => ("", None, how.clone()),
        ImportResult::Loaded { file } => ("", None, file.clone()),
    };
    let python = &report.python;
    let wheel = report.installed.wheels.first();
    let name = wheel.map_or("mooncake-transfer-engine", |wheel| wheel.name.as_str());
    let reinstall = format!("{python} -m pip install --force-reinstall {name}");
    let message = text.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned();
    let mut severity = Severity::Error;
    let (finding, remedy) = if let (Some(library), Some(folder)) = (missing_library(&report.import), elsewhere) {
        severity = Severity::Warning;
        (
            format!("{library} is found only after its own package was imported (as importing torch does)"),
            format!("export LD_LIBRARY_PATH={folder}"),
        )
    } else if let Some(library) = missing_library(&report.import).filter(|library| is_of_wheel(library)) {
        (format!("{library} is missing: it is a file of the wheel"), reinstall)
    } else if let Some(library) = missing_library(&report.import) {
        (
            format!("{library} is missing: importing the wheel or starting its programs fails"),
            library_remedy(library, wheel.is_some_and(|wheel| wheel.is_without_cuda())),
        )
    } else if kind.is_empty() {
        (
            "Python ended while it imported the wheel".to_owned(),
            format!("find the statement at which it ends: {python} -X faulthandler -c 'import mooncake.store'"),
        )
    } else if message.contains("Python version mismatch")
        || ["undefined symbol: Py", "undefined symbol: _Py"].iter().any(|text| message.contains(text))
    {
        (format!("the wheel was built for another version than Python {}", report.installed.version), reinstall)
    } else if message.contains("version `GLIBC") {
        (
            "a system library is older than those with which the wheel was built".to_owned(),
            "use an image of a newer distribution".to_owned(),
        )
    } else if kind == "ModuleNotFoundError" {
        match module {
            Some(module) if module.split('.').next() != Some("mooncake") => (
                format!("the Python module {module} is missing: the wheel needs it"),
                format!("{python} -m pip install {module}"),
            ),
            _ => (
                "files of the wheel are missing: it is incomplete or for another version of Python".to_owned(),
                reinstall,
            ),
        }
    } else {
        (format!("importing the wheel fails with {kind}"), reinstall)
    };
    ImportCause { severity, finding, message, remedy }
}

/// How to install a library.
fn library_remedy(library: &str, is_without_cuda: bool) -> String {
    let known: &[(&str, &str)] = &[
        ("libibverbs.so", "apt install libibverbs1 ibverbs-providers (RHEL: libibverbs); required for TCP too"),
        ("libmlx5.so", "apt install ibverbs-providers (RHEL: libibverbs)"),
        ("librdmacm.so", "apt install librdmacm1 (RHEL: librdmacm)"),
        ("libnuma.so", "apt install libnuma1 (RHEL: numactl-libs)"),
        ("libcurl.so", "apt install libcurl4 (RHEL: libcurl)"),
        ("liburing.so", "apt install liburing2 (RHEL: liburing)"),
        ("libstdc++.so", "apt install libstdc++6 (RHEL: libstdc++)"),
        ("libssl.so", "apt install libssl3 (RHEL: openssl-libs)"),
        (
            "libcuda.so",
            "this container has no NVIDIA driver: run it with --gpus all, or use mooncake-transfer-engine-non-cuda",
        ),
    ];
    if let Some((_, remedy)) = known.iter().find(|(name, _)| library.starts_with(name)) {
        return (*remedy).to_owned();
    }
    if let Some(major) = library.strip_prefix("libcudart.so.") {
        return if is_without_cuda {
            format!(
                "this wheel release was built incorrectly: pip install 'mooncake-transfer-engine-non-cuda>={SERIES}' (or the CUDA wheel on a CUDA host)"
            )
        } else {
            format!(
                "without a GPU: uninstall it and pip install mooncake-transfer-engine-non-cuda; with a GPU: use a CUDA {major} image, or the wheel for the installed CUDA"
            )
        };
    }
    format!("install the package that contains {library} (apt-file search {library}, or dnf provides '*/{library}')")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel::python::{Installed, Wheel};

    fn cause(name: &str, kind: &str, module: Option<&str>, message: &str) -> (Option<String>, ImportCause) {
        let wheel = Wheel { name: name.to_owned(), release: "0.3.13".to_owned(), packages: "/p".to_owned() };
        let installed = Installed { version: "3.12.1".to_owned(), wheels: vec![wheel] };
        let import = ImportResult::Failed {
            kind: kind.to_owned(),
            module: module.map(str::to_owned),
            message: message.to_owned(),
        };
        let library = missing_library(&import).map(str::to_owned);
        (library, of(&PythonReport { python: "/v/bin/python3".to_owned(), installed, import }, None))
    }

    #[test]
    fn each_error_of_an_import_has_its_cause() {
        let cuda = "mooncake-transfer-engine";
        let plain = "mooncake-transfer-engine-non-cuda";
        let version = "Python version mismatch: module was compiled for Python 3.11,\nbut 3.12 runs it.";
        let text: String = [
            (cuda, "ImportError", None, "libcudart.so.12: cannot open shared object file: No such file or directory"),
            (
                plain,
                "ImportError",
                None,
                "/p/libibverbs.so.1: cannot open shared object file: No such file or directory",
            ),
            (cuda, "ModuleNotFoundError", Some("numpy"), "No module named 'numpy'"),
            (cuda, "ModuleNotFoundError", Some("mooncake.store"), "No module named 'mooncake.store'"),
            (cuda, "ImportError", None, version),
            (cuda, "ImportError", None, "/lib/libm.so.6: version `GLIBC_2.38' not found (required by store.so)"),
            (cuda, "ImportError", None, "/p/store.so: undefined symbol: _PyThreadState_UncheckedGet"),
            (
                cuda,
                "ImportError",
                None,
                "libglog-6ed04f2c.so.0: cannot open shared object file: No such file or directory",
            ),
            (cuda, "RuntimeError", None, "odd"),
        ]
        .map(|(name, kind, module, message)| {
            let (library, cause) = cause(name, kind, module, message);
            assert_eq!(library.is_some(), message.contains("cannot open"), "{message}");
            format!("{}\n  {}\n  {}\n", cause.finding, cause.message, cause.remedy)
        })
        .concat();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_library_of_another_package_is_a_warning() {
        let import = ImportResult::Failed {
            kind: "ImportError".to_owned(),
            module: None,
            message: format!("libcudart.so.12{NOT_FOUND}"),
        };
        let report = PythonReport { python: "python3".to_owned(), installed: Installed::default(), import };
        let cause = of(&report, Some("/p/nvidia/cuda_runtime/lib"));
        assert_eq!((cause.severity, cause.remedy.contains("/p/nvidia")), (Severity::Warning, true));
        let ended = PythonReport { import: ImportResult::Ended("signal: 4 (SIGILL)".to_owned()), ..report };
        assert_eq!(of(&ended, None).message, "signal: 4 (SIGILL)");
    }
}
