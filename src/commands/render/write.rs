//! Writes files to a directory and preserves files that the user has changed.

use std::fs;
use std::io;
use std::path::Path;

use crate::commands::error::Failure;
use crate::commands::output;
use crate::engine::deploy::render::RenderedFile;

/// Writes `files` under `dir` and prints their names. If a file exists with different contents, nothing is written unless `force` is set.
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
    for (file, same) in files.iter().zip(same) {
        let path = dir.join(&file.name);
        if !same {
            let folder = path.parent().unwrap_or(dir);
            fs::create_dir_all(folder)
                .and_then(|()| write_atomically(&path, &file.text))
                .map_err(|error| write_error(&path, &error))?;
        }
        output::line(format!("{}  {}", if same { "same " } else { "wrote" }, path.display()))?;
    }
    Ok(())
}

/// Writes `text` atomically, because systemd would load a partially written unit as if it were complete.
fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = Path::new(&name);
    let written = fs::write(new, text).and_then(|()| fs::rename(new, path));
    if written.is_err() {
        // The file might not exist.
        let _ = fs::remove_file(new);
    }
    written
}

fn write_error(path: &Path, error: &io::Error) -> Failure {
    Failure::host(format!("cannot write {}", path.display())).found(error.to_string())
}
