//! Rendered units, verified by systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{all_fixtures, fixture};
use crate::cli::mcctl;

/// Runs `systemd-analyze verify` on `units`. Returns whether it accepts them, and its messages.
fn verify(units: &[PathBuf]) -> (bool, String) {
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units).output();
    let output = output.expect("systemd-analyze (Debian package: systemd)");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The paths in a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
#[ignore = "needs systemd-analyze"]
fn systemd_accepts_every_unit() {
    for name in all_fixtures() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().to_str().expect("text");
        mcctl(&["render", "systemd", &fixture(&name), "--out", out]).succeeds();
        for host in entries(folder.path()) {
            let paths = entries(&host.join("etc/systemd/system"));
            assert!(!paths.is_empty());
            let (accepted, errors) = verify(&paths);
            // systemd-analyze also reports problems in units of this host.
            let ours: Vec<&str> =
                errors.lines().filter(|line| paths.iter().any(|p| line.contains(unit_name(p)))).collect();
            assert!(accepted && ours.is_empty(), "{name}: {errors}");
        }
    }
}

/// The highest exposure of masters, store nodes and metadata proxies, in tenths. A unit without a
/// sandbox has 9.6.
const EXPOSURE_MAX: &str = "30";

/// Whether systemd rates the exposure of the unit at most [`EXPOSURE_MAX`], and its report.
fn is_locked_down(unit: &Path) -> (bool, String) {
    let args = ["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX];
    let output = Command::new("systemd-analyze").args(args).arg(unit).output();
    let output = output.expect("systemd-analyze (Debian package: systemd)");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
#[ignore = "needs systemd-analyze"]
fn systemd_rates_the_exposure_of_masters_and_nodes_as_low() {
    let mut rated = 0;
    for name in all_fixtures() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().to_str().expect("text");
        mcctl(&["render", "systemd", &fixture(&name), "--out", out]).succeeds();
        for unit in entries(folder.path()).iter().flat_map(|host| entries(&host.join("etc/systemd/system"))) {
            let is_restricted =
                ["-master", "-store", "-metadata-proxy"].iter().any(|role| unit_name(&unit).contains(role));
            let (accepted, report) = is_locked_down(&unit);
            // An engine is not restricted, which also shows that the threshold has an effect.
            assert_eq!(accepted, is_restricted, "{name} {}: {report}", unit_name(&unit));
            rated += usize::from(is_restricted);
        }
    }
    assert!(rated >= 10, "{rated}");
}

fn unit_name(path: &Path) -> &str {
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
