//! Tests of the wheel checks, with scripts in place of an interpreter, and with the real wheel.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::{Host, verdict};
use crate::peer;

const CUDA: &str = "mooncake-transfer-engine";
const PLAIN: &str = "mooncake-transfer-engine-non-cuda";
const RELEASE: &str = "0.3.13.post1";

/// A virtual environment whose interpreter is a script.
struct Environment(TempDir);

impl Environment {
    /// The interpreter lists `wheels`, names with releases, and then prints `import`.
    fn new(wheels: &[(&str, &str)], import: &str) -> Environment {
        let dir = tempfile::tempdir().unwrap();
        let packages = dir.path().join("packages");
        let wheel = |(name, release): &(&str, &str)| json!({"name": name, "release": release, "packages": packages});
        let installed = json!({"version": "3.11.7", "wheels": wheels.iter().map(wheel).collect::<Vec<_>>()});
        let environment = Environment(dir);
        environment.script("bin/python3", &format!("#!/bin/sh\ncat <<'END'\n{installed}\n{import}\nEND\n"));
        environment
    }

    /// An environment with one wheel, whose import fails with an `ImportError`.
    fn failing(name: &str, message: &str) -> Environment {
        let import = json!({"kind": "ImportError", "module": null, "message": message});
        Environment::new(&[(name, RELEASE)], &import.to_string())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn script(&self, name: &str, text: &str) {
        let file = self.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[track_caller]
    fn verdict(&self, id: &str) -> String {
        verdict(id, &[("PATH", "/usr/bin")], &[&format!("--python={}", self.path().display())])
    }
}

const LOADED: &str = r#"{"file": "/packages/mooncake/store.so"}"#;

#[test]
fn a_wheel_that_python_cannot_import_is_found() {
    assert_eq!(Environment::new(&[(PLAIN, RELEASE)], LOADED).verdict("wheel-import"), "passed");
    let missing = "libcudart.so.12: cannot open shared object file: No such file or directory";
    let environment = Environment::failing(CUDA, missing);
    assert_eq!(environment.verdict("wheel-import"), "error");
    let folder = environment.path().join("packages/nvidia/cuda_runtime/lib");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libcudart.so.12"), "").unwrap();
    assert_eq!(environment.verdict("wheel-import"), "warning", "importing torch finds it");
    assert_eq!(Environment::new(&[(PLAIN, RELEASE)], "Segmentation fault").verdict("wheel-import"), "error");
    assert_eq!(Environment::new(&[], LOADED).verdict("wheel-import"), "skipped");
    assert_eq!(Host::healthy().verdict("wheel-import", &[], &[]), "skipped", "the Python of another host");
    environment.script("bin/python3", "#!/bin/sh\nexit 1\n");
    assert_eq!(environment.verdict("wheel-import"), "skipped");
}

#[test]
fn a_wrong_wheel_or_release_is_found() {
    let right = Environment::new(&[(PLAIN, RELEASE)], LOADED);
    assert_eq!(right.verdict("wheel-installed"), "passed");
    assert_eq!(Environment::new(&[(PLAIN, "0.3.10.post2")], LOADED).verdict("wheel-installed"), "passed");
    assert_eq!(Environment::new(&[(PLAIN, "0.3.5")], LOADED).verdict("wheel-installed"), "warning");
    assert_eq!(Environment::new(&[(PLAIN, RELEASE), (CUDA, RELEASE)], LOADED).verdict("wheel-installed"), "error");
    // The master on PATH belongs to an environment: of the same wheel, and of another one.
    let verdict = |of: &Environment| {
        of.script("bin/mooncake_master", &format!("#!{}/bin/python3\nimport mooncake\n", of.path().display()));
        let path = format!("{}/bin:/usr/bin", of.path().display());
        verdict("wheel-release", &[("PATH", &path)], &[&format!("--python={}/bin/python3", right.path().display())])
    };
    assert_eq!(verdict(&right), "passed");
    assert_eq!(verdict(&Environment::new(&[(CUDA, "0.3.12.post1")], LOADED)), "warning");
    assert_eq!(verdict(&Environment::new(&[], LOADED)), "skipped");
    assert_eq!(right.verdict("wheel-release"), "skipped", "no master is on PATH");
}

/// The wheel's own files must not be reported as missing.
#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_real_wheel_is_imported() {
    let program = peer::wheel::wheel().python().get_program().to_str().unwrap().to_owned();
    for id in ["wheel-installed", "wheel-import"] {
        assert_eq!(verdict(id, &[], &[&format!("--python={program}")]), "passed", "{id}");
    }
}
