//! Writes files to a directory and preserves files that the user has changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::whole_file::{IfExists, StagedFile};
use crate::engine::deploy::render::RenderedFile;

/// Writes `files` under `dir` and prints their names. If a file exists with different contents,
/// nothing is written unless `force` is set.
///
/// # Errors
/// A file exists with different contents, or cannot be written.
pub fn write_files(dir: &Path, files: &[RenderedFile], force: bool) -> Result<(), Failure> {
    let mut same = Vec::new();
    for file in files {
        let path = dir.join(&file.name);
        let unchanged = match fs::read(&path) {
            Ok(found) if found == file.text.as_bytes() => true,
            Ok(_) if force => false,
            Ok(_) => {
                return Err(Failure::usage(format!("{} already exists with different contents", path.display()))
                    .found("nothing was written")
                    .next("use --force to overwrite it"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(write_error(&path, &error)),
        };
        same.push(unchanged);
    }
    let changed = files.iter().zip(&same).filter(|(_, same)| !**same).map(|(file, _)| file);
    for (path, staged) in stage(dir, changed)? {
        staged.commit(IfExists::Replace).map_err(|error| write_error(&path, &error))?;
    }
    for (file, same) in files.iter().zip(same) {
        let path = dir.join(&file.name);
        output::line(format!("{}  {}", if same { "same " } else { "wrote" }, path.display()))?;
    }
    Ok(())
}

/// Writes all of `files` under temporary names, or none of them. systemd would load a partially
/// written unit as if it were complete.
///
/// # Errors
/// A file cannot be written. Directories that did not exist are removed.
fn stage<'a>(dir: &Path, files: impl Iterator<Item = &'a RenderedFile>) -> Result<Vec<(PathBuf, StagedFile)>, Failure> {
    let mut staged = Vec::new();
    let mut created = Vec::new();
    for file in files {
        let path = dir.join(&file.name);
        match create_folder(path.parent().unwrap_or(dir), &mut created)
            .and_then(|()| StagedFile::new(&path, file.text.as_bytes()))
        {
            Ok(file) => staged.push((path, file)),
            Err(error) => {
                drop(staged);
                // A directory that contains other files by now is kept.
                created.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
                return Err(write_error(&path, &error).tried("write all files to temporary names; nothing was changed"));
            }
        }
    }
    Ok(staged)
}

/// Creates `folder` and its parents. Adds those that did not exist to `created`, parents first.
fn create_folder(folder: &Path, created: &mut Vec<PathBuf>) -> io::Result<()> {
    let is_missing = |above: &&Path| !above.as_os_str().is_empty() && above.symlink_metadata().is_err();
    let missing: Vec<PathBuf> = folder.ancestors().take_while(is_missing).map(Path::to_owned).collect();
    created.extend(missing.into_iter().rev());
    fs::create_dir_all(folder)
}

fn write_error(path: &Path, error: &io::Error) -> Failure {
    Failure::host(format!("cannot write {}", path.display())).found(error.to_string())
}
