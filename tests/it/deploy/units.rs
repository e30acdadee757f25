//! Rendered units, verified by systemd.

use std::fs;
use std::io::Write;
use std::process::Command;

use super::{all_fixtures, fixture};
use crate::cli::mcctl;

#[test]
fn systemd_accepts_every_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let _ = writeln!(std::io::stderr(), "NOT TESTED: rendered units: systemd-analyze is not installed");
        return;
    }
    for name in all_fixtures() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().to_str().expect("text");
        mcctl(&["render", "systemd", &fixture(&name), "--out", out]).succeeds();
        for host in fs::read_dir(folder.path()).expect("a folder") {
            let units = host.expect("a host").path().join("etc/systemd/system");
            let paths: Vec<_> = fs::read_dir(&units).expect("units").map(|unit| unit.expect("a unit").path()).collect();
            assert!(!paths.is_empty());
            let output =
                Command::new("systemd-analyze").arg("verify").arg("--man=no").args(&paths).output().expect("ran");
            let errors = String::from_utf8_lossy(&output.stderr);
            // systemd-analyze also reports problems in units of this host.
            let ours: Vec<&str> =
                errors.lines().filter(|line| paths.iter().any(|p| line.contains(unit_name(p)))).collect();
            assert!(output.status.success() && ours.is_empty(), "{name}: {errors}");
        }
    }
}

fn unit_name(path: &std::path::Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("text")
}

#[test]
fn systemd_rejects_a_broken_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broken.service");
    fs::write(&path, "[Service]\nType=exec\nExecStrat=/bin/true\n").expect("written");
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().expect("ran");
    assert!(!output.status.success() || !output.stderr.is_empty());
}
