//! Facts about the build, for `mcctl version` and for tests.
//!
//! `MCCTL_PEERS=off` at build time makes the tests against the real Mooncake `#[ignore]`, so that
//! `cargo test` lists them as not run.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(peers_off)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MCCTL_PEERS");
    if env::var("MCCTL_PEERS").is_ok_and(|value| value == "off") {
        println!("cargo::rustc-cfg=peers_off");
    }
    println!("cargo::rustc-env=MCCTL_BUILD_TARGET={}", env::var("TARGET").unwrap_or_default());
    println!("cargo::rustc-env=MCCTL_BUILD_PROFILE={}", profile());
    // A development build does not name the commit: otherwise each commit would compile the crate
    // again.
    if env::var("PROFILE").is_ok_and(|profile| profile == "release")
        && let Some(commit) = commit(&PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()))
    {
        println!("cargo::rustc-env=MCCTL_BUILD_COMMIT={commit}");
    }
}

/// The name of the profile's directory in the target directory: `debug` for the profile `dev`.
/// `PROFILE` has only `debug` and `release`.
fn profile() -> String {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let named = out.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "build"));
    let name = named.and_then(Path::parent).and_then(Path::file_name).and_then(|name| name.to_str());
    name.map_or_else(|| env::var("PROFILE").unwrap_or_default(), str::to_owned)
}

/// The git commit of the source in `root`: from `MCCTL_COMMIT`, from git's files, or from the file
/// that `cargo package` writes. git itself is not required. Only files that exist are watched,
/// because cargo reruns this script each time if one is missing.
fn commit(root: &Path) -> Option<String> {
    println!("cargo::rerun-if-env-changed=MCCTL_COMMIT");
    let given = env::var("MCCTL_COMMIT").ok();
    given.or_else(|| checked_out(root)).or_else(|| packaged(root)).map(|id| id.trim().to_owned()).filter(|id| is_id(id))
}

/// The commit that is checked out.
fn checked_out(root: &Path) -> Option<String> {
    let at = root.join(".git");
    // In a worktree, .git is a file that names the directory.
    let folder = match read(&at.join("HEAD")) {
        Some(_) => at,
        None => root.join(read(&at)?.strip_prefix("gitdir:")?.trim()),
    };
    let head = watched(&folder.join("HEAD"))?;
    // A commit after `git gc` creates the file of the branch, which does not exist until then. The
    // log of HEAD changes with each commit.
    watch(&folder.join("logs/HEAD"));
    let Some(name) = head.strip_prefix("ref:").map(str::trim) else { return Some(head) };
    // The branches of a worktree are in the directory of the repository.
    let shared = read(&folder.join("commondir")).map_or(folder.clone(), |path| folder.join(path.trim()));
    watched(&shared.join(name)).or_else(|| {
        let packed = watched(&shared.join("packed-refs"))?;
        packed.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' ').map(str::to_owned))
    })
}

/// The commit in `.cargo_vcs_info.json`.
fn packaged(root: &Path) -> Option<String> {
    let text = watched(&root.join(".cargo_vcs_info.json"))?;
    let (_, after) = text.split_once("\"sha1\"")?;
    after.split('"').nth(1).map(str::to_owned)
}

fn is_id(text: &str) -> bool {
    text.len() >= 7 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The text of `path`, a change of which runs this script again.
fn watched(path: &Path) -> Option<String> {
    watch(path);
    read(path)
}

/// Runs this script again if `path` changes.
fn watch(path: &Path) {
    if path.is_file() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
