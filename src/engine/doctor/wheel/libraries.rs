//! Finds libraries that a wheel's binaries need but the dynamic loader would not find.
//!
//! The search order is the same as in `ld.so`: directories in the binary itself (`$ORIGIN` is its own directory), `LD_LIBRARY_PATH`,
//! `/etc/ld.so.conf`, and the default directories.

use std::collections::{BTreeMap, BTreeSet};

use crate::wheel::elf::{self, Dynamic};
use mcctl_base::upstream::SERIES;
use mcctl_sys::FileTree;

/// The loader's default directories.
const USUAL: &[&str] = &[
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];
/// Maximum number of binaries inspected.
const FILES_MAX: usize = 512;
/// Maximum depth of nested includes in `ld.so.conf`.
const INCLUDE_DEPTH_MAX: usize = 4;

/// Searches for libraries as the dynamic loader does.
pub(super) struct LibraryLoader<'a> {
    tree: &'a FileTree,
    before: Vec<String>,
    after: Vec<String>,
}

impl LibraryLoader<'_> {
    /// Creates a loader with this `LD_LIBRARY_PATH`.
    pub(super) fn new<'a>(tree: &'a FileTree, library_path: &str) -> LibraryLoader<'a> {
        let before =
            library_path.split([':', ';']).filter(|folder| folder.starts_with('/')).map(str::to_owned).collect();
        let mut after = Vec::new();
        configured(tree, "/etc/ld.so.conf", 0, &mut after);
        after.extend(USUAL.iter().map(|folder| (*folder).to_owned()));
        LibraryLoader { tree, before, after }
    }

    /// Missing libraries, each with the paths of the files that need it.
    pub(super) fn missing(&self, files: &[String]) -> BTreeMap<String, BTreeSet<String>> {
        let mut missing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut queue: Vec<(String, Vec<String>)> = files.iter().map(|file| (file.clone(), Vec::new())).collect();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        while let Some((file, inherited)) = queue.pop() {
            if seen.len() >= FILES_MAX || !seen.insert(file.clone()) {
                continue;
            }
            let Some(dynamic) = self.tree.open(&file).ok().flatten().and_then(elf::read) else { continue };
            let origin = file.rsplit_once('/').map_or("/", |(folder, _)| folder).to_owned();
            let own = |folders: &[String]| folders.iter().map(|folder| expand(folder, &origin)).collect::<Vec<_>>();
            let Dynamic { needed, rpath, runpath } = dynamic;
            let (rpath, runpath) = ([own(&rpath), inherited].concat(), own(&runpath));
            for name in needed {
                // The rpath of the loading binary applies only if the loaded one has no runpath.
                let first: &[String] = if runpath.is_empty() { &rpath } else { &[] };
                match self.search(&name, &[first, &self.before, &runpath]) {
                    Some(path) => queue.push((path, rpath.clone())),
                    None if self.search(&name, &[&self.after]).is_some() => {}
                    None => {
                        missing.entry(name).or_default().insert(file.clone());
                    }
                }
            }
        }
        missing
    }

    fn search(&self, name: &str, folders: &[&[String]]) -> Option<String> {
        folders.iter().flat_map(|list| list.iter()).find_map(|folder| {
            let path = if name.starts_with('/') { name.to_owned() } else { format!("{folder}/{name}") };
            self.tree.resolve(&path).map(|_| path)
        })
    }
}

fn expand(folder: &str, origin: &str) -> String {
    folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
}

/// Adds the directories from a loader configuration file and its includes.
fn configured(tree: &FileTree, path: &str, depth: usize, into: &mut Vec<String>) {
    let text = tree.text(path).ok().flatten().unwrap_or_default();
    for entry in text.lines().map(|entry| entry.split('#').next().unwrap_or_default().trim()) {
        let Some(pattern) = entry.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) else {
            if entry.starts_with('/') {
                into.push(entry.trim_end_matches('/').to_owned());
            }
            continue;
        };
        let Some((folder, name)) = pattern.trim().rsplit_once('/') else { continue };
        let Some((head, tail)) = name.split_once('*') else { continue };
        for file in tree.names(folder).ok().flatten().unwrap_or_default() {
            if depth < INCLUDE_DEPTH_MAX && file.starts_with(head) && file.ends_with(tail) {
                configured(tree, &format!("{folder}/{file}"), depth + 1, into);
            }
        }
    }
}

/// How to install a library.
pub(super) fn remedy(library: &str, flavour: &str) -> String {
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
        return if flavour == "non-cuda" {
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
