//! The files that a command line names: each itself, and those of a folder that may describe a deployment.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::commands::error::Failure;
use crate::commands::input;
use crate::engine::lint::{FILE_BYTES_MAX, ReadError};

/// Files of one folder.
const FILES_MAX: usize = 1000;
/// Folders below one another.
const DEPTH_MAX: usize = 8;
/// Endings of files that are read in a folder.
const EXTENSIONS: &[&str] = &["yaml", "yml", "json", "service", "env", "sh", "bash"];

/// A file and its bytes.
#[derive(Debug)]
pub struct Input {
    /// The name in findings.
    pub name: String,
    /// At most one byte more than is allowed.
    pub bytes: Vec<u8>,
    /// Was only its folder named? Then it may be about something else.
    pub is_of_folder: bool,
}

impl Input {
    /// Is it to be passed over without an error: a file of a folder that is not part of a deployment?
    pub fn is_passed_over(&self, error: &ReadError) -> bool {
        let is_other = matches!(error, ReadError::Unknown | ReadError::Empty | ReadError::NothingToCheck { .. });
        self.is_of_folder && is_other
    }
}

/// What `names` name, in their order; and the names of those that cannot be read, with the reason.
pub fn load(names: &[String]) -> (Vec<Input>, Vec<(String, Failure)>) {
    let (mut inputs, mut unread) = (Vec::new(), Vec::new());
    for name in names {
        if name == "-" || !Path::new(name).is_dir() {
            match bytes(name) {
                Ok(bytes) => inputs.push(Input { name: shown(name).to_owned(), bytes, is_of_folder: false }),
                Err(failure) => unread.push((shown(name).to_owned(), failure)),
            }
            continue;
        }
        match files(Path::new(name)) {
            Ok(paths) if paths.is_empty() => {
                let failure = Failure::usage(format!("no manifest in {name}"))
                    .tried(format!("look for {} in {name}", EXTENSIONS.join(", ")))
                    .next("name the files, or another folder");
                unread.push((name.clone(), failure));
            }
            Ok(paths) => {
                for path in paths {
                    match bytes(&path) {
                        Ok(bytes) => inputs.push(Input { name: path, bytes, is_of_folder: true }),
                        Err(failure) => unread.push((path, failure)),
                    }
                }
            }
            Err(failure) => unread.push((name.clone(), failure)),
        }
    }
    (inputs, unread)
}

/// The error where every file of the folders `names` was passed over: a check that looked at nothing must not pass.
pub fn nothing_in(names: &[String]) -> Failure {
    Failure::usage(format!("no file of a deployment in {}", names.join(", ")))
        .tried("to tell each file's kind by its content")
        .next("name the folder of the deployment, or its files with --kind")
}

/// The name in findings.
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
        Failure::usage(format!("cannot read {}", shown(name)))
            .tried(format!("read {name}"))
            .found(error.to_string())
            .next("name an existing file or folder; - reads stdin")
    })?;
    Ok(bytes)
}

/// The files below `folder` that may describe a deployment, in order. Links to folders are not followed.
fn files(folder: &Path) -> Result<Vec<String>, Failure> {
    let (mut found, mut folders) = (Vec::new(), vec![(folder.to_owned(), 0)]);
    while let Some((folder, depth)) = folders.pop() {
        let cannot = |error: io::Error| {
            Failure::usage(format!("cannot read the folder {}", folder.display())).found(error.to_string())
        };
        for entry in fs::read_dir(&folder).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_env = name.starts_with(".env");
            if name.starts_with('.') && !is_env {
                continue;
            }
            let kind = entry.file_type().map_err(cannot)?;
            let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
            if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((entry.path(), depth + 1));
            } else if !kind.is_dir() && (is_env || EXTENSIONS.contains(&extension)) && entry.path().is_file() {
                found.push(entry.path().to_string_lossy().into_owned());
            }
            if found.len() > FILES_MAX {
                return Err(Failure::usage(format!("{} has more than {FILES_MAX} files", folder.display()))
                    .next("name the folder of one deployment"));
            }
        }
    }
    found.sort();
    Ok(found)
}
