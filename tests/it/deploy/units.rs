//! Rendered units, verified by systemd.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{all_fixtures, fixture};
use crate::cli::mcctl;

/// Runs `systemd-analyze verify` on `units`. Returns whether it accepts them, and its messages.
fn verify(units: &[PathBuf]) -> (bool, String) {
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units).output();
    let output = output.expect("systemd-analyze (Debian package: systemd)");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
#[ignore = "needs systemd-analyze"]
fn systemd_accepts_every_unit() {
    for name in all_fixtures() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().to_str().expect("text");
        mcctl(&["render", "systemd", &fixture(&name), "--out", out]).succeeds();
        for host in fs::read_dir(folder.path()).expect("a folder") {
            let units = host.expect("a host").path().join("etc/systemd/system");
            let paths: Vec<_> = fs::read_dir(&units).expect("units").map(|unit| unit.expect("a unit").path()).collect();
            assert!(!paths.is_empty());
            let (accepted, errors) = verify(&paths);
            // systemd-analyze also reports problems in units of this host.
            let ours: Vec<&str> =
                errors.lines().filter(|line| paths.iter().any(|p| line.contains(unit_name(p)))).collect();
            assert!(accepted && ours.is_empty(), "{name}: {errors}");
        }
    }
}

fn unit_name(path: &std::path::Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("text")
}

/// Without this, `systemd_accepts_every_unit` could pass because systemd-analyze checks nothing.
#[test]
#[ignore = "needs systemd-analyze"]
fn systemd_reports_an_unknown_key_of_a_unit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broken.service");
    fs::write(&path, "[Service]\nType=exec\nExecStrat=/bin/true\n").expect("written");
    // Whether an unknown key is an error or a warning depends on the release of systemd.
    let (_, messages) = verify(&[path]);
    assert!(messages.lines().any(|line| line.contains("broken.service") && line.contains("ExecStrat")), "{messages}");
}
