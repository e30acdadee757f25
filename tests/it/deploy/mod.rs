//! `mcctl init` and `mcctl render`.

mod command;
mod dashboards;
mod files;
mod hosts;
mod init;
mod keys_page;
mod kustomize;
mod monitoring;
mod one_file;
mod profile;
mod units;
mod written;

use std::path::{Path, PathBuf};

/// The folder with the deployment files of the tests.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/deploy")
}

/// The path of a deployment file, as an argument.
fn fixture(name: &str) -> String {
    fixtures().join(name).to_str().expect("text").to_owned()
}

/// The names of all deployment files.
fn all_fixtures() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(fixtures())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert!(names.len() >= 8, "{names:?}");
    names
}

/// The output formats for plain hosts.
const FORMATS: [&str; 5] = ["env", "sglang", "systemd", "docker", "compose"];
