//! The inputs of the lint rules on a command line: single files, and the files in a directory that
//! may belong to a deployment.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::commands::cli::error::Failure;
use crate::commands::cli::input;
use crate::engine::base::text::escaped;
use crate::engine::lint::{FILE_BYTES_MAX, ReadError};

/// Maximum number of files per directory.
const FILES_MAX: usize = 1000;
/// Maximum depth of subdirectories.
const DEPTH_MAX: usize = 8;
/// Extensions of the files that are read in a directory.
const EXTENSIONS: &[&str] = &["yaml", "yml", "json", "toml", "service", "env", "sh", "bash"];

/// A file and its contents.
#[derive(Debug)]
pub struct LintInput {
    /// The name shown in findings.
    pub name: String,
    /// The contents, up to one byte more than the limit, so that the parser detects a file that is
    /// too large.
    pub bytes: Vec<u8>,
    /// Whether the user specified the directory that contains the file, and not the file itself.
    /// The file may then be unrelated to the deployment.
    pub is_from_folder: bool,
}

impl LintInput {
    /// Whether to skip the file without an error, because it is in a specified directory but not
    /// part of a deployment.
    pub fn is_skipped(&self, error: &ReadError) -> bool {
        let is_other = matches!(error, ReadError::Unknown | ReadError::Empty | ReadError::NothingToCheck { .. });
        self.is_from_folder && is_other
    }
}

/// Reads the inputs `names` in order. The second list contains the inputs that cannot be read, with
/// their errors.
pub fn load(names: &[String]) -> (Vec<LintInput>, Vec<(String, Failure)>) {
    let mut inputs = Vec::new();
    let mut unread = Vec::new();
    for name in names {
        if name == "-" || !Path::new(name).is_dir() {
            match bytes(name) {
                Ok(bytes) => inputs.push(LintInput { name: shown(name).to_owned(), bytes, is_from_folder: false }),
                Err(failure) => unread.push((shown(name).to_owned(), failure)),
            }
            continue;
        }
        match files(Path::new(name)) {
            Ok(paths) if paths.is_empty() => {
                let failure = Failure::usage(format!("no deployment files in {name}"))
                    .tried(format!("look for files ending in .{} in {name}", EXTENSIONS.join(", .")))
                    .next("pass the files, or another directory");
                unread.push((name.clone(), failure));
            }
            Ok(paths) => {
                for path in paths {
                    match bytes(&path) {
                        Ok(bytes) => inputs.push(LintInput { name: path, bytes, is_from_folder: true }),
                        Err(failure) => unread.push((path, failure)),
                    }
                }
            }
            Err(failure) => unread.push((name.clone(), failure)),
        }
    }
    (inputs, unread)
}

/// The error if every file in the directories `names` was skipped. A lint run that checked no file
/// must not succeed.
pub fn nothing_in(names: &[String]) -> Failure {
    Failure::usage(format!("no file in {} is part of a deployment", names.join(", ")))
        .tried("detect the type of each file from its contents")
        .next("pass the deployment's directory, or pass its files with --kind")
}

/// The error message for a file that cannot be parsed.
pub fn unreadable(name: &str, error: &ReadError) -> Failure {
    let at = error.line().map_or_else(|| escaped(name), |line| format!("{}:{line}", escaped(name)));
    let next = match error {
        ReadError::Unknown => "pass --kind KIND if the file is one of these types",
        ReadError::Empty => "pass a file that is not empty",
        _ => "fix the file, or pass --kind KIND",
    };
    Failure::usage(format!("cannot read {at}")).found(error.to_string()).next(next)
}

/// The name shown in findings.
fn shown(name: &str) -> &str {
    if name == "-" { "stdin" } else { name }
}

fn bytes(name: &str) -> Result<Vec<u8>, Failure> {
    let most = FILE_BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = match name {
        "-" => io::stdin().lock().take(most).read_to_end(&mut bytes),
        path => input::open(Path::new(path)).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|error| {
        Failure::usage(format!("cannot read {}", escaped(shown(name))))
            .tried(format!("read {}", escaped(name)))
            .found(error.to_string())
            .next("pass an existing file or directory, or - for stdin")
    })?;
    Ok(bytes)
}

/// The files under `top` that may belong to a deployment, sorted. Symbolic links to directories are
/// not followed.
fn files(top: &Path) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    let mut folders = vec![(top.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let cannot = |error: io::Error| {
            Failure::usage(format!("cannot read directory {}", folder.display())).found(error.to_string())
        };
        for entry in fs::read_dir(&folder).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_env = name.starts_with(".env");
            if name.starts_with('.') && !is_env {
                continue;
            }
            let kind = entry.file_type().map_err(cannot)?;
            let extension =
                name.rsplit_once('.').map_or_else(String::new, |(_, extension)| extension.to_ascii_lowercase());
            if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            } else if !kind.is_dir() && (is_env || EXTENSIONS.contains(&extension.as_str())) && entry.path().is_file() {
                found.push(entry.path().to_string_lossy().into_owned());
            }
            if found.len() > FILES_MAX {
                return Err(Failure::usage(format!("{} has more than {FILES_MAX} files", top.display()))
                    .next("pass a directory that contains one deployment"));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_with_too_many_files_is_the_one_that_was_passed() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        for i in 0..=FILES_MAX {
            fs::write(inner.join(format!("{i}.env")), "").unwrap();
        }
        let failure = files(folder.path()).unwrap_err();
        assert!(failure.what.starts_with(&format!("{} has more than", folder.path().display())), "{}", failure.what);
    }

    #[test]
    fn a_file_over_the_limit_is_not_reported_with_a_wrong_size() {
        let text = unreadable("a", &ReadError::TooLarge { most: FILE_BYTES_MAX }).to_string();
        assert!(text.contains("more than 4194304 bytes"), "{text}");
    }

    #[test]
    fn extensions_in_upper_case_are_read() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["A.TOML", "b.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(files(folder.path()).unwrap().len(), 1);
    }
}
